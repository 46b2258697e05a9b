"""What differs by a name alone is read as if it were read anew."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.messages import messages

from pliant.core.commands import StartReplica
from pliant.core.events import Prepared, Progressed, Spare, Switched
from pliant.core.values import Generation, Incarnation, ReplicaId
from pliant.wire import same_words
from pliant.wire.codec import (
    WORKER_EVENTS,
    WORKER_NOTES,
    Envelope,
    Message,
    Refusal,
    decode,
    encode,
)
from pliant.wire.messages import Committed
from pliant.wire.same_words import SameWords

ALLOWED = WORKER_EVENTS | WORKER_NOTES


def anew(data: bytes) -> Message | Refusal:
    received = decode(data, ALLOWED)
    return received if isinstance(received, Refusal) else received.message


def prepared(name: str) -> bytes:
    message = Prepared(replica=ReplicaId(name), generation=Generation(2))
    return encode(message, Incarnation(1))


def committed(name: str, **others: Any) -> bytes:
    said: dict[str, Any] = {
        "generation": Generation(2),
        "step": 7,
        "mono_s": 1234.5,
        "loss": 0.25,
        "grad_norm": None,
        "samples": 42,
        "step_s": 0.125,
    }
    return encode(Committed(replica=ReplicaId(name), **said | others), Incarnation(1))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is read anew."""
    found: list[bytes] = []

    def noted(data: bytes, allowed: Any) -> Envelope | Refusal:
        found.append(data)
        return decode(data, allowed)

    monkeypatch.setattr(same_words, "decode", noted)
    return found


def test_what_a_thousand_say_alike_is_read_once(read: list[bytes]) -> None:
    words = SameWords(ALLOWED)

    said = [words.read(prepared(f"r{number}")) for number in range(1, 1001)]

    assert said == [
        Prepared(replica=ReplicaId(f"r{number}"), generation=Generation(2))
        for number in range(1, 1001)
    ]
    assert len(read) == 1


def test_a_commit_that_a_thousand_tell_is_read_once_with_the_times_of_each(
    read: list[bytes],
) -> None:
    words = SameWords(ALLOWED)
    times = [(f"r{number}", 1000.0 + number / 7, number / 3) for number in range(1, 1001)]

    for name, mono_s, step_s in times:
        said = committed(name, mono_s=mono_s, step_s=step_s)
        assert words.read(said) == anew(said)

    assert len(read) == 1
    assert repr(words.read(committed("r1", loss=float("nan")))) == repr(
        anew(committed("r1", loss=float("nan")))
    )
    assert len(read) == 2


@settings(max_examples=200)
@given(
    said=st.lists(
        messages(sorted((Prepared, Switched, Progressed, Spare, Committed), key=str)),
        min_size=1,
        max_size=8,
    ),
    names=st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
def test_it_is_what_it_is_when_read_anew(said: list[Any], names: list[int]) -> None:
    words = SameWords(ALLOWED)
    for message in said:
        fields = json.loads(encode(message, Incarnation(1)))
        for number in names:
            data = json.dumps(fields | {"replica": f"r{number}"}, separators=(",", ":")).encode()
            assert repr(words.read(data)) == repr(anew(data))


@pytest.mark.parametrize(
    "data",
    [
        prepared("r1").replace(b'"r1"', b'"r01"'),
        prepared("r1").replace(b'"r1"', b'"r1\\u0031"'),
        prepared("r1")[:-1] + b',"replica":"r9"}',
        prepared("r1")[:-1] + b',"\\u0072eplica":"r9"}',
        prepared("r1")[:-1] + b',"x":"\\",\\"replica\\":\\"r9\\""}',
        prepared("r1").replace(b'"generation":2', b'"generation":-2'),
        prepared("r1").replace(b"{", b"[", 1),
        encode(StartReplica(replica=ReplicaId("r1"), node=ReplicaId("n")), Incarnation(1)),  # type: ignore[arg-type]
        b"",
    ],
)
def test_what_only_looks_alike_is_read_anew(data: bytes) -> None:
    words = SameWords(ALLOWED)
    words.read(prepared("r1"))

    for each in (data, data.replace(b'"r1"', b'"r5"'), data):
        assert repr(words.read(each)) == repr(anew(each))


@pytest.mark.parametrize(
    "change",
    [
        (b"1234.5", b"1234"),
        (b"1234.5", b"-1234.5"),
        (b"1234.5", b"01234.5"),
        (b"1234.5", b"1e3"),
        (b"1234.5", b"12345678901.5"),
        (b"1234.5", b"1234."),
        (b"1234.5", b'"1234.5"'),
        (b"0.125", b"0.125,"),
        (b"0.125", b"NaN"),
        (b"0.125", b'0.125,"step_s":0.5'),
        (b"0.125", b'0.5,"mono_s":2.5,"step_s":0.125'),
        (b'"nonfinite":""', b'"nonfinite":",\\"step_s\\":0.5,"'),
        (b'"nonfinite":""', b'"nonfinite":"grad","step_s":0.5'),
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_a_commit_that_only_looks_alike_is_read_anew(
    change: tuple[bytes, bytes], is_first: bool
) -> None:
    words, data = SameWords(ALLOWED), committed("r1").replace(*change)
    assert data != committed("r1")
    for said in (data, committed("r1"), data) if is_first else (committed("r1"), data, data):
        for name in (b'"r1"', b'"r5"'):
            each = said.replace(b'"r1"', name).replace(b"1234", b"1235")
            assert repr(words.read(said)) == repr(anew(said))
            assert repr(words.read(each)) == repr(anew(each))


def test_other_words_than_the_newest_are_forgotten(read: list[bytes]) -> None:
    words = SameWords(ALLOWED)
    for number in range(1000):
        beat = Progressed(
            replica=ReplicaId("r1"), generation=Generation(1), committed=number, calls=0
        )
        words.read(encode(beat, Incarnation(1)))

    assert len(words._known) <= 64
