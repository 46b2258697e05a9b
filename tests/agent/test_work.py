"""A job as it is on a node: which directories, and what is missing there."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pliant.agent import ledger_news
from pliant.agent import work as agent_work
from pliant.agent.node_facts import AgentConfig
from pliant.agent.work import JobHere, placed
from pliant.core.errors import ConfigError
from pliant.core.events import Exited, ExitKind
from pliant.core.values import NodeId, ReplicaId
from pliant.machine import run_files
from pliant.wire.codec import Message
from pliant.wire.messages import Alive, LedgerGrown, OutputGrown, Work

NODE = NodeId("b")
SCRIPT = "print(1)\n"
DIGEST = hashlib.sha256(SCRIPT.encode()).hexdigest()


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """Return a job that was started in ``there``, and keeps its files in ``there/out``."""
    (tmp_path / "there" / "out").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "there" / "train.py").write_text(SCRIPT)
    (tmp_path / "there" / "out" / run_files.HOLDER).write_text("gpt-1a2b\n")
    return Work(
        job="gpt",
        command=("train.py", "5"),
        cwd=str(tmp_path / "there"),
        out=str(tmp_path / "there" / "out"),
        holder="gpt-1a2b",
        digest=DIGEST,
    )


def job_here(tmp_path: Path, *asked: str, node: NodeId = NODE) -> JobHere:
    """Return the job of an agent that was started in ``here``, and asked to run something."""
    here = tmp_path / "here"
    return JobHere(AgentConfig(node=node, devices=1, environment={}, here=here, asked=asked))


def test_a_node_that_sees_the_jobs_directories_works_there(work: Work, tmp_path: Path) -> None:
    assert placed(work, tmp_path / "here", NODE) == work


def test_a_node_with_the_script_elsewhere_works_where_its_agent_was_started(
    work: Work, tmp_path: Path
) -> None:
    (tmp_path / "there" / "train.py").write_text("an older one")
    (tmp_path / "here" / "train.py").write_text(SCRIPT)

    assert placed(work, tmp_path / "here", NODE).cwd == str(tmp_path / "here")


def test_a_directory_that_cannot_be_looked_at_is_not_there(work: Work, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "train.py").write_text(SCRIPT)

    assert placed(replace(work, cwd="/" + "x" * 300), here, NODE).cwd == str(here)


@pytest.mark.parametrize("there", ["nothing", "another run"])
def test_a_node_that_does_not_see_the_run_keeps_its_files_beside_it(
    work: Work, tmp_path: Path, there: str
) -> None:
    holder = tmp_path / "there" / "out" / run_files.HOLDER
    holder.unlink() if there == "nothing" else holder.write_text("gpt-3c4d\n")
    own = tmp_path / "here" / "runs" / "gpt-1a2b" / "b"

    assert placed(work, tmp_path / "here", NODE).out == str(own)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (own.parent, own)] == [0o700, 0o700]

    own.rmdir()
    own.touch()
    with pytest.raises(ConfigError, match=r"/here/runs/gpt-1a2b/b cannot be written: "):
        placed(work, tmp_path / "here", NODE)


Change = Callable[[Path], None]


@pytest.mark.parametrize(
    ("change", "more", "asked", "said"),
    [
        (lambda there: (there / "train.py").unlink(), {}, (), "this node has no train.py of job"),
        (
            lambda there: (there / "train.py").write_text("other"),
            {},
            (),
            "is not what job gpt runs on its other nodes (SHA-256 ",
        ),
        (
            lambda there: None,
            {"workers_per_replica": 2},
            (),
            "a replica of job gpt has 2 workers, all on one node, and this one has 1 device; start",
        ),
        (
            lambda there: None,
            {"workers_per_replica": 4, "hosts_per_replica": 2},
            (),
            "a replica of job gpt has 4 workers, 2 on each host, and this one has 1 device; start",
        ),
        (lambda there: None, {"init": "/gone/w.pt"}, (), "job gpt begins with the weights in /gon"),
        (
            lambda there: None,
            {},
            ("../elsewhere/train.py", "6"),
            "job gpt runs train.py 5, and this node was to run ../elsewhere/train.py 6; give the",
        ),
    ],
)
def test_what_differs_is_named(
    work: Work,
    tmp_path: Path,
    change: Change,
    more: dict[str, Any],
    asked: tuple[str, ...],
    said: str,
) -> None:
    change(tmp_path / "there")

    with pytest.raises(ConfigError) as caught:
        job_here(tmp_path, *asked).take_on(replace(work, **more))

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"asked_hosts": 3}, "job gpt has --hosts-per-replica 2, and this node was given 3; give"),
        ({"asked_hosts": 1}, "job gpt has --hosts-per-replica 2, and this node was given 1; give"),
        ({"asked_workers": 2, "asked_hosts": 2}, "job gpt has --workers-per-replica 6, and this"),
    ],
)
def test_a_node_that_was_given_other_sizes_of_a_replica_says_so(
    work: Work, tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    told = replace(work, workers_per_replica=6, hosts_per_replica=2)
    config = AgentConfig(node=NODE, devices=3, environment={}, here=tmp_path / "here")

    with pytest.raises(ConfigError) as caught:
        JobHere(replace(config, **asked)).take_on(told)

    assert said in str(caught.value)
    assert JobHere(replace(config, asked_workers=6, asked_hosts=2)).take_on(told)
    assert JobHere(config).take_on(told)


def test_a_coordinator_with_other_sizes_is_told_which(work: Work, tmp_path: Path) -> None:
    config = AgentConfig(node=NODE, devices=3, environment={}, here=tmp_path / "here")
    job = JobHere(config)
    job.take_on(replace(work, workers_per_replica=6, hosts_per_replica=2))

    with pytest.raises(ConfigError) as caught:
        job.take_on(replace(work, workers_per_replica=6, hosts_per_replica=3))

    assert "with --hosts-per-replica 3, and the workers here belong to a job with" in str(
        caught.value
    )


def test_a_job_is_taken_once_and_its_script_may_be_edited_since(work: Work, tmp_path: Path) -> None:
    job = job_here(tmp_path, "/any/where/train.py", "5")

    assert job.take_on(work)
    assert not job.take_on(replace(work, digest="0" * 64))
    with pytest.raises(ConfigError, match="the coordinator runs train"):
        job.take_on(replace(work, job="other"))


def test_what_the_coordinator_does_not_see_of_ledgers_is_said_before_an_exit(
    work: Work, tmp_path: Path
) -> None:
    (tmp_path / "there" / "out" / run_files.HOLDER).unlink()
    job = job_here(tmp_path)
    job.take_on(work)
    assert job.work is not None
    ledger = Path(job.work.out) / "ledger" / "r1.jsonl"
    ledger.parent.mkdir()
    line = json.dumps({"step": 0}) + "\n"
    ledger.write_text(line + "{torn")
    alive = Alive(node=NODE, refused=0)
    exited = Exited(replica=ReplicaId("r1"), kind=ExitKind.FINISHED)

    first = LedgerGrown(replica=ReplicaId("r1"), part=0, offset=0, lines=line)
    assert list(job.news_before(alive, has_room=True)) == [first]
    assert list(job.news_before(alive, has_room=True)) == []
    ledger.write_text(line + line)
    assert list(job.news_before(exited, has_room=True)) == [replace(first, offset=len(line))]


def test_ledgers_wait_in_their_files_while_nobody_hears_but_for_who_has_exited(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_news, "PIECE_BYTES", 4)
    monkeypatch.setattr(agent_work, "MOST_PIECES", 2)
    (tmp_path / "there" / "out" / run_files.HOLDER).unlink()
    job = job_here(tmp_path)
    job.take_on(work)
    assert job.work is not None
    ledgers = Path(job.work.out) / "ledger"
    ledgers.mkdir()
    for name, lines in (("r1", "{}\n" * 3), ("r2", "[]\n")):
        (ledgers / f"{name}.jsonl").write_text(lines)
    alive = Alive(node=NODE, refused=0)
    exited = Exited(replica=ReplicaId("r2"), kind=ExitKind.FINISHED)

    def told(message: Message, *, has_room: bool) -> list[tuple[str, str]]:
        news = job.news_before(message, has_room=has_room)
        return [(one.replica, one.lines) for one in news if isinstance(one, LedgerGrown)]

    assert told(alive, has_room=False) == []
    assert told(exited, has_room=False) == [("r2", "[]\n")]
    assert told(alive, has_room=True) == [("r1", "{}\n")] * 2
    assert told(alive, has_room=True) == [("r1", "{}\n")]


def test_what_workers_print_is_said_where_the_coordinator_does_not_see_it(
    work: Work, tmp_path: Path
) -> None:
    """Not while it does not hear: then it would be kept twice."""
    lines: list[str] = []
    alive = Alive(node=NODE, refused=0)
    job = job_here(tmp_path)
    listener = job.heard_by(lambda worker, line: lines.append(line))
    job.take_on(work)
    listener("r1", "seen there")
    assert list(job.news_before(alive, has_room=True)) == []

    (tmp_path / "there" / "out" / run_files.HOLDER).unlink()
    job = job_here(tmp_path)
    listener = job.heard_by(lambda worker, line: lines.append(line))
    job.take_on(work)
    listener("r1", "not seen there")
    assert list(job.news_before(alive, has_room=False)) == []

    said = OutputGrown(replica=ReplicaId("r1"), offset=0, text="not seen there\n")
    assert list(job.news_before(alive, has_room=True)) == [said]
    assert lines == ["seen there", "not seen there"]


def test_of_ledgers_that_the_coordinator_sees_nothing_is_said(work: Work, tmp_path: Path) -> None:
    job = job_here(tmp_path)
    job.take_on(work)
    ledger = Path(work.out) / "ledger" / "r1.jsonl"
    ledger.parent.mkdir()
    ledger.write_text("{}\n")

    assert list(job.news_before(Alive(node=NODE, refused=0), has_room=True)) == []


def test_nodes_that_share_a_directory_tell_their_own_ledgers_only(
    work: Work, tmp_path: Path
) -> None:
    """As where all hosts have one home, and none sees the run of the coordinator."""
    (tmp_path / "there" / "out" / run_files.HOLDER).unlink()
    told = {}
    jobs = {name: job_here(tmp_path, node=NodeId(name)) for name in ("b", "c")}
    for number, job in enumerate(jobs.values(), start=1):
        job.take_on(work)
        assert job.work is not None
        ledger = Path(job.work.out) / "ledger" / f"r{number}.jsonl"
        ledger.parent.mkdir(exist_ok=True)
        ledger.write_text("{}\n")

    for name, job in jobs.items():
        alive = Alive(node=NodeId(name), refused=0)
        news = job.news_before(alive, has_room=True)
        told[name] = [one.replica for one in news if type(one) is LedgerGrown]

    assert told == {"b": ["r1"], "c": ["r2"]}


def test_a_coordinator_on_another_host_may_have_the_job_in_other_directories(
    work: Work, tmp_path: Path
) -> None:
    """It has taken the job over; what runs here stays where it is."""
    here = job_here(tmp_path)
    assert here.take_on(work)
    placed_before = here.work

    assert not here.take_on(replace(work, cwd="/elsewhere", out="/elsewhere/out"))
    assert here.work == placed_before
    with pytest.raises(ConfigError, match="the workers here belong to"):
        here.take_on(replace(work, holder="gpt-ffff"))
