"""Events in any order, late, repeated or from the lost, never break what the protocol promises."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pliant.core.commands import (
    EndJob,
    EndReplica,
    Prepare,
    Publish,
    Reform,
    Release,
    StartReplica,
    Switch,
)
from pliant.core.events import (
    Broken,
    Busy,
    DrainRequested,
    Event,
    Exited,
    ExitKind,
    Finished,
    KillRequested,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeSilent,
    Offered,
    PolicySet,
    Prepared,
    Progressed,
    PublishAsked,
    Reclaimed,
    Refused,
    Registered,
    Running,
    Saved,
    Scaled,
    Spare,
    StopRequested,
    SuspendRequested,
    Switched,
    Ticked,
    Unrestorable,
)
from pliant.core.job import controller
from pliant.core.job.state import Job, JobPhase, JobSettings, Ready, ReplicaState, live
from pliant.core.membership.state import NEVER, Timeouts, members
from pliant.core.membership.transitions import Phase
from pliant.core.policy.decide import Policy, PolicyBackoff
from pliant.core.values import (
    CheckpointInfo,
    Generation,
    Lineage,
    NodeId,
    Order,
    Register,
    ReplicaId,
    Seat,
)

MIN, MAX, SLOTS = 2, 4, 3
SETTINGS = JobSettings(
    policy=Policy(min_replicas=MIN, max_replicas=None, start_replicas=2),
    timeouts=Timeouts(prepare_s=20, step_s=60, reform_s=30, switch_s=20, heartbeat_s=10),
    restart_budget=4,
    start_s=60,
    finish_s=60,
)
POLICIES = (
    SETTINGS.policy,
    Policy(min_replicas=MIN, scaling_timeout_s=20, faulty_scale_down_timeout_s=20),
    Policy(min_replicas=MIN, min_stability_period_s=90, backoff=PolicyBackoff()),
    Policy(min_replicas=MIN, max_replicas=3, spares=1, max_scale_events_per_hour=1),
    Policy(min_replicas=MIN, replica_increment_step=2, scale_up_snooze_time_s=30),
    Policy(min_replicas=3),
    Policy(min_replicas=1),
)
NODES = {NodeId("n1"): 2, NodeId("n2"): 3}


FOUND = (
    CheckpointInfo(name="8/1", committed=8, lineage=Lineage(1)),
    CheckpointInfo(name="4/1", committed=4, lineage=Lineage(1)),
)


def spare(
    name: ReplicaId, *, calls: int = 0, layout: str = "same", sees: tuple[CheckpointInfo, ...] = ()
) -> Spare:
    return Spare(
        replica=name,
        calls=calls,
        num_slots=SLOTS,
        layout=layout,
        endpoint=f"{name}:1",
        checkpoints=sees,
    )


class AnyOrder(RuleBasedStateMachine):
    """A job on two nodes, with workers that say anything at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.job, ready = controller.begin(now_s=self.now_s, settings=SETTINGS)
        assert ready.register is not None
        self.register = ready.register
        self.used: list[Generation] = []
        self.started: list[ReplicaId] = []
        self.running: dict[ReplicaId, NodeId] = {}
        self.exited: set[ReplicaId] = set()
        self.switched: set[tuple[ReplicaId, Generation]] = set()
        self.open_switch: Order | None = None
        self.nodes = dict(NODES)
        self.past: list[Event] = []
        for node, devices in NODES.items():
            self.feed(NodeJoined(node=node, devices=devices))

    # -- the driver, and what holds for every step it takes ---------------------------

    def feed(self, event: Event) -> None:
        before = self.job
        after, ready = controller.step(before, event, now_s=self.now_s, settings=SETTINGS)
        if not isinstance(event, Ticked):
            again = controller.step(before, event, now_s=self.now_s, settings=SETTINGS)
            assert again == (after, ready), "step must be pure"
            assert hash(after) == hash(again[0])
        self.job = after
        self.past.append(event)
        newest = after.membership.orders.recorded
        if newest is None or after.membership.orders.formed == newest.generation:
            self.open_switch = None
        if isinstance(event, Switched):
            self.switched.add((event.replica, event.generation))
        if isinstance(event, Registered):
            self.switched.add((event.replica, event.current))
        if ready.register is not None:
            self.check_growth(ready.register)
            self.check_successor(ready)
            self.register = ready.register
        for command in ready.commands:
            self.check(command)

    def check_growth(self, new: Register) -> None:
        old = self.register
        assert new.incarnation >= old.incarnation
        assert new.number >= old.number
        assert new.lineage >= old.lineage
        assert new.named >= old.named
        if new.restore != old.restore:
            assert new.restore is not None
            assert old.lineage < new.restore.lineage == new.lineage, "its own lineage (R20)"

    def check_successor(self, ready: Ready) -> None:
        """A Reform is drawn from the recorded generation, and never contains a leaver (R12)."""
        old = self.register
        for command in ready.commands:
            if isinstance(command, Reform) and old.newest is not None:
                assert set(command.order.replicas) <= set(old.newest.replicas)
                assert not set(command.order.replicas) & set(old.leavers)

    def check(self, command: object) -> None:
        match command:
            case StartReplica(replica=name, node=node):
                assert name not in self.started, "names are never used twice"
                self.started.append(name)
                self.running[name] = node
                busy = sum(place == node for place in self.running.values())
                assert busy <= NODES[node], "a device is free only once its process was reaped"
            case Prepare(order=order):
                assert order.generation == self.register.number
                assert order.generation not in self.used, "every attempt has its own number"
                assert self.open_switch is None, "a Switch ends by completion or Reform (R7)"
                self.check_order(order)
            case Switch(order=order):
                assert self.register.newest == order, "written before it is sent (R2)"
                self.open_switch = order
            case Reform(order=order, to=to) if not set(to) & set(order.replicas):
                assert self.register.newest == order, "who was left out may hear it once more"
            case Publish(checkpoint=name):
                assert name.endswith(f"/{self.register.lineage}"), "of the current lineage (R20)"
            case Reform(order=order):
                assert self.register.newest == order
                assert order.generation not in self.used
                self.open_switch = order
                self.check_order(order)
            case EndReplica() | EndJob():
                pass
            case _:
                pass

    def check_order(self, order: Order) -> None:
        self.used.append(order.generation)
        size = len(order.members)
        assert size <= SLOTS
        policy = self.job.sizing.policy or SETTINGS.policy
        assert order.hold == (size < policy.min_replicas)
        assert order.origin is None or order.origin in order.replicas
        assert order.restore == (self.register.restore if order.origin else None)
        assert len(set(order.replicas)) == size

    # -- workers ------------------------------------------------------------------------

    def anyone(self, data: st.DataObject) -> ReplicaId:
        return data.draw(st.sampled_from(self.started or [ReplicaId("r1")]), label="who")

    def some_generation(self, data: st.DataObject) -> Generation:
        newest = int(self.job.membership.orders.issued)
        return Generation(max(0, newest - data.draw(st.integers(0, 2), label="behind")))

    @rule(data=st.data(), calls=st.integers(0, 1), seen=st.sampled_from([0, 0, 1, 2]))
    def becomes_spare(self, data: st.DataObject, calls: int, seen: int) -> None:
        self.feed(spare(self.anyone(data), calls=calls, sees=FOUND[:seen]))

    @rule(data=st.data(), is_it=st.booleans())
    def cannot_restore(self, data: st.DataObject, is_it: bool) -> None:
        order = self.job.membership.orders.recorded
        if order is None or order.restore is None or not is_it:
            name, generation, found = self.anyone(data), self.some_generation(data), "8/1"
        else:
            name, generation = order.origin or order.replicas[0], order.generation
            found = order.restore.checkpoint
        self.feed(
            Unrestorable(replica=name, generation=generation, checkpoint=found, reason="digest")
        )

    @rule(data=st.data(), behind=st.integers(0, 1), is_done=st.booleans())
    def saves(self, data: st.DataObject, behind: int, is_done: bool) -> None:
        lineage = Lineage(self.register.lineage - behind)
        what = Saved if is_done else PublishAsked
        self.feed(
            what(replica=self.anyone(data), lineage=lineage, committed=9, checkpoint=f"9/{lineage}")
        )

    # -- another coordinator ---------------------------------------------------------------

    @precondition(lambda self: self.job.phase is not JobPhase.ENDED)
    @rule(sure=st.integers(0, 4))
    def another_coordinator_takes_over(self, sure: int) -> None:
        if sure:
            return
        before = self.register
        self.job, ready = controller.begin(
            now_s=self.now_s, settings=SETTINGS, register=self.register
        )
        assert ready.register is not None
        assert ready.register.incarnation == before.incarnation + 1
        assert (
            ready.register
            == replace(before, incarnation=ready.register.incarnation, homes=ready.register.homes)
            or before.stop
        )
        self.register = ready.register
        self.open_switch = None
        for node, devices in self.nodes.items():
            runs = tuple(name for name, home in self.running.items() if home == node)
            self.feed(NodeJoined(node=node, devices=devices, replicas=runs))

    @rule(data=st.data(), has_state=st.booleans(), broken=st.booleans(), finished=st.booleans())
    def registers(self, data: st.DataObject, has_state: bool, broken: bool, finished: bool) -> None:
        self.feed(
            replace(
                self.registered(self.anyone(data)),
                current=self.some_generation(data),
                has_state=has_state,
                broken=broken,
                finished=finished and has_state,
            )
        )

    @precondition(lambda self: self.job.phase is JobPhase.RECOVERING)
    @rule()
    def everyone_registers(self) -> None:
        for name in list(self.running):
            self.feed(self.registered(name))

    def registered(self, name: ReplicaId) -> Registered:
        order = self.register.newest
        is_in = order is not None and name in order.replicas
        return Registered(
            replica=name,
            asked_by=self.register.incarnation,
            lineage=self.register.lineage,
            committed=3 if is_in else 0,
            calls=0,
            has_state=is_in,
            current=order.generation if order is not None and is_in else Generation(0),
            prepared=Generation(0),
            ordered=Generation(0),
            broken=False,
            leaving=False,
            finished=False,
            spare=spare(name),
        )

    @rule(data=st.data())
    def prepared(self, data: st.DataObject) -> None:
        generation = self.some_generation(data)
        self.feed(Prepared(replica=self.anyone(data), generation=generation))

    @rule(data=st.data())
    def switches(self, data: st.DataObject) -> None:
        generation = self.some_generation(data)
        self.feed(Switched(replica=self.anyone(data), generation=generation, step=3))

    @rule(data=st.data())
    def breaks(self, data: st.DataObject) -> None:
        generation = self.some_generation(data)
        self.feed(Broken(replica=self.anyone(data), generation=generation, reason="reset"))

    @rule(data=st.data(), joiner=st.booleans())
    def refuses(self, data: st.DataObject, joiner: bool) -> None:
        generation = self.some_generation(data)
        name = self.anyone(data)
        self.feed(Refused(replica=name, generation=generation, reason="no", joiner=joiner))

    @rule(data=st.data(), committed=st.integers(0, 9), calls=st.integers(0, 2))
    def progresses(self, data: st.DataObject, committed: int, calls: int) -> None:
        self.feed(
            Progressed(
                replica=self.anyone(data),
                generation=self.some_generation(data),
                committed=committed,
                calls=calls,
                waiting=self.some_generation(data),
            )
        )

    @rule(data=st.data(), max_s=st.floats(0, 100))
    def is_busy(self, data: st.DataObject, max_s: float) -> None:
        self.feed(Busy(replica=self.anyone(data), max_s=max_s))

    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        self.feed(Finished(replica=self.anyone(data), committed=9))

    @rule(data=st.data(), kind=st.sampled_from(ExitKind))
    def exits(self, data: st.DataObject, kind: ExitKind) -> None:
        name = self.anyone(data)
        if kind in (ExitKind.USAGE, ExitKind.EARLY) and data.draw(st.integers(0, 4)):
            kind = ExitKind.SIGNAL  # these end the job, so rarely
        self.running.pop(name, None)
        self.exited.add(name)
        self.feed(Exited(replica=name, kind=kind))

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def an_old_message_comes_again(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.past[-20:]), label="which")
        if not isinstance(event, NodeJoined | NodeLost | StopRequested | SuspendRequested):
            self.feed(event)

    # -- progress rules: random events alone almost never get this far -------------------

    @rule()
    def everyone_started_is_spare(self) -> None:
        for name, replica in self.job.replicas.items():
            if replica.state is ReplicaState.STARTING:
                self.feed(spare(name, calls=self.job.membership.calls))

    @precondition(lambda self: self.job.checkpoints.looking)
    @rule()
    def everyone_asked_to_look_does(self) -> None:
        for name in sorted(self.job.checkpoints.looking):
            self.feed(spare(name, calls=self.job.membership.calls, sees=FOUND[:1]))

    @precondition(lambda self: self.job.membership.phase is Phase.PREPARING)
    @rule()
    def everyone_prepares(self) -> None:
        state = self.job.membership
        for name in sorted(state.wait.awaiting):
            self.feed(Prepared(replica=name, generation=state.orders.issued))

    @precondition(lambda self: self.job.membership.phase in (Phase.SWITCHING, Phase.REFORMING))
    @rule()
    def everyone_switches(self) -> None:
        state = self.job.membership
        assert state.orders.recorded is not None
        for name in sorted(state.wait.awaiting):
            self.feed(
                Switched(
                    replica=name, generation=state.orders.recorded.generation, step=state.committed
                )
            )

    @rule()
    def everyone_told_to_goes(self) -> None:
        for name, replica in self.job.replicas.items():
            if replica.state is ReplicaState.ENDING:
                self.running.pop(name, None)
                self.exited.add(name)
                self.feed(Exited(replica=name, kind=ExitKind.LEFT))

    # -- people, nodes, time ---------------------------------------------------------------

    @rule(requested=st.integers(0, 5))
    def scale(self, requested: int) -> None:
        self.feed(Scaled(target=requested))

    @rule(policy=st.sampled_from(POLICIES))
    def sets_another_policy(self, policy: Policy) -> None:
        self.feed(PolicySet(policy=policy))

    @rule(
        data=st.data(),
        replicas=st.integers(MIN, 6),
        notice_s=st.none() | st.floats(0, 60),
        is_without_one=st.booleans(),
    )
    def is_offered(
        self, data: st.DataObject, replicas: int, notice_s: float | None, is_without_one: bool
    ) -> None:
        leave = (self.anyone(data),) if is_without_one else ()
        self.feed(Offered(replicas=replicas, notice_s=notice_s, leave=leave))

    @rule(data=st.data(), notice_s=st.floats(0, 60))
    def drain(self, data: st.DataObject, notice_s: float) -> None:
        self.feed(DrainRequested(replica=self.anyone(data), notice_s=notice_s))

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.feed(KillRequested(replica=self.anyone(data)))

    @rule(data=st.data(), notice_s=st.floats(0, 60))
    def reclaim(self, data: st.DataObject, notice_s: float) -> None:
        self.feed(Reclaimed(replicas=(self.anyone(data),), notice_s=notice_s))

    @rule(sure=st.integers(0, 9))
    def stop(self, sure: int) -> None:
        if sure == 0:
            self.feed(StopRequested())
        if sure == 1:
            self.feed(SuspendRequested())

    @rule(node=st.sampled_from(["n1", "n2"]), notice_s=st.floats(0, 60), sure=st.integers(0, 3))
    def node_leaves(self, node: str, notice_s: float, sure: int) -> None:
        if sure == 0:
            self.feed(NodeLeaving(node=NodeId(node), notice_s=notice_s))

    @rule(nodes=st.sampled_from([("n1",), ("n2",), ("n1", "n2")]), sure=st.integers(0, 3))
    def nodes_are_silent(self, nodes: tuple[str, ...], sure: int) -> None:
        if sure == 0:
            node, *others = map(NodeId, nodes)
            self.feed(NodeSilent(node=node, others=tuple(others)))

    @rule(node=st.sampled_from(["n1", "n2"]))
    def an_agent_lists_what_runs(self, node: str) -> None:
        runs = tuple(name for name, home in self.running.items() if home == node)
        self.feed(Running(node=NodeId(node), replicas=runs))

    @rule(sure=st.integers(0, 9))
    def node_is_lost(self, sure: int) -> None:
        if sure == 0:
            for name in [n for n, node in self.running.items() if node == "n2"]:
                del self.running[name]
                self.exited.add(name)
            self.nodes.pop(NodeId("n2"), None)
            self.feed(NodeLost(node=NodeId("n2")))

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.feed(Ticked())

    # -- what holds at any time ----------------------------------------------------------

    @invariant()
    def formed_generations_have_all_their_members(self) -> None:
        state = self.job.membership
        if state.phase in (Phase.STEADY, Phase.PREPARING) and state.orders.recorded is not None:
            assert state.orders.formed == state.orders.recorded.generation
            present = set(state.orders.recorded.replicas) - self.exited
            assert {(name, state.orders.formed) for name in present} <= self.switched

    @invariant()
    def the_lost_are_forgotten(self) -> None:
        if self.job.phase in (JobPhase.FINISHING, JobPhase.ENDED, JobPhase.RECOVERING):
            return
        state = self.job.membership
        gone = self.exited - set(self.job.replicas)
        assert not gone & (set(members(state)) | state.wait.awaiting | set(state.spares))
        assert not gone & set(state.pulses)

    @invariant()
    def who_rests_waits_for_nobody(self) -> None:
        state = self.job.membership
        if state.phase in (Phase.EMPTY, Phase.STEADY, Phase.LOST):
            assert not state.wait.awaiting
            assert state.orders.attempt is None
            assert state.wait.deadline_s == NEVER

    @invariant()
    def never_more_than_there_may_be(self) -> None:
        if self.job.phase is JobPhase.RECOVERING:
            return
        spares = self.job.sizing.decision.spare_replicas if self.job.sizing.decision else 0
        assert len(live(self.job)) - spares <= (5 if self.job.start.reference is None else SLOTS)
        assert self.job.offer.replicas is None or len(live(self.job)) <= max(
            self.job.offer.replicas, MIN
        )

    @invariant()
    def no_deadline_has_passed_unseen(self) -> None:
        assert not controller.next_deadline_s(self.job) < self.now_s - 1000.0

    def teardown(self) -> None:
        """Silence always ends: with no more news the job comes to its end.

        Only who holds the last of the state is waited for, until somebody ends it.
        """
        for _ in range(1000):
            if self.job.phase is JobPhase.ENDED:
                return
            next_s = min(controller.next_deadline_s(self.job), self.now_s + 2.0)
            self.now_s = max(self.now_s + 0.1, next_s)
            self.feed(Ticked())
            ending = {n for n, r in self.job.replicas.items() if r.state is ReplicaState.ENDING}
            for name in sorted(ending | self.job.membership.trouble.unheard):
                self.running.pop(name, None)
                self.exited.add(name)
                self.feed(Exited(replica=name, kind=ExitKind.SIGNAL))
        raise AssertionError(f"silence does not end: {self.job}")


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    phases=(HypothesisPhase.explicit, HypothesisPhase.reuse, HypothesisPhase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_a_job_that_has_ended_declines_requests_and_ignores_the_rest() -> None:
    job, _ = controller.begin(now_s=0.0, settings=SETTINGS)
    job, ready = controller.step(job, StopRequested(), now_s=0.0, settings=SETTINGS)
    assert ready.commands == (EndJob(exit_code=3, reason="stopped on request"),)

    job, ready = controller.step(job, Scaled(target=3), now_s=1.0, settings=SETTINGS)
    assert ready.declined is not None
    late = Exited(replica=ReplicaId("r1"), kind=ExitKind.SIGNAL)
    _, ready = controller.step(job, late, now_s=1.0, settings=SETTINGS)

    assert (ready.commands, ready.declined) == ((), None)


def test_a_stopped_job_goes_on_if_somebody_asks_for_it_and_else_ends_as_it_did() -> None:
    job, _ = controller.begin(now_s=0.0, settings=SETTINGS)
    _, ready = controller.step(job, StopRequested(), now_s=0.0, settings=SETTINGS)
    assert ready.register is not None
    assert ready.register.outcome is not None
    node = NodeJoined(node=NodeId("n1"), devices=1)

    asked, begun = controller.begin(
        now_s=1.0, settings=SETTINGS, register=ready.register, is_asked=True
    )
    follower, _ = controller.begin(now_s=1.0, settings=SETTINGS, register=ready.register)

    assert begun.register is not None
    assert begun.register.outcome is None
    _, ready = controller.step(asked, node, now_s=1.0, settings=SETTINGS)
    assert [type(command) for command in ready.commands] == [StartReplica]
    _, ready = controller.step(follower, node, now_s=1.0, settings=SETTINGS)
    assert ready.commands == (EndJob(exit_code=3, reason="stopped on request"),)


def test_a_new_coordinator_wakes_when_those_it_waits_for_are_late() -> None:
    """Nobody may be left to say anything: time alone must go on."""
    job, ready = controller.begin(now_s=0.0, settings=SETTINGS)
    assert ready.register is not None
    seat = Seat(replica=ReplicaId("r1"), endpoint="r1:1")
    register = replace(
        ready.register,
        number=Generation(1),
        newest=Order(generation=Generation(1), members=(seat,), origin=ReplicaId("r1")),
        named=1,
        homes=((ReplicaId("r1"), NodeId("n1")),),
    )

    job, _ = controller.begin(now_s=100.0, settings=SETTINGS, register=register)

    due_s = controller.next_deadline_s(job)
    assert due_s == 100.0 + SETTINGS.timeouts.register_s
    while due_s < 100.0 + 2 * SETTINGS.timeouts.register_s:  # it allows for its own silence
        job, _ = controller.step(job, Ticked(), now_s=due_s, settings=SETTINGS)
        due_s = controller.next_deadline_s(job)
    assert job.phase is JobPhase.STARTING


def test_hundreds_of_replicas_do_not_slow_an_event_down() -> None:
    roomy = JobSettings(policy=Policy(max_replicas=300))
    job: Job
    job, _ = controller.begin(now_s=0.0, settings=roomy)
    node = NodeJoined(node=NodeId("n1"), devices=300)
    job, ready = controller.step(job, node, now_s=0.0, settings=roomy)
    names = [c.replica for c in ready.commands if isinstance(c, StartReplica)]
    assert len(names) == 300
    for name in names:
        event = Spare(replica=name, calls=0, num_slots=300, layout="", endpoint="")
        job, ready = controller.step(job, event, now_s=1.0, settings=roomy)
    assert isinstance(ready.commands[-1], Prepare)

    for name in names:
        event_ = Prepared(replica=name, generation=Generation(1))
        job, ready = controller.step(job, event_, now_s=1.0, settings=roomy)

    assert isinstance(ready.commands[-1], Switch)
    assert not any(isinstance(c, Release) for c in ready.commands)
