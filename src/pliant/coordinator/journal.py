"""What a coordinator writes into the log of its job, and when.

    InputLog         all that the core was told, and now and then what it knew: a replay needs it
    write_changes    changes of a job that people want to see and no command shows
    NoteLog          notes of agents and workers: metrics, commits, tracebacks
    hold_back_of_many, write_what_is_held
                     the log is written while nothing comes that an order may wait for
    Snapshots        when a snapshot is written and when the next part of the log begins

A snapshot holds all that stands before its position.  A part is closed only after a snapshot, so
what is removed later is in it, or in what each part says of those before.  What another coordinator
writes into the same log is taken in first, unless it is newer: then this one is about to end, and
leaves the log alone.

    the part has grown enough --> snapshot (another thread) --> cut: the next part begins

This module decides nothing.  ``observe.quiet_inputs`` says how signs of life are written.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from pliant.coordinator.loop import Inbox
from pliant.core.events import Event, Progressed, Running, Ticked
from pliant.core.job.node_pauses import pauses
from pliant.core.job.state import Job, JobSettings, Ready
from pliant.core.job.stragglers import slow_times
from pliant.core.membership.transitions import AT_REST
from pliant.core.policy.decide import Policy
from pliant.core.values import NO_GENERATION, Generation, Register
from pliant.machine.event_loop import aside, within
from pliant.machine.files import open_private
from pliant.observe import parts
from pliant.observe.core_values import written
from pliant.observe.history import History, read_history, snapshot_of, write_snapshot
from pliant.observe.log import EventLog, Record, fields_of, kind_of, number, plain
from pliant.observe.parts import PART_BYTES
from pliant.observe.quiet_inputs import QuietInputs
from pliant.observe.reading import record_of
from pliant.observe.timeline import Commit, Timeline
from pliant.spec.policy import document_of
from pliant.wire import messages
from pliant.wire.codec import Message

LASTING = 200
"""Signs of life that are written at once: a line of 6 kB."""

STATE_BYTES = 1 << 20
"""Growth of the log after which the state is written again: so much a damaged line can cost."""


LATE = 4
"""How many times as much the log may grow while members are changing."""


class InputLog:
    """Writes the inputs of one core, and what it answered at once."""

    def __init__(self, log: EventLog, settings: JobSettings) -> None:
        self._log = log
        self._settings = settings
        self._quiet = QuietInputs(most_silence_s=settings.timeouts.asleep_s)
        self._part = log.number
        self._state_at = 0

    def begin(self, *, now_s: float, register: Register | None, is_asked: bool) -> None:
        """Log with what a core has begun."""
        self._log.write(
            "core_began",
            now_s=now_s,
            version=version("pliant"),
            settings=written(JobSettings, self._settings),
            register=written(Register | None, register),
            is_asked=is_asked,
        )
        self._part, self._state_at = self._log.number, self._log.written

    def write_event(
        self, event: Event, ready: Ready, *, states: tuple[Job, Job] | None, now_s: float
    ) -> None:
        """Log an event; one that nothing came of would only fill the disk, and is kept short.

        ``states``: of the job before and after a sign of life.

        Of a request that is refused only that: nothing has come of it.
        """
        is_quiet = not (ready.commands or ready.notes or ready.decision is not None)
        if is_quiet and isinstance(event, Ticked | Progressed | Running) and states is not None:
            self._quiet.add(event, *states, now_s)
            if self._quiet.lasting >= LASTING:
                self.write_quiet()
            return
        self.write_quiet(now_s)
        if ready.declined is not None:
            request = {"kind": kind_of(event), **fields_of(event)}
            self._log.write_value(ready.declined, request=request, now_s=now_s)
        else:
            self._log.write_value(event, now_s=now_s)
        if ready.decision is not None:
            decision = ready.decision
            wait_s = decision.earliest_s - now_s if decision.is_waiting else None
            self._log.write_value(decision, looks_again_s=wait_s)
        for sentence in ready.notes:
            self._log.write("note", text=sentence)

    def write_quiet(self, now_s: float | None = None) -> None:
        """Log the signs of life so far; ``now_s``: of an event that follows at once."""
        entries = self._quiet.taken(now_s)
        if entries:
            self._log.write("heard", signs=entries)

    def write_state_if_due(self, state: Job) -> None:
        """Log what the core knows: a part that begins needs it, and so does one that has grown.

        With a thousand members that takes a while, so rather when no change is under way.
        """
        grown = self._log.written - self._state_at
        is_calm = state.membership.phase in AT_REST
        most = STATE_BYTES if is_calm else LATE * STATE_BYTES
        if self._log.number == self._part and grown < most:
            return
        self.write_state(state)

    def write_state(self, state: Job) -> None:
        """Log what the core knows."""
        self.write_quiet()
        self._log.write(
            "core_state",
            version=version("pliant"),
            settings=written(JobSettings, self._settings),
            state=written(Job, state),
        )
        self._part, self._state_at = self._log.number, self._log.written


TOLD_BYTES = 1 << 18
"""Of the end of the file of logged values, which a coordinator that is started anew reads."""

KEPT_STEPS = 1000
"""How many steps back a second report of a commit is still recognised."""

LOGGED_AS: dict[type, str] = {
    messages.AgentLeft: "agent_left",
    messages.DevicesAiling: "devices_ailing",
    messages.IntervalChosen: "interval_chosen",
    messages.Logged: "metrics",
    messages.Noted: "note",
    messages.Planned: "plan",
    messages.Resumed: "resumed",
    messages.SaveFailed: "save_failed",
    messages.SlotsMoved: "slots_moved",
    messages.Started: "worker",
    messages.Traceback: "traceback",
    messages.Usage: "usage",
}
"""Notes that go into the log as they are, by the kind that they have there."""


class NoteLog:
    """Writes the notes of one job."""

    def __init__(self, log: EventLog, metrics_path: Path) -> None:
        self._log = log
        self._metrics_path = metrics_path
        self._committed: dict[int, Generation] = {}
        self._logged = _logged_in(metrics_path)
        """Values of the newest steps: who leads after a dead one tells what that may have told."""

    def write_note(self, note: Message) -> None:
        """Log a note that goes into the log as it is, if this is one."""
        if isinstance(note, messages.Logged) and self._is_told(note):
            return
        if type(note) in LOGGED_AS:
            self._log.write(LOGGED_AS[type(note)], **fields_of(note))
        if isinstance(note, messages.Logged):
            self._write_metrics(json.dumps(plain({"step": note.step, **note.values})) + "\n")

    def _is_told(self, note: messages.Logged) -> bool:
        """Whether a step has these values already, since it was committed last."""
        values = {name: repr(value) for name, value in note.values.items()}
        known = self._logged.setdefault(note.step, {})
        if len(self._logged) > KEPT_STEPS:
            del self._logged[next(iter(self._logged))]
        is_told = values.items() <= known.items()
        known.update(values)
        return is_told

    def _write_metrics(self, line: str) -> None:
        """Append a line, whole or not at all; in parts, of which the oldest go, as the log's do."""
        path, data = self._metrics_path, line.encode()
        with suppress(OSError):  # on a full disk they are lost, like the log's records
            fd = open_private(path, os.O_WRONLY | os.O_APPEND)
            try:
                size = os.fstat(fd).st_size
                if os.write(fd, data) < len(data):
                    os.ftruncate(fd, size)
            finally:
                os.close(fd)
            if size + len(data) >= parts.PART_BYTES:
                number = parts.growing(path)
                path.rename(parts.closed_path(path, number))
                parts.remove(path, before=number + 1 - parts.KEPT_PARTS)

    def write_commit(self, note: messages.Committed, *, is_here: bool) -> None:
        """Log that a step is committed; at its own moment if its replica's clock is the log's."""
        when = {"mono": note.mono_s} if is_here else {}
        found: dict[str, object] = {}
        if note.nonfinite:
            found = {"nonfinite": note.nonfinite, "skipped": note.is_skipped}
        if note.parts_us:
            found["parts_us"] = note.parts_us
        self._log.write(
            "commit",
            step=note.step,
            generation=note.generation,
            loss=note.loss,
            grad_norm=note.grad_norm,
            samples=note.samples,
            step_s=note.step_s,
            by=note.replica,
            **when,
            **found,
        )

    def remember(self, commits: Iterable[Commit]) -> None:
        """Know these commits, which another coordinator has logged."""
        for commit in commits:
            self.commits_once(commit.step, Generation(commit.generation))

    def commits_once(self, step: int, generation: Generation) -> bool:
        """Whether this commit was not known yet; from now on it is.

        Every member reports it, the first to be heard counts.  A step that comes again in a newer
        generation was lost and done again, and is logged again.
        """
        if generation <= self._committed.get(step, NO_GENERATION):
            return False
        self._committed[step] = generation
        self._logged.pop(step, None)
        self._committed.pop(step - KEPT_STEPS, None)
        return True


