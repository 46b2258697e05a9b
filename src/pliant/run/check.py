"""Check: plays a script alone and under short histories, each in a copy of its directory.

Owns how a history is played (by ``pliant run`` and ``python``, as a person would), and that each
has a directory, a state directory and a checkpoint place of its own.  Decides nothing about what
differs (``core.checked``).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from pliant.core.checked import (
    CHECK_VARIABLE,
    CheckHistory,
    CheckHold,
    CheckOrders,
    FileSeen,
    Trace,
)
from pliant.core.errors import EXIT_OK, EXIT_STOPPED, ConfigError, PliantError
from pliant.core.text import last_line
from pliant.http.client import Caller
from pliant.machine import run_files
from pliant.machine.registry import StateDirectory, find_job
from pliant.observe.reading import read

LEFT_OUT = {".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache"}
"""Directories that are neither copied nor compared, wherever they lie."""

NOT_COPIED = {"runs"}
"""Nor is this, at the top: it holds earlier runs."""

MOST_BYTES = 1 << 30
"""Of a directory that is copied; larger data is linked, if its user says so."""

TEXT_BYTES = 1 << 20
"""Of a file whose lines are compared."""

POLL_S = 0.05
"""Between two looks at a history, in seconds."""

END_S = 10.0
"""Longest wait for a run that is told to end, in seconds."""

RESTARTS = 3
"""Of replicas that fail: whoever fails by itself fails again."""

_Marks = dict[Path, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStage:
    """What is checked, and where it is played."""

    words: tuple[str, ...]
    """The script, as ``python`` takes it, and its arguments."""
    directory: Path
    """In which it works; copied for each history."""
    linked: frozenset[Path]
    """What of it is not copied: the script only reads it."""
    work: Path
    """Where the histories lie."""
    steps: int
    workers: int
    """Of each replica."""
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A history that was played."""

    trace: Trace
    seconds: float
    code: int = EXIT_OK


def play_alone(stage: CheckStage, name: str) -> Played:
    """Run the script by itself; sharded, as one replica that nobody disturbs.

    Raises:
        ConfigError: its directory is too large to be copied.
    """
    if stage.workers > 1:
        return play(stage, CheckHistory(name=name, words="", start=1), float("inf"))
    return _Play(stage, CheckHistory(name=name, words="", start=1)).run(stage.words, {})


def play(stage: CheckStage, history: CheckHistory, limit_s: float) -> Played:
    """Play a history, for so many seconds at most."""
    here = _Play(stage, history)
    given = f"--min {history.least} --max 2 --start {history.start} --max-restarts {RESTARTS}"
    given += f" --show none --name {history.name} --workers-per-replica {stage.workers}"
    orders = {one.name: getattr(history, one.name) for one in fields(CheckHold)}
    words = ("-m", "pliant", "run", *given.split(), "--out", str(here.out), *stage.words)
    played = here.run(words, orders, act=history.act, limit_s=limit_s)
    if history.act != "suspend" or played.code != EXIT_STOPPED:
        return played
    again = here.run(("-m", "pliant", "resume", str(here.out)), {}, limit_s=limit_s)
    return replace(again, seconds=played.seconds + again.seconds)


