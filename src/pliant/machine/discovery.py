"""Who serves on this machine: the records by which commands find jobs and pools.

Owns the files below the user's state directory that say where something is served, and who may
talk to it.  Knows nothing of what is served.

    <state>/pliant/jobs/gpt.json       {"job": "gpt", "url": ..., "pid": ..., "out": ..., ...}
    <state>/pliant/jobs/gpt.token      for this user only
    <state>/pliant/pools/default.json  {"pool": "default", ...}

Who looks removes what the dead have left.  That nobody removes what a process that follows is just
writing, the lock of the directory sees to; it is held for the moment of either.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pliant.core.durations import is_moment
from pliant.core.errors import ConfigError
from pliant.core.tls_files import TlsFiles
from pliant.machine.files import PRIVATE, open_private, read_own, replace_file
from pliant.machine.locks import lock
from pliant.machine.processes import ProcessMark

SHARED_POOLS = Path("/var/lib/pliant/pools")
"""Where pools lie that users of a group share, unless the environment says otherwise."""

SHARED_POOLS_VARIABLE = "PLIANT_SHARED_POOLS"

ALONE_LOCK = ".lock"
"""In such a directory where directories themselves cannot be locked."""

WRITE_S = 2.0
"""How long a record waits for who removes others, in seconds; it is written all the same then."""


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """Where pliant keeps what the commands of a user find."""

    path: Path
    shared_pools: Path = SHARED_POOLS
    """Where the pools lie that users of a group share."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Return that of a user, by the environment."""
        state = environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
        shared = Path(environ.get(SHARED_POOLS_VARIABLE) or SHARED_POOLS)
        return cls(Path(state) / "pliant", shared_pools=shared.absolute())

    @property
    def jobs(self) -> Path:
        """Return where the records of jobs lie."""
        return self.path / "jobs"

    @property
    def runs(self) -> Path:
        """Return where it is kept which runs there were."""
        return self.path / "runs"

    @property
    def pools(self) -> Path:
        """Return where the records of pools lie, and each pool's own directory."""
        return self.path / "pools"


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
    mark: ProcessMark
    """Its process: ids are used again, after a reboot soon."""

    tls: TlsFiles | None = None
    """It is reached over TLS, by who has these."""

    socket: Path | None = None
    """It is reached by this Unix socket and by no port: the kernel says who asks."""

    @property
    def lives(self) -> bool:
        """Whether its process does, here."""
        return self.mark.lives() is True

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended; who shares the directory from elsewhere cannot tell."""
        return self.mark.lives() is False

    def token(self) -> str:
        """Read the token that its REST interface asks for; empty: it asks for none.

        Raises:
            ConfigError: only the user who started it can read it.
        """
        if self.socket is not None:
            return ""
        try:
            return read_own(self.token_file).decode("ascii").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no token"
            whose = f"the token of {self.kind} {self.name}"
            raise ConfigError(f"{whose} cannot be read: {why}") from None


@dataclass(frozen=True, slots=True)
class RuntimeFiles:
    """What says that a job or a pool is served, and who may talk to it; gone when it ends."""

    kind: str
    record: Path
    token: Path

    @classmethod
    def of(cls, kind: str, name: str, directory: Path) -> Self:
        """Return those of a job or a pool whose record lies there."""
        return cls(kind, directory / f"{name}.json", directory / f"{name}.token")

    def write(
        self,
        *,
        url: str,
        token: str,
        out: Path,
        tls: TlsFiles | None = None,
        is_alone: bool = False,
    ) -> None:
        """Write the token, for this user only, and then the record that points to it.

        ``is_alone``: of several that take the name at one moment the first has it.

        Raises:
            ConfigError: the state directory cannot be written, or another has the name.
        """
        values = {
            self.kind: self.record.stem,
            "url": url,
            **asdict(ProcessMark.own()),
            "started": time.time(),
            "out": str(out.absolute()),
            "tls": None if tls is None else asdict(tls),
        }
        try:
            self.record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with alone_in(self.record.parent, within_s=WRITE_S):
                if is_alone:
                    self._refuse_second()
                replace_file(self.token, token.encode(), mode=PRIVATE)
                replace_file(self.record, json.dumps(values).encode(), mode=PRIVATE)
                if not self.token.exists():  # it was swept where there are no locks
                    replace_file(self.token, token.encode(), mode=PRIVATE)
        except OSError as error:
            sentence = f"{self.record.parent} cannot be written: {error.strerror}"
            raise ConfigError(sentence) from error

    def _refuse_second(self) -> None:
        found = _read(self.kind, self.record)
        if found is not None and found.lives and found.mark != ProcessMark.own():
            raise name_taken(self.kind, self.record.stem)

    def remove(self) -> None:
        """Remove what ``write`` wrote, if it is still this process's."""
        with suppress(OSError, ValueError, KeyError):
            if json.loads(self.record.read_text())["pid"] == os.getpid():
                self.token.unlink(missing_ok=True)
                self.record.unlink()  # last: whoever finds it alone knows what to remove