def _logged_in(path: Path) -> dict[int, dict[str, str]]:
    """Return the values that a coordinator before this one has written last, by step."""
    found: dict[int, dict[str, str]] = {}
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TOLD_BYTES))
        for line in file.read().splitlines():
            with suppress(ValueError, AttributeError, TypeError):
                values = {name: number(value) for name, value in json.loads(line).items()}
                step = values.pop("step")
                found.setdefault(int(step or 0), {}).update(
                    {name: repr(value) for name, value in values.items()}
                )
    return found


BY_THE_REGISTER = "register"
"""Who tells of an order that its coordinator could not log."""


def write_changes(log: EventLog, before: Job, after: Job, *, now_s: float) -> None:
    """Log in what a job differs from what it was."""
    if after.sizing.policy is not None and after.sizing.policy != before.sizing.policy:
        write_policy(log, after.sizing.policy)
    if after.nodes.apart != before.nodes.apart:
        log.write("nodes_apart", pairs=pauses(after.nodes.apart, now_s))
    if after.nodes.silent != before.nodes.silent:
        heard = (before.nodes.silent - after.nodes.silent) & after.nodes.devices.keys()
        log.write("nodes_silent", nodes=sorted(after.nodes.silent), heard=sorted(heard))
    if after.stragglers.slow is before.stragglers.slow:
        return
    slow = slow_times(after.stragglers.slow, now_s)
    if [one[:2] for one in slow] != [one[:2] for one in slow_times(before.stragglers.slow, now_s)]:
        log.write("replicas_slow", replicas=slow)


