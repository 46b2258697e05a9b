"""Tables of a job's phases and of its replicas' states, and the two functions that follow them.

Nothing else sets ``Job.phase`` or ``Replica.state``.  Must not know when a transition is made, nor
what else comes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from pliant.core.job.state import Job, JobPhase, Replica, ReplicaState
from pliant.core.table import Table
from pliant.core.transitions import Machine
from pliant.core.values import ReplicaId


class JobPhaseCause(StrEnum):
    """What brings a job to another phase."""

    NONE_RECORDED = "nobody to wait for"
    """The register tells of no member."""

    REGISTERED = "members registered"
    NONE_LEFT = "no member left"
    OUTCOME_RECORDED = "outcome recorded"
    PREPARED = "first generation prepared"
    STOP_ASKED = "stop asked for"
    STOP_CUT_SHORT = "no step boundary to stop at"
    FINISHED = "all finished"
    STATE_LOST = "state lost"
    INPUT_REFUSED = "input refused"
    BUDGET_SPENT = "restart budget spent"
    ALL_GONE = "every process gone"


class ReplicaCause(StrEnum):
    """What brings a replica to another state."""

    READY = "reached steps()"
    REGISTERED = "registered"
    ENTERED = "entered a generation"
    SENT_AWAY = "must leave"
    """Drained, reclaimed, more than the target, or past."""

    KILLED = "kill requested"
    OVERDUE = "overdue"
    DISMISSED = "may not join"
    LOST = "given up by the membership"
    RELEASED = "left behind by a resize"
    JOB_FINISHED = "job finished"
    EXITED = "process gone"


_ENDED = frozenset({JobPhase.ENDED})
_STOPPING = frozenset({JobPhase.STOPPING})
_STOPPING_OR_ENDED = _STOPPING | _ENDED
_STARTING = frozenset({JobPhase.STARTING})
_RUNNING = frozenset({JobPhase.RUNNING})
_FINISHING = frozenset({JobPhase.FINISHING})

JOB_PHASES: Machine[JobPhase] = Machine(
    name="job",
    initial=JobPhase.RECOVERING,
    rows={
        JobPhase.RECOVERING: {
            JobPhaseCause.STOP_ASKED: _ENDED,
            JobPhaseCause.NONE_RECORDED: _STARTING,
            JobPhaseCause.NONE_LEFT: _STARTING,
            JobPhaseCause.REGISTERED: _RUNNING,
            JobPhaseCause.OUTCOME_RECORDED: _FINISHING,
        },
        JobPhase.STARTING: {
            JobPhaseCause.PREPARED: _RUNNING,
            JobPhaseCause.STOP_ASKED: _STOPPING_OR_ENDED,
            JobPhaseCause.BUDGET_SPENT: _STOPPING_OR_ENDED,
            JobPhaseCause.STATE_LOST: _ENDED,
            JobPhaseCause.INPUT_REFUSED: _ENDED,
        },
        JobPhase.RUNNING: {
            JobPhaseCause.STOP_ASKED: _STOPPING_OR_ENDED,
            JobPhaseCause.BUDGET_SPENT: _STOPPING_OR_ENDED,
            JobPhaseCause.FINISHED: _FINISHING,
            JobPhaseCause.STATE_LOST: _STARTING | _ENDED,
            JobPhaseCause.INPUT_REFUSED: _ENDED,
        },
        JobPhase.STOPPING: {
            JobPhaseCause.STOP_ASKED: _ENDED,
            JobPhaseCause.STOP_CUT_SHORT: _ENDED,
            JobPhaseCause.FINISHED: _FINISHING,
            JobPhaseCause.STATE_LOST: _ENDED,
            JobPhaseCause.INPUT_REFUSED: _ENDED,
        },
        JobPhase.FINISHING: {
            JobPhaseCause.ALL_GONE: _ENDED,
            JobPhaseCause.STATE_LOST: _STARTING | _ENDED,
            JobPhaseCause.STOP_ASKED: _ENDED,
            JobPhaseCause.INPUT_REFUSED: _ENDED,
        },
        JobPhase.ENDED: {},
    },
)
"""Where a job's life may lead."""

_ENDING = frozenset({ReplicaState.ENDING})
_GONE = frozenset({ReplicaState.GONE})
_ENDS: Mapping[str, frozenset[ReplicaState]] = {
    ReplicaCause.SENT_AWAY: _ENDING,
    ReplicaCause.KILLED: _ENDING,
    ReplicaCause.LOST: _ENDING,
    ReplicaCause.DISMISSED: _ENDING,
    ReplicaCause.JOB_FINISHED: _ENDING,
    ReplicaCause.EXITED: _GONE,
}
"""What may come at any time."""

_LEAVES = frozenset({ReplicaState.LEAVING, ReplicaState.ENDING})

REPLICAS: Machine[ReplicaState] = Machine(
    name="replica",
    initial=ReplicaState.STARTING,
    rows={
        ReplicaState.STARTING: {
            **_ENDS,
            ReplicaCause.READY: frozenset({ReplicaState.SPARE}),
            ReplicaCause.REGISTERED: frozenset(
                {ReplicaState.SPARE, ReplicaState.TRAINING, ReplicaState.LEAVING}
            ),
            ReplicaCause.OVERDUE: _ENDING,
        },
        ReplicaState.SPARE: {
            **_ENDS,
            ReplicaCause.ENTERED: frozenset({ReplicaState.TRAINING}),
            ReplicaCause.SENT_AWAY: _LEAVES,
        },
        ReplicaState.TRAINING: {**_ENDS, ReplicaCause.SENT_AWAY: _LEAVES},
        ReplicaState.LEAVING: {
            **_ENDS,
            ReplicaCause.OVERDUE: _ENDING,
            ReplicaCause.RELEASED: _ENDING,
        },
        ReplicaState.ENDING: {ReplicaCause.EXITED: _GONE},
        ReplicaState.GONE: {},
    },
)
"""Where a replica's life may lead; members leave, anyone else ends at once."""


def phase_after(job: Job, phase: JobPhase, cause: JobPhaseCause) -> JobPhase:
    """Return the phase that a job enters; the only place that allows one.  It may be in it."""
    return phase if job.phase is phase else JOB_PHASES.follow(job.phase, cause, phase)


def replicas_after(
    job: Job, name: ReplicaId, replica: Replica, state: ReplicaState, cause: ReplicaCause
) -> Table[ReplicaId, Replica]:
    """Return the job's replicas with one in this state; the only place that allows one.

    One that is in it stays: what must end may be told so again.  The gone are forgotten.
    ``replica`` is its record with what else is to change of it, and its old state.
    """
    if replica.state is not state:
        replica = replace(replica, state=REPLICAS.follow(replica.state, cause, state))
    if replica.state is ReplicaState.GONE:
        return job.replicas.drop(name)
    return job.replicas.put(name, replica)
