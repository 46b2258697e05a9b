"""A status says which hosts are one node, and which wait for whom."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.observe.joined_hosts import hosts_of, lines
from pliant.observe.prose import line as prose
from pliant.observe.status import board_of


def kind(name: str, **values: Any) -> dict[str, Any]:
    return {"v": 1, "at": 130.0, "mono": 130.0, "job": "j", "kind": name, **values}


def record(*alone: str, hosts: int = 2, **values: Any) -> dict[str, Any]:
    return kind("joint_nodes", **{"hosts": hosts, "nodes": [], "alone": [*alone], **values})


TWO_NODES = record("e", nodes=[["a", "b"], ["c", "d"]])


def test_a_status_has_them_until_it_is_otherwise() -> None:
    assert board_of([]).as_json()["hosts"] is None
    assert board_of([record("a"), TWO_NODES]).as_json()["hosts"] == {
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

    assert hosts_of(status, "r1") == ["a", "b"]
    assert [hosts_of(status, f"r1.{place}") for place in (0, 1, 2, 3, 4)] == [
        ["a"], ["a"], ["b"], ["b"], [],
    ]  # fmt: skip
    assert hosts_of(status, "r3.3") == ["e"]
    assert hosts_of(status, "r2") == hosts_of(status, "r1.x") == hosts_of(status, "r1.") == []


def test_who_is_lost_is_of_no_node_and_waits_for_nobody() -> None:
    board = board_of([TWO_NODES, kind("node_lost", node="b", others=["e"])])

    assert board.hosts == {
        "hosts": 2,
        "nodes": [["c", "d"]],
        "alone": [],
        "missed": [],
        "unable": [],
    }


def test_who_ends_or_takes_over_says_no_more_of_it() -> None:
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
    waiting = record(*alone, hosts=hosts)

    assert lines(board_of([waiting]).hosts) == [said]
    assert prose(waiting) == said


def test_a_line_tells_what_is_new() -> None:
    joined = record(nodes=[["a", "b"], ["c", "d"]], joined=[["c", "d"]])
    missed = record("e", "f", nodes=[["a", "b"]], missed=[["e", ["f"]]])

    assert prose(joined) == "joint node: c with d"
    assert prose(missed) == (
        "host e does not reach f; "
        "2 hosts wait for each other: hostsPerReplica is 2 (e, f); "
        "e and f did not reach each other: open the ports above 1023 between them, and look at "
        "what their agents say; they are tried again, after 5 min at most"
    )
    assert prose(record()) is None
    assert lines(board_of([joined]).hosts) == ["joint nodes: a with b, c with d"]
    assert lines(None) == []


def test_who_did_not_reach_each_other_is_said_while_both_wait() -> None:
    first = record("e", missed=[["e", ["f"]]])
    both = record("e", "f", missed=[["f", ["e"]]])
    later = record("e", "f")

    told = board_of([first, both, later]).hosts
    assert told is not None
    assert told["missed"] == [["e", "f"]]
    assert "e and f did not reach each other" in lines(told)[0]
    assert "did not reach" not in lines(board_of([first]).hosts)[0], "f is not there"

    third = board_of([first, both, record("g", nodes=[["e", "f"]])])
    assert third.hosts is not None
    assert third.hosts["missed"] == []
    lost = board_of([both, kind("node_lost", node="e")]).hosts
    assert lost is not None
    assert lost["missed"] == []


def test_a_status_of_a_coordinator_of_before_is_told() -> None:
    before = {"hosts": 2, "nodes": [["a", "b"]], "alone": ["c", "d"]}

    assert lines(before) == [
        "2 hosts wait for each other: hostsPerReplica is 2 (c, d)",
        "joint node: a with b",
    ]


def test_who_can_be_one_with_nobody_says_why_until_it_can() -> None:
    why = "no file descriptor is free there (ulimit -n is 64)"
    unable = record("a", unable=[["b", why]])
    said = f"host b cannot be one with others: {why}; it tries again every few seconds"

    assert said in lines(board_of([unable]).hosts)
    assert str(prose(unable)).endswith(said)
    assert not any("cannot" in one for one in lines(board_of([unable, record("a", "b")]).hosts))
    lost = board_of([unable, kind("node_lost", node="b")]).hosts
    assert lost is not None
    assert lost["unable"] == []
    many = record(unable=[[f"h{number}", why] for number in range(10)])
    assert lines(board_of([many]).hosts)[-1] == "2 more hosts can neither"


def test_a_damaged_record_breaks_nothing() -> None:
    damaged = record(nodes=[3, ["a"]], missed=[["a"], 4, ["a", 5]], joined="x") | {"hosts": "y"}

    assert prose(damaged) is None
    assert board_of([damaged]).hosts == {
        "hosts": 1,
        "nodes": [["a"]],
        "alone": [],
        "missed": [],
        "unable": [],
    }
