"""An agent between a coordinator and real worker processes (without torch)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.agent.world import DEADLINE_S, NODE, Play, World, end, start
from tests.certificates import Authority
from tests.scene import scene

from pliant.agent import placement
from pliant.agent.node_facts import GRACE_S, node_labels
from pliant.core.agreement import NodeFacts
from pliant.core.commands import EndJob, Release
from pliant.core.errors import PermanentError
from pliant.core.events import (
    OUT_OF_MEMORY,
    Busy,
    Exited,
    ExitKind,
    NodeJoined,
    NodeLeaving,
    Progressed,
    Running,
)
from pliant.core.values import ReplicaId
from pliant.machine import device_locks as locks
from pliant.wire.messages import (
    AgentFailed,
    AgentLeft,
    Alive,
    DevicesAiling,
    Heard,
    Started,
    Unfit,
    Work,
)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

FINDS_ITS_DEVICE_IN_USE = """
from pliant.core.events import ExitKind
from pliant.engine.worker.bootstrap import NotRunError
raise NotRunError(ExitKind.TAKEN, "process 4711 has device 0")
"""


@scene()
async def test_a_started_worker_is_announced_and_heard(world: World) -> None:
    (joined,) = await world.hear(NodeJoined)
    assert joined == NodeJoined(node=NODE, devices=2, life=joined.life, labels=node_labels(()))
    await world.say(start("r1"))
    (started,) = await world.hear(Started)
    assert started.replica == "r1"
    assert psutil.pid_exists(started.pid)
    assert (await world.hear(Progressed))[0].replica == "r1"
    await world.until(lambda: ("r1", "waiting") in world.lines)


@scene()
async def test_a_killed_worker_is_reported_once_it_was_reaped(world: World) -> None:
    await world.say(start("r1"))
    (started,) = await world.hear(Started)

    await world.say(end("r1"))

    assert await world.hear(Exited) == [
        Exited(replica=ReplicaId("r1"), kind=ExitKind.SIGNAL, detail="SIGKILL")
    ]
    assert not psutil.pid_exists(started.pid)


@scene()
async def test_a_command_carried_out_twice_changes_nothing_more(world: World) -> None:
    for _ in range(2):
        await world.say(start("r1"))
    await world.hear(Started)
    await world.say(end("r1"))
    await world.hear(Exited)

    await world.say(start("r1"))
    await world.say(end("r1"))

    first, *again = await world.hear(Exited, 3)
    assert again == [first, first]
    assert len(world.all(Started)) == 1


@scene()
async def test_an_agent_answers_for_a_worker_that_it_does_not_know(world: World) -> None:
    """Not that it has exited, which nobody saw; and it will not be started behind its end."""
    await world.say(end("r1"))
    unknown = Exited(replica=ReplicaId("r1"), kind=ExitKind.UNKNOWN)
    assert await world.hear(Exited) == [unknown]
    await world.say(start("r1"))
    assert await world.hear(Exited, 2) == [unknown, unknown]
    assert world.all(Started) == []


def test_all_that_an_agent_runs_is_listed_on_each_connection(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.agent.agent.ALIVE_S", 0.02)

    async def scene(world: World) -> None:
        assert (await world.hear(Running))[0] == Running(node=NODE, replicas=())
        for name in ("r1", "r2", "r3"):  # the last one waits for a device
            await world.say(start(name))
        names = tuple(map(ReplicaId, ("r1", "r2", "r3")))
        await world.until(lambda: world.all(Running)[-1] == Running(node=NODE, replicas=names))
        assert world.connection is not None
        world.connection.transport.abort()
        world.heard.clear()

        (joined,) = await world.hear(NodeJoined)
        assert joined.replicas == names
        assert {one.replicas for one in await world.hear(Running)} == {names}

    play(scene)


@scene()
async def test_what_is_of_now_alone_is_not_said_to_the_next_coordinator(world: World) -> None:
    await world.say(start("r1"))
    await world.hear(Started)
    await world.hear(Running)
    await world.hear(Progressed)
    assert world.connection is not None
    world.connection.transport.abort()
    world.heard.clear()

    await world.hear(Started)
    before = world.heard[: world.heard.index(world.all(Started)[0])]
    assert [type(one) for one in before] == [NodeFacts, NodeJoined]


@scene()
async def test_an_agent_goes_when_another_was_started_under_its_name(world: World) -> None:
    await world.hear(NodeJoined)
    await world.say(Unfit(reason="another agent was started later"))
    assert world.serving is not None
    with pytest.raises(PermanentError, match="another agent was started later"):
        await asyncio.wait_for(world.serving, DEADLINE_S)


@scene(devices=1)
async def test_a_replica_that_has_no_device_yet_waits_for_one(world: World) -> None:
    await world.say(start("r1"))
    await world.say(start("r2"))
    await world.say(start("r3"))
    await world.hear(Started)
    await world.say(end("r3"))
    assert (await world.hear(Exited))[0].replica == "r3"
    assert [s.replica for s in world.all(Started)] == ["r1"]

    await world.say(end("r1"))

    assert [s.replica for s in await world.hear(Started, 2)] == ["r1", "r2"]
    first_exit = world.heard.index(world.all(Exited)[1])
    assert first_exit < world.heard.index(world.all(Started)[1])


@scene(script=FINDS_ITS_DEVICE_IN_USE, devices=1)
async def test_a_device_that_others_use_is_tried_again_after_a_rest(world: World) -> None:
    rest_s = placement.REST_S
    taken = [
        Exited(replica=ReplicaId(name), kind=ExitKind.TAKEN, detail="process 4711 has device 0")
        for name in ("r1", "r2")
    ]
    await world.say(start("r1"))
    assert await world.hear(Exited) == taken[:1]
    ended_s = time.monotonic()

    await world.say(start("r2"))

    assert await world.hear(Exited, 2) == taken
    assert time.monotonic() - ended_s > rest_s - 0.1  # a moment passes until it is heard
    assert len(await world.hear(Started, 2)) == 2


def test_a_device_that_is_not_healthy_gets_no_worker_until_it_is(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    ailing: dict[str, str] = {}
    monkeypatch.setattr("pliant.machine.accelerators.ailments", lambda names: dict(ailing))
    monkeypatch.setattr("pliant.machine.device_health.LOOK_S", 0.02)

    async def scene(world: World) -> None:
        await world.say(start("r1"))
        await world.hear(Started)
        ailing["cuda:GPU-a"] = "it is too hot"
        (told,) = await world.hear(DevicesAiling)
        assert told.ailments == (("cuda:GPU-a", "it is too hot"),)
        assert {joined.devices for joined in world.all(NodeJoined)} == {2}  # r1 may stay
        await world.until(lambda: ("r1",) in [one.ailing for one in world.all(Running)])

        await world.say(end("r1"))
        await world.until(lambda: world.all(NodeJoined)[-1].devices == 1)
        await world.say(start("r2"))
        await world.say(start("r3"))
        await world.until(lambda: ReplicaId("r2") in world.agent.used.values())
        assert world.agent.used == {1: ReplicaId("r2")}

        ailing["cuda:GPU-a"] = ""
        await world.until(lambda: world.all(NodeJoined)[-1].devices == 2)
        await world.until(lambda: world.agent.used.get(0) == ReplicaId("r3"))
        assert [one.ailments for one in world.all(DevicesAiling)][-1] == ()

    play(scene, names=("cuda:GPU-a", "cuda:GPU-b"))


@scene()
async def test_commands_of_an_older_incarnation_are_refused(world: World) -> None:
    await world.say(start("r1"), incarnation=2)
    await world.hear(Started)
    await world.say(end("r1"), incarnation=1)
    await world.say(start("r2"), incarnation=1)
    await world.say(start("r3"), incarnation=2)
    await world.hear(Started, 2)
    assert [started.replica for started in world.all(Started)] == ["r1", "r3"]
    assert world.all(Exited) == []


@pytest.mark.parametrize("name", ["../../r1", "", "a/b", "x" * 65, ".hidden"])
@scene()
async def test_a_name_that_is_no_file_name_is_not_started(world: World, *, name: str) -> None:
    await world.say(Heard(count=0, signs_every_s=0.5))
    await world.say(start(name))
    await world.say(start("r1"))
    assert [s.replica for s in await world.hear(Started)] == ["r1"]


def test_a_worker_cannot_speak_for_another(play: Play) -> None:
    script = """
