"""What all benchmarks share: environment, tail logs, figures and the dated result page.

Owns how a number is taken (one monotonic clock, medians, both sides in one run) and how it is
written down.  Must not know what is compared, and imports neither torch nor pliant, so that the
driving process stays out of the measured ones' way.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import psutil

Answer = TypeVar("Answer")

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "1073741824"}
"""glibc keeps what it freed.  Without it up to 57,000 page faults a step; set for both sides."""

_PR_SET_PDEATHSIG = 1

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def environment(**more: str) -> dict[str, str]:
    """Return the environment every measured process gets, on either side."""
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, **KEEP_MEMORY, **ONE_THREAD, "PYTHONPATH": path, **more}


def users_environment() -> dict[str, str]:
    """Return the environment of a process as users start it: nobody tells glibc what to keep."""
    return {key: value for key, value in environment().items() if key not in KEEP_MEMORY}


# --- tail logs: what a worker writes after each step, whichever side it is on ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """One committed step as the user's code after the step saw it."""

    step: int
    """0-based number of the step."""
    at: float
    """Monotonic seconds; one clock for all processes of the machine."""
    size: int
    """Number of replicas in this step; 0 where the worker cannot know it."""
    pid: int
    name: str = ""
    """Replica's name, where there is one."""


class TailLog:
    """Appends one line per step with a single ``write``, so that a killed writer loses nothing."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(folder / f"{os.getpid()}.tails", flags, 0o644)

    def write(self, *, step: int, size: int = 0, name: str = "", at: float | None = None) -> None:
        """Record that ``step`` was finished now (or ``at``)."""
        record = {
            "step": step,
            "at": time.monotonic() if at is None else at,
            "size": size,
            "pid": os.getpid(),
            "name": name,
        }
        os.write(self._file, json.dumps(record).encode() + b"\n")


def read_tails(folder: Path) -> list[Tail]:
    """Return every complete line of every process, in order of time."""
    tails = []
    for path in folder.glob("*.tails"):
        lines = path.read_text().split("\n")[:-1]
        tails += [Tail(**json.loads(line)) for line in lines]
    return sorted(tails, key=lambda tail: tail.at)


def await_true(question: Callable[[], Answer | None], *, timeout_s: float, what: str) -> Answer:
    """Ask until there is an answer; seldom, since asking takes time from the measured side."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        answer = question()
        if answer:
            return answer
        time.sleep(0.25)
    raise TimeoutError(f"{what} did not happen within {timeout_s:g} s")


