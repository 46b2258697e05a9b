"""Who wakes late is stale and does no harm: the stories of one that slept through something.

Each is played with the coordinator's core and the real member; the explorer plays them in every
order.  A process that is ended may act until its agent has carried that out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from pliant.core.commands import (
    Command,
    EndReplica,
    Prepare,
    Publish,
    Reform,
    Release,
    RollCall,
    StartReplica,
    Switch,
)
from pliant.core.errors import TransitionError
from pliant.core.events import (
    Broken,
    DrainRequested,
    Event,
    Exited,
    ExitKind,
    Finished,
    NodeJoined,
    NodeLost,
    Prepared,
    Progressed,
    PublishAsked,
    Registered,
    Saved,
    Spare,
    Switched,
    Ticked,
    Unrestorable,
)
from pliant.core.job import controller
from pliant.core.job.state import Job, JobPhase, JobSettings, ReplicaState
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Member
from pliant.core.membership.state import members, under_way
from pliant.core.policy.decide import Policy
from pliant.core.values import (
    CheckpointInfo,
    Generation,
    Incarnation,
    Lineage,
    NodeId,
    Register,
    ReplicaId,
)

R1, R2, R3 = (ReplicaId(name) for name in ("r1", "r2", "r3"))
N1, N2 = NodeId("n1"), NodeId("n2")
SETTINGS = JobSettings(policy=Policy(min_replicas=1, max_replicas=2, start_replicas=2))


@dataclass
class Play:
    """A job of two nodes, of which one machine may sleep."""

    job: Job
    now_s: float = 0.0
    said: list[Command] = field(default_factory=list)
    written: list[Register] = field(default_factory=list)

    def hear(self, *events: Event) -> list[Command]:
        """Let the coordinator hear these; return what it says to them."""
        before = len(self.said)
        for event in events:
            self.job, ready = controller.step(self.job, event, now_s=self.now_s, settings=SETTINGS)
            self.said += ready.commands
            if ready.register is not None:
                self.written.append(ready.register)
        return self.said[before:]

    def wait(self, seconds: float, *awake: ReplicaId) -> list[Command]:
        """Let so much time pass, in which these give signs of life."""
        before = len(self.said)
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.hear(*(alive(name) for name in awake), Ticked())
        return self.said[before:]


def alive(name: ReplicaId) -> Progressed:
    return Progressed(replica=name, generation=Generation(0), committed=0, calls=0)


def spare(name: ReplicaId, *found: CheckpointInfo) -> Spare:
    return Spare(
        replica=name,
        calls=0,
        num_slots=8,
        layout="a",
        endpoint=f"{name}:1",
        is_durable=True,
        checkpoints=found,
    )


def training() -> Play:
    """Return a job whose two replicas, each on its node, have made three steps."""
    play = Play(controller.begin(now_s=0.0, settings=SETTINGS)[0])
    play.hear(NodeJoined(node=N1, devices=1), NodeJoined(node=N2, devices=2))
    play.hear(spare(R1), spare(R2))
    both, first = (R1, R2), Generation(1)
    play.hear(*(Prepared(replica=name, generation=first) for name in both))
    play.hear(*(Switched(replica=name, generation=first, step=0) for name in both))
    play.hear(*(replace(alive(name), generation=first, committed=3) for name in both))
    assert play.job.phase is JobPhase.RUNNING
    return play


def late_words(generation: int) -> list[Event]:
    """Return all that r1 may say once it wakes."""
    number = Generation(generation)
    return [
        alive(R1),
        spare(R1),
        Prepared(replica=R1, generation=number),
        Switched(replica=R1, generation=number, step=4),
        Broken(replica=R1, generation=number, reason="reset"),
        Saved(replica=R1, lineage=Lineage(1), committed=4, checkpoint="4/1"),
        Unrestorable(replica=R1, generation=number, checkpoint="4/1", reason="digest"),
        Registered(
            replica=R1,
            asked_by=Incarnation(1),
            lineage=Lineage(1),
            committed=4,
            calls=0,
            has_state=True,
            current=number,
            prepared=Generation(0),
            ordered=Generation(0),
            broken=False,
            leaving=False,
            finished=False,
            spare=None,
        ),
    ]


@pytest.mark.parametrize("generation", [1, 2, 3, 9])
def test_who_slept_through_a_reform_changes_nothing_by_what_it_says(generation: int) -> None:
    play = training()
    commands = play.wait(14.0, R2)
    assert EndReplica(replica=R1, reason="no sign of life for 10 s") in commands
    assert members(play.job.membership) == (R2,)
    play.hear(Switched(replica=R2, generation=Generation(2), step=3))
    before, written = play.job.membership, len(play.written)

    assert play.hear(*late_words(generation)) == []

    assert play.job.membership == replace(before, stale=play.job.membership.stale)
    assert play.job.replicas[R1].state is ReplicaState.ENDING
    assert len(play.written) == written


def member_in(generation: int) -> tuple[Member, Reform]:
    """Return r1 in a generation with r2, and the Reform of both that it slept through."""
    play = training()
    first = under_way(play.job.membership)
    mine = Member(replica=R1, has_state=True, current=Generation(generation))
    reform = replace(first, generation=Generation(generation + 1))
    return mine, Reform(to=(R1, R2), order=reform)


def test_orders_that_waited_for_one_that_slept_do_what_the_newest_says() -> None:
    """Prepare, its Switch and a Reform lie there as it wakes; they come in order, or again."""
    mine, reform = member_in(1)
    prepared = replace(reform.order, generation=Generation(2))
    newest = replace(reform.order, generation=Generation(3))
    one = Incarnation(1)

    mine, _ = protocol.on_prepare(mine, prepared, one)
    mine, _ = protocol.on_switch(mine, prepared, one)
    mine, _ = protocol.on_reform(mine, newest, one)
    mine, again = protocol.on_switch(mine, prepared, one)
    assert again == ()
    mine, again = protocol.on_prepare(mine, prepared, one)

    assert again == ()
    assert (mine.reform, mine.ordered, mine.prepared) == (newest, None, None)
    assert protocol.ready_number(mine) == 0
    assert protocol.is_sealed(mine, Generation(1))
    assert protocol.is_sealed(mine, Generation(2))


def test_what_completes_as_it_wakes_is_not_looked_at_once_a_reform_was_read() -> None:
    mine, reform = member_in(1)
    mine = protocol.voted(mine, 0)

    mine, _ = protocol.on_reform(mine, reform.order, Incarnation(1))

    with pytest.raises(TransitionError, match="commit in 1"):
        protocol.committed(mine, Generation(1))
    assert protocol.header(mine).vote_generation == 1  # it may still be committed by all


def test_a_leaver_that_slept_through_its_release_is_ended_and_the_others_train_on() -> None:
    play = training()
    play.hear(DrainRequested(replica=R1, notice_s=1000.0), spare(R3))
    number = play.job.membership.orders.issued
    prepare = next(c for c in reversed(play.said) if isinstance(c, Prepare))
    play.hear(
        *(Prepared(replica=name, generation=number) for name in (R1, *prepare.order.replicas))
    )
    stay = [Switched(replica=n, generation=number, step=4) for n in prepare.order.replicas]
    assert Release(to=(R1,)) in play.hear(*stay)

    commands = play.wait(35.0, *prepare.order.replicas)

    assert [c.replica for c in commands if isinstance(c, EndReplica)] == [R1]
    before = play.job.membership
    finished = Finished(replica=R1, committed=4, lineage=Lineage(1))
    assert not any(isinstance(c, Reform) for c in play.hear(*late_words(1), finished))
    assert play.job.membership.orders.recorded == before.orders.recorded
    assert play.job.phase is JobPhase.RUNNING


def test_who_answers_the_roll_call_of_one_before_is_asked_and_not_counted() -> None:
    play = training()
    second = Play(
        controller.begin(now_s=50.0, settings=SETTINGS, register=play.written[-1])[0], now_s=50.0
    )
    second.hear(NodeJoined(node=N1, devices=1, replicas=(R1,)))

    old = next(event for event in late_words(1) if isinstance(event, Registered))
    second.hear(old)
    assert R1 not in second.job.registration.registered
    second.hear(replace(old, asked_by=Incarnation(2)))
    assert R1 in second.job.registration.registered


def test_who_slept_through_the_roll_call_is_ended_wherever_it_says_it_is() -> None:
    play = training()
    register = play.written[-1]
    second = Play(controller.begin(now_s=50.0, settings=SETTINGS, register=register)[0], now_s=50.0)
    second.hear(NodeJoined(node=N2, devices=2, replicas=(R2,)))
    answer = next(event for event in late_words(1) if isinstance(event, Registered))
    answer = replace(answer, asked_by=Incarnation(2))
    second.hear(replace(answer, replica=R2))
    second.wait(22.0, R2)
    assert members(second.job.membership) == (R2,)

    asked = second.hear(NodeJoined(node=N1, devices=1, replicas=(R1,)))
    assert RollCall(to=(R1,)) in asked
    commands = second.hear(answer)

    assert [c.replica for c in commands if isinstance(c, EndReplica)] == [R1]
    assert members(second.job.membership) == (R2,)


def test_who_slept_through_a_restore_publishes_nothing_and_is_ended() -> None:
    """The machine of r1 and its node are lost; r2 dies; the run is restored; r1 comes back."""
    play = training()
    play.hear(PublishAsked(replica=R2, lineage=Lineage(1), committed=3, checkpoint="3/1"))
    play.hear(Saved(replica=R2, lineage=Lineage(1), committed=3, checkpoint="3/1"))
    play.hear(NodeLost(node=N1), Exited(replica=R2, kind=ExitKind.SIGNAL, detail="SIGKILL"))
    started = [c.replica for c in play.said if isinstance(c, StartReplica)]
    known = CheckpointInfo(name="3/1", committed=3, lineage=Lineage(1))
    new = [name for name in started if name not in (R1, R2)]
    play.hear(*(spare(name, known) for name in new))
    play.wait(40.0, *new)
    assert play.job.membership.lineage == 2

    play.hear(NodeJoined(node=N1, devices=1, replicas=(R1,)))
    late: list[Event] = [
        PublishAsked(replica=R1, lineage=Lineage(1), committed=9, checkpoint="9/1"),
        Finished(replica=R1, committed=9, lineage=Lineage(1)),
        next(event for event in late_words(1) if isinstance(event, Registered)),
    ]
    commands = play.hear(*late)

    assert not any(isinstance(c, Publish | Release | Switch) for c in commands)
    assert [c.replica for c in commands if isinstance(c, EndReplica)] == [R1]
    assert play.job.ending.last_step is None
    assert play.job.membership.lineage == 2
