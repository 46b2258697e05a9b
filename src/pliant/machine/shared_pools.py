"""Pools that the users of a group share: where they lie, and how they are found.

Owns the directory, and the Unix socket in it that the kernel lets the group connect to and nobody
else: there is no port, and who may not enter the directory does not learn what listens there.
Knows nothing of what a pool is doing.

    <shared>/ml/             0710  of who started the pool, and of the group
        socket               0660  the same
        .shared              0600  says that this is no private pool
        events.jsonl  state.json  running.lock   0600
        devices/             (``machine.granted_locks``)
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.machine.discovery import Served, StateDirectory
from pliant.machine.files import is_shared_directory
from pliant.machine.peers import peer_of
from pliant.machine.processes import ProcessMark

SOCKET = "socket"

CONNECT_S = 2.0
"""Longest wait for a pool to take a connection, in seconds; its kernel does at once."""

LONGEST_PATH = 107
"""Bytes of the path of a Unix socket."""


def pool_place(name: str, state: StateDirectory) -> Path:
    """Return the directory in which a pool of this name is looked for: a user's own come first."""
    is_own = (state.pools / f"{name}.json").exists()
    if not is_own and is_shared_directory(state.shared_pools / name):
        return state.shared_pools
    return state.pools


def shared_pools(place: Path) -> list[Served]:
    """Return the shared pools that run and that this user may use, as far as they can be listed."""
    try:
        names = sorted(path.name for path in place.iterdir())
    except OSError:
        return []
    return [found for name in names if (found := trusted_pool(name, place)) is not None]


def trusted_pool(name: str, place: Path) -> Served | None:
    """Return a shared pool; one that could have been put there by anybody is passed over."""
    try:
        return shared_pool(name, place)
    except ConfigError:
        return None


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
