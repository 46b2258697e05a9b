"""What a coordinator logs that no event and no command shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.coordinator.job_changes import write_unlogged_order
from pliant.core.values import (
    FIRST_LINEAGE,
    Generation,
    Incarnation,
    Lineage,
    Order,
    Register,
    ReplicaId,
    Restore,
    Seat,
)
from pliant.observe.audit_plan import first_step_of
from pliant.observe.log import EventLog, Record
from pliant.observe.timeline import Timeline


def order(number: int, *names: str, restore: Restore | None = None) -> Order:
    seats = tuple(Seat(replica=ReplicaId(name), endpoint=f"{name}:1") for name in names)
    return Order(generation=Generation(number), members=seats, restore=restore)


def register(newest: Order, *leavers: str) -> Register:
    return Register(
        incarnation=Incarnation(1),
        number=newest.generation,
        lineage=FIRST_LINEAGE,
        newest=newest,
        leavers=tuple(map(ReplicaId, leavers)),
    )


def knowing(number: int, *names: str) -> Timeline:
    return Timeline(members={number: names}, generation=number)


@pytest.mark.parametrize(
    ("known", "recorded", "kinds"),
    [
        (Timeline(), register(order(1, "r1", "r2")), ["switch"]),
        (knowing(1, "r1", "r2"), register(order(2, "r1")), ["reform"]),
        (knowing(1, "r1", "r2"), register(order(2, "r1"), "r2"), ["switch"]),
        (knowing(1, "r1"), register(order(2, "r1", "r2")), ["switch"]),
        (knowing(2, "r1"), register(order(2, "r1")), []),
        (Timeline(), None, []),
    ],
)
def test_an_order_that_is_only_in_the_register_is_logged(
    known: Timeline, recorded: Register | None, kinds: list[str], tmp_path: Path
) -> None:
    records: list[Record] = []
    log = EventLog(tmp_path / "events.jsonl", job="j")
    log.subscribe(records.append)

    write_unlogged_order(log, recorded, known)

    assert [record["kind"] for record in records] == kinds
    log.close()


def test_an_audit_finds_where_a_run_began_whose_first_order_was_not_logged(tmp_path: Path) -> None:
    """It took all steps before for missing."""
    restore = Restore(lineage=Lineage(1), checkpoint="step-9", committed=9)
    records: list[Record] = []
    log = EventLog(tmp_path / "events.jsonl", job="j")
    log.subscribe(records.append)

    write_unlogged_order(log, register(order(1, "r1", restore=restore)), Timeline())
    log.write("reform", to=["r1"], order=order(2, "r1"))

    assert first_step_of(records) == 9
    log.close()