@contextlib.contextmanager
def process(
    command: Sequence[str], *, env: Mapping[str, str], output: Path, cwd: Path = ROOT
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``command`` in a session of its own; end it and all its children on the way out."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as sink:
        started = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        yield started
    finally:
        end(started)


def die_with_parent() -> None:
    """Make the kernel kill this new process when the benchmark dies; Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end(started: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants; a second call does nothing."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(started.pid)
        family = [*parent.children(recursive=True), parent]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGKILL)
    started.wait()


# --- figures and pages ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity with its raw values and what it should reach."""

    name: str
    unit: str
    raw: tuple[float, ...]
    target: str = ""
    """What is to be reached now."""
    goal: str = ""
    """What is to be reached in the end."""

    @property
    def median(self) -> float:
        """The figure that is quoted."""
        return statistics.median(self.raw)

    def row(self) -> str:
        """Return the figure as a row of the page's table."""
        if not self.raw:
            return f"| {self.name} | not measured | | | 0 | {self.target} | {self.goal} |"
        low, mid, high = (_short(v) for v in (min(self.raw), self.median, max(self.raw)))
        unit = f" {self.unit}" if self.unit else ""
        return (
            f"| {self.name} | {low} | **{mid}**{unit} | {high} | {len(self.raw)} "
            f"| {self.target} | {self.goal} |"
        )


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A dated result page; ``render`` gives the markdown, ``write`` the file."""

    theme: str
    summary: str
    method: str
    figures: tuple[Figure, ...]
    command: str
    load: tuple[float, float]
    """One-minute load average before and after: above the number of busy workers is noise."""
    notes: tuple[str, ...] = ()
    raw: Mapping[str, object] = field(default_factory=dict)

    def render(self, *, now: datetime) -> str:
        """Return the page as markdown."""
        facts = {
            "date": now.strftime("%Y-%m-%d %H:%M UTC"),
            "commit": commit(),
            "hardware": hardware(),
            "software": software(),
            "command": f"`{self.command}`",
            "load before, after": f"{self.load[0]:.1f}, {self.load[1]:.1f}",
        }
        numbers = {figure.name: list(figure.raw) for figure in self.figures} | dict(self.raw)
        body = ",\n".join(f" {json.dumps(k)}: {_numbers(v)}" for k, v in numbers.items())
        parts = [
            f"# {self.theme}",
            self.summary,
            "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in facts.items())]),
            "## Figures",
            table(self.figures),
            "## Method",
            self.method,
            *(["## Notes", "\n".join(f"- {note}" for note in self.notes)] if self.notes else []),
            "## Raw numbers",
            f"```json\n{{\n{body}\n}}\n```",
        ]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path = RESULTS) -> Path:
        """Write the page under its dated name (a second one of a day replaces the first)."""
        now = datetime.now(UTC)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.theme}_{hardware_slug()}_{now:%Y-%m-%d}.md"
        path.write_text(self.render(now=now))
        return path


def _numbers(value: object) -> str:
    def rounded(part: object) -> object:
        if isinstance(part, float):
            return float(f"{part:.5g}")
        if isinstance(part, Mapping):
            return {str(k): rounded(v) for k, v in part.items()}
        if isinstance(part, (list, tuple)):
            return [rounded(v) for v in part]
        return part

    return json.dumps(rounded(value))


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a markdown table."""
    head = ["| measure | min | median | max | n | target | goal |", "|---|---|---|---|---|---|---|"]
    return "\n".join([*head, *(figure.row() for figure in figures)])


PARTS = (
    r"\A# \w+\n",
    r"\| date \| \d{4}-\d{2}-\d{2}",
    r"\| commit \| [0-9a-f]{7,}",
    r"\| hardware \| \S",
    r"\| software \| .*torch \d",
    r"\| command \| `python -m benchmarks\.\w+",
    r"\| load before, after \| [\d.]+, [\d.]+ \|",
    r"## Figures\n\n\| measure \| min \| median \| max \| n \| target \| goal \|\n\|[-|]+\|\n\| \w",
    r"## Method\n\n\S",
    r"## Raw numbers\n\n```json\n\{",
)


def missing_parts(page: str) -> list[str]:
    """Return the patterns of the template that ``page`` does not have."""
    missing = [part for part in PARTS if not re.search(part, page)]
    body = page.rpartition("```json\n")[2].rpartition("\n```")[0]
    try:
        json.loads(body)
    except ValueError as error:
        missing.append(f"raw numbers are not JSON: {error}")
    return missing


def commit() -> str:
    """Return the commit, marked when sources, not pages of results, differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    return f"{head} with uncommitted changes" if changed else head


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def hardware() -> str:
    """Return processor, cores and memory in one line."""
    names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = psutil.virtual_memory().total / 2**30
    processor = names[0].strip() if names else platform.machine()
    return f"{os.cpu_count()} x {processor}, {memory:.0f} GiB, Linux {platform.release()}"


def hardware_slug() -> str:
    """Return the hardware as it stands in file names."""
    names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    known = re.search(r"xeon|epyc|core|ryzen|neoverse|graviton", " ".join(names), re.IGNORECASE)
    return f"{os.cpu_count()}x{(known.group().lower() if known else platform.machine())}"


def software() -> str:
    """Return the versions that matter, without importing them."""
    torch, pliant = (metadata.version(name) for name in ("torch", "pliant"))
    return f"Python {platform.python_version()}, torch {torch} (DDP over gloo), pliant {pliant}"


def command_line(theme: str) -> str:
    """Return the command that made this page."""
    return " ".join(["python", "-m", f"benchmarks.{theme}", *sys.argv[1:]])


def load() -> float:
    """Return the one-minute load average."""
    return os.getloadavg()[0]


def publish(page: Page, *, write: bool) -> None:
    """Print the table and, unless this was a smoke run, write the page."""
    print(table(page.figures), flush=True)
    if write:
        print(f"written: {page.write().relative_to(ROOT)}")
