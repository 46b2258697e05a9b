"""What a pod's volumes hold, as directories of this machine.

Owns the layout that a kubelet gives files of secrets, ConfigMaps and tokens, and gives again when
those change: a new directory, to which a link is turned in one move.

    token -> ..data/token
    ..data -> ..7
    ..7/token

An emptyDir is a directory of the pod, a PersistentVolumeClaim one of the cluster.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.api import Api, Object

_numbers = itertools.count()


class Volumes:
    """The volumes of one pod."""

    def __init__(self, api: Api, body: Object, ip: str, directory: Path, claims: Path) -> None:
        self._api, self._body, self._ip = api, body, ip
        self._directory, self._claims = directory, claims
        self._namespace = body["metadata"]["namespace"]
        self._group: int | None = body["spec"].get("securityContext", {}).get("fsGroup")
        self._volumes: dict[str, Object] = {v["name"]: v for v in body["spec"].get("volumes", [])}

    def lay_out(self) -> None:
        """Make every volume.

        Raises:
            ApiError: what one shows is not there yet.
        """
        for volume in self._volumes.values():
            path = self.path(volume["name"])
            path.mkdir(parents=True, exist_ok=True)
            if sources := list(_sources(volume)):
                self._write(path, sources, _mode_of(volume))
            elif not volume.keys() & {"emptyDir", "hostPath", "persistentVolumeClaim"}:
                raise NotImplementedError(f"the test kubelet has no volumes of kind {volume}")
            elif "hostPath" not in volume:
                if self._group is not None:
                    os.chown(path, -1, self._group)
                path.chmod(0o777 if self._group is None else 0o2777)

    def path(self, name: str) -> Path:
        """Return where a volume lies."""
        volume = self._volumes[name]
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            return self._claims / f"{self._namespace}_{claim}"
        return self._directory / name

    def refresh(self, kind: str, name: str) -> None:
        """Show the new content of a Secret or ConfigMap in all volumes that show it."""
        for volume in self._volumes.values():
            sources = list(_sources(volume))
            if any(_name_of(source) == (kind, name) for source in sources):
                self._write(self.path(volume["name"]), sources, _mode_of(volume))

    def _write(self, path: Path, sources: list[Object], mode: int) -> None:
        inner = path / f"..{next(_numbers)}"
        inner.mkdir()
        before = (path / "..data").resolve()
        for source in sources:
            for name, data, own_mode in self._files(source):
                file = inner / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
                kept = mode if own_mode is None else own_mode
                if self._group is not None:
                    os.chown(file, -1, self._group)
                    kept |= 0o040
                file.chmod(kept)
        (path / "..turned").symlink_to(inner.name)
        (path / "..turned").rename(path / "..data")
        for each in inner.iterdir():
            if not (path / each.name).is_symlink():
                (path / each.name).symlink_to(f"..data/{each.name}")
        if before != path / "..data":
            shutil.rmtree(before, ignore_errors=True)

    def _files(self, source: Object) -> Iterator[tuple[str, bytes, int | None]]:
        """Yield name, content and own mode of the files of a source."""
        (key,) = source
        given = source[key]
        if key == "serviceAccountToken":
            yield given["path"], self._token(given), None
        elif key == "downwardAPI":
            for item in given["items"]:
                value = field(self._body, item["fieldRef"]["fieldPath"], self._ip)
                yield item["path"], value.encode(), item.get("mode")
        else:
            kind, name = _name_of(source) or ("", "")
            found = self._api.get(kind, f"{self._namespace}/{name}")
            data = {
                name: base64.b64decode(value) if kind == "Secret" else value.encode()
                for name, value in found.get("data", {}).items()
            }
            items = given.get("items") or [{"key": name, "path": name} for name in data]
            for item in items:
                yield item["path"], data[item["key"]], item.get("mode")

    def _token(self, wanted: Object) -> bytes:
        account = self._body["spec"].get("serviceAccountName", "default")
        spec: Object = {
            "expirationSeconds": wanted.get("expirationSeconds", 3600),
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": self._body["metadata"]["name"],
                "uid": self._body["metadata"]["uid"],
            },
        }
        if "audience" in wanted:
            spec["audiences"] = [wanted["audience"]]
        path = f"{self._api.path('ServiceAccount', f'{self._namespace}/{account}')}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token: str = self._api.ask("POST", path, body)["status"]["token"]
        return token.encode()


def _sources(volume: Object) -> Iterator[Object]:
    """Yield what a volume shows, each as in a projected one."""
    yield from volume.get("projected", {}).get("sources", [])
    for key in ("secret", "configMap", "downwardAPI"):
        if key in volume:
            yield {key: volume[key]}


def _name_of(source: Object) -> tuple[str, str] | None:
    """Return kind and name of the object whose data a source shows."""
    for key, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
        if key in source:
            return kind, source[key].get("secretName") or source[key]["name"]
    return None


def _mode_of(volume: Object) -> int:
    for key in ("secret", "configMap", "downwardAPI", "projected"):
        if key in volume:
            return int(volume[key].get("defaultMode", 0o644))
    return 0o644


def field(body: Object, path: str, ip: str) -> str:
    """Return a field of a pod as its containers are told it."""
    if path in ("status.podIP", "status.podIPs"):
        return ip
    if (key := re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path)) is not None:
        return str(body["metadata"].get(key[1], {}).get(key[2], ""))
    value: Any = body
    for part in path.split("."):
        value = value[part]
    return str(value)
