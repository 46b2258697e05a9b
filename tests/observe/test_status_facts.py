"""A status says where replicas are, and what is wrong with nodes, hosts and steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pliant.coordinator.metrics import BoardCollector
from pliant.http.app import registry_of
from pliant.observe.prose import line as prose
from pliant.observe.status import board_of
from pliant.observe.status_facts import (
    ailing_line,
    apart_line,
    hosts_lines,
    hosts_of_replica,
    nonfinite_line,
    placed_line,
    silent_line,
)


def kind(name: str, **values: Any) -> dict[str, Any]:
    return {"v": 1, "at": 130.0, "mono": 130.0, "job": "j", "kind": name, **values}


NODES = ["n1", "n2"]


def apart(at: float, *pairs: tuple[list[str], int, float | None]) -> dict[str, Any]:
    return {"v": 1, "at": at, "mono": at, "job": "j", "kind": "nodes_apart", "pairs": list(pairs)}


FOUND, DUE, AGAIN, MET = (
    apart(100.0, (NODES, 1, 30.0)),
    apart(130.0, (NODES, 1, None)),
    apart(200.0, (NODES, 2, 60.0)),
    apart(290.0),
)


def test_the_first_time_counts_and_the_newest_says_when_again() -> None:
    (known,) = board_of([FOUND, DUE, AGAIN]).as_json()["apart"]

    assert known == {"nodes": NODES, "times": 2, "since": 100.0, "again_at": 260.0}
    said = apart_line(known)
    assert said.startswith("nodes n1 and n2 do not reach each other since ")
    assert "one replica tries it at " in said


def test_what_is_due_and_what_is_over_is_said() -> None:
    (due,) = board_of([FOUND, DUE]).apart

    assert apart_line(due).endswith("; one replica tries it now")
    assert board_of([FOUND, DUE, AGAIN, MET]).apart == []


def test_a_job_that_has_ended_promises_no_other_try() -> None:
    assert board_of([FOUND, kind("end_job", exit_code=4)]).as_json()["apart"] == []


def test_another_coordinator_finds_out_anew_which_nodes_are_apart() -> None:
    assert board_of([FOUND, kind("coordinator_started")]).apart == []


def silent(at: float, *nodes: str, heard: tuple[str, ...] = ()) -> dict[str, Any]:
    own = {"kind": "nodes_silent", "nodes": list(nodes), "heard": list(heard)}
    return {"v": 1, "at": at, "mono": at, "job": "j", **own}


def test_a_silent_node_is_told_since_when_until_it_is_heard_again() -> None:
    records = [silent(100.0, "n1"), silent(110.0, "n1", "n2")]

    first, _ = board_of(records).as_json()["silent"]

    assert first == {"node": "n1", "since": 100.0}
    said = silent_line(first)
    assert said.startswith("nothing is heard of the agent of node n1 since ")
    assert said.endswith(": nothing new is started there until it speaks")
    assert board_of([*records, silent(120.0, heard=("n1", "n2"))]).silent == []


def test_who_ends_or_takes_over_says_no_more_of_silent_nodes() -> None:
    began = silent(100.0, "n1")

    assert board_of([began, kind("end_job", exit_code=4)]).silent == []
    assert board_of([began, kind("coordinator_started")]).silent == []


def test_a_silent_node_is_told_in_a_line_once_and_once_when_it_is_over() -> None:
    found = kind("node_silent", node="n1", others=["n2"])

    assert prose(found) == (
        "nothing is heard of the agent of node n1 and of 1 other: nothing new is started there"
    )
    assert prose(silent(130.0, "n1", "n2")) is None
    assert prose(silent(130.0, heard=("n1",))) == "heard again: the agent of n1"


BAD = {"nonfinite": "the loss is nan", "loss": "nan"}


def commit(step: int, **more: Any) -> dict[str, Any]:
    return {"kind": "commit", "step": step, "generation": 1, "mono": float(step), **more}


COMMITS = [
    commit(0, loss=1.0),
    commit(1, **BAD, skipped=True),
    {"kind": "note", "replica": "r1", "text": "hello"},
    commit(2, **BAD, skipped=False),
]


def test_the_newest_step_that_is_not_finite_is_named_and_all_are_counted() -> None:
    found = board_of(COMMITS).nonfinite

    assert found == {"step": 2, "what": "the loss is nan", "steps": 2, "skipped": 1}
    assert nonfinite_line(found) == "the loss is nan at step 2; 2 steps like it so far, 1 skipped"
    assert board_of(COMMITS[:1]).nonfinite is None


def test_a_status_has_steps_that_are_not_finite_and_stays_strict_json() -> None:
    status = board_of(COMMITS).as_json()

    assert status["nonfinite"]["steps"] == 2
    assert status["loss"] is None
    json.dumps(status, allow_nan=False)


def test_the_metrics_count_steps_that_are_not_finite() -> None:
    registry = registry_of(BoardCollector(lambda: board_of(COMMITS), {}, lambda: (0, 5)))
    run = {"run": board_of(COMMITS).job}

    assert registry.get_sample_value("pliant_nonfinite_steps_total", run) == 2.0
    assert registry.get_sample_value("pliant_skipped_steps_total", run) == 1.0


def placed_by(placement: str) -> list[dict[str, Any]]:
    return [
        {"kind": "job_started", "job": "gpt", "placement": placement},
        {"kind": "node_joined", "node": "n1", "labels": [["host", "x"], ["rack", "a"]]},
        {"kind": "node_joined", "node": "n2", "labels": [["rack", "b"], "damaged", ["one"]]},
        {"kind": "node_joined", "node": "n3"},
        {"kind": "start_replica", "replica": "r1", "node": "n1"},
        {"kind": "start_replica", "replica": "r2", "node": "n2"},
        {"kind": "start_replica", "replica": "r3", "node": "n3"},
        {"kind": "start_replica", "replica": "r4", "node": "n1"},
    ]


def test_a_status_says_where_replicas_are_by_what_their_job_goes_by() -> None:
    found = board_of(placed_by("spread:rack")).as_json()["placed"]

    sites = {"a": ["r1", "r4"], "b": ["r2"], "n3": ["r3"]}
    assert found == {"rule": "spread:rack", "sites": sites}
    assert placed_line(found) == "spread by rack: a: r1, r4; b: r2; n3: r3"


def test_nothing_is_said_of_a_job_that_goes_anywhere_or_of_a_damaged_record() -> None:
    assert board_of(placed_by("free")).as_json()["placed"] is None
    assert board_of(placed_by("odd")).as_json()["placed"] is None


def joint(*alone: str, hosts: int = 2, **values: Any) -> dict[str, Any]:
    return kind("joint_nodes", **{"hosts": hosts, "nodes": [], "alone": [*alone], **values})


TWO_NODES = joint("e", nodes=[["a", "b"], ["c", "d"]])


def test_a_status_has_hosts_until_it_is_otherwise() -> None:
    assert board_of([]).as_json()["hosts"] is None
    assert board_of([joint("a"), TWO_NODES]).as_json()["hosts"] == {
        "hosts": 2,
        "nodes": [["a", "b"], ["c", "d"]],
        "alone": ["e"],
        "missed": [],
        "unable": [],
    }


def test_a_replica_has_all_hosts_of_its_node() -> None:
    one, other = kind("start_replica", replica="r1", node="a"), kind("start_replica", replica="r2")
    single = kind("start_replica", replica="r3", node="e")

    status = board_of([TWO_NODES, one, other, single]).as_json()

    hosts = [(replica["name"], replica["node"], replica["hosts"]) for replica in status["replicas"]]
    assert hosts == [("r1", "a", ["a", "b"]), ("r2", "", []), ("r3", "e", ["e"])]


def test_workers_run_on_the_hosts_of_their_replica_in_order() -> None:
    about = kind("job_started", workers_per_replica=4)
    joint = kind("start_replica", replica="r1", node="a")
    single = kind("start_replica", replica="r3", node="e")
    status = board_of([about, TWO_NODES, joint, single]).as_json()

    assert hosts_of_replica(status, "r1") == ["a", "b"]
    assert [hosts_of_replica(status, f"r1.{place}") for place in (0, 1, 2, 3, 4)] == [
        ["a"], ["a"], ["b"], ["b"], [],
    ]  # fmt: skip
    assert hosts_of_replica(status, "r3.3") == ["e"]
    assert (
        hosts_of_replica(status, "r2")
        == hosts_of_replica(status, "r1.x")
        == hosts_of_replica(status, "r1.")
        == []
    )


def test_who_is_lost_is_of_no_node_and_waits_for_nobody() -> None:
    board = board_of([TWO_NODES, kind("node_lost", node="b", others=["e"])])

    assert board.hosts == {
        "hosts": 2,
        "nodes": [["c", "d"]],
        "alone": [],
        "missed": [],
        "unable": [],
    }


def test_who_ends_or_takes_over_says_no_more_of_hosts() -> None:
    assert board_of([TWO_NODES, kind("end_job", exit_code=0)]).hosts is None
    assert board_of([TWO_NODES, kind("coordinator_started")]).hosts is None


@pytest.mark.parametrize(
    ("alone", "hosts", "said"),
    [
        (
            "a",
            2,
            "1 host waits for another: hostsPerReplica is 2 (a); let another host join the job",
        ),
        (
            "ab",
            3,
            "2 hosts wait for another: hostsPerReplica is 3 (a, b); let another host join the job",
        ),
        (
            "a",
            3,
            "1 host waits for 2 others: hostsPerReplica is 3 (a); let 2 more hosts join the job",
        ),
        ("ab", 2, "2 hosts wait for each other: hostsPerReplica is 2 (a, b)"),
        (
            "abcdefghij",
            11,
            "10 hosts wait for another: hostsPerReplica is 11 (a, b, c, d, e, f, g, h and 2 more); "
            "let another host join the job",
        ),
    ],
)
def test_who_waits_is_told_with_whom_it_lacks(alone: str, hosts: int, said: str) -> None:
    waiting = joint(*alone, hosts=hosts)

    assert hosts_lines(board_of([waiting]).hosts) == [said]
    assert prose(waiting) == said


def test_a_line_tells_what_is_new() -> None:
    joined = joint(nodes=[["a", "b"], ["c", "d"]], joined=[["c", "d"]])
    missed = joint("e", "f", nodes=[["a", "b"]], missed=[["e", ["f"]]])

    assert prose(joined) == "host group: c with d"
    assert prose(missed) == (
        "host e does not reach f; "
        "2 hosts wait for each other: hostsPerReplica is 2 (e, f); "
        "e and f did not reach each other: open the ports above 1023 between them, and look at "
        "what their agents say; they are tried again, after 5 min at most"
    )
    assert prose(joint()) is None
    assert hosts_lines(board_of([joined]).hosts) == ["host groups: a with b, c with d"]
    assert hosts_lines(None) == []


def test_who_did_not_reach_each_other_is_said_while_both_wait() -> None:
    first = joint("e", missed=[["e", ["f"]]])
    both = joint("e", "f", missed=[["f", ["e"]]])
    later = joint("e", "f")

    told = board_of([first, both, later]).hosts
    assert told is not None
    assert told["missed"] == [["e", "f"]]
    assert "e and f did not reach each other" in hosts_lines(told)[0]
    assert "did not reach" not in hosts_lines(board_of([first]).hosts)[0], "f is not there"

    third = board_of([first, both, joint("g", nodes=[["e", "f"]])])
    assert third.hosts is not None
    assert third.hosts["missed"] == []
    lost = board_of([both, kind("node_lost", node="e")]).hosts
    assert lost is not None
    assert lost["missed"] == []


def test_a_status_of_a_coordinator_of_before_is_told() -> None:
    before = {"hosts": 2, "nodes": [["a", "b"]], "alone": ["c", "d"]}

    assert hosts_lines(before) == [
        "2 hosts wait for each other: hostsPerReplica is 2 (c, d)",
        "host group: a with b",
    ]


def test_who_can_be_one_with_nobody_says_why_until_it_can() -> None:
    why = "no file descriptor is free there (ulimit -n is 64)"
    unable = joint("a", unable=[["b", why]])
    said = f"host b cannot be one with others: {why}; it tries again every few seconds"

    assert said in hosts_lines(board_of([unable]).hosts)
    assert str(prose(unable)).endswith(said)
    assert not any(
        "cannot" in one for one in hosts_lines(board_of([unable, joint("a", "b")]).hosts)
    )
    lost = board_of([unable, kind("node_lost", node="b")]).hosts
    assert lost is not None
    assert lost["unable"] == []
    many = joint(unable=[[f"h{number}", why] for number in range(10)])
    assert hosts_lines(board_of([many]).hosts)[-1] == "2 more hosts can neither"


def test_a_damaged_record_of_hosts_breaks_nothing() -> None:
    damaged = joint(nodes=[3, ["a"]], missed=[["a"], 4, ["a", 5]], joined="x") | {"hosts": "y"}

    assert prose(damaged) is None
    assert board_of([damaged]).hosts == {
        "hosts": 1,
        "nodes": [["a"]],
        "alone": [],
        "missed": [],
        "unable": [],
    }


def test_a_device_that_gets_no_worker_is_told_with_why_until_it_is_healthy() -> None:
    def ailing(node: str, *ailments: tuple[str, str]) -> dict[str, Any]:
        return {"kind": "devices_ailing", "node": node, "ailments": [list(one) for one in ailments]}

    records = [ailing("n1", ("cuda:GPU-a", "it is too hot")), ailing("n2", ("cuda:GPU-b", "lost"))]

    first, second = board_of(records).as_json()["ailing"]

    assert ailing_line(first) == "cuda:GPU-a of n1 gets no worker: it is too hot"
    assert second["node"] == "n2"
    assert board_of([*records, ailing("n1")]).ailing == [second]
    assert prose(records[0]) == ailing_line(first)
    assert prose(ailing("n1")) == "all devices of n1 are healthy again"
