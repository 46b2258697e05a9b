"""A planned stop: all processes of a generation end together, with the time to save before.

Owns how the restart workers agree on the call at which every process learns of it, and how each
process has ended.  From the first word of it on what ends is no fault.

    leader                                        followers
      ask: why, how long    ------------------->    what ends from now on was told to
      <------------------------------------------   count: calls of each process
      propose: call T = most + margin  --------->    written provisionally (``page``)
      <------------------------------------------   count: calls by then; T or more: a higher T
      go                    ------------------->    confirmed; without calls SIGTERM
      <------------------------------------------   stopped: how each has ended
      done                  ------------------->    the next generation

    acknowledged   by ``event.saved``
    exited         by itself, whether it saved or not
    forced         SIGTERM, and SIGKILL after ``FORCE_S``, once its time is over
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self, TypeVar

from pliant.core.membership.member import Member
from pliant.core.text import counted
from pliant.core.values import Generation
from pliant.machine.processes import signal_name
from pliant.restart.links import Links
from pliant.restart.page import SETTLE_S
from pliant.restart.processes import KILL_S, Process, Processes

ASK, COUNT, PROPOSE, GO, STOPPED, DONE = "ask", "count", "propose", "go", "stopped", "done"

T = TypeVar("T")

FORCE_S = 5.0
"""From SIGTERM to SIGKILL of a process whose time is over, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why all processes are to end, and in what time."""

    reason: str
    generation: Generation
    """That follows; 0: none does."""

    old_size: int
    new_size: int
    staying: tuple[str, ...]
    """Replicas that go on in that generation."""

    graceful_s: float

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return what the leader has asked."""
        fields = {name: record[name] for name in cls.__dataclass_fields__}
        return cls(**{**fields, "staying": tuple(fields["staying"])})

    def event(self, replica: str) -> dict[str, Any]:
        """Return what the processes of a replica are told."""
        return {
            "reason": self.reason,
            "deadline": time.time() + self.graceful_s,
            "old_size": self.old_size,
            "new_size": self.new_size,
            "leaving": replica not in self.staying,
        }


class Stopping(Protocol):
    """What of a restart worker takes part."""

    member: Member
    processes: Processes | None
    is_stopping: bool

    async def until(
        self, look: Callable[[], T | None], generation: Generation, limit_s: float | None = None
    ) -> T:
        """Wait until there is something to see; raises if there never will be."""

    def note(self, text: str, *, lasting: bool = False) -> None:
        """Pass on one sentence for people."""


async def lead(worker: Stopping, links: Links, stop: Stop) -> bool:
    """Have all stop, agree on the call, and wait until nothing runs any more.

    Returns:
        Whether the script had ended in every process before it could see that.

    Raises:
        Interrupted: somebody is gone, or a newer generation has begun.
    """
    worker.is_stopping = True
    links.tell_all(ASK, **asdict(stop))
    most = max(await _gathered(worker, links, COUNT, _calls(worker.processes)), default=0)
    at, margin = 0, 1
    while most and most >= at:
        at, margin = most + margin, margin * 4
        links.tell_all(PROPOSE, at=at)
        here = await _proposed(worker, stop, at)
        most = max(await _gathered(worker, links, COUNT, here))
    links.tell_all(GO, at=at)
    here = await _stopped(worker, links, stop, at)
    outcomes = await _gathered(worker, links, STOPPED, here)
    ends = [ProcessEnd(**one) for one in outcomes]
    is_over = had_ended(at, ends)
    links.tell_all(DONE, is_over=is_over)
    for text, is_lasting in told(stop, at, ends):
        worker.note(text, lasting=is_lasting)
    return is_over


async def follow(worker: Stopping, links: Links, stop: Stop) -> bool:
    """Do as the leader says, until nothing runs any more; returns the same.

    Raises:
        Interrupted: as of ``lead``.
    """
    worker.is_stopping = True
    generation = links.order.generation
    links.tell(0, COUNT, values=_calls(worker.processes))
    while True:
        said = await worker.until(
            lambda: links.next_of(0, PROPOSE) or links.next_of(0, GO), generation
        )
        if said["kind"] == GO:
            break
        links.tell(0, COUNT, values=await _proposed(worker, stop, said["at"]))
    links.tell(0, STOPPED, values=await _stopped(worker, links, stop, said["at"]))
    done = await worker.until(lambda: links.next_of(0, DONE), generation)
    return bool(done["is_over"])


async def _gathered(worker: Stopping, links: Links, kind: str, own: Sequence[Any]) -> list[Any]:
    """Return what each process is said to have, in the order of their ranks."""
    said: dict[int, Sequence[Any]] = {0: own}

    def all_have_said() -> bool | None:
        for rank in links.others:
            if rank not in said and (one := links.next_of(rank, kind)) is not None:
                said[rank] = one["values"]
        return len(said) == len(links.order.members) or None

    await worker.until(all_have_said, links.order.generation)
    return [value for rank in sorted(said) for value in said[rank]]


