"""Several processes are one replica: started together, heard by one voice, ended by the first."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.agent.world import Play, World, end, start
from tests.scene import scene

from pliant.agent.workers_here import SILENT_LOOKS
from pliant.core.commands import Release
from pliant.core.errors import PermanentError
from pliant.core.events import Busy, Exited, ExitKind, Progressed
from pliant.core.values import ReplicaId
from pliant.wire.messages import Alive, Started, Traceback, Usage, Work

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

R1 = ReplicaId("r1")

MEETS = """
import os, threading
from pathlib import Path
from pliant.core.events import ExitKind
from pliant.engine.worker.bootstrap import worker_context
context = worker_context()
own, rank = context.assignment, int(os.environ["RANK"])
def go_on(name):
    return (Path(own.inner) / name).exists()
def wait_for(name):
    while not go_on(name):
        threading.Event().wait(0.01)
"""
"""How each worker of a scene begins; the test says by files in their directory when to go on."""

WAITS = MEETS + 'print("waiting", flush=True)\nthreading.Event().wait()\n'


async def running(world: World, count: int, name: str = "r1") -> list[int]:
    """Start a replica and return its processes, which run their script."""
    before = len(world.all(Started))
    await world.say(start(name))
    workers = (await world.hear(Started, before + count))[before:]
    assert [one.worker for one in workers] == list(range(count))
    for place in range(count):
        await world.until(lambda: (f"{name}.{place}", "waiting") in world.lines)  # noqa: B023
    return [one.pid for one in workers]


def gone(pids: list[int]) -> bool:
    """Whether these processes have ended; nobody may have reaped what its parent left behind."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def test_each_worker_knows_its_place_and_they_meet_in_a_private_directory(
    play: Play, tmp_path: Path
) -> None:
    script = MEETS + (
        'names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")\n'
        "print(*(os.environ[name] for name in names), own.place, own.workers_per_replica)\n"
        "print(own.inner)\n"
        'print("waiting", flush=True)\nthreading.Event().wait()\n'
    )

    async def scene(world: World) -> None:
        pids = await running(world, 2)
        for place in range(2):
            (said, inner, _) = [text for name, text in world.lines if name == f"r1.{place}"]
            assert said == f"{place} {place} 2 2 {place} 2"
            assert (tmp_path / "logs" / f"r1.{place}.log").read_text().startswith(said)
        directory = Path(inner)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert len(str(directory / ("x" * 40))) < 107

        await world.say(end("r1"))

        exited = Exited(replica=R1, kind=ExitKind.SIGNAL, detail="SIGKILL")
        assert await world.hear(Exited) == [exited]
        assert gone(pids)
        assert not directory.exists()

    play(scene, script, workers=2)


def test_the_only_worker_of_a_replica_has_no_directory_and_no_rank(play: Play) -> None:
    script = (
        "import os, threading\n"
        "from pliant.engine.worker.bootstrap import worker_context\n"
        'print("RANK" in os.environ, repr(worker_context().assignment.inner), flush=True)\n'
        "threading.Event().wait()\n"
    )

    async def scene(world: World) -> None:
        await world.say(start("r1"))
        await world.until(lambda: world.lines)
        assert world.lines == [("r1", "False ''")]
        assert (await world.hear(Started))[0].worker is None

    play(scene, script)


@scene(WAITS, devices=8, pooled=True, workers=2)
async def test_a_replica_waits_until_there_is_a_device_for_each_of_its_workers(
    world: World,
) -> None:
    for name in ("r1", "r2"):
        await world.say(start(name))
    await world.hear(Alive, 2)
    world.agent.may_use({3, 4, 5})
    first = await world.hear(Started, 2)
    assert [(one.replica, one.worker, one.device) for one in first] == [
        ("r1", 0, 3),
        ("r1", 1, 4),
    ]
    assert world.agent.used == {3: "r1", 4: "r1"}
    await world.say(end("r1"))

    told = (await world.hear(Started, 4))[2:]
    assert [(one.replica, one.worker, one.device) for one in told] == [
        ("r2", 0, 5),
        ("r2", 1, 3),
    ]


@pytest.mark.parametrize("place", [0, 1, 2])
@scene(WAITS, devices=6, workers=3)
async def test_one_worker_that_is_killed_takes_the_others_with_it(
    world: World, *, place: int
) -> None:
    pids = await running(world, 3)
    others = await running(world, 3, "r2")

    os.kill(pids[place], signal.SIGKILL)

    exited = Exited(replica=R1, kind=ExitKind.SIGNAL, detail="SIGKILL", worker=place)
    assert await world.hear(Exited) == [exited]
    assert gone(pids)
    assert all(map(psutil.pid_exists, others))