from pliant.core.events import Busy
from pliant.core.values import ReplicaId
from pliant.engine.worker.bootstrap import worker_context
link = worker_context().link
link.send(Busy(replica=ReplicaId("r2"), max_s=1.0))
link.send(Busy(replica=link.replica, max_s=2.0))
link.flush(5)
link._sock.send(b"\\xff" * 100)  # and then garbage, after which nothing is read
"""

    async def scene(world: World) -> None:
        await world.say(start("r1"))
        await world.hear(Exited)
        assert [busy.max_s for busy in world.all(Busy)] == [2.0]
        await world.until(lambda: any(alive.refused == 2 for alive in world.all(Alive)))

    play(scene, script)


@pytest.mark.parametrize(("kills", "detail"), [(1, OUT_OF_MEMORY), (0, "SIGKILL")])
def test_a_worker_that_the_kernel_killed_for_memory_is_reported_so(
    play: Play, monkeypatch: pytest.MonkeyPatch, kills: int, detail: str
) -> None:
    counts = iter((7, 7 + kills))
    monkeypatch.setattr("pliant.agent.worker.oom_kills", lambda: next(counts))

    async def scene(world: World) -> None:
        await world.say(start("r1"))
        (exited,) = await world.hear(Exited)
        assert (exited.kind, exited.detail) == (ExitKind.SIGNAL, detail)

    play(scene, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")


@scene()
async def test_a_connection_that_breaks_is_made_again_and_nothing_is_forgotten(
    world: World,
) -> None:
    await world.say(start("r1"))
    (started,) = await world.hear(Started)
    assert world.connection is not None
    await world.connection.close()
    os.kill(started.pid, signal.SIGKILL)

    assert [exited.replica for exited in await world.hear(Exited)] == ["r1"]
    assert world.num_connections == 2
    assert len(world.all(NodeJoined)) == 2


@scene()
async def test_an_agent_that_is_told_to_end_waits_for_its_replicas_and_tells_every_coordinator(
    world: World,
) -> None:
    """They leave when the coordinator lets them go; the next one has to hear of it, too."""
    await world.say(start("r1"))
    await world.hear(Started)
    departing = asyncio.create_task(world.agent.depart())
    (leaving,) = await world.hear(NodeLeaving)
    assert leaving == NodeLeaving(node=NODE, notice_s=GRACE_S)
    assert world.connection is not None
    await world.connection.close()
    _, again, *_ = await world.hear(NodeLeaving, 2)
    assert again.node == NODE
    assert 0 < again.notice_s < GRACE_S
    assert not departing.done()
    await world.say(end("r1"))
    await departing
    await world.hear(AgentLeft)
    assert [exited.replica for exited in world.all(Exited)] == ["r1"]


@scene()
async def test_an_agent_that_is_told_to_end_twice_waits_for_nobody(world: World) -> None:
    await world.say(start("r1"))
    await world.hear(Started)
    hurried = asyncio.Event()
    departing = asyncio.create_task(world.agent.depart(hurried))
    await world.hear(NodeLeaving)
    hurried.set()
    await departing
    await world.hear(AgentLeft)
    assert not world.all(Exited)  # the coordinator counts them as lost with the node
    assert not world.children() or not world.agent._replicas.names()


@scene()
async def test_an_agent_that_runs_nothing_leaves_without_a_notice(world: World) -> None:
    await world.until(lambda: world.agent.is_connected)
    await world.agent.depart()
    await world.hear(AgentLeft)
    assert not world.all(NodeLeaving)


@scene(give_up_s=0.2)
async def test_a_connection_that_is_cut_after_a_long_time_is_made_again(world: World) -> None:
    """A job older than the reconnect deadline ended at the first reset of its connection."""
    await world.hear(Alive)
    await asyncio.sleep(0.4)
    await world.say(Heard(count=0, signs_every_s=0.5))
    await world.until(lambda: world.agent._uplink and world.agent._uplink.incarnation)
    assert world.connection is not None
    world.connection.transport.abort()

    await world.hear(NodeJoined, 2)


@scene(give_up_s=0.3)
async def test_a_coordinator_that_stays_away_ends_the_agent(world: World) -> None:
    with pytest.raises(PermanentError, match="no coordinator at ws:"):
        await asyncio.wait_for(
            world.agent.serve(lambda: ("ws://127.0.0.1:9",), "token"), DEADLINE_S
        )


@scene()
async def test_what_no_coordinator_has_read_is_said_again_to_the_next(world: World) -> None:
    await world.say(start("r1"))
    await world.hear(Started)
    await world.say(Heard(count=len(world.heard) - 1, signs_every_s=0.5))  # all but the greeting
    await world.say(end("r1"))
    (told,) = await world.hear(Exited)
    assert world.connection is not None
    await world.connection.close()
    await world.until(lambda: world.num_connections == 2)

    assert await world.hear(Exited, 2) == [told, told]
    assert len(world.all(Started)) == 1


def test_a_coordinator_that_is_silent_is_taken_for_lost(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.agent.uplink.LOOK_S", 0.02)

    async def scene(world: World) -> None:
        await world.until(lambda: world.num_connections == 2)

    play(scene)


@scene()
async def test_an_agent_leaves_a_coordinator_of_another_job(world: World) -> None:
    await world.hear(NodeJoined)
    await world.say(Work(job="other", command=("train.py",), cwd="/", out="/"))
    assert world.serving is not None
    with pytest.raises(PermanentError, match=r"runs train\.py of job other in /, and the work"):
        await asyncio.wait_for(world.serving, DEADLINE_S)


@scene(knows=False)
async def test_an_agent_without_the_jobs_directories_says_which(world: World) -> None:
    await world.hear(NodeJoined)
    await world.say(Work(job="j", command=("train.py",), cwd="/", out="/nowhere"))
    assert world.serving is not None
    with pytest.raises(PermanentError, match="/nowhere of job j is no directory on this node"):
        await asyncio.wait_for(world.serving, DEADLINE_S)


@pytest.mark.parametrize(("days", "is_fit"), [((-1, 1), True), ((-3, -1), False)])
@scene(knows=False)
async def test_an_agent_whose_node_would_not_be_accepted_leaves_the_job_to_others(
    world: World, *, tmp_path: Path, days: tuple[int, int], is_fit: bool
) -> None:
    files = Authority(tmp_path / "ca").files(days=days)
    where = str(tmp_path)
    await world.hear(NodeJoined)
    await world.say(Work(job="j", command=("script.py",), cwd=where, out=where, tls=files))
    assert world.serving is not None
    if is_fit:
        await world.say(start("r1"))
        await world.hear(Started)
    else:
        why = f"job j needs TLS files of this node: the certificate {files.certificate} has ex"
        with pytest.raises(PermanentError, match=re.escape(why)):
            await asyncio.wait_for(world.serving, DEADLINE_S)


@scene(knows=False)
async def test_an_agent_does_not_go_on_without_tls_under_a_coordinator_that_forgot_it(
    world: World, *, tmp_path: Path
) -> None:
    files = Authority(tmp_path / "ca").files()
    where = str(tmp_path)
    await world.hear(NodeJoined)
    work = Work(job="j", command=("script.py",), cwd=where, out=where, tls=files)
    await world.say(work)
    await world.say(replace(work, tls=None))
    assert world.serving is not None
    why = f"belong to script.py of job j in {where} with the certificate {files.certificate}"
    with pytest.raises(PermanentError, match=re.escape(why)):
        await asyncio.wait_for(world.serving, DEADLINE_S)


def test_the_end_of_the_job_ends_every_worker(play: Play) -> None:
    pids: list[int] = []

    async def scene(world: World) -> None:
        await world.say(start("r1"))
        await world.say(start("r2"))
        pids.extend(started.pid for started in await world.hear(Started, 2))
        await world.say(EndJob(exit_code=0, reason="done"))

    play(scene)

    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


@scene()
async def test_a_fork_server_is_started_again_once(world: World) -> None:
    await world.say(start("r1"))
    await world.hear(Started)
    for number in (1, 2):
        (server,) = world.children()
        server.kill()
        exits = await world.hear(Exited, number)
        assert exits[-1].kind is ExitKind.SIGNAL
        if number == 1:
            await world.say(start("r2"))
            await world.hear(Started, 2)
    (failed,) = await world.hear(AgentFailed)
    assert "fork server died" in failed.reason
    await world.say(start("r3"))
    told = (await world.hear(Exited, 3))[-1]
    assert (told.replica, told.kind) == ("r3", ExitKind.SIGNAL)
    assert told.detail == "it could not be started: its agent has failed"


@scene()
async def test_a_worker_that_cannot_be_started_ends_alone(world: World, *, tmp_path: Path) -> None:
    """Out of descriptors, a full disk: another may get what this one lacks."""
    (tmp_path / "logs" / "r1.log").mkdir(parents=True)
    await world.say(start("r1"))
    (told,) = await world.hear(Exited)
    assert told.detail.startswith("it could not be started: ")
    await world.say(start("r2"))
    assert (await world.hear(Started))[0].replica == "r2"


def test_a_worker_for_which_there_is_no_process_ends_alone(play: Play) -> None:
    """A limit on processes: those that train must not end for want of room for one more."""
    program = """
