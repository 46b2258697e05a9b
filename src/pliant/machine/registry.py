"""The registry of what runs on this machine: how a command finds the job or the pool that is meant.

Owns the files below the user's state directory that say where something is served, and who may
talk to it; and the choice of the one that is meant.  Knows nothing of what is served, nor of runs
that have ended (``observe.runs``).

    <state>/pliant/jobs/gpt.json       {"job": "gpt", "url": ..., "pid": ..., "out": ..., ...}
    <state>/pliant/jobs/gpt.token      for this user only
    <state>/pliant/prometheus/job-gpt.json    [{"targets": ["127.0.0.1:43121"], ...}]: file_sd
    <state>/pliant/pools/default.json  {"pool": "default", ...}, and its token
    <state>/pliant/pools/default/      its files, which outlive it:
        events.jsonl  state.json  running.lock  devices/<d>.lock

    <shared>/ml/             0710  a pool that the users of a group share: of who started it, and
        socket               0660    of the group; the kernel lets nobody else connect, and who may
        .shared              0600    not enter the directory does not learn what listens there
        devices/             (``machine.device_locks``)

Who looks removes what the dead have left.  That nobody removes what a process that follows is just
writing, the lock of the directory sees to; it is held for the moment of either.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pliant.core.errors import ConfigError
from pliant.core.tenancy import DEFAULT_POOL
from pliant.core.text import is_moment
from pliant.core.values import TlsFiles
from pliant.machine.files import PRIVATE, is_shared_directory, open_private, read_own, replace_file
from pliant.machine.interfaces import peer_of
from pliant.machine.locks import lock
from pliant.machine.processes import ProcessMark

SHARED_POOLS = Path("/var/lib/pliant/pools")
"""Where pools lie that users of a group share, unless the environment says otherwise."""

SHARED_POOLS_VARIABLE = "PLIANT_SHARED_POOLS"

ALONE_LOCK = ".lock"
"""In such a directory where directories themselves cannot be locked."""

WRITE_S = 2.0
"""How long a record waits for who removes others, in seconds; it is written all the same then."""

START = "pliant pool start --devices N"

PROMETHEUS = "prometheus"
"""Directory of what Prometheus reads to find what is served here, beside those of the records."""

DEVICES = "devices"
"""Directory of the locks of a pool's devices, inside its own."""

ENDING_S = 5.0
"""What a pool that was told to stop may take, in seconds."""

POLL_S = 0.05
"""How often one that ends is looked for, in seconds."""

SOCKET = "socket"

CONNECT_S = 2.0
"""Longest wait for a pool to take a connection, in seconds; its kernel does at once."""

LONGEST_PATH = 107
"""Bytes of the path of a Unix socket."""


class NotRunningError(ConfigError):
    """The job or the pool that is meant does not run; no other is meant."""


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
class Handle:
    """What it takes to talk to a job or a pool; of itself, a job that another host coordinates."""

    kind: str = "job"
    """``job`` or ``pool``."""

    name: str
    """What it is called; a job elsewhere by its place, as that was typed."""

    url: str
    tls: TlsFiles | None = None
    """It is reached over TLS, by who has these."""

    socket: Path | None = None
    """It is reached by this Unix socket and by no port: the kernel says who asks."""

    secret: str = field(default="", repr=False)
    """The token of a job elsewhere."""

    headers: Callable[[], Mapping[str, str]] = field(default=dict, repr=False)
    """Return what every request carries besides, for who passes it on."""

    trust: ssl.SSLContext | bool | None = field(default=None, repr=False)
    """Whom to trust to be there; None: what ``tls`` says."""

    def token(self) -> str:
        """Return the token that its REST interface asks for; empty: it asks for none."""
        return self.secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Served(Handle):
    """A job or a pool of this machine: one record whose process lives."""

    pid: int
    out: Path
    """Where its files lie."""

    started: float
    token_file: Path
    mark: ProcessMark
    """Its process: ids are used again, after a reboot soon."""

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

    @property
    def targets(self) -> Path:
        """Return what Prometheus reads, which finds all of a user by ``prometheus/*.json``."""
        place = self.record.parent.parent / PROMETHEUS
        return place / f"{self.kind}-{self.record.stem}.json"

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
                self._write_targets(url)
                replace_file(self.record, json.dumps(values).encode(), mode=PRIVATE)
                if not self.token.exists():  # it was swept where there are no locks
                    replace_file(self.token, token.encode(), mode=PRIVATE)
        except OSError as error:
            sentence = f"{self.record.parent} cannot be written: {error.strerror}"
            raise ConfigError(sentence) from error

    def _write_targets(self, url: str) -> None:
        parts = urlsplit(url)
        labels = {"job": "pliant", "__scheme__": parts.scheme}
        self.targets.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        targets = [{"targets": [parts.netloc], "labels": labels}]
        replace_file(self.targets, json.dumps(targets).encode(), mode=PRIVATE)

    def _refuse_second(self) -> None:
        found = _read(self.kind, self.record)
        if found is not None and found.lives and found.mark != ProcessMark.own():
            raise name_taken(self.kind, self.record.stem)

    def remove(self) -> None:
        """Remove what ``write`` wrote, if it is still this process's."""
        with suppress(OSError, ValueError, KeyError):
            if json.loads(self.record.read_text())["pid"] == os.getpid():
                self.token.unlink(missing_ok=True)
                self.targets.unlink(missing_ok=True)
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
        for left in (one.token_file, RuntimeFiles.of(kind, path.stem, directory).targets, path):
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


