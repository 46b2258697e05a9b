"""What goes into the codec comes out again, or is refused by its path."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pliant.engine.state.tagged_codec import (
    CodecError,
    DocumentError,
    Memory,
    TensorRef,
    decode,
    encode,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type and bits, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(x, y) and same(a[x], b[y]) for x, y in zip(a, b, strict=True)
        )
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (np.ndarray, np.generic)):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    return bool(a == b)


keys = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.floats(allow_nan=False),
    st.binary(),
    st.tuples(st.integers(), st.text()),
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
    st.builds(bytearray, st.binary()),
    st.sampled_from([torch.float32, torch.bfloat16, torch.complex64, torch.device("cpu")]),
    st.builds(torch.Size, st.lists(st.integers(0, 9))),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3)),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int64, st.integers(-9, 9)),
    st.builds(np.bool_, st.booleans()),
    st.builds(lambda v: np.array(v, dtype="uint32"), st.lists(st.integers(0, 2**32 - 1))),
    st.builds(set, st.lists(keys)),
    st.builds(frozenset, st.lists(keys)),
    st.builds(Counter, st.dictionaries(keys, st.integers())),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(keys, inner),
        st.dictionaries(keys, inner).map(OrderedDict),
        st.dictionaries(keys, inner).map(lambda d: defaultdict(list, d)),
        st.lists(inner).map(lambda v: deque(v, maxlen=len(v) + 1)),
    ),
    max_leaves=20,
)


@given(values)
@example({1: "a", "1": "b"})
@example([-0.0, math.inf, -math.inf, math.nan, 10**400, "\ud800"])
def test_any_value_of_a_supported_type_comes_back(value: Any) -> None:
    document, tensors = encode(value)

    assert same(decode(document, tensors), value)


@given(st.sets(keys))
def test_equal_sets_give_equal_documents(elements: set[Any]) -> None:
    backwards = set(reversed(list(elements)))

    assert encode(elements) == encode(backwards)


def test_a_schedule_keeps_its_milestones() -> None:
    """JSON made the keys strings, and MultiStepLR stopped decaying."""
    state = {"milestones": Counter({30: 1, 80: 2}), "base_lrs": [0.1]}

    assert same(decode(*encode(state)), state)


def test_tensors_travel_by_reference_and_stay_shared() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    document, tensors = encode({"a": weight, "b": [weight, torch.zeros(3)]})
    own = [torch.empty(2), torch.empty(3)]

    refs, got = decode(document), decode(document, own)

    assert [t.shape for t in tensors] == [(2,), (3,)]
    assert refs == {"a": TensorRef(0), "b": [TensorRef(0), TensorRef(1)]}
    assert got["a"] is own[0]
    assert got["b"][0] is own[0]
    assert got["b"][1] is own[1]


class Colour(IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int


@dataclass
class Thing:
    x: int


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Thing(1), "state['deep'][1] is a "),
        (Colour.RED, "state['deep'][1] is a "),
        (Point(1), "state['deep'][1] is a "),
        (lambda: None, "state['deep'][1] is a "),
        (torch.ones(2, 2).to_sparse(), "state['deep'][1] is a sparse"),
        (torch.empty(2, device="meta"), "state['deep'][1] is a sparse, quantized or meta"),
        (np.array([object()]), "state['deep'][1] is a numpy value of dtype object"),
        (defaultdict(lambda: 1), "state['deep'][1] is a defaultdict with a factory"),
        ({Point(1): 2}, "state['deep'][1] key Point(x=1) is a "),
    ],
)
def test_what_cannot_travel_is_refused_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(CodecError) as refused:
        encode({"deep": [0, value]})

    assert str(refused.value).startswith(path)


def test_a_value_inside_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(CodecError, match="deeper than"):
        encode(loop)


json_values = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(), st.floats()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
tags = st.sampled_from(
    ["list", "dict", "tensor", "ndarray", "numpy", "dtype", "float", "int", "deque", "defaultdict"]
)


@given(st.one_of(st.binary(), json_values.map(json.dumps).map(str.encode)))
def test_bytes_of_unknown_origin_are_refused_or_harmless(document: bytes) -> None:
    with contextlib.suppress(DocumentError):
        decode(document, [])


@given(tags, st.lists(json_values, max_size=4))
def test_broken_documents_are_refused_or_harmless(tag: str, rest: list[Any]) -> None:
    with contextlib.suppress(DocumentError):
        decode(json.dumps([tag, *rest]).encode(), [])


TENSORS = [torch.zeros(2) for _ in range(6)]

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, -0.0, 1.5]),
    st.sampled_from(TENSORS), st.sampled_from("ab"),
)  # fmt: skip
parts = st.dictionaries(st.sampled_from("xyz"), leaves, min_size=1)
states = st.fixed_dictionaries({"first": parts, "second": parts, "lr": leaves})


@given(st.lists(states, min_size=1, max_size=4))
def test_a_memory_changes_no_document(values: list[dict[str, Any]]) -> None:
    memory = Memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pliant.engine.state.tagged_codec.LARGE", 1)
        for value in (*values, *reversed(values)):
            assert encode(value, memory=memory) == encode(value)
            value["second"]["x"] = value["lr"]  # in place
            assert encode(value, memory=memory) == encode(value)


def test_what_is_the_same_as_before_is_not_encoded_again() -> None:
    memory = Memory()
    state = {"weights": {f"w{number}": torch.zeros(1) for number in range(20)}, "lr": 0.1}
    encode(state, memory=memory)
    weights = memory.form[1][1]

    encode({"weights": dict(state["weights"]), "lr": 0.2}, memory=memory)  # type: ignore[call-overload]

    assert memory.form[1][1] is weights
