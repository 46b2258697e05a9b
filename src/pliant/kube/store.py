"""Objects of one kind as this process knows them: what a watch told, and what it wrote itself.

Owns that knowledge never goes backward.  A writer puts what the API server answered, so it never
decides again on what was before its own write; a watch that is behind tells of an older version,
or of an object that this process has deleted, and is not believed.  Knows nothing of requests.

    reflector: listed, changed, removed --+
                                          +--> objects, by name, job, owner --> heard(old, new)
    writer: changed, removed -------------+
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

from pliant.kube.job import JOB_LABEL

Object = dict[str, Any]

Key = tuple[str, str]
"""Namespace and name; the namespace of what has none is empty."""

Index = Callable[[Object], Iterable[Hashable]]
"""Under what an object is found."""

Heard = Callable[[Object | None, Object | None], None]
"""Told of an object as it was and as it is; None: there was none, there is none."""

MOST_GONE = 2000
"""Of which it is remembered that they have gone: for much longer than a request takes."""


def by_job(body: Object) -> Iterable[Hashable]:
    """Find an object by namespace and name of the job whose label it has."""
    meta = body["metadata"]
    job = meta.get("labels", {}).get(JOB_LABEL)
    return () if job is None else ((meta.get("namespace", ""), job),)


def by_owner(body: Object) -> Iterable[Hashable]:
    """Find an object by the uid of its controller."""
    owners = body["metadata"].get("ownerReferences", ())
    return tuple(owner["uid"] for owner in owners if owner.get("controller"))


def key_of(body: Mapping[str, Any]) -> Key:
    """Return namespace and name."""
    meta = body["metadata"]
    return meta.get("namespace", ""), meta["name"]


def version_of(body: Mapping[str, Any]) -> int:
    """Return the version: of one kind they are numbers that grow."""
    return int(body["metadata"]["resourceVersion"])


def slim(body: Object) -> Object:
    """Leave out what nobody here reads, which is up to half of an object."""
    meta = body["metadata"]
    meta.pop("managedFields", None)
    if (notes := meta.get("annotations")) is not None:
        notes.pop("kubectl.kubernetes.io/last-applied-configuration", None)
    return body


class Store:
    """Objects of one kind."""

    def __init__(
        self,
        *,
        slim: Callable[[Object], Object] = slim,
        indexes: Mapping[str, Index] | None = None,
    ) -> None:
        """``slim``: keeps of an object what is read."""
        self._slim = slim
        self._heard: Heard = lambda old, new: None
        self._objects: dict[Key, Object] = {}
        self._indexes = dict(indexes or {"job": by_job, "owner": by_owner})
        self._found: dict[tuple[str, Hashable], set[Key]] = defaultdict(set)
        self._gone: dict[str, None] = {}
        """Uids whose end is known; a watch, or an answer, may still tell of them."""

    def listen(self, heard: Heard) -> None:
        """Tell this one of each change of what is kept, from now on."""
        self._heard = heard

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(self._objects.values())

    def get(self, name: str, namespace: str = "") -> Object | None:
        """Return an object; None: there is none."""
        return self._objects.get((namespace, name))

    def by(self, index: str, value: Hashable) -> list[Object]:
        """Return what is found under a value of an index, by name."""
        return [self._objects[key] for key in sorted(self._found.get((index, value), ()))]

    def changed(self, body: Object) -> None:
        """Take an object as it is now, unless a newer one is known."""
        key, uid = key_of(body), body["metadata"]["uid"]
        old = self._objects.get(key)
        if uid in self._gone or (old is not None and version_of(old) >= version_of(body)):
            return
        body = self._slim(body)
        if old is not None:
            self._forget(key, old)
        self._objects[key] = body
        for place in self._places(body):
            self._found[place].add(key)
        if old is None or _but_version(old) != _but_version(body):
            self._heard(old, body)

    def removed(self, body: Mapping[str, Any]) -> None:
        """Take note that an object of this uid has gone."""
        key, uid = key_of(body), body["metadata"]["uid"]
        self._gone[uid] = None
        if len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]
        old = self._objects.get(key)
        if old is not None and old["metadata"]["uid"] == uid:
            self._forget(key, old)
            del self._objects[key]
            self._heard(old, None)

    def listed(self, bodies: Iterable[Object], *, version: str, namespace: str | None) -> None:
        """Take all there is, as of a version; ``namespace``: of that one only."""
        there = {key_of(body): body for body in bodies}
        for key, old in list(self._objects.items()):
            is_newer = version_of(old) > int(version)  # written after the list was made
            if namespace in (None, key[0]) and key not in there and not is_newer:
                self.removed(old)
        for body in there.values():
            self.changed(body)

    def _places(self, body: Object) -> Iterable[tuple[str, Hashable]]:
        return [(name, value) for name, index in self._indexes.items() for value in index(body)]

    def _forget(self, key: Key, body: Object) -> None:
        for place in self._places(body):
            self._found[place].discard(key)
            if not self._found[place]:
                del self._found[place]


def _but_version(body: Object) -> Object:
    meta = {name: value for name, value in body["metadata"].items() if name != "resourceVersion"}
    return {**body, "metadata": meta}