def running_jobs(directory: Path) -> list[Served]:
    """Return every running job, oldest first; remove the records of those that are gone."""
    return served("job", directory)


def find_job(name: str | None, directory: Path) -> Served:
    """Return the running job that is meant; of several, if none is named, see ``meant``.

    Raises:
        NotRunningError: none runs, or none has that name.
    """
    found = served("job", directory)
    if name is not None:
        return _named("job", name, found, if_none="none is; start one with pliant run")
    if not found:
        raise NotRunningError("no job is running; start one with pliant run")
    places = {job.out: job for job in found}
    return places[meant(list(places))]


def meant(found: Sequence[Path]) -> Path:
    """Return the run that a command is about where several could be meant.

    That of this directory (its files lie below, or around us), else any; of several the newest.

    Args:
        found: the directories of runs, at least one, the newest last.
    """
    here = Path.cwd()
    whole = {out: out.absolute() for out in found}
    near = [o for o in found if whole[o].is_relative_to(here) or here.is_relative_to(whole[o])]
    return (near or found)[-1]


def running_pools(directory: Path) -> list[Served]:
    """Return every running pool, oldest first; remove the records of those that are gone."""
    return served("pool", directory)


def served_pools(directory: Path) -> list[Served]:
    """Return every running pool of a directory, shared ones as far as this user may see them."""
    return running_pools(directory) or shared_pools(directory)


def wait_for_end(pool: Served) -> None:
    """Wait until a pool that was told to stop is served no longer, for ``ENDING_S`` at most."""
    pause, until_s = threading.Event(), time.monotonic() + ENDING_S
    while time.monotonic() < until_s and any(
        (one.name, one.pid) == (pool.name, pool.pid) for one in served_pools(pool.out.parent)
    ):
        pause.wait(POLL_S)


def any_pool(name: str | None, state: StateDirectory) -> Served:
    """Return the pool that is meant, a user's own or a shared one; see ``find_pool``."""
    if name is not None:
        return find_pool(name, pool_place(name, state))
    return find_pool(None, state.pools if running_pools(state.pools) else state.shared_pools)


def find_pool(name: str | None, directory: Path) -> Served:
    """Return the pool that is meant; without a name the only one.  Of the others none is asked.

    Raises:
        NotRunningError: none runs, or none has that name.
        ConfigError: several do, and none was named.
    """
    found = running_pools(directory)
    if name is not None and all(one.name != name for one in found):
        named = shared_pool(name, directory)
        if named is not None:
            return named
    found = found or shared_pools(directory)
    if name is not None:
        start = START if name == DEFAULT_POOL else f"{START} --name {name}"
        return _named("pool", name, found, if_none=f"start it with {start}")
    if not found:
        raise NotRunningError(f"no pool is running; start one with {START}")
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise ConfigError(f"several pools are running, say which with --pool: {names}")
    return found[0]


def _named(kind: str, name: str, found: Sequence[Served], *, if_none: str) -> Served:
    """Return the one of a name; ``if_none`` says what to do where none runs at all."""
    names = [one.name for one in found]
    if name in names:
        return found[names.index(name)]
    others = f"running: {', '.join(names)}" if found else if_none
    raise NotRunningError(f"no {kind} named {name} is running; {others}")


def pool_place(name: str, state: StateDirectory) -> Path:
    """Return the directory in which a pool of this name is looked for: a user's own come first."""
    is_own = (state.pools / f"{name}.json").exists()
    if not is_own and is_shared_directory(state.shared_pools / name):
        return state.shared_pools
    return state.pools


def shared_pools(place: Path) -> list[Served]:
    """Return the shared pools that run and that this user may use, as far as they can be listed.

    One that could have been put there by anybody is passed over.
    """
    names, found = {DEFAULT_POOL}, []  # the directory need not be listed
    with suppress(OSError):
        names.update(path.name for path in place.iterdir())
    for name in sorted(names):
        with suppress(ConfigError):
            found.append(shared_pool(name, place))
    return [pool for pool in found if pool is not None]


def shared_pool(name: str, place: Path) -> Served | None:
    """Return a shared pool, if it runs and this user may use it.

    Raises:
        ConfigError: its directory could have been put there by anybody.
    """
    directory = place / name
    if not is_shared_directory(directory):
        return None
    path = directory / SOCKET
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return None
        peer, found = peer_of(probe), directory.stat()
    if peer is None or peer.uid not in (found.st_uid, 0) or found.st_mode & 0o022:
        raise ConfigError(
            f"{directory} may be changed by others than who runs the pool there; do not use it"
        )
    return Served(
        kind="pool",
        name=name,
        url="http://pool",
        pid=peer.pid,
        out=directory,
        started=found.st_mtime,
        token_file=path,
        mark=ProcessMark(pid=peer.pid),
        socket=path,
    )


def listen(directory: Path, gid: int, *, waiting: int) -> socket.socket:
    """Return a socket that members of a group may connect to.

    It is bound by way of the directory's descriptor: the table of sockets, which all users of the
    machine may read, does not say where it lies.

    Raises:
        ConfigError: it cannot be made.
    """
    path = directory / SOCKET
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"{path} is too long for a socket; at most {LONGEST_PATH} bytes")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock.bind(f"/proc/self/fd/{fd}/{SOCKET}")
        finally:
            os.close(fd)
        os.chown(path, -1, gid)
        path.chmod(0o660)
        sock.listen(waiting)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen at {path}: {error.strerror}") from error
    return sock