import errno, os
from pliant.engine.worker import fork_server
names, real = [], os.fork
def fork():
    names.append("one more")
    if len(names) == 2:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return real()
os.fork, fork_server.WARM_MODULES = fork, ()
fork_server.main()
"""

    async def scene(world: World) -> None:
        await world.say(start("r1"))
        await world.hear(Started)
        await world.say(start("r2"))
        (told,) = await world.hear(Exited)
        assert (told.replica, told.kind) == ("r2", ExitKind.SIGNAL)
        assert told.detail == (
            "it could not be started: no process for it: Resource temporarily unavailable"
        )
        await world.say(start("r3"))
        assert [one.replica for one in await world.hear(Started, 2)] == ["r1", "r3"]
        assert len(world.all(Exited)) == 1

    play(scene, server=("-c", program))


@scene(pooled=True)
async def test_the_device_of_a_worker_that_cannot_be_started_goes_to_who_waits_for_one(
    world: World, *, tmp_path: Path
) -> None:
    (tmp_path / "logs" / "r1.log").mkdir(parents=True)
    await world.say(start("r1"))
    await world.say(start("r2"))
    await world.hear(Alive, 2)
    world.agent.may_use({0})
    assert (await world.hear(Started))[0].replica == "r2"
    assert world.used == [{0: "r1"}, {}, {0: "r2"}]


def test_an_engine_that_cannot_be_imported_is_reported(play: Play) -> None:
    program = (
        "from pliant.engine.worker import fork_server;"
        "fork_server.WARM_MODULES = ('nothing.of.this.name',); fork_server.main()"
    )

    async def scene(world: World) -> None:
        (failed,) = await world.hear(AgentFailed)
        assert failed.reason == "the engine cannot be imported: No module named 'nothing'"

    play(scene, server=("-c", program))


def test_a_command_for_a_worker_reaches_only_that_worker(play: Play) -> None:
    script = """