class _Play:
    """One history: a copy of the directory, and what lies beside it."""

    def __init__(self, stage: CheckStage, history: CheckHistory) -> None:
        self._stage, self._name = stage, history.name
        self._root = stage.work / history.name
        self._here, self.out = self._root / "directory", self._root / "run"
        self._recordings = self._root / "recordings"
        self._recordings.mkdir(parents=True)
        self._before = _copy(stage.directory, self._here, stage.linked)

    def run(
        self,
        words: Sequence[str],
        orders: Mapping[str, Any],
        *,
        act: str = "",
        limit_s: float = float("inf"),
    ) -> Played:
        """Run a command of Python's to its end; return what was recorded here so far."""
        began_s = time.monotonic()
        asked = CheckOrders(
            recordings=str(self._recordings),
            steps=self._stage.steps,
            checkpoints=str(self._root / "checkpoints"),
            **orders,
        )
        environ = {**self._stage.environ, CHECK_VARIABLE: json.dumps(asdict(asked))}
        environ["XDG_STATE_HOME"] = str(self._root / "state")
        said = self._root / "stderr.txt"
        with said.open("ab") as err, (self._root / "stdout.txt").open("ab") as out:
            process = subprocess.Popen(  # noqa: S603 - the script that is to be checked
                [sys.executable, *words],
                cwd=self._here,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C is for who plays it
            )
        try:
            fault = self._follow(process, act, began_s + limit_s)
        finally:
            _end(process)
        code, text = process.returncode, said.read_text(errors="replace").strip()
        fault = fault or self._first_fault()
        if not fault and code not in (EXIT_OK, EXIT_STOPPED):
            fault = f"it ended with exit code {code}: {last_line(text) or 'it said nothing'}"
        trace = Trace(
            lines=list(_lines(self._recordings)),
            files=_changed(self._here, self._before),
            notes=tuple(self._notes(text)),
            fault=fault,
        )
        return Played(trace=trace, seconds=time.monotonic() - began_s, code=code)

    def _follow(self, process: subprocess.Popen[bytes], act: str, until_s: float) -> str:
        """Wait for its end, doing what is to be done once it waits; say what went wrong."""
        pause = threading.Event()
        while process.poll() is None:
            if time.monotonic() > until_s:
                return self._first_fault() or "it did not end in time, and was ended"
            if act and any(line["kind"] == "holds" for line in _lines(self._recordings)):
                state = StateDirectory.of({"XDG_STATE_HOME": str(self._root / "state")})
                try:
                    with closing(Caller(find_job(self._name, state.jobs))) as caller:
                        caller.ask("POST", f"/v1/{act}", {"target": 2} if act == "scale" else {})
                except PliantError as error:
                    return str(error)
                act = ""
            if self._first_fault():
                (self._recordings / "go").touch()
            pause.wait(POLL_S)
        return ""

    def _records(self) -> list[dict[str, Any]]:
        log = run_files.event_log(self.out)
        return [dict(record) for record in read(log)] if log.exists() else []

    def _first_fault(self) -> str:
        """Return the first sentence that refused a replica, or what one failed with."""
        for record in self._records():
            match record:
                case {"kind": "usage", "sentence": str(sentence)}:
                    return sentence
                case {"kind": "traceback", "replica": who, "text": str(text)}:
                    return f"{who} failed: {last_line(text)}"
                case {"kind": "dismiss", "to": [who], "reason": str(why)} if why[:4] == "its ":
                    return f"{who} was refused: {why}"
        return ""

    def _notes(self, text: str) -> Iterator[str]:
        yield from (line.removeprefix("pliant: ") for line in text.splitlines())
        for record in self._records():
            if record["kind"] == "note" and "replica" in record:
                yield str(record["text"])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave neither a process that was started nor one that it has started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _lines(recordings: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(recordings.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            with suppress(ValueError):  # cut off by a SIGKILL
                yield json.loads(line)


# --- directories ---------------------------------------------------------------------


def _files(
    top: Path, linked: frozenset[Path] = frozenset(), left_out: Set[str] = frozenset()
) -> Iterator[Path]:
    """Yield the files of a directory that count, and links, which stay such."""
    for where, names, files in os.walk(top):
        here = Path(where)
        links = [n for n in names if here / n in linked or (here / n).is_symlink()]
        names[:] = sorted(set(names) - LEFT_OUT - (left_out if here == top else set()) - set(links))
        yield from (here / name for name in (*links, *files))


def _copy(top: Path, into: Path, linked: frozenset[Path]) -> _Marks:
    """Copy the working directory; return size and time of each file that was there.

    Raises:
        ConfigError: it is too large.
    """
    into.mkdir(parents=True)
    before: _Marks = {}
    copied = 0
    for source in _files(top, linked, NOT_COPIED):
        target = into / source.relative_to(top)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source in linked or source.is_symlink():
            target.symlink_to(source.resolve())
        elif source.is_file():  # no pipe, no socket
            if (copied := copied + source.stat().st_size) > MOST_BYTES:
                raise ConfigError(
                    f"{top} holds more than {MOST_BYTES >> 30} GiB, and each history has a copy: "
                    "name what the script only reads in it, as --link data"
                )
            shutil.copy2(source, target)
            before[target] = _mark(target)
    return before


def _mark(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


def _changed(top: Path, before: _Marks) -> dict[str, FileSeen]:
    """Return what of a copy is new or another since it was made."""
    found = {str(one.relative_to(top)): FileSeen("gone") for one in before if not one.exists()}
    for path in _files(top):
        if path.is_symlink() or not path.is_file() or before.get(path) == _mark(path):
            continue
        if path.match(".?*.steps") and path.with_name(path.stem[1:]).exists():
            continue  # the index of a step log names the run that wrote it
        data = path.read_bytes()
        is_text = len(data) <= TEXT_BYTES and b"\0" not in data
        lines = tuple(data.decode(errors="replace").splitlines()) if is_text else ()
        found[str(path.relative_to(top))] = FileSeen(hashlib.sha256(data).hexdigest(), lines)
    return found
