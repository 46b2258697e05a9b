"""What a coordinator's core was told, in the log of its job: all that a replay needs.

Owns that the log holds each input of the core with the moment at which it was told, in order, and
now and then what the core knew, so that a replay can begin there.  Decides nothing; how signs of
life are written in few words is for ``observe.quiet_inputs`` to say.

    core_began    a coordinator begins: with these settings, and this register
    heard         signs of life
    node_joined   ... and every other event, each with its ``now_s``
    core_state    what the core knows by now
"""

from __future__ import annotations

from importlib.metadata import version

from pliant.core.events import Event, Progressed, Running, Ticked
from pliant.core.job.state import Job, JobSettings, Ready
from pliant.core.membership.transitions import AT_REST
from pliant.core.values import Register
from pliant.observe.core_values import written
from pliant.observe.log import EventLog, fields_of, kind_of
from pliant.observe.quiet_inputs import QuietInputs

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
