"""A recorded run or pool, played once more through the core that decided it, and compared.

Owns the comparison: of each thing that a core was told, whether it decides the same as was recorded
then, and from where to where that is certain.  After a gap in the log, or a difference, nothing is
certain until the log says again what the core knew.  Decides nothing: what is decided is
``core.job``'s or ``core.allocation``'s, the same as was recorded.

    entries of the log --> Life (the core of one coordinator, or of a pool) --> Turn, Break
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from tools.replay_log import (
    Began,
    CoreState,
    Entry,
    Gap,
    LogPlace,
    PoolBegan,
    Said,
    Told,
)

from pliant.core import allocation
from pliant.core.allocation import kinds
from pliant.core.allocation.kinds import KindedPool, PoolBeginning
from pliant.core.allocation.values import Actions
from pliant.core.events import NodeJoined
from pliant.core.job import controller
from pliant.core.job.state import Job, JobSettings, Ready
from pliant.core.text import in_one_line
from pliant.core.values import Register
from pliant.observe.log import ENVELOPE, Record, fields_of, kind_of

MOST_DEVICES_IN_ALL = 100_000
"""Of a log: a core would order as many replicas before anybody could stop it."""

BY_THE_PROCESS = "process"
"""Who has ended a job if it was not the core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One thing that a core was told, what was recorded of its answer, and what it is now."""

    place: LogPlace
    now_s: float
    event: Any
    """Of ``core.job`` or ``core.allocation``; None: the coordinator or the pool begins."""

    record: Record = field(default_factory=dict)
    """What stands in the log of the event, if it stands there on its own."""

    settings: JobSettings = JobSettings()  # noqa: RUF009 - frozen
    before: Job | None = None
    """What the core of a job knew when it was told; None: not known, or it has just begun."""

    after: Job | None = None
    """What it knows by now; None: that is not certain."""

    ready: Ready | None = None
    """What the core of a job answers now; None: that is not known."""

    actions: Actions = ()
    """What the core of a pool does."""

    answers: tuple[Record, ...] | None = None
    """What a core answers now, as the log would have it; None: that is not known."""

    recorded: tuple[Record, ...] = ()
    """The same of then, in the order of the log."""

    declined: str | None = None
    is_sign: bool = False
    difference: str | None = None
    """In what the answer differs from the recorded one; None: in nothing, or it is not known."""

    version: str = ""
    """Beginning: of the pliant that wrote this."""

    register: Register | None = None
    """Beginning: what the coordinator has found; that the job had ended does not count if somebody
    has asked for it to go on."""

    beginning: PoolBeginning | None = None
    """With what a pool begins."""

    @property
    def is_of_pool(self) -> bool:
        """Whether the core is a pool's."""
        return self.beginning is not None or isinstance(self.event, allocation.Event)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was decided, neither then nor now."""
        said = self.recorded or self.declined is not None
        return self.event is not None and not said and not self.answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Certainty ends here, or begins again."""

    place: LogPlace
    is_certain: bool
    why: str


Step = Turn | Break


@dataclass(slots=True, kw_only=True)
class _Life:
    """The core of one coordinator, or of a pool."""

    core: Job | KindedPool | None
    """What it knows; None: that is not certain."""

    settings: JobSettings = JobSettings()  # noqa: RUF009 - frozen

    told: Told | None = None
    said: list[Record] = field(default_factory=list)
    """What was recorded since."""

    latest: float = 0.0


def replayed(entries: Iterable[Entry]) -> Iterator[Step]:
    """Play a log; yield each turn of a core once all that was recorded of it is known."""
    replay = _Replay()
    for entry in entries:
        yield from replay.steps_of(entry)
    for life in replay.lives.values():
        yield from _turn(life, is_last=True)