import threading
from pliant.engine.worker.bootstrap import worker_context
done = threading.Event()
worker_context().link.attach(lambda command, incarnation: (print(command, flush=True), done.set()))
done.wait()
"""

    async def scene(world: World) -> None:
        await world.say(start("r1"))
        await world.say(start("r2"))
        await world.hear(Started, 2)

        await world.say(Release(to=(ReplicaId("r2"), ReplicaId("r9"))))

        (exited,) = await world.hear(Exited)
        assert exited.replica == "r2"
        assert world.lines == [("r2", "Release(to=('r2', 'r9'))")]

    play(scene, script)


@scene(devices=8, pooled=True)
async def test_of_a_pool_a_worker_is_put_only_on_a_device_that_may_be_used(world: World) -> None:
    await world.say(start("r1"))
    await world.say(start("r2"))
    await world.hear(Alive, 2)
    assert world.all(Started) == []

    world.agent.may_use({5})
    await world.hear(Started)
    world.agent.may_use({5, 2})

    told = {s.replica: s.device for s in await world.hear(Started, 2)}
    assert told == {"r1": 5, "r2": 2}
    assert world.agent.used == {5: "r1", 2: "r2"}


@scene(devices=8, pooled=True)
async def test_a_device_that_may_not_be_used_any_more_is_left_to_who_is_on_it(world: World) -> None:
    world.agent.may_use({0})
    await world.say(start("r1"))
    await world.hear(Started)
    world.agent.may_use({1})
    assert world.agent.used == {0: "r1"}
    await world.say(end("r1"))
    await world.hear(Exited)
    await world.say(start("r2"))
    await world.say(start("r3"))

    assert [s.device for s in await world.hear(Started, 2)] == [0, 1]
    assert world.agent.used == {1: "r2"}


def test_the_locks_of_a_pool_are_held_while_workers_live(play: Play, tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.agent.may_use({0, 1})
        await world.say(start("r1"))
        await world.say(start("r2"))
        pids = [s.pid for s in await world.hear(Started, 2)]
        await world.hear(Progressed, 2)
        held = [[h.pid for h in locks.holders(tmp_path, device)] for device in (0, 1)]
        assert held == [[pids[0]], [pids[1]]]

        os.kill(pids[0], signal.SIGKILL)
        await world.hear(Exited)

        assert locks.is_free(tmp_path, 0)
        assert not locks.is_free(tmp_path, 1)

    play(scene, devices=8, pooled=True)
    assert locks.is_free(tmp_path, 1)
