"""What one process of a script prints: to the log of its replica, and to files of its own.

Owns the meaning of torchrun's ``--redirects``, ``--tee``, ``--log-dir``, ``--local-ranks-filter``
and ``--log-line-prefix-template``, which come as ``PET_*`` in the environment.

    redirected   to a file alone      LOG_DIR/JOB/attempt_RESTARTS/LOCAL_RANK/stdout.log, stderr.log
    tee          to a file, and on with a prefix
    else         on
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pliant.core.errors import ConfigError

OUT, ERR = 1, 2
"""Bits of what is redirected, and descriptors of what is printed on."""

NAMES = {OUT: "stdout.log", ERR: "stderr.log"}

TAIL_BYTES = 16_000
"""Of each stream, kept for the sentence about a failure."""

TEMPLATE = "[${role_name}${local_rank}]:"
"""Of what begins each line that goes to a file and on."""

_PIECE = 1 << 16
_PART = re.compile(r"(?:(\d+):)?([0-3])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """Where all processes of one replica print."""

    directory: Path
    redirects: str = "0"
    tee: str = "0"
    shown: frozenset[int] | None = None
    """Local ranks of which anything is printed on; None: all."""

    template: str = TEMPLATE

    @classmethod
    def of(cls, environ: Mapping[str, str], *, job: str, restarts: int, default: Path) -> Logs:
        """Read the variables; ``default`` is where files go without ``PET_LOG_DIR``.

        Raises:
            ConfigError: one cannot be read.
        """
        given = environ.get("PET_LOG_DIR")
        ranks = environ.get("PET_LOCAL_RANKS_FILTER", "")
        if not re.fullmatch(r"(\d+(,\d+)*)?", ranks):
            raise ConfigError(f"PET_LOCAL_RANKS_FILTER={ranks} must be local ranks, such as 0,1")
        directory = Path(given) / job if given else default
        return cls(
            directory=directory / f"attempt_{restarts}",
            redirects=environ.get("PET_REDIRECTS") or "0",
            tee=environ.get("PET_TEE") or "0",
            shown=frozenset(map(int, ranks.split(","))) if ranks else None,
            template=environ.get("PET_LOG_LINE_PREFIX_TEMPLATE") or TEMPLATE,
        )

    def takes(self, stream: int) -> bool:
        """Whether any process prints a stream elsewhere than on."""
        said = f"{self.redirects}{self.tee}"
        return self.shown is not None or any(int(one) & stream for one in said if one.isdigit())


def streams_of(said: str, local_rank: int, option: str) -> int:
    """Return which streams of a process are meant by ``3``, or by ``0:1,1:2``.

    Raises:
        ConfigError: it is neither.
    """
    found = [_PART.fullmatch(part) for part in said.split(",")]
    if None in found or (len(found) > 1 and any(one and one[1] is None for one in found)):
        raise ConfigError(f"{option} {said} must be 0 to 3, or such as 0:1,1:2: RANK:STREAMS")
    meant = {one[1]: int(one[2]) for one in found if one is not None}
    return meant.get(None, meant.get(str(local_rank), 0))


class Output:
    """One stream of one process, read as it comes."""

    def __init__(self, pipe: IO[bytes], stream: int, logs: Logs, told: Mapping[str, str]) -> None:
        """``told``: the environment of the process."""
        local_rank = int(told["LOCAL_RANK"])
        is_tee = bool(streams_of(logs.tee, local_rank, "--tee") & stream)
        is_kept = is_tee or bool(streams_of(logs.redirects, local_rank, "--redirects") & stream)
        is_shown = logs.shown is None or local_rank in logs.shown
        os.set_blocking(pipe.fileno(), False)
        self.pipe = pipe
        self.tail = bytearray()
        self._stream = stream
        self._goes_on = is_shown and (is_tee or not is_kept)
        names = {"role_name": told["ROLE_NAME"], "rank": told["RANK"]}
        names |= {"local_rank": str(local_rank), "hostname": socket.gethostname()}
        prefix = string.Template(logs.template).safe_substitute(names)
        self._prefix = prefix.encode() if is_tee else b""
        self._line = b""
        self._file: IO[bytes] | None = None
        if is_kept:
            path = logs.directory / str(local_rank) / NAMES[stream]
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def pass_on(self) -> bool | None:
        """Pass on what there is; False: nothing now, None: nothing ever."""
        data = self.pipe.read(_PIECE)
        if not data:
            return None if data is not None else False
        self.tail += data
        del self.tail[:-TAIL_BYTES]
        with contextlib.suppress(OSError):  # the training is worth more
            if self._file is not None:
                self._file.write(data)
            if self._goes_on:
                self._print(data)
        return True

    def close(self) -> None:
        """Pass on the rest, and close."""
        while self.pass_on():
            pass
        with contextlib.suppress(OSError):
            if self._line:
                os.write(self._stream, self._prefix + self._line + b"\n")
        self.pipe.close()
        if self._file is not None:
            self._file.close()

    def _print(self, data: bytes) -> None:
        if not self._prefix:
            os.write(self._stream, data)
            return
        *lines, self._line = (self._line + data).split(b"\n")
        os.write(self._stream, b"".join(self._prefix + line + b"\n" for line in lines))
