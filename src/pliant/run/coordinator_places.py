"""Where the coordinator of a job may be: a list of places, or a file that says it.

Owns how either is read, and the file.  Knows nothing of who connects there.

    10.0.0.1:7000,10.0.0.2:7000   each is tried in turn
    @runs/gpt/coordinator.json    what the coordinator wrote there when it began to serve
"""

from __future__ import annotations

import errno
import json
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from pliant.agent.uplink import Places
from pliant.core.errors import ConfigError
from pliant.core.takeover import CoordinatorSign
from pliant.machine.files import PRIVATE, read_own, replace_file

FILE_MARK = "@"
"""Begins what names a file."""

_SIGN: TypeAdapter[CoordinatorSign] = TypeAdapter(CoordinatorSign)


def agents_url(url: str) -> str:
    """Return where the agents of a coordinator connect."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise ConfigError(
            f"{url} is no place of a coordinator, such as gpu1:7000 or https://gpu1:7000"
        )
    return f"{schemes[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}/v1/agents"


def always_at(*urls: str) -> Places:
    """Return places that do not change."""
    found = tuple(map(agents_url, urls))
    return lambda: found


def places_of(join: str) -> Places:
    """Return the places that ``--join`` names.

    Raises:
        ConfigError: it names none.
    """
    if join.startswith(FILE_MARK):
        path = Path(join.removeprefix(FILE_MARK)).absolute()
        return lambda: (agents_url(read_sign(path).url),)
    return always_at(*listed(join))


def places_now(join: str) -> list[str]:
    """Return the places that ``--join`` names at this moment, as they were given.

    Raises:
        ConfigError: it names none, or a file that no coordinator has written.
    """
    if not join.startswith(FILE_MARK):
        return listed(join)
    try:
        return [read_sign(Path(join.removeprefix(FILE_MARK))).url]
    except FileNotFoundError:
        raise ConfigError(
            f"--join {join}: there is no such file; it is the coordinator.json of the "
            "coordinator's --out, and there while one serves"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"--join {join}: no coordinator has written that; name the coordinator.json of its "
            "--out"
        ) from error


def listed(join: str) -> list[str]:
    """Return the places of a list, as they were given.

    Raises:
        ConfigError: one of them is empty, or given twice.
    """
    places = [place.strip() for place in join.split(",")]
    if not all(places):
        raise ConfigError(f"--join {join} names an empty place; leave out the comma")
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise ConfigError(f"--join {join} names {twice} twice; name each place once")
    return places


def read_sign(path: Path) -> CoordinatorSign:
    """Return what a coordinator has written into its file.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    return sign_of(read_own(path), str(path))


def sign_of(data: bytes, where: str) -> CoordinatorSign:
    """Return what the bytes of a sign say.

    Raises:
        OSError: nothing that a coordinator has written.
    """
    try:
        return _SIGN.validate_json(data)
    except ValidationError:
        raise OSError(errno.EINVAL, "no coordinator has written that", where) from None


def bytes_of(sign: CoordinatorSign) -> bytes:
    """Return the bytes of a sign."""
    return json.dumps(asdict(sign)).encode()


def write_sign(path: Path, sign: CoordinatorSign) -> None:
    """Write a sign, whole or not at all."""
    replace_file(path, bytes_of(sign), mode=PRIVATE, is_contended=True)
