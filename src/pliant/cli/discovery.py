"""Who serves on this machine: the records by which commands find jobs and pools.

Owns the files below the user's state directory that say where something is served, and who may
talk to it.  Knows nothing of what is served.

    <state>/pliant/jobs/gpt.json       {"job": "gpt", "url": ..., "pid": ..., "out": ..., ...}
    <state>/pliant/jobs/gpt.token      for this user only
    <state>/pliant/pools/default.json  {"pool": "default", ...}
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.wire.processes import process_started

STARTED_S = 60.0
"""A token without a record is of what was killed, if it is as old as that, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One discovery record whose process lives."""

    kind: str
    """``job`` or ``pool``."""

    name: str
    url: str
    pid: int
    out: Path
    """Where its files lie."""

    started: float
    token_file: Path

    def token(self) -> str:
        """Read the token that its REST interface asks for.

        Raises:
            ConfigError: only the user who started it can read it.
        """
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            raise ConfigError(
                f"the token of {self.kind} {self.name} cannot be read: {error.strerror}"
            ) from None


@dataclass(frozen=True, slots=True)
class RuntimeFiles:
    """What says that a job or a pool is served, and who may talk to it; gone when it ends."""

    kind: str
    record: Path
    token: Path

    @classmethod
    def of(cls, kind: str, name: str) -> RuntimeFiles:
        """Return those of a job or a pool."""
        directory = directory_of(kind)
        return cls(kind, directory / f"{name}.json", directory / f"{name}.token")

    def write(self, *, url: str, token: str, out: Path) -> None:
        """Write the token, for this user only, and then the record that points to it.

        Raises:
            ConfigError: the state directory cannot be written.
        """
        values = {
            self.kind: self.record.stem,
            "url": url,
            "pid": os.getpid(),
            "started": time.time(),
            "out": str(out.absolute()),
        }
        try:
            self.record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path, text in ((self.token, token), (self.record, json.dumps(values))):
                write_privately(path, text)
        except OSError as error:
            sentence = f"{self.record.parent} cannot be written: {error.strerror}"
            raise ConfigError(sentence) from error

    def remove(self) -> None:
        """Remove what ``write`` wrote, if it is still this process's."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads(self.record.read_text())["pid"] == os.getpid():
                self.token.unlink(missing_ok=True)
                self.record.unlink()  # last: whoever finds it alone knows what to remove


def directory_of(kind: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return where the records of all jobs, or of all pools, lie."""
    environ = os.environ if environ is None else environ
    state = environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(state) / "pliant" / f"{kind}s"


def served(kind: str, directory: Path | None = None) -> list[Served]:
    """Return what is served, oldest first; remove the records of what is gone."""
    directory = directory_of(kind) if directory is None else directory
    found = []
    for path in sorted(directory.glob("*.json")):
        one = _read(kind, path)
        if one is not None and process_started(one.pid) is not None:
            found.append(one)
        elif one is not None:
            for stale in (one.token_file, path):
                with suppress(OSError):
                    stale.unlink()
    _sweep(directory)
    return sorted(found, key=lambda one: one.started)


def write_privately(path: Path, text: str) -> None:
    """Write a file that only this user can read, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)


def _sweep(directory: Path) -> None:
    """Remove the tokens of what was killed before it could be found."""
    for token in directory.glob("*.token"):
        with suppress(OSError):
            is_old = time.time() - token.stat().st_mtime > STARTED_S
            if is_old and not token.with_suffix(".json").exists():
                token.unlink()


def _read(kind: str, path: Path) -> Served | None:
    try:
        values = json.loads(path.read_text())
        return Served(
            kind=kind,
            name=str(values[kind]),
            url=str(values["url"]),
            pid=int(values["pid"]),
            out=Path(values["out"]),
            started=float(values["started"]),
            token_file=path.with_suffix(".token"),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # being written, or not ours
