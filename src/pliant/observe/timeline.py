"""What each resize cost: its pause, the steps it lost, how long a joiner took.

Owns the definition of ``pause_s`` (glossary): the longest gap between consecutive commits across
the event, minus the median step at the new size, never below 0.  *Across* starts at the last commit
before the cause (the first Prepare of a planned change; the end of a process, or the broken group,
of a loss) and ends with the first commit of the generation that answers it, so a slow preparation
counts.  A median step is the median gap between commits of one generation, over all generations
of that size so far: a pause is told once ``NORMAL_GAPS`` of them are known, and then stays.
Times are by one clock for the whole log (``reading.LogClock``).

Knows nothing of files, processes or the wall clock; a ``Timeline`` eats records one by one, in
file order, in bounded memory, so that the live view and the report after the fact are one code.

    request ---start_replica---> starting ---spare---> ready to join ---switched---> training
       |<------------------------------- ready_s -------------------------------->|
    commits:  |    |    |    |    |       |       |   |   |   |      (longest gap - median = pause)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

from pliant.core.values import Mode
from pliant.observe.log import Record, members_of, number, whole, worker_of
from pliant.observe.reading import LogClock

KEPT_COMMITS = 20_000
"""Commits looked back on, about 2 MB; a preparation that spans more is judged by its end."""

KEPT_GAPS = 1_001
"""Gaps of one size that its median is taken over: the newest ones."""

NORMAL_GAPS = 3
"""Gaps of a size after which their median is a normal step; at the end of a job one is enough."""

NOTHING_KEPT = "the beginning, for nothing was durable"

HARMLESS_EXITS = frozenset({"finished", "left", "taken"})
"""Kinds of ``exited`` that are no loss."""


class ResizeKind(StrEnum):
    """What happened to the replicas that a resize names."""

    JOIN = "join"
    DRAIN = "drain"
    LOSS = "loss"
    RESTORE = "restore"
    """Everything was gone; the run goes on from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """One move from one generation to the next, seen by the replicas it is about."""

    at: float
    """Wall-clock time, for people."""

    kind: ResizeKind
    replicas: tuple[str, ...]
    reason: str
    generation: int
    """The generation that answered the event."""

    step: int
    """Steps committed when that generation was entered."""

    num_replicas: int
    mono: float
    """When it was entered, by the log's clock."""

    cause_mono: float
    """When its cause was noticed: the first Prepare, or the loss."""

    pause_s: float | None = None
    """See the module; None until a commit and a normal step at the new size are known."""

    ready_s: float | None = None
    """A join: from the order to start a replica until it trains; the slowest joiner."""

    steps_lost: int = 0
    """Committed steps that had to be done again."""


@dataclass(slots=True, kw_only=True)  # frozen, making one would take three times as long
class Commit:
    """One committed step."""

    step: int
    generation: int
    mono: float
    loss: float | None = None
    samples: int = 0


@dataclass(slots=True, kw_only=True)
class ReplicaLife:
    """One replica from its start to its end; times are monotonic, None: not (yet)."""

    replica: str
    node: str = ""
    requested: float
    spare: float | None = None
    joined: float | None = None
    ended: float | None = None
    how: str = ""
    """Kind of its exit: finished, left, signal, script, ...; empty while it lives."""


@dataclass(slots=True, kw_only=True)
class _OpenResize:
    """A resize whose first commit is still awaited."""

    resize: Resize
    longest_s: float | None = None

    size: int = 0
    """Replicas of the generation that made the first commit after it: the new size."""


