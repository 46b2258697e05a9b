"""Members of several hosts, each of which adds up its own first: the same bits as one process.

Here a host is a set of members that map the windows of no other; what a stop does there is in
``test_groups``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.live import namespaces
from tests.live.namespaces import NetworkHost
from tests.live.stage import DEADLINE_S
from tests.processes.crew import Member, crew
from tests.processes.hosts import SCRIPT, alone, digests, hosts, pliant, records, share, until
from tests.processes.launching import newest_members
from tests.processes.test_exchange import a_layout, is_exact, slot_gradients

from pliant.core.step import batching
from pliant.core.values import host_of
from pliant.engine.reduce.exchange import Reduction
from pliant.engine.reduce.hostwise import Hostwise
from pliant.engine.reduce.plan import ReductionPlan, fold
from pliant.observe.audit import audit_run
from pliant.observe.log import Record
from pliant.observe.reading import read
from pliant.observe.status import board_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

HOSTS = {
    "two and two": [[0, 1], [2, 3]],
    "interleaved": [[0, 2], [1, 3]],
    "three and one": [[0, 1, 2], [3]],
    "two, two and one": [[0, 1], [2, 3], [4]],
    "one, three and one": [[0], [1, 2, 3], [4]],
}


def reduce_all(member: Member, counts: list[int]) -> list[bool]:
    """For every K: two steps; compare with the sums of one process."""
    layout = a_layout()
    outcome: list[bool] = []
    previous = None
    for generation, num_slots in enumerate(counts, start=1):
        owned = batching.ownership(num_slots, len(member.endpoints))
        plan = ReductionPlan.of(num_slots, owned)
        nodes = batching.subtrees(num_slots, owned[member.rank])
        group = member.build(generation, layout=layout, plan=plan)
        reduction = Reduction(group, layout, plan, previous=previous)
        assert isinstance(reduction._shared, Hostwise)
        previous = reduction
        outcome += [is_exact(reduction, nodes, num_slots, step) for step in range(2)]
        group.all_gather(torch.ones(1))  # as a commit: nobody reads any more
        group.retire()
    return outcome


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_every_ownership_gives_the_bits_of_one_process_wherever_the_members_are(
    hosts: list[list[int]],
) -> None:
    size = sum(map(len, hosts))
    counts = list(range(size, 20))

    with crew(size) as members:
        members.divide(hosts)
        outcomes = members.everybody(reduce_all, counts)

    assert outcomes == [[True] * 2 * len(counts)] * size


def reduce_fast(member: Member, hosts: list[list[int]]) -> bool:
    layout = a_layout()
    size = len(member.endpoints)
    plan = ReductionPlan.of(2 * size, batching.ownership(2 * size, size))
    group = member.build(1, layout=layout, plan=plan.one_each())
    reduction = Reduction(group, layout, plan, exact=False)
    assert isinstance(reduction._shared, Hostwise)
    mine = slot_gradients(layout, group.rank, 0)
    for bucket in layout.buckets:
        reduction.launch(bucket.index, [mine[bucket.index]])
    reduced = reduction.finish()
    each = [slot_gradients(layout, rank, 0) for rank in range(size)]
    wanted = [
        fold(plan.one_each(hosts), [part[bucket.index] for part in each])
        for bucket in layout.buckets
    ]
    near = all(
        torch.allclose(a, b, rtol=1e-5, atol=1.0) for a, b in zip(reduced, wanted, strict=True)
    )
    group.retire()
    return near


def test_fast_reduction_adds_up_over_hosts() -> None:
    hosts = [[0, 1], [2, 3]]
    with crew(4) as members:
        members.divide(hosts)

        assert members.everybody(reduce_fast, hosts) == [True] * 4


# Real hosts

LARGE = "torch.nn.Sequential(torch.nn.Linear(4, 40_000), torch.nn.Linear(40_000, 1))"
NBYTES = 4 * (5 * 40_000 + 40_001)
STEPS = 60


def sent_bytes(host: NetworkHost) -> int:
    """Return what has left a host."""
    for line in Path(f"/proc/{host.init}/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "eth0":
            return int(counts.split()[8])
    raise AssertionError("the host has no interface")


@pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle())
@pytest.mark.soak
def test_what_crosses_between_two_hosts_does_not_grow_with_their_replicas(tmp_path: Path) -> None:
    """Two replicas on each: from sockets alone each host would send every gradient twice a step."""
    with hosts(tmp_path, "a", "b") as net:
        a, b = net.hosts
        for host in net.hosts:
            (host.own / "train.py").write_text(SCRIPT.replace("torch.nn.Linear(4, 1)", LARGE))
        place = f"{a.address}:7000"
        words: tuple[object, ...] = ("coordinator", "--listen", place, "--min", 4, "--max", 4)
        job = pliant(a, *words, "--placement", "spread:rack", "train.py", STEPS)
        share(a, "runs/train/token", b)
        (a.own / "token").write_bytes((b.own / "token").read_bytes())
        words = ("agent", "--join", place, "--token-file", "token", "--devices", 2)
        agents = [pliant(host, *words, "--label", f"rack={host.name}x") for host in net.hosts]
        until(lambda: records(a, "commit")[5:], "they train", a, b)
        first, before = len(records(a, "commit")), sent_bytes(b)
        until(lambda: len(records(a, "commit")) >= STEPS - 5, "they have trained", a, b)
        steps, sent = len(records(a, "commit")) - first, sent_bytes(b) - before
        assert job.wait(2 * DEADLINE_S) == 0, a.said()
        assert [agent.wait() for agent in agents] == [0, 0], b.said()

        (order,) = [one["order"] for one in records(a, "switch")]
        homes = [host_of(seat["endpoint"]) for seat in order["members"]]
        assert homes in ([a.address] * 2 + [b.address] * 2, [b.address] * 2 + [a.address] * 2)
        assert sent < 1.5 * NBYTES * (steps + 2)
        assert digests(a, b) == {alone(a, STEPS)}
        board = board_of(records_in(a))
        assert board.as_json()["placed"]["rule"] == "spread:rack"
        assert {dict(labels)["rack"] for labels in board.living.labels.values()} == {"ax", "bx"}


DIES = """
def _make_mortal_within(module):
    def dies(name, is_after):
        real, note = getattr(module.Hostwise, name), os.path.expanduser("~/dies")
        def method(self, *given):
            found = real(self, *given) if is_after else None
            try:
                if open(note).read() == name:
                    os.rename(note, f"{note}.{os.getpid()}")  # of several that pass here one dies
                    os.kill(os.getpid(), signal.SIGKILL)
            except FileNotFoundError:
                pass
            return found if is_after else real(self, *given)
        setattr(module.Hostwise, name, method)
    for name, is_after in (("_gathered", True), ("_fold", True), ("_spread", False)):
        dies(name, is_after)