def write_policy(log: EventLog, policy: Policy) -> None:
    """Log what counts from now on."""
    log.write(
        "policy_changed",
        policy=document_of(policy),
        min_replicas=policy.min_replicas,
        max_replicas=policy.max_replicas,
    )


def write_unlogged_order(log: EventLog, recorded: Register | None, known: Timeline) -> None:
    """Log the newest order of the register if the coordinator before was killed before it could.

    Orders are sent before a line is logged of them.  Which kind it was the register does not tell:
    a Reform brings nobody in and lets nobody leave.
    """
    order = None if recorded is None else recorded.newest
    if recorded is None or order is None or order.generation <= max(known.members, default=0):
        return
    before = known.members.get(known.generation, ())
    is_reform = bool(before) and not recorded.leavers and set(order.replicas) <= set(before)
    log.write("reform" if is_reform else "switch", to=(), order=order, by=BY_THE_REGISTER)


MANY = 50
"""Replicas of a job whose log is held back: the answers of fewer are logged in a millisecond."""

AT_ONCE = 32
"""Records that are written before it is looked whether more has come: some milliseconds."""

LONGEST_S = 0.5
"""How long records are held back while more comes all the time, in seconds."""


def hold_back_of_many(log: EventLog, num_replicas: int) -> None:
    """Hold back what is logged from now on, if an order waits for the answers of many."""
    if num_replicas >= MANY:
        log.hold()