@dataclass(slots=True)
class Timeline:
    """Eats records in file order; answers with resizes, lives and median steps."""

    clock: LogClock = field(default_factory=LogClock)
    members: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Replicas of each generation ordered by a Switch or a Reform."""

    reformed: set[int] = field(default_factory=set)
    restored: dict[int, str] = field(default_factory=dict)
    """The checkpoint of each generation that began with one."""

    generation: int = 0
    """Newest generation that anyone entered."""

    commits: deque[Commit] = field(default_factory=lambda: deque(maxlen=KEPT_COMMITS))
    lives: dict[str, ReplicaLife] = field(default_factory=dict)
    num_commits: int = 0
    _gaps: dict[int, deque[float]] = field(default_factory=dict)
    _resizes: list[_OpenResize] = field(default_factory=list)
    _unpriced: dict[int, list[int]] = field(default_factory=dict)  # by size
    _has_ended: bool = False
    _restarts: bool = False
    _begun: float = 0.0  # it went on after an end; how long it was suspended is no pause
    _first_prepare: float | None = None
    _first_loss: float | None = None
    _losses: dict[str, str] = field(default_factory=dict)
    _drains: dict[str, str] = field(default_factory=dict)
    _starts: dict[str, str] = field(default_factory=dict)
    _decided: str = ""
    _planned: str = ""
    """What was decided when the first Prepare of the change under way was sent."""

    def add(self, record: Record) -> None:
        """Take in one record; kinds it does not know change nothing."""
        self.clock.add(record)
        kind = record.get("kind")
        if kind == "job_started":
            self._restarts = record.get("mode") == Mode.RESTART
        match kind:
            case "commit":  # most are
                self._on_commit(record)
            case "broken" | "node_lost":
                self._on_loss(record)
            case "prepare" | "switch" | "reform":
                self._on_order(record)
            case "job_started" if self._has_ended:
                self._begun, self._has_ended = self.clock.moment_s(record), False
            case "end_job" | "job_ended":
                self._has_ended = True
                for size in [size for size in self._unpriced if self._gaps.get(size)]:
                    self._price(size)
            case _:
                self._add_of_replica(record, str(record.get("replica")))

    def _add_of_replica(self, record: Record, name: str) -> None:
        life = self.lives.get(name)
        match record.get("kind"):
            case "decision":
                self._decided = str(record.get("reason") or "") or self._decided
            case "start_replica":
                node = str(record.get("node") or "")
                new = ReplicaLife(replica=name, node=node, requested=self.clock.moment_s(record))
                self.lives.setdefault(name, new)
                self._starts.setdefault(name, self._decided)
            case "spare" if life is not None and life.spare is None:
                life.spare = self.clock.moment_s(record)
            case "drain_requested":
                notice_s = number(record.get("notice_s"))
                notice = "" if notice_s is None else f" with {notice_s:g} s notice"
                self._drains[name] = f"drain requested{notice}"
            case "kill_requested":
                self._losses.setdefault(name, "kill requested")
            case "end_replica" if record.get("reason"):
                self._losses.setdefault(name, str(record["reason"]))
            case "exited":
                self._on_exited(record, name, life)
            case "switched":
                self._on_switched(record, life)
            case _:
                pass  # records about other things

    def median_step_s(self, num_replicas: int | None = None) -> float | None:
        """Return the median step at one size, or over all sizes."""
        if num_replicas is None:
            gaps = [gap for some in self._gaps.values() for gap in some]
        else:
            gaps = list(self._gaps.get(num_replicas, ()))
        return median(gaps) if gaps else None

    @property
    def num_resizes(self) -> int:
        """Number of resizes so far."""
        return len(self._resizes)

    @property
    def steps_lost(self) -> int:
        """Committed steps that had to be done again, in all."""
        return sum(opened.resize.steps_lost for opened in self._resizes)

    def resizes(self, last: int | None = None) -> list[Resize]:
        """Return every resize so far, or the last ones, with what is known of its cost by now."""
        first = 0 if last is None else max(len(self._resizes) - last, 0)
        return [opened.resize for opened in self._resizes[first:]]

    def bound(self) -> None:
        """Keep as much as ever, after it was read from where no bound is known."""
        self.commits = deque(self.commits, KEPT_COMMITS)
        self._gaps = {size: deque(gaps, KEPT_GAPS) for size, gaps in self._gaps.items()}

    # --- what the records mean, in the order they come -----------------------

    def _on_exited(self, record: Record, name: str, life: ReplicaLife | None) -> None:
        how, detail = str(record.get("exited_kind") or ""), str(record.get("detail") or "")
        if life is not None and life.ended is None:
            life.ended, life.how = self.clock.moment_s(record), how
        if how in HARMLESS_EXITS:
            return
        asked = self._losses.get(name)
        ended = f"ended by {detail}" if how == "signal" and detail else detail or how
        if ended and (worker := worker_of(record)) != name:  # one of several: whose end it was
            ended = f"{worker} {ended}" if how == "signal" else f"{worker}: {ended}"
        self._losses[name] = f"{asked}: {ended}" if asked and ended else asked or ended
        self._on_loss(record)

    def _on_loss(self, record: Record) -> None:
        if self._first_loss is None:
            self._first_loss = self.clock.moment_s(record)

    def _on_order(self, record: Record) -> None:
        if record["kind"] == "prepare":
            if self._first_prepare is None:
                self._first_prepare, self._planned = self.clock.moment_s(record), self._decided
            return
        order = record.get("order")
        if not isinstance(order, dict):
            return
        generation = whole(order.get("generation"), 0)
        self.members[generation] = members_of(order)
        if record["kind"] == "reform":
            self.reformed.add(generation)
        if isinstance(order.get("restore"), dict):
            self.restored[generation] = str(order["restore"].get("checkpoint"))
        for old in [g for g in self.members if g < self.generation]:
            del self.members[old]

    def _on_switched(self, record: Record, life: ReplicaLife | None) -> None:
        generation = whole(record.get("generation"), 0)
        if life is not None and life.joined is None:
            life.joined = self.clock.moment_s(record)
            self._joiner_trains(life, generation)
        if generation > self.generation:
            before = self.members.get(self.generation, ())
            self.generation = generation
            if generation in self.restored:
                self._restored(record)
            elif before:
                self._entered(record, before)
            self._first_prepare = None
            if generation in self.reformed:
                self._first_loss = None

    def _entered(self, record: Record, before: tuple[str, ...]) -> None:
        now = self.members.get(self.generation, ())
        here, there = frozenset(now), frozenset(before)
        joined = tuple(name for name in now if name not in there)
        gone = tuple(name for name in before if name not in here)
        by_loss = self.generation in self.reformed
        cause = self._first_loss if by_loss else self._first_prepare
        lost = tuple(name for name in gone if by_loss or name in self._losses)
        drained = tuple(name for name in gone if name not in lost)
        for kind, names, reasons in (
            (ResizeKind.LOSS, lost, self._losses),
            (ResizeKind.DRAIN, drained, self._drains),
            (ResizeKind.JOIN, joined, self._starts),
        ):
            if names:
                why = "; ".join(dict.fromkeys(filter(None, map(reasons.get, names))))
                self._open(record, kind, names, why or self._planned, cause)

    def _restored(self, record: Record) -> None:
        """A new history: nobody is there that was before."""
        nothing = "what its script has kept" if self._restarts else NOTHING_KEPT
        why = f"from {self.restored[self.generation] or nothing}"
        now = self.members.get(self.generation, ())
        cause = max(self.commits[-1].mono, self._begun) if self.commits else None
        self._open(record, ResizeKind.RESTORE, now, why, cause)
        self._first_loss = None

    def _open(
        self,
        record: Record,
        kind: ResizeKind,
        names: tuple[str, ...],
        reason: str,
        cause: float | None,
    ) -> None:
        has_joiners = kind in (ResizeKind.JOIN, ResizeKind.RESTORE)
        resize = Resize(
            at=float(record.get("at") or 0.0),
            kind=kind,
            replicas=names,
            reason=reason,
            generation=self.generation,
            step=whole(record.get("step"), 0),
            num_replicas=len(self.members.get(self.generation, ())),
            mono=self.clock.moment_s(record),
            cause_mono=self.clock.moment_s(record) if cause is None else cause,
            ready_s=self._ready_s(names) if has_joiners else None,
        )
        self._resizes.append(_OpenResize(resize=resize))

    def _ready_s(self, names: tuple[str, ...]) -> float | None:
        lives = [self.lives[name] for name in names if name in self.lives]
        waits = [life.joined - life.requested for life in lives if life.joined is not None]
        return max(waits, default=None)

    def _joiner_trains(self, life: ReplicaLife, generation: int) -> None:
        for opened in reversed(self._resizes):
            resize = opened.resize
            if resize.generation < generation:
                return
            is_open = resize.pause_s is None  # else it was told
            if is_open and resize.kind is ResizeKind.JOIN and life.replica in resize.replicas:
                opened.resize = replace(resize, ready_s=self._ready_s(resize.replicas))

    def _on_commit(self, record: Record) -> None:
        commit = Commit(
            step=whole(record.get("step"), 0),
            generation=whole(record.get("generation"), 0),
            mono=self.clock.now_s,
            loss=number(record.get("loss")),
            samples=whole(record.get("samples"), 0),
        )
        last = self.commits[-1] if self.commits else None
        if last and commit.step <= last.step and commit.generation <= last.generation:
            return  # known, or told late by a coordinator that another has followed
        self.commits.append(commit)
        self.num_commits += 1
        if last is None:
            return
        if last.generation == commit.generation:
            size = len(self.members.get(commit.generation, ()))
            if size:
                gaps = self._gaps.get(size)
                if gaps is None:
                    gaps = self._gaps[size] = deque(maxlen=KEPT_GAPS)
                gaps.append(commit.mono - last.mono)
                if size in self._unpriced and len(gaps) >= NORMAL_GAPS:
                    self._price(size)
        for index in range(len(self._resizes) - 1, -1, -1):
            opened = self._resizes[index]
            if opened.longest_s is not None or opened.resize.generation > commit.generation:
                break
            self._close(opened, last, commit)
            self._unpriced.setdefault(opened.size, []).append(index)
            if len(self._gaps.get(opened.size, ())) >= NORMAL_GAPS:
                self._price(opened.size)

    def _close(self, opened: _OpenResize, last: Commit, commit: Commit) -> None:
        """The first commit after the resize: the event is over, its longest gap is known."""
        longest, later = commit.mono - max(last.mono, self._begun), commit
        for earlier in reversed(self.commits):
            if later.mono <= opened.resize.cause_mono:
                break
            longest = max(longest, later.mono - max(earlier.mono, self._begun))
            later = earlier
        opened.longest_s = longest
        opened.size = len(self.members.get(commit.generation, ())) or opened.resize.num_replicas
        opened.resize = replace(opened.resize, steps_lost=max(last.step + 1 - commit.step, 0))

    def _price(self, size: int) -> None:
        """Say what the resizes to a size cost, once and for all."""
        normal_s = self.median_step_s(size) or 0.0
        for index in self._unpriced.pop(size, ()):
            opened = self._resizes[index]
            pause_s = max((opened.longest_s or 0.0) - normal_s, 0.0)
            opened.resize = replace(opened.resize, pause_s=pause_s)


def timeline_of(records: Iterable[Record]) -> Timeline:
    """Feed a whole log to a new timeline."""
    timeline = Timeline()
    for record in records:
        timeline.add(record)
    return timeline
