"""Records in one line of English."""

from __future__ import annotations

from pliant.observe.prose import SHOWN_REPLICAS, line


def test_who_computes_how_many_micro_batches_is_one_line() -> None:
    record = {
        "kind": "slots_moved",
        "replica": "r1",
        "step": 8,
        "replicas": ["r1", "r2", "r3"],
        "sizes": [1, 4, 3],
        "paces_us": [31_000, 9_640, 0],
    }

    assert line(record) == (
        "micro-batches from step 8 on: r1 1 (31 ms each), r2 4 (9.64 ms each), r3 3"
    )


def test_of_many_replicas_some_are_named() -> None:
    names = [f"r{number}" for number in range(1, SHOWN_REPLICAS + 3)]
    ones = [1] * len(names)

    said = line(
        {"kind": "slots_moved", "step": 8, "replicas": names, "sizes": ones, "paces_us": ones}
    )

    assert said is not None
    assert said.endswith("r8 1 (0.001 ms each), and 2 more")


def test_a_damaged_record_says_nothing() -> None:
    assert line({"kind": "slots_moved", "replicas": 3, "sizes": ["x"], "paces_us": None}) is None


def test_a_node_that_was_told_to_end_has_left_and_is_not_lost() -> None:
    assert line({"kind": "node_lost", "node": "b", "others": [], "has_left": True}) == (
        "node b has left"
    )
    assert line({"kind": "node_lost", "node": "b", "others": []}) == "node b is lost"


def test_what_becomes_of_a_state_that_nobody_else_has_is_told() -> None:
    said = "node b leaves, and no other has the state or room for it: it is saved"

    assert line({"kind": "note", "text": said}) == said
    assert line({"kind": "note", "text": "prepare generation 3: r1"}) is None
    assert line({"kind": "note", "replica": "r1", "text": "half full"}) == "r1: half full"
