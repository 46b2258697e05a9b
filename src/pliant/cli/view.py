"""Following a job as it runs: a live panel on a terminal, plain lines anywhere else.

Owns what is shown when, and of tracebacks which are alike, which were shown already, in the output
of a replica or by themselves, and who failed alike.  Knows nothing of how the job runs: it is
handed the records of the event log and the lines that replicas print.  Both methods of an observer
are called on the job's event loop and return at once; the live panel is drawn by Rich's own thread,
hence the lock.
"""

from __future__ import annotations

import re
import sys
import termios
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from pliant.cli.screens import REFUSED, is_last_word, job_panel, step_line
from pliant.cli.terminal import print_record
from pliant.core.text import is_follower, line_left, printable_values, replica_of
from pliant.machine.clock import Clock
from pliant.observe.log import Record, number, worker_of
from pliant.observe.prose import PROGRESS_S, line, resize_line
from pliant.observe.status import ENDINGS, Board
from pliant.observe.status_facts import clock
from pliant.observe.timeline import Resize

REFRESH_HZ = 4
NEWS = 2
"""Sentences below the table of events."""

STAYING = ("stop_requested", "suspend_requested", "interrupted", "declined", "resumed")
"""Kinds whose sentence is printed above the panel, where later news do not push it out."""

TOLD_ONCE = ("exited", "node_refused")
"""Kinds that an agent says again until it is heard, or each time that it is started."""