def test_a_device_that_others_use_rests_alone_and_the_replica_is_started_elsewhere(
    play: Play,
) -> None:
    script = MEETS + (
        "from pliant.engine.worker.bootstrap import NotRunError\n"
        'if context.replica == "r1" and rank == 1:\n'
        '    raise NotRunError(ExitKind.TAKEN, "process 4711 has device 1")\n'
        "threading.Event().wait()\n"
    )

    async def scene(world: World) -> None:
        world.agent.may_use({0, 1, 2})
        await world.say(start("r1"))
        assert await world.hear(Exited) == [
            Exited(
                replica=R1,
                kind=ExitKind.TAKEN,
                detail="process 4711 has device 1",
                worker=1,
            )
        ]
        await world.say(start("r2"))

        told = (await world.hear(Started, 4))[2:]
        assert [(one.replica, one.device) for one in told] == [("r2", 2), ("r2", 0)]

    play(scene, script, devices=8, pooled=True, workers=2)


RAISES = MEETS + (
    "if rank == 1:\n"
    '    raise ValueError("broken on purpose")\n'
    'print("waiting", flush=True)\nthreading.Event().wait()\n'
)

ALL_RAISE = MEETS + 'raise ValueError("broken in all of them")\n'

REFUSES = MEETS + (
    "from pliant.core.errors import ConfigError\n"
    "if rank == 1:\n"
    '    raise ConfigError("7 does not divide 64")\n'
    "threading.Event().wait()\n"
)

EXITS_EARLY = MEETS + "if rank == 0:\n    threading.Event().wait()\n"


@pytest.mark.parametrize(
    ("script", "kind", "detail", "said"),
    [
        (RAISES, ExitKind.SCRIPT, "ValueError: broken on purpose", Traceback),
        (ALL_RAISE, ExitKind.SCRIPT, "ValueError: broken in all of them", Traceback),
        (REFUSES, ExitKind.USAGE, "7 does not divide 64", Usage),
        (EXITS_EARLY, ExitKind.EARLY, "the script ended without opening a pliant.Session", None),
    ],
)
def test_the_first_that_ends_says_how_the_replica_has(
    play: Play, script: str, kind: ExitKind, detail: str, said: type | None
) -> None:
    """What the others say after it, or at the same moment, follows from it, or is the same."""

    async def scene(world: World) -> None:
        await world.say(start("r1"))
        (exited,) = await world.hear(Exited)
        assert (exited.kind, exited.detail[: len(detail)]) == (kind, detail)
        told = [one for one in world.heard if isinstance(one, Traceback | Usage)]
        assert [type(one) for one in told] == ([] if said is None else [said])
        assert [one.worker for one in told] == [exited.worker] * len(told)
        assert script == ALL_RAISE or exited.worker == 1
        assert gone([one.pid for one in world.all(Started)])

    play(scene, script, workers=2)


def test_what_others_say_when_one_has_broken_is_not_the_cause(play: Play) -> None:
    """Worker 1 has said why it ends and is still at it; worker 0 fails for that, and is faster."""
    script = MEETS + (
        "import atexit\n"
        "if rank == 1:\n"
        '    atexit.register(wait_for, "worker 0 has failed")\n'
        "    atexit.register(lambda: (Path(own.inner) / 'worker 1 ends').touch())\n"
        '    raise ValueError("the cause")\n'
        'wait_for("worker 1 ends")\n'
        'raise RuntimeError("connection closed by peer")\n'
    )

    async def scene(world: World) -> None:
        await world.say(start("r1"))
        assert await world.hear(Exited) == [
            Exited(replica=R1, kind=ExitKind.SCRIPT, detail="ValueError: the cause", worker=1)
        ]
        (said,) = world.all(Traceback)
        assert (said.worker, said.text.splitlines()[-1]) == (1, "ValueError: the cause")

    play(scene, script, workers=2)


ENDS_IN_ORDER = MEETS + (
    "context.end_as(ExitKind.FINISHED)\n"
    "print(own.inner)\n"
    'print("waiting", flush=True)\n'
    'wait_for(f"{rank} may end")\n'
)


@scene(ENDS_IN_ORDER, workers=2)
async def test_workers_that_end_in_order_are_waited_for(world: World) -> None:
    pids = await running(world, 2)
    (directory,) = {Path(text) for name, text in world.lines if text.startswith("/")}
    (directory / "0 may end").touch()
    await world.until(lambda: not psutil.pid_exists(pids[0]))
    await world.hear(Alive, len(world.all(Alive)) + 2)
    assert world.all(Exited) == []
    (directory / "1 may end").touch()

    assert await world.hear(Exited) == [Exited(replica=R1, kind=ExitKind.FINISHED, worker=0)]


