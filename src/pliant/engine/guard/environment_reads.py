"""Environment reads: which variables a script asks for, in digests that two replicas can compare.

What a script takes from the environment may decide what it trains, and hosts have environments of
their own.  Owns how a question is noticed, and which variables are each host's own.  Values are
never kept, nor shown, and of those that sound like secrets nothing at all.  Must not know who
compares.

A short value can be guessed from its digest by who reads what travels between members.

Not seen: what packages ask for, what the script hands to other processes, and questions before this
began.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

import xxhash

from pliant.engine.script_files import is_own

_SECRET = re.compile(r"TOKEN|SECRET|PASS|PWD|KEY|CREDENTIAL|AUTH|COOKIE|SESSION|DSN", re.IGNORECASE)

_SECRET_VALUE = re.compile(r"://[^/]*@")
"""A URL with a name and a password."""

_OWN = re.compile(
    r"(LOCAL_|GROUP_|ROLE_|NODE_)?(RANK|WORLD_SIZE)|MASTER_.*|.*_VISIBLE_DEVICES|PLIANT_.*|SLURM_.*|"
    r"(POD|NODE|HOST)_(NAME|IP|UID)|JOB_COMPLETION_INDEX|"
    r"HOME|HOST(NAME)?|USER|LOGNAME|(OLD)?PWD|PATH|TE?MP(DIR)?|SHELL|TERM|COLUMNS|LINES|.*_PROXY|"
    r"(OMP|MKL)_NUM_THREADS",
    re.IGNORECASE,
)
"""Differ between hosts, or between the workers of one, and that is what they are for."""

_ASKING = frozenset({"get", "getenv", "__contains__", "setdefault", "pop", "__getitem__"})
"""Functions between the one who asks and the environment."""

_RANKS = ("RANK", "LOCAL_RANK")
"""Where ``pliant`` sets none, whoever takes 0 for it is the first of all, on every replica."""

_MISSING = "missing"

_asked: dict[str, str] = {}

_tell_rank: Callable[[str], None] | None = None
"""Whom to tell, once, that the script asks for its rank and goes on without one."""

_copied_at = (0, 0)
"""The frame and the place in it that asked for all names last."""


def watch(environ: MutableMapping[str, str]) -> None:
    """Notice from now on what the script asks this environment for; it is the process's own."""
    environ.__class__ = _Watched  # the same object: others hold it


def tell_rank(told: Callable[[str], None]) -> None:
    """Have it told if the script asks for its rank in a way that lets it go on without one."""
    global _tell_rank  # the environment is one for the process
    _tell_rank = told


def asked() -> dict[str, str]:
    """Return a digest of each variable that the script has asked for so far."""
    return dict(_asked)


class _Watched(type(os.environ)):  # type: ignore[misc]  # noqa: TID251  its class, nothing of it
    """The environment, which notices who asks."""

    def __getitem__(self, name: Any) -> Any:
        if not isinstance(name, str) or name in _asked or not _is_asked_by_script():
            return super().__getitem__(name)
        try:
            value = super().__getitem__(name)
        except KeyError:
            _note(name, _MISSING)
            if name in _RANKS and sys._getframe(1).f_code.co_name in _ASKING:  # noqa: SLF001
                _note_rank(name)
            raise
        if not _SECRET_VALUE.search(value):
            said = f"{name}={value}".encode("utf-8", "surrogateescape")  # equal values are unlike
            _note(name, xxhash.xxh3_64(said).hexdigest()[:8])
        return value

    def keys(self) -> Any:
        """As ever; who calls it where all are asked for next makes a copy, for another process."""
        global _copied_at  # the environment is one for the process
        frame: Any = sys._getframe(1)  # noqa: SLF001
        _copied_at = (id(frame), frame.f_lasti)
        return super().keys()


def _note_rank(name: str) -> None:
    global _tell_rank  # see there
    told, _tell_rank = _tell_rank, None
    if told is not None:
        told(
            f"the script asks for {name}, which torchrun sets and pliant does not: with a default "
            "every replica takes itself for the first, and writes; write `if session.leader:` in "
            "the tail of a step instead"
        )


def _note(name: str, word: str) -> None:
    if not (_SECRET.search(name) or _OWN.fullmatch(name)):
        _asked[name] = word


def _is_asked_by_script() -> bool:
    frame: Any = sys._getframe(2)  # noqa: SLF001  who asks is known in no other way
    while frame is not None and frame.f_code.co_name in _ASKING:
        frame = frame.f_back
    if frame is None or (id(frame), frame.f_lasti) == _copied_at:
        return False
    return is_own(frame.f_code.co_filename)