class JobView:
    """What the live and the plain view share: the board, the news, whose output is shown."""

    def __init__(self, console: Console, *, show: str | None) -> None:
        self.board = Board()
        self.console = console
        self.values: dict[str, Any] = {}
        self._show = show
        self._num_shown = 0
        self._said: set[str] = set()
        self._tracebacks = Tracebacks()
        self._pool = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Stop following; a refusal that the job has not ended with is said after all."""
        for worker, text in self._tracebacks.unsaid(self.board.reason):
            self.console.print(Text(self.label(worker) + text), soft_wrap=True)

    def go_on(self, board: Board) -> None:
        """Follow a run that is resumed; what its lives before have told is not told again."""
        self.board = board
        self._num_shown = board.timeline.num_resizes

    def shows(self, worker: str) -> bool:
        """Whether this worker's output is shown; by default that of the replica that leads, of
        several workers of the first.
        """
        replica = replica_of(worker)
        if self._show is not None:
            return self._show in ("all", replica, worker)
        return self.board.living.leads(replica) and not is_follower(worker)

    def shown_lines(self, worker: str, text: str) -> list[str]:
        """Return what to print when a worker has printed a line."""
        return self._tracebacks.passed(worker, text) if self.shows(worker) else []

    def label(self, worker: str) -> str:
        """Return what stands before a line of output, where it may be of several workers."""
        is_of_several = self._show == "all" or self._show == replica_of(worker) != worker
        return f"{worker} | " if is_of_several else ""

    def sentence(self, record: Record) -> str | None:
        """Say what a record tells; what was said already (notes, failures, the pool) only once."""
        kind = record.get("kind")
        if kind == "note":
            text = str(record.get("text"))
            if text in self._said:
                return None
            self._said.add(text)
        if kind == "exited" and self._tracebacks.is_repeated(worker_of(record)):
            return None  # told with the others that failed alike
        if kind == "commit":
            return self._tracebacks.untold()
        if kind in ENDINGS and record.get("exit_code") not in (0, 3):
            return self._tracebacks.untold()  # its reason is the last word, on stderr
        sentence = line(record)
        if kind in TOLD_ONCE and sentence is not None:
            if sentence in self._said:
                return None
            self._said.add(sentence)
        if kind == "pool":
            before, self._pool = self._pool, sentence or ""
            return None if sentence == before else sentence
        return sentence

    def traceback(self, record: Record) -> str | None:
        """Return a traceback that was not seen yet, in this worker's output or another's."""
        text, worker = str(record.get("text", "")).rstrip(), worker_of(record)
        if record.get("kind") != "traceback" or not self._tracebacks.learn(worker, text):
            return None
        return None if self.shows(worker) else f"{worker} raised:\n{text}"

    def take_record(self, record: Record) -> list[Resize]:
        """Bring the board up to date; return the resizes to tell now: those newly priced.

        One that a later generation has replaced is shown without its price: a normal step at its
        size may not come again, and what follows would wait for it.
        """
        self.board.add(record)
        if record.get("kind") == "metrics" and isinstance(record.get("values"), dict):
            self.values = record["values"]
        is_uncounted = self.board.is_uncounted and record.get("kind") == "switched"
        if record.get("kind") not in ("commit", *ENDINGS) and not is_uncounted:
            return []
        unshown = self.board.timeline.num_resizes - self._num_shown
        ended = record["kind"] in ENDINGS
        shown = []
        for resize in self.board.timeline.resizes(unshown):
            replaced = resize.generation < self.board.timeline.generation
            if resize.pause_s is None and not (replaced or ended or is_uncounted):
                break
            shown.append(resize)
        self._num_shown += len(shown)
        return shown


class PlainView(JobView):
    """One line per event, and of progress now and then; for files, pipes and CI."""

    _progress_at_s: float | None = None
    """When the last commit of which a line was printed was made."""

    _told = 0
    """Committed steps in that line."""

    def record(self, record: Record) -> None:
        """Print what a record says, if it says something to people."""
        record = printable_values(record)
        resizes = self.take_record(record)
        sentence, trace = self.sentence(record), self.traceback(record)
        at = float(record.get("at") or 0.0)
        if record.get("kind") in ENDINGS and self._told != self.board.committed:
            self._print_progress(at)
        if sentence is not None:
            self._print(at, sentence)
        for resize in resizes:
            self._print(at, resize_line(resize))
        if trace is not None:
            self.console.print(Text(trace), soft_wrap=True)
        if record.get("kind") == "commit" and self._is_due(number(record.get("mono")) or 0.0):
            self._print_progress(at)

    def output(self, worker: str, text: str) -> None:
        """Print a line of a worker, if its output is shown."""
        for shown in self.shown_lines(worker, line_left(text)):
            self.console.print(Text(self.label(worker) + shown), soft_wrap=True)

    def _is_due(self, commit_s: float) -> bool:
        last_s = self._progress_at_s
        if last_s is not None and commit_s - last_s < PROGRESS_S:
            return False
        self._progress_at_s = commit_s
        return True

    def _print_progress(self, at: float) -> None:
        self._told = self.board.committed
        self._print(at, step_line(self.board.as_json(), self.values))

    def _print(self, at: float, sentence: str) -> None:
        self.console.print(Text(f"{clock(at)}  {sentence}"), soft_wrap=True)


class LiveView(JobView):
    """A panel that stays at the bottom of the terminal, output scrolling above it."""

    def __init__(self, console: Console, *, show: str | None) -> None:
        super().__init__(console, show=show)
        self._lock = threading.Lock()
        self._clock = Clock()
        self._committed_s: float | None = None
        self._echo: list[Any] | None = None
        self._news: deque[str] = deque(maxlen=NEWS)
        self._live = Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=REFRESH_HZ,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._echo = _silence_control_echo()
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()
        super().__exit__(*error)
        if self._echo is not None:
            with suppress(OSError, ValueError, termios.error):  # the terminal is gone
                termios.tcsetattr(sys.stdin, termios.TCSANOW, self._echo)

    def record(self, record: Record) -> None:
        """Take a record into the next picture."""
        record = printable_values(record)
        with self._lock:
            resizes = self.take_record(record)
            if record.get("kind") == "commit":
                self._committed_s = self._clock.now_s()
            sentence, trace = self.sentence(record), self.traceback(record)
            stays = record.get("kind") in STAYING
            if sentence is not None and not stays:
                self._news.append(f"{clock(float(record.get('at') or 0.0))}  {sentence}")
            elif resizes:
                self._news.clear()  # the table of events tells it now
        if sentence is not None and stays:
            self.console.print(Text(sentence, style="magenta"))
        if trace is not None:
            self.console.print(Text(trace, style="red"), soft_wrap=True)

    def output(self, worker: str, text: str) -> None:
        """Print a line of a worker above the panel, if its output is shown."""
        for shown in self.shown_lines(worker, line_left(text)):
            said = Text.assemble((self.label(worker), "dim"), shown)
            self.console.print(said, soft_wrap=True)

    def _draw(self) -> RenderableType:
        with self._lock:
            try:
                now_s, since_s = self._clock.now_s(), self._committed_s
                status = self.board.as_json(idle_s=None if since_s is None else now_s - since_s)
                return job_panel(status, self.values, list(self._news))
            except Exception as error:  # a picture less, not a job
                return Text(f"the panel cannot be drawn: {error!r}", style="red")


class JsonView(JobView):
    """Every record of the event log on standard output, as it is."""

    def record(self, record: Record) -> None:
        """Print one record."""
        self.take_record(record)
        print_record(record)

    def output(self, worker: str, text: str) -> None:
        """Leave output out: standard output holds records only."""


def _silence_control_echo() -> list[Any] | None:
    """Keep the terminal from printing ``^C`` into the panel; return what to set back."""
    try:
        before = termios.tcgetattr(sys.stdin)
        changed = [*before]
        changed[3] &= ~termios.ECHOCTL
        termios.tcsetattr(sys.stdin, termios.TCSANOW, changed)
    except (OSError, ValueError, termios.error):
        return None  # no terminal to type on
    return before


ShownView = LiveView | PlainView | JsonView


def view_for(console: Console, *, show: str | None) -> LiveView | PlainView:
    """Return the view that fits where the output goes."""
    kind = LiveView if console.is_terminal and not console.is_dumb_terminal else PlainView
    return kind(console, show=show)


RECENT_LINES = 200
"""Lines of a replica's output that are kept, to know a traceback again that was shown in it."""

_DIFFERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_FRAME = "  File "


@dataclass(slots=True)
class TracebackSignature:
    """Tracebacks that are alike."""

    first: str
    """The replica in whose output it is shown, or that it is shown of."""
    replicas: list[str] = field(default_factory=list)
    """Who failed like that, in order."""
    told: int = 1
    """How many of them have been told of."""


class Tracebacks:
    """What is known of the tracebacks of a job's replicas."""

    def __init__(self) -> None:
        self._known: dict[str, TracebackSignature] = {}
        self._held: dict[str, list[str]] = {}
        self._shown: dict[str, deque[str]] = {}
        self._refusals: dict[str, str] = {}

    def learn(self, replica: str, text: str) -> bool:
        """Take note of a traceback; return whether none was like it, nor was shown."""
        alike = _signature(text)
        found = self._known.get(alike)
        shown_of = self._shown_before(alike) if found is None else None
        if found is None:
            found = self._known[alike] = TracebackSignature(first=shown_of or replica)
        found.replicas.append(replica)
        return len(found.replicas) == 1 and shown_of in (None, replica)

    def passed(self, replica: str, text: str) -> list[str]:
        """Return what is to be printed now, as one more line of a replica has come."""
        before = self._refusals.pop(replica, None)
        if REFUSED.fullmatch(text) and not self._is_in_traceback(replica):
            self._refusals[replica] = text
            return [] if before is None else [before]
        lines = [*self._held.pop(replica, ()), *([] if before is None else [before]), text]
        said = [_signature(line) for line in lines]
        for alike, known in self._known.items():
            whole = alike.splitlines()
            if known.first != replica and whole[: len(said)] == said:
                if len(said) < len(whole):
                    self._held[replica] = lines
                return []
        self._shown.setdefault(replica, deque(maxlen=RECENT_LINES)).extend(said)
        return lines

    def unsaid(self, reason: str | None) -> list[tuple[str, str]]:
        """Return replicas with their last line, where that is a refusal but not the job's."""
        return [one for one in self._refusals.items() if not is_last_word(one[1], reason)]

    def is_repeated(self, replica: str) -> bool:
        """Whether a replica failed as another had before."""
        return any(replica in known.replicas[1:] for known in self._known.values())

    def untold(self) -> str | None:
        """Return who failed alike, as far as that has not been returned before."""
        new = [known for known in self._known.values() if len(known.replicas) > known.told]
        for known in new:
            known.told = len(known.replicas)
        said = [
            f"{len(known.replicas)} replicas failed alike: {', '.join(known.replicas)}"
            for known in new
        ]
        return "; ".join(said) or None

    def _is_in_traceback(self, replica: str) -> bool:
        """Whether the line before was one of code: what raised it is the script's own affair."""
        shown = self._shown.get(replica, ("",))
        return shown[-1].startswith("  ")

    def _shown_before(self, alike: str) -> str | None:
        for replica, lines in self._shown.items():
            if f"\n{alike}\n" in "\n".join(("", *lines, "")):
                return replica
        return None


def _signature(text: str) -> str:
    """Return a traceback, or a line of one, without what differs between failures that are alike:
    addresses and numbers, but for those of the lines of code.
    """
    return "\n".join(
        line if line.startswith(_FRAME) else _DIFFERS.sub("#", line) for line in text.splitlines()
    )