@dataclass(slots=True)
class _Replay:
    lives: dict[int, _Life] = field(default_factory=dict)
    """By incarnation; only the newest counts, and an older one until then."""

    def steps_of(self, entry: Entry) -> Iterator[Step]:
        number = entry.place.incarnation
        match entry:
            case Gap(place=place, why=why):
                for life in self.lives.values():
                    yield from _turn(life, is_last=True)
                    life.core = None
                yield Break(place=place, is_certain=False, why=why)
            case Began() | PoolBegan():
                for life in self.lives.values():
                    yield from _turn(life, is_last=True)
                self.lives = {}
                try:
                    yield self._begin(entry, number)
                except Exception as error:  # whatever stands in the log
                    why = _refused("beginning", error)
                    yield Break(place=entry.place, is_certain=False, why=why)
            case CoreState():
                yield from self._know(entry, number)
            case Told() if number in self.lives:
                life = self.lives[number]
                yield from _turn(life)
                life.told = entry
            case Told() if not self.lives:
                self.lives[number] = _Life(core=None, told=entry)
            case Said(kind=kind, record=record) if number in self.lives:
                if not (kind == "end_job" and record.get("by") == BY_THE_PROCESS):
                    self.lives[number].said.append(record)
            case _:
                pass  # of a coordinator that another has followed, or of one that is not known

    def _begin(self, entry: Began | PoolBegan, number: int) -> Turn:
        if isinstance(entry, PoolBegan):
            pool = kinds.begun(entry.beginning, now_s=entry.now_s)
            self.lives[number] = _Life(core=pool, latest=entry.now_s)
            return Turn(
                place=entry.place,
                now_s=entry.now_s,
                event=None,
                record=entry.record,
                answers=(),
                version=entry.version,
                beginning=entry.beginning,
            )
        register = entry.register
        if register is not None and entry.is_asked:  # as the core does
            register = replace(register, outcome=None)
        job, ready = controller.begin(now_s=entry.now_s, settings=entry.settings, register=register)
        self.lives[number] = _Life(settings=entry.settings, core=job, latest=entry.now_s)
        return Turn(
            place=entry.place,
            now_s=entry.now_s,
            event=None,
            settings=entry.settings,
            after=job,
            ready=ready,
            answers=answers_of(ready),
            version=entry.version,
            register=register,
        )

    def _know(self, entry: CoreState, number: int) -> Iterator[Step]:
        life = self.lives.get(number)
        if life is None and self.lives and number < max(self.lives):
            return
        for one in self.lives.values():
            yield from _turn(one, is_last=one is not life)
        if life is None or not isinstance(life.core, Job):
            why = "what the core knew is recorded here"
            yield Break(place=entry.place, is_certain=True, why=why)
        elif (why_not := _difference_of_states(life.core, entry.job)) is not None:
            yield Break(place=entry.place, is_certain=False, why=why_not)
            again = "the replay goes on from what was recorded"
            yield Break(place=entry.place, is_certain=True, why=again)
        latest = (
            entry.job.history.seen_s if life is None else max(life.latest, entry.job.history.seen_s)
        )
        self.lives = {number: _Life(settings=entry.settings, core=entry.job, latest=latest)}


def _turn(life: _Life, *, is_last: bool = False) -> Iterator[Step]:
    """Let a core answer what it was told last, now that all that was recorded of it is known.

    ``is_last``: its process may have ended before all of that was carried out.
    """
    told, said = life.told, tuple(life.said)
    life.told, life.said = None, []
    if told is None:
        return
    before, now, answers, difference = life.core, None, None, None
    if before is not None:
        try:
            life.core, now = _answer(life, before, told)
            answers = answers_of(now)
            difference = _difference_of(now, answers, said, told, may_be_cut=is_last)
        except Exception as error:  # whatever stands in the log
            difference = _refused(kind_of(told.event), error)
        if difference is not None:
            life.core = None
    yield Turn(
        place=told.place,
        now_s=told.now_s,
        event=told.event,
        record=told.record,
        settings=life.settings,
        before=before if isinstance(before, Job) else None,
        after=life.core if isinstance(life.core, Job) else None,
        ready=now if isinstance(now, Ready) else None,
        actions=now if isinstance(now, tuple) else (),
        answers=answers,
        recorded=said,
        declined=told.declined,
        is_sign=told.is_sign,
        difference=difference,
    )