async def write_what_is_held(log: EventLog, inbox: Inbox) -> None:
    """Write what is held back, some of it at once, until more comes."""
    while (held_s := log.held_s) is not None:
        if held_s < LONGEST_S and await inbox.has_more():
            return
        log.release(AT_ONCE)
    log.release()  # hold back no more


LAST_BYTES = 1 << 20
"""Growth of the log after which its end is worth a snapshot: 4,000 steps, read in 0.1 s."""

LAST_S = 2.0
"""Longest wait for it, in seconds."""

_log = logging.getLogger(__name__)


class Snapshots:
    """Those of one log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._due_at = PART_BYTES
        self._written = 0
        """Bytes that this coordinator had written when the history was last known to be whole."""

        self._is_over = False
        self._writing: asyncio.Task[bool] | None = None

    async def read(self) -> History:
        """Return what the log says by now, before anything else is written to it."""
        self._written = self._log.written
        history = await aside(read_history, self._log.path)
        self._log.carried = history.carried.records
        number, offset = parts.place(max(history.snapshot_at, parts.position(self._log.number, 0)))
        self._due_at = PART_BYTES + offset * (number == self._log.number)
        return history

    def write_if_due(self, history: History) -> None:
        """Write a snapshot, on another thread, if the part has grown enough; then begin another."""
        if self._writing is not None:
            if self._writing.done():
                is_written, self._writing = self._writing.result(), None
                if is_written and self._log.cut():
                    self._due_at = PART_BYTES
            return
        size = self._log.size()
        if size < self._due_at:
            return
        self._due_at = size + PART_BYTES
        data = self._snapshot(history, size)
        if data is not None:
            self._writing = asyncio.create_task(aside(_write, data, self._log))

    async def write_last(self, history: History) -> None:
        """Write a snapshot of what has grown: who looks at a run that is over reads the rest."""
        grown = parts.grown(self._log.path, history.snapshot_at)
        if self._writing is None and grown >= LAST_BYTES:
            data = self._snapshot(history, self._log.size())
            if data is not None:
                await within(aside(_write, data, self._log), LAST_S)

    def _snapshot(self, history: History, size: int) -> bytes | None:
        try:
            if not self._is_whole(history):
                return None
            history.position = history.snapshot_at = parts.position(self._log.number, size)
            self._written = self._log.written
            return snapshot_of(history, self._log.path)
        except OSError as error:  # no descriptor is free: the job goes on
            _warn(error, self._log)
            return None

    def _is_whole(self, history: History) -> bool:
        """Take in what others have written; False if that cannot be, or is not for us to do."""
        if parts.grown(self._log.path, history.position) == self._log.written - self._written:
            return True
        mine = self._log.incarnation
        if mine is None or self._is_over:
            return False
        others: list[Record] = []
        sign = f'"incarnation":{mine},'.encode()
        for _, line in parts.lines(self._log.path, history.position):
            record = None if sign in line else record_of(line)
            if record is None or record.get("incarnation") == mine:
                continue
            number = record.get("incarnation")
            if isinstance(number, int) and number > mine:
                self._is_over = True
                return False
            others.append(record)
        for record in others:
            history.add(record)
        return True


def _write(data: bytes, log: EventLog) -> bool:
    try:
        write_snapshot(data, log.path)
    except OSError as error:  # a restart takes longer
        _warn(error, log)
        return False
    return True


def _warn(error: OSError, log: EventLog) -> None:
    _log.warning("no snapshot of %s could be written: %s", log.path, error)
