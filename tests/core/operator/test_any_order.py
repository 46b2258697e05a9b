"""Whatever happens, and wherever the operator is killed: it converges, and nothing is left over.

A plan is carried out up to any action, on what may be an older view of the cluster than the newest,
and each action perhaps twice. After the world has calmed down, plans must fall silent, with the
pods that the admitted Workloads stand for and no others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.operator.play import Happenings, new_world
from tests.core.operator.world import World

from pliant.core.operator.actions import CreateAgent, CreateWorkload
from pliant.core.operator.increments import ladder
from pliant.core.operator.plan import plan
from pliant.core.operator.state import (
    BASE,
    NodeView,
    PodPhase,
    Snapshot,
    WorkloadView,
    workload_name,
)

JOBS = (
    "min=2 max=4 queue=lq",
    "min=1 max=8 sizes=1,2,4,8 queue=lq spares=1",
    "min=1 max=3 hosts=2",
    "min=2 max=4 queue=lq stability=20 events=3",
)

INCREMENTS = st.sampled_from((BASE, "x1", "x2", "x3"))
PODS = st.sampled_from(("coordinator", "base-0", "base-1", "x1-0", "x2-0", "x3-0"))

EVENTS = st.one_of(
    st.tuples(st.just("admit"), INCREMENTS),
    st.tuples(st.just("admit"), INCREMENTS),
    st.tuples(st.just("evict"), INCREMENTS),
    st.tuples(st.just("evict"), INCREMENTS, st.just("reason=PodsReadyTimeout")),
    st.tuples(st.just("unmade"), INCREMENTS),
    st.tuples(st.just("demand"), st.sampled_from(("1", "2", "3", "9"))),
    st.tuples(st.sampled_from(("suspend", "resume", "resume", "silent", "reached"))),
    st.tuples(st.just("wish"), st.sampled_from(("1", "2", "4"))),
    st.tuples(st.just("room"), st.sampled_from(("0", "2", "any"))),
    st.tuples(st.just("slow"), st.sampled_from(("yes", "no"))),
    st.tuples(st.just("run")),
    st.tuples(st.just("fail"), PODS, st.just("OOMKilled")),
    st.tuples(st.just("leave"), PODS),
    st.tuples(st.sampled_from(("gone", "preempt", "drain")), PODS),
    st.tuples(st.just("lost-part"), st.sampled_from(("role", "service"))),
    st.tuples(st.just("taint"), PODS),
    st.tuples(st.just("dead"), PODS),
    st.tuples(st.just("ends"), st.sampled_from(("0", "1", "3"))),
)

CUTS = st.sampled_from((0, 0, 1, 2, 3, 5, 99, 99))
"""After how many actions the operator is killed."""

STEPS = st.lists(
    st.tuples(EVENTS, st.sampled_from((0.0, 1.0, 7.0, 40.0, 400.0)), CUTS, st.booleans()),
    min_size=1,
    max_size=25,
)


def happen(world: World, event: tuple[str, ...]) -> None:
    word, *rest = event
    if word in ("taint", "dead"):
        pod = world.pods.get(f"gpt-{rest[0]}")
        if pod is not None and pod.node:
            mark = "not-ready" if word == "dead" else "taint=karpenter.sh/disrupted"
            Happenings(world).node(pod.node, mark)
        return
    if word == "ends":
        coordinator = world.pods.get("gpt-coordinator")
        if coordinator is None or coordinator.phase is not PodPhase.RUNNING:
            return
        rest = [*rest, "told to"]
    getattr(Happenings(world), word.replace("-", "_"))(*rest)


def is_pending(view: WorkloadView) -> bool:
    taken = view.eviction is not None or view.is_finished
    return view.increment != BASE and not view.is_admitted and not taken


def carry_out(world: World, seen: Snapshot, most: int, *, is_twice: bool) -> int:
    """Plan on what was seen, and carry out the first of it; return how much there was."""
    made = plan(seen, world.now_s)
    if world.status != seen.status:
        return 1  # the status was written since: its resourceVersion is refused, and so is all
    is_news = world.status != made.status
    world.status = made.status
    for action in made.actions[:most]:
        if isinstance(action, CreateAgent) and world.job.queue:
            name = workload_name("gpt", action.increment)
            known = {view.name: view for view in seen.workloads}[name]
            assert known.is_admitted
            assert known.eviction is None
        if isinstance(action, CreateWorkload):
            assert not seen.job.is_suspended
        world.apply(action)
        if is_twice:
            world.apply(action)
    assert sum(map(is_pending, world.workloads.values())) <= 1
    return len(made.actions) + is_news


def calm(world: World) -> None:
    """Let everything that happened be over: nodes are well, Kueue admits, pods run, time passes."""
    world.is_slow, world.capacity = False, None
    for name in world.nodes:
        world.nodes[name] = NodeView(name=name)
    Happenings(world).room("any")
    Happenings(world).demand("9")
    for name, pod in tuple(world.pods.items()):
        if pod.is_deleting:
            del world.pods[name]
    for view in tuple(world.workloads.values()):
        if not view.is_finished and (view.eviction is None or not view.has_quota):
            world.admit(view.increment)
    world.run()


@settings(max_examples=60, deadline=None)
@given(job=st.sampled_from(JOBS), steps=STEPS)
def test_it_converges_after_any_prefix_of_any_plan(
    job: str, steps: list[tuple[tuple[str, ...], float, int, bool]]
) -> None:
    go(job, steps)


def go(job: str, steps: list[tuple[tuple[str, ...], float, int, bool]]) -> None:
    world = new_world(job.split())
    for event, pass_s, cut, is_late in steps:
        late = world.snapshot()
        happen(world, event)
        world.now_s += pass_s
        seen = replace(late, status=world.status) if is_late else world.snapshot()
        carry_out(world, seen, cut, is_twice=is_late)
    for _ in range(400):
        calm(world)
        if not carry_out(world, world.snapshot(), 99, is_twice=False):
            world.now_s += 3601.0  # every wait is over, also that of maxScaleEventsPerHour
            calm(world)
            if not carry_out(world, world.snapshot(), 99, is_twice=False):
                break
    else:
        raise AssertionError(f"never quiet: {plan(world.snapshot(), world.now_s).actions}")

    made = plan(world.snapshot(), world.now_s)
    assert made.actions == ()
    assert made.events == ()
    assert made.status == world.status
    assert_whole(world)


def assert_whole(world: World) -> None:
    """There are the pods that should be there, and nothing else."""
    running = Counter(pod.increment for pod in world.pods.values() if not pod.is_over)
    if world.status.memory.outcome is not None:
        assert not running
        assert all(view.is_finished for view in world.workloads.values())
        return
    if world.job.is_suspended:
        assert not world.pods
        assert not world.workloads
        assert world.status.phase == "Suspended"
        return
    rungs = ladder(world.job.policy)
    wish = world.job.replicas or 99
    hosts = world.job.hosts_per_replica
    spares = world.job.policy.spares
    sizes = rungs[: len(rungs) - bool(spares)]
    top = max(size for size in sizes if size <= max(wish, sizes[0]))
    assert running[""] == 1
    assert running.total() - 1 == (top + spares) * hosts
    assert world.status.phase == "Running"
    assert world.status.allowed_replicas == world.job.policy.largest(top + spares)
    if world.job.queue:
        held = {view.increment: view.count for view in world.workloads.values()}
        assert {name: number for name, number in running.items() if name} == held