def _answer(
    life: _Life, core: Job | KindedPool, told: Told
) -> tuple[Job | KindedPool, Ready | Actions]:
    if told.now_s < life.latest:
        raise ValueError(f"time goes back, from {life.latest:.6f} s to {told.now_s:.6f} s")
    life.latest = told.now_s
    event = told.event
    if isinstance(core, KindedPool):
        return kinds.step_kinds(core, event, now_s=told.now_s)
    if isinstance(event, NodeJoined):
        devices = sum(core.nodes.devices.values()) + event.devices
        if devices > MOST_DEVICES_IN_ALL:
            raise ValueError(f"{devices} devices; at most {MOST_DEVICES_IN_ALL} are replayed")
    return controller.step(core, event, now_s=told.now_s, settings=life.settings)


# --- what is the same ---------------------------------------------------------------------


def answers_of(now: Ready | Actions) -> tuple[Record, ...]:
    """Return what a core answers as the log would have it."""
    if not isinstance(now, Ready):
        return tuple(map(_as_record, now))
    answers = [] if now.decision is None else [_as_record(now.decision)]
    answers += [{"kind": "note", "text": text} for text in now.notes]
    return (*answers, *map(_as_record, now.commands))


def _difference_of(
    now: Ready | Actions,
    answers: Sequence[Record],
    recorded: Sequence[Record],
    told: Told,
    *,
    may_be_cut: bool,
) -> str | None:
    """Say in what an answer differs first from the recorded one; None: in nothing.

    ``may_be_cut``: the end of what was recorded may be missing.
    """
    refusal = now.declined if isinstance(now, Ready) else None
    declined = None if refusal is None else refusal.reason
    if declined != told.declined:
        return f"declined: {_or_nothing(told.declined)} was recorded, now {_or_nothing(declined)}"
    for mine, then in zip(answers, recorded, strict=False):
        if (why := unlike(mine, then)) is not None:
            return why
    if len(recorded) > len(answers):
        return f"{summary(recorded[len(answers)])} was recorded, now nothing"
    if len(answers) > len(recorded) and not may_be_cut:
        return f"nothing more was recorded, now {summary(answers[len(recorded)])}"
    return None


def summary(answer: Record) -> str:
    """Say what one answer is, in one line."""
    values = {k: v for k, v in answer.items() if k not in ENVELOPE and v not in (None, "", [])}
    words = ", ".join(f"{key}={_short(value)}" for key, value in values.items())
    return in_one_line(f"{answer.get('kind')}({words})")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def _or_nothing(text: str | None) -> str:
    return "nothing" if text is None else in_one_line(repr(text))


def unlike(now: Record, then: Record) -> str | None:
    """Say in what one answer differs; fields that only one version knows do not count."""
    if now["kind"] != then.get("kind"):
        return f"{summary(then)} was recorded, now {summary(now)}"
    for name in now:  # in their order: the same log is told in the same words
        if name in then and name not in ENVELOPE and now[name] != then[name]:
            was, is_now = _short(then[name]), _short(now[name])
            return in_one_line(f"{now['kind']}: {name} was {was}, now {is_now}")
    return None


def _as_record(value: Any) -> Record:
    return {"kind": kind_of(value), **fields_of(value)}


def _difference_of_states(replayed_job: Job, recorded: Job) -> str | None:
    for name in Job.__slots__:
        now, then = getattr(replayed_job, name), getattr(recorded, name)
        if now != then:
            where, now, then = _innermost(name, now, then)
            said = f"{_short(then)} was recorded, now {_short(now)}"
            return in_one_line(f"what the core knows differs in {where}: {said}")
    return None


def _innermost(where: str, now: Any, then: Any) -> tuple[str, Any, Any]:
    for one in fields(now) if is_dataclass(now) else ():
        a, b = getattr(now, one.name), getattr(then, one.name, None)
        if one.compare and a != b:
            return _innermost(f"{where}.{one.name}", a, b)
    return where, now, then


def _refused(what: str, error: Exception) -> str:
    return in_one_line(f"the core does not take this {what}: {type(error).__name__}: {error}")[:400]