def served(kind: str, directory: Path) -> list[Served]:
    """Return what is served, oldest first; remove the records of what is gone."""
    records = {path: _read(kind, path) for path in directory.glob("*.json")}
    found = [one for one in records.values() if one is not None and one.lives]
    stale = [path for path, one in records.items() if one is not None and one.is_gone]
    if stale or any(_is_orphan(token) for token in directory.glob("*.token")):
        with suppress(OSError), alone_in(directory, within_s=0) as is_alone:
            if is_alone:  # else whoever looks next removes them
                _sweep(kind, directory, stale)
    return sorted(found, key=lambda one: (one.started, one.name))


def name_taken(kind: str, name: str) -> ConfigError:
    """Return what is said to who gives a job or a pool the name of one that runs."""
    return ConfigError(f"a {kind} named {name} is running already; choose another with --name")


class NotRunningError(ConfigError):
    """The job or the pool that is meant does not run; no other is meant."""


def the_one(
    kind: str,
    found: list[Served],
    name: str | None,
    *,
    none_at_all: Callable[[], str],
    not_that_one: str,
    choose: Callable[[list[Served]], Served] | None = None,
) -> Served:
    """Return the job, or the pool, of ``found`` that is meant; without a name the only one.

    ``none_at_all`` says that none runs, ``not_that_one`` what to do if one was named then,
    ``choose`` takes one of several where none was named.

    Raises:
        NotRunningError: none runs, or none has that name.
        ConfigError: several do, none was named, and nothing chooses.
    """
    names = ", ".join(one.name for one in found)
    if name is not None:
        named = next((one for one in found if one.name == name), None)
        if named is not None:
            return named
        others = f"running: {names}" if found else not_that_one
        raise NotRunningError(f"no {kind} named {name} is running; {others}")
    if not found:
        raise NotRunningError(none_at_all())
    if len(found) > 1 and choose is None:
        raise ConfigError(f"several {kind}s are running, say which with --{kind}: {names}")
    return found[0] if choose is None else choose(found)


@contextmanager
def alone_in(directory: Path, *, within_s: float) -> Iterator[bool]:
    """Keep others from writing or removing records meanwhile; yield whether that is so."""
    with ExitStack() as opened:

        def locks(fd: int) -> bool:
            opened.callback(os.close, fd)
            return lock(fd, within_s=within_s)

        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        is_alone = True
        with suppress(OSError):  # a file system without locks: nothing to wait for
            try:
                is_alone = locks(fd)
            except OSError:  # NFS has none of directories
                is_alone = locks(open_private(directory / ALONE_LOCK, os.O_RDWR))
        yield is_alone


def _sweep(kind: str, directory: Path, stale: list[Path]) -> None:
    """Remove the records of the dead, and the tokens of what was killed before it was found."""
    for path in stale:
        one = _read(kind, path)
        if one is None or not one.is_gone:  # another has been written since
            continue
        for left in (one.token_file, path):
            with suppress(OSError):
                left.unlink()
    for token in directory.glob("*.token"):
        if _is_orphan(token):
            token.unlink(missing_ok=True)


def _is_orphan(token: Path) -> bool:
    """Whether a token is of what was killed before it could be found: both are written as one.

    No age is asked for: the wall clock may jump.
    """
    return not token.with_suffix(".json").exists()


def _read(kind: str, path: Path) -> Served | None:
    try:
        values = json.loads(read_own(path))
        mark, started = ProcessMark.of(values), float(values["started"])
        if mark is None or not is_moment(started):
            return None
        return Served(
            kind=kind,
            name=str(values[kind]),
            url=str(values["url"]),
            pid=mark.pid,
            out=Path(values["out"]),
            tls=None if (tls := values.get("tls")) is None else TlsFiles(**tls),
            started=started,
            token_file=path.with_suffix(".token"),
            mark=mark,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None  # being written, or not ours