def _calls(processes: Processes | None) -> list[int]:
    return [] if processes is None else [one.page.calls for one in processes.all]


async def _proposed(worker: Stopping, stop: Stop, at: int) -> list[int]:
    """Write the call provisionally; return how often each process that runs has called by then."""
    processes = worker.processes
    if processes is None:
        return []
    for one in processes.all:
        one.page.propose(at, stop.event(worker.member.replica))
    await asyncio.sleep(SETTLE_S)
    return [0 if one.code is not None else one.page.calls for one in processes.all]


async def _stopped(worker: Stopping, links: Links, stop: Stop, at: int) -> list[Any]:
    """Let the processes of this replica end; return how each has."""
    processes = worker.processes
    if processes is None:
        return []
    if at:
        for one in processes.all:
            one.page.confirm()
    else:
        processes.signal_all(signal.SIGTERM)
    steps = ((stop.graceful_s, signal.SIGTERM), (FORCE_S if at else 0.0, signal.SIGKILL))
    for limit_s, then in steps:
        try:
            await worker.until(
                lambda: not processes.running or None, links.order.generation, limit_s
            )
        except TimeoutError:
            processes.signal_all(then)
        else:
            break
    else:
        processes.kill()
        await worker.until(lambda: not processes.running or None, links.order.generation, KILL_S)
    return [asdict(_outcome(one, at)) for one in processes.all]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """How one process has ended."""

    rank: int
    kind: str
    """``acknowledged``, ``exited`` or ``forced``."""

    code: int
    calls: int
    step: int
    path: str
    is_told: bool
    """It was sent SIGTERM."""

    cost: int
    """Calls since it was started or acknowledged a save, if it did not now."""


def _outcome(one: Process, at: int) -> ProcessEnd:
    saves, step, saved_at, path = one.page.saved
    is_acknowledged = bool(saves and at and saved_at >= at)
    is_forced = one.is_told and (one.code or 0) < 0
    kind = "acknowledged" if is_acknowledged else "forced" if is_forced else "exited"
    return ProcessEnd(
        rank=one.rank,
        kind=kind,
        code=one.code or 0,
        calls=one.page.calls,
        step=step,
        path=path,
        is_told=one.is_told,
        cost=0 if is_acknowledged else one.page.calls - (saved_at if saves else 0),
    )


def had_ended(at: int, ends: Sequence[ProcessEnd]) -> bool:
    """Whether all had ended with code 0 by themselves, before call ``at`` and before any signal."""
    return bool(ends) and all(
        one.kind == "exited" and one.code == 0 and not one.is_told and (not at or one.calls < at)
        for one in ends
    )


def told(stop: Stop, at: int, ends: Sequence[ProcessEnd]) -> Iterator[tuple[str, bool]]:
    """Yield sentences on how all processes have ended, and whether each is to be told again."""
    if not ends:
        return
    size = f"from {stop.old_size} to {stop.new_size}" if stop.generation else "for good"
    where = f", at call {at} of elastic_event" if at else ""
    words: dict[str, list[int]] = {}
    for one in ends:
        saved = f"acknowledged step {one.step}" + f" ({one.path})" * bool(one.path)
        name = signal_name(-one.code)
        itself = f"exited with code {one.code} by itself" if one.code >= 0 else f"ended by {name}"
        forced = f"forced ({name})"
        text = {"acknowledged": saved, "exited": itself, "forced": forced}
        words.setdefault(text[one.kind], []).append(one.rank)
    said = "; ".join(f"{ranked(ranks)} {text}" for text, ranks in words.items())
    yield f"stopped {size}{where}: {said}", False
    if not at:
        return
    counts: dict[int, list[int]] = {}
    for one in ends:
        counts.setdefault(one.calls, []).append(one.rank)
    if len(counts) > 1:
        listed = ", ".join(f"{ranked(ranks)} {counted(n, 'time')}" for n, ranks in counts.items())
        yield f"processes have called elastic_event differently often: {listed}", True
    for kind, why in (("forced", f"within {stop.graceful_s:g} s"), ("exited", "when it failed")):
        late = [one for one in ends if one.kind == kind and one.code]
        if late:
            cost = max(one.cost for one in late)
            yield (
                f"{ranked([one.rank for one in late])} had not acknowledged a save {why}: up to "
                f"{counted(cost, 'step')} may be repeated",
                True,
            )


def ranked(ranks: Sequence[int]) -> str:
    """Name ranks: ``rank 3``, ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    named = ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
    return f"rank{'s' * (len(ranks) > 1)} {named}"
