"""What is beyond the bounds of a message is refused by name, in every field of every type."""

from __future__ import annotations

import json
import math
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.messages import messages

from pliant.core.membership.failure.worker_activity import EACH_OTHER
from pliant.core.values import Incarnation, NodeId, ReplicaId
from pliant.wire import bounds
from pliant.wire.codec import TYPES, Envelope, Refusal, decode, encode

KINDS = sorted(TYPES.values(), key=str)
ODD = ["", "\u00e9", "a b", "../x", "\x1b[2J", "[/data/a]", "x" * 300, "r1\n"]
NO_REPLICA = ["r0", "r" + "1" * 16]


def named(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield each field with its type, at every depth."""
    for name, hint in typing.get_type_hints(kind).items():
        if name in {item.name for item in fields(kind)}:
            yield name, hint
            for inner in _inner(hint):
                if is_dataclass(inner) and isinstance(inner, type):
                    yield from named(inner)


def _inner(hint: Any) -> Iterator[Any]:
    yield hint
    for part in typing.get_args(hint):
        yield from _inner(part)


def test_every_field_that_names_a_replica_or_a_node_is_known_by_its_name() -> None:
    found = {
        of: {name for kind in KINDS for name, hint in named(kind) if of in _inner(hint)}
        for of in (ReplicaId, NodeId)
    }

    assert found[ReplicaId] == bounds.REPLICAS
    assert found[NodeId] == bounds.NODES


@given(message=messages(KINDS), data=st.data())
def test_a_number_or_a_name_out_of_bounds_is_refused_wherever_it_stands(
    message: Any, data: st.DataObject
) -> None:
    sent = json.loads(encode(message, Incarnation(1)))
    places = [place for place in _places(sent) if place[2] not in {"v", "type", "incarnation"}]
    places = [place for place in places if _is_bounded(place)]
    if not places:
        return
    holder, key, name = data.draw(st.sampled_from(places))
    holder[key] = data.draw(_wrong(name, holder[key]))

    answer = decode(json.dumps(sent))

    assert isinstance(answer, Refusal), answer
    assert answer.reason.isprintable()


def _places(value: Any, name: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Yield (holder, key, name of the field) of every plain value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        of = key if isinstance(value, dict) else name
        if isinstance(item, dict | list):
            if of not in bounds.MEASURED:
                yield from _places(item, of)
        else:
            yield value, key, of


def _is_bounded(place: tuple[Any, Any, str]) -> bool:
    holder, key, name = place
    value = holder[key]
    if isinstance(value, str):
        names = bounds.REPLICAS | bounds.NODES | bounds.LABELS
        return name in names - bounds.MAYBE_EMPTY
    return isinstance(value, int | float) and name not in bounds.MEASURED


def _wrong(name: str, value: Any) -> st.SearchStrategy[Any]:
    if isinstance(value, str):
        return st.sampled_from(ODD + NO_REPLICA if name in bounds.REPLICAS else ODD)
    if isinstance(value, bool):
        return st.just(2)
    if isinstance(value, float):
        return st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 1e300])
    return st.sampled_from([-1, 1 << 64, 10**400])


@given(text=st.text(), replica=st.text())
def test_any_host_has_a_name_and_no_replica_is_called_otherwise(text: str, replica: str) -> None:
    assert bounds.NAME.fullmatch(bounds.name_from(text))
    if bounds.REPLICA.fullmatch(replica):
        assert int(replica[1:]) > 0


@pytest.mark.parametrize("loss", [math.nan, -math.inf, -1e300])
def test_what_a_script_computes_may_be_any_number(loss: float) -> None:
    assert bounds.excess({"loss": loss, "values": {"replica": -1.0}}) is None


@given(message=messages(KINDS))
def test_nothing_within_the_bounds_is_refused(message: Any) -> None:
    assert isinstance(decode(encode(message, Incarnation(1))), Envelope)


def test_a_node_has_no_more_devices_than_commands_can_wait_for() -> None:
    most = bounds.MOST_DEVICES

    assert bounds.excess({"devices": most}) is None
    assert (
        bounds.excess({"devices": most + 1}) == f"devices: {most + 1} is not between 0 and {most}"
    )
    assert bounds.excess({"number": most + 1}) is None


def test_a_node_says_a_few_labels_at_most() -> None:
    pair = ("rack", "a")

    assert bounds.excess({"labels": (pair,) * bounds.MOST_LABELS}) is None
    assert bounds.excess({"labels": (pair,) * (bounds.MOST_LABELS + 1)}) == (
        f"labels: {bounds.MOST_LABELS + 1} are more than {bounds.MOST_LABELS}"
    )
    assert bounds.excess({"labels": (("rack", "a b"),)}) == "labels: 'a b' is no name"


def test_that_workers_wait_for_each_other_can_be_said() -> None:
    assert bounds.excess({"held_up_by": EACH_OTHER}) is None
    assert str(bounds.excess({"held_up_by": EACH_OTHER - 1})).startswith("held_up_by: -2 is not")
    assert str(bounds.excess({"committed": -1})).startswith("committed: -1 is not between 0 and")