_Finder("pliant.engine.reduce.hostwise", _make_mortal_within)
"""
"""Lets one replica of a host be killed within the exchange: once the sums of its host are there,
once it has sent them to the others, and before it hands the results on."""


@pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle())
@pytest.mark.timeout(400)
def test_a_replica_that_is_killed_between_two_levels_of_an_exchange_costs_no_step(
    tmp_path: Path,
) -> None:
    """Two hosts of two replicas, with a coordinator and agents apart."""
    with hosts(tmp_path, "a", "b") as net:
        a, b = net.hosts
        for host in net.hosts:
            (host.own / "train.py").write_text(SCRIPT.replace("torch.nn.Linear(4, 1)", LARGE))
            with (host.own / "sitecustomize.py").open("a") as file:
                file.write(DIES)
        stop, home = tmp_path / "stop", str(a.home)
        place = f"{a.address}:7000"
        words: tuple[object, ...] = ("coordinator", "--listen", place, "--min", 1, "--max", 4)
        job = pliant(a, *words, "train.py", 100_000)
        share(a, "runs/train/token", b)
        (a.own / "token").write_bytes((b.own / "token").read_bytes())
        words = ("agent", "--join", place, "--token-file", "token", "--devices", 2)
        given = {"STOP_AT": str(stop), "HOME": home}
        agents = [pliant(host, *words, **given) for host in net.hosts]

        def are_all_in() -> bool:
            return len(newest_members(records_in(a))[1]) == 4 and len(records(a, "commit")) > 0

        def dies(host: NetworkHost, method: str, number: int) -> None:
            until(are_all_in, f"four train, {number}", a, b)
            (host.own / "dies").write_text(method)
            until(lambda: len(records(a, "exited")) >= number, f"one dies in {method}", a, b)

        for number, (host, method) in enumerate(
            [(a, "_gathered"), (b, "_fold"), (a, "_spread"), (b, "_gathered"), (b, "_spread")], 1
        ):
            dies(host, method, number)
        until(are_all_in, "four train at last", a, b)
        stop.touch()

        assert job.wait(2 * DEADLINE_S) == 0, a.said()
        assert [agent.wait() for agent in agents] == [0, 0], b.said()
        told = {one["replica"] for one in records(a, "end_replica")}  # that came for the last step
        killed = [one for one in records(a, "exited") if one["exited_kind"] == "signal"]
        assert len([one for one in killed if one["replica"] not in told]) == 5, killed
        (found,) = digests(a, b)
        assert found == alone(a, int(found.split()[1]))
        audit = audit_run(a.own / "runs" / "train")
        assert audit.exactly_once, audit.problems


def records_in(host: NetworkHost) -> list[Record]:
    return list(read(host.own / "runs/train/events.jsonl"))
