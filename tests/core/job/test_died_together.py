"""Deaths that are told together end where they end one after the other, in one generation."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from tests.core.job.test_batched import GROWING, NAMES, REFORMING, SETTINGS, SIX, SWITCHING

from pliant.core.commands import Command, Reform, StartReplica
from pliant.core.events import DiedTogether, Event, Exited, ExitKind, Finished
from pliant.core.job import controller
from pliant.core.job.state import Job, JobPhase
from pliant.core.membership.state import members
from pliant.core.values import ReplicaId

ONE_HAS_FINISHED, _ = controller.step(
    SIX,
    Finished(replica=NAMES[0], committed=9, lineage=SIX.membership.lineage),
    now_s=2.0,
    settings=SETTINGS,
)


def told(job: Job, *events: Event) -> tuple[Job, list[Command]]:
    commands: list[Command] = []
    for event in events:
        job, ready = controller.step(job, event, now_s=3.0, settings=SETTINGS)
        commands += ready.commands
    return job, commands


def killed(name: ReplicaId) -> Exited:
    return Exited(replica=name, kind=ExitKind.SIGNAL, detail="SIGKILL")


def test_of_many_deaths_comes_one_generation_and_a_loss_each() -> None:
    dead = NAMES[:3]

    job, commands = told(SIX, DiedTogether(replicas=tuple(dead)), *map(killed, dead))

    reforms = [one for one in commands if isinstance(one, Reform)]
    assert commands[0] == reforms[0]
    assert [one.order.replicas for one in reforms] == [tuple(NAMES[3:6])]
    assert len([one for one in commands if isinstance(one, StartReplica)]) == 3
    assert len(job.budget.losses) == 3


def test_where_nobody_is_left_each_exit_counts_by_itself() -> None:
    died = DiedTogether(replicas=tuple(NAMES[:6]))

    assert told(SIX, died)[0].membership == SIX.membership
    assert told(SIX, died, *map(killed, NAMES[:6]))[1] == told(SIX, *map(killed, NAMES[:6]))[1]


@given(
    job=st.sampled_from([SIX, GROWING, SWITCHING, REFORMING, ONE_HAS_FINISHED]),
    dead=st.lists(st.sampled_from(NAMES), min_size=2, unique=True),
    late=st.integers(0, 3),
)
@example(job=ONE_HAS_FINISHED, dead=NAMES[1:6], late=0)
def test_it_ends_as_one_after_the_other(job: Job, dead: list[ReplicaId], late: int) -> None:
    """The last of them may have died too late to be told of with the others."""
    apart, _ = told(job, *map(killed, dead))
    together, _ = told(
        job, DiedTogether(replicas=tuple(dead[: len(dead) - late])), *map(killed, dead)
    )

    assert members(together.membership) == members(apart.membership)
    is_over = apart.phase is JobPhase.FINISHING  # with the first of several: no more is counted
    assert is_over or together.membership.phase is apart.membership.phase
    assert together.membership.orders.issued <= apart.membership.orders.issued
    assert together.replicas == apart.replicas
    assert (together.phase, together.ending.exit_code, together.nodes.devices) == (
        apart.phase,
        apart.ending.exit_code,
        apart.nodes.devices,
    )
    assert is_over or together.budget.losses == apart.budget.losses