def test_one_that_hangs_at_its_end_is_ended_with_its_replica(play: Play) -> None:
    script = MEETS + (
        "context.end_as(ExitKind.FINISHED)\n"
        'print("waiting", flush=True)\n'
        "if rank == 1:\n"
        "    threading.Event().wait()\n"
    )

    async def scene(world: World) -> None:
        pids = await running(world, 2)
        await world.until(lambda: not psutil.pid_exists(pids[0]))

        await world.say(end("r1"))

        (exited,) = await world.hear(Exited)
        assert (exited.kind, exited.detail) == (ExitKind.SIGNAL, "SIGKILL")
        assert gone(pids)

    play(scene, script, workers=2)


def test_commands_reach_the_first_worker_and_only_that_one_speaks(play: Play) -> None:
    script = MEETS + (
        "from pliant.core.events import Busy\n"
        "context.link.attach(lambda command, _: print(type(command).__name__, flush=True))\n"
        "context.link.send(Busy(replica=context.replica, max_s=1.0 + rank))\n"
        'print("waiting", flush=True)\nthreading.Event().wait()\n'
    )

    async def scene(world: World) -> None:
        await running(world, 2)
        await world.say(Release(to=(R1,)))
        await world.until(lambda: ("r1.0", "Release") in world.lines)
        await world.until(lambda: any(alive.refused == 1 for alive in world.all(Alive)))
        assert [one.max_s for one in world.all(Busy)] == [1.0]
        assert ("r1.1", "Release") not in world.lines

    play(scene, script, workers=2)


@pytest.mark.parametrize("place", [0, 1])
@scene(WAITS, workers=2)
async def test_a_replica_shows_life_only_while_all_of_its_workers_do(
    world: World, *, place: int
) -> None:
    """Its coordinator then finds it silent, as it would one worker that was stopped."""
    pids = await running(world, 2)
    await world.hear(Progressed)
    os.kill(pids[place], signal.SIGSTOP)
    looks = SILENT_LOOKS
    await world.hear(Alive, len(world.all(Alive)) + looks + 1)
    world.heard.clear()

    await world.hear(Alive, 3)
    assert world.all(Progressed) == []
    os.kill(pids[place], signal.SIGCONT)

    assert (await world.hear(Progressed))[0].replica == "r1"


def test_the_death_of_the_fork_server_is_one_exit_of_each_replica(play: Play) -> None:
    said: list[Path] = []

    async def scene(world: World) -> None:
        pids = await running(world, 2)
        (server,) = world.children()

        server.kill()

        (exited,) = await world.hear(Exited)
        assert (exited.kind, exited.detail) == (ExitKind.SIGNAL, "SIGKILL")
        assert gone(pids)
        said.extend(Path(text) for _, text in world.lines if text.startswith("/"))
        await world.until(lambda: not said[0].exists())

    play(scene, MEETS + "print(own.inner)\n" + WAITS.removeprefix(MEETS), workers=2)
    assert said


@scene(WAITS, workers=2)
async def test_a_replica_of_which_one_worker_cannot_be_started_has_none(
    world: World, *, tmp_path: Path
) -> None:
    (tmp_path / "logs" / "r1.1.log").mkdir(parents=True)
    await world.hear(Alive)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    await world.say(start("r1"))
    (told,) = await world.hear(Exited)
    assert told.detail.startswith("it could not be started: ")
    assert world.all(Started) == []
    await world.until(lambda: len(os.listdir("/proc/self/fd")) == before)  # noqa: PTH208
    await world.say(start("r2"))
    assert {one.replica for one in await world.hear(Started, 2)} == {"r2"}


def test_workers_that_have_no_place_to_meet_are_not_started(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(**_: object) -> str:
        raise OSError("no room")

    monkeypatch.setattr(tempfile, "mkdtemp", nowhere)

    async def scene(world: World) -> None:
        await world.say(start("r1"))
        (told,) = await world.hear(Exited)
        assert told.detail.endswith("set TMPDIR")
        assert "its workers have no directory to meet in" in told.detail

    play(scene, WAITS, workers=2)


@scene(knows=False)
async def test_a_node_with_fewer_devices_than_a_replica_has_workers_says_so(
    world: World, *, tmp_path: Path
) -> None:
    where = str(tmp_path)
    await world.say(Work(job="j", command=("x.py",), cwd=where, out=where, workers_per_replica=4))
    assert world.serving is not None
    why = "a replica of job j has 4 workers, all on one node, and this one has 2 devices; "
    with pytest.raises(PermanentError, match=why):
        await asyncio.wait_for(world.serving, 10)
