"""The codec accepts exactly what it wrote, and nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.messages import SECRET, messages

from pliant.core.commands import Prepare, StartReplica
from pliant.core.events import Prepared, Progressed, Spare, Switched
from pliant.core.values import Generation, Incarnation, NodeId, Order, ReplicaId, Seat
from pliant.wire import codec
from pliant.wire.codec import (
    COMMANDS,
    MAX_MESSAGE_BYTES,
    TYPES,
    VERSION,
    WORKER_EVENTS,
    WORKER_NOTES,
    Envelope,
    Message,
    Refusal,
    SameWords,
    decode,
    encode,
)
from pliant.wire.messages import Committed, JoinHosts, Traceback

START = StartReplica(replica=ReplicaId("r1"), node=NodeId("here"))

MESSAGES = messages(sorted(TYPES.values(), key=lambda kind: kind.__name__))


def wire(**changes: Any) -> bytes:
    """A good message with fields changed; ``...`` removes one."""
    good = json.loads(encode(START, Incarnation(1)))
    good.update(changes)
    return json.dumps({key: value for key, value in good.items() if value is not ...}).encode()


def refused(data: bytes | str) -> str:
    answer = decode(data)
    assert isinstance(answer, Refusal)
    return answer.reason


@settings(max_examples=100)
@given(message=MESSAGES, incarnation=st.integers(0, 1 << 40))
def test_every_message_comes_back_as_it_was_sent(message: Any, incarnation: int) -> None:
    answer = decode(encode(message, Incarnation(incarnation)))

    assert isinstance(answer, Envelope)
    assert answer.incarnation == incarnation
    # repr, because NaN is not equal to itself
    assert repr(answer.message) == repr(message)
    assert getattr(answer.message, "secret", "") == getattr(message, "secret", "")


@pytest.mark.parametrize("name", sorted(TYPES))
def test_no_field_of_a_message_has_the_name_of_an_envelope_field(name: str) -> None:
    assert not {item.name for item in fields(TYPES[name])} & {"v", "type", "incarnation"}


def test_infinite_and_undefined_numbers_survive() -> None:
    note = Committed(
        replica=ReplicaId("r1"),
        generation=1,  # type: ignore[arg-type]
        step=3,
        mono_s=1.5,
        loss=math.nan,
        grad_norm=math.inf,
        samples=8,
        step_s=0.1,
    )

    answer = decode(encode(note, Incarnation(1)))

    assert isinstance(answer, Envelope)
    assert repr(answer.message) == repr(note)


def test_text_that_is_no_unicode_is_sent_with_replacements() -> None:
    answer = decode(encode(Traceback(replica=ReplicaId("r1"), text="a\udc80b"), Incarnation(1)))

    assert isinstance(answer, Envelope)
    assert isinstance(answer.message, Traceback)
    assert answer.message.text == "a?b"


@settings(max_examples=200)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_refused_with_a_reason(data: bytes) -> None:
    assert refused(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@settings(max_examples=100)
@given(name=st.sampled_from(sorted(TYPES)), body=st.dictionaries(st.text(max_size=8), JSON))
def test_random_fields_are_refused_with_a_reason(name: str, body: dict[str, Any]) -> None:
    data = json.dumps({**body, "v": VERSION, "type": name, "incarnation": 1})

    answer = decode(data)

    if isinstance(answer, Envelope):  # a message without fields, sent without fields
        assert asdict(answer.message) == body
    else:
        assert answer.reason


@settings(max_examples=60)
@given(message=MESSAGES, cut=st.floats(0, 0.999))
def test_a_cut_off_message_is_refused(message: Any, cut: float) -> None:
    data = encode(message, Incarnation(1))

    assert refused(data[: int(len(data) * cut)])


@given(field=st.sampled_from(["replica", "node", "v", "type", "incarnation"]), value=JSON)
def test_a_field_of_another_type_is_refused(field: str, value: Any) -> None:
    good = json.loads(encode(START, Incarnation(1)))[field]
    answer = decode(wire(**{field: value}))

    if isinstance(answer, Envelope):
        assert type(value) is type(good)
    else:
        assert answer.reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no JSON"),
        (b"[1]", "a JSON list, not an object"),
        (wire(v=1), f"version 1; this side speaks {VERSION}"),
        (wire(v="1"), "version '1'"),
        (wire(v=True), "version True"),
        (wire(v=...), "version None"),
        (wire(type="explode"), "unknown type 'explode'"),
        (wire(type=["start_replica"]), "unknown type"),
        (wire(incarnation=-1), "incarnation -1"),
        (wire(incarnation=1.0), "incarnation 1.0"),
        (wire(incarnation=1 << 60), "incarnation 1152921504606846976"),
        (wire(replica=""), "start_replica.replica: '' is no name"),
        (wire(replica="é"), r"start_replica.replica: '\xe9' is no name"),
        (wire(node="a/../b"), "start_replica.node: 'a/../b' is no name"),
        (wire(**{"\x1b[2J": 1}), r"start_replica.\x1b[2J: unknown field"),
        (wire(incarnation=True), "incarnation True"),
        (wire(node=...), "start_replica.node: Field required"),
        (wire(extra=1), "start_replica.extra: unknown field"),
        (wire(replica=3), "start_replica.replica: Input should be a valid string"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "no JSON"),
        (wire(replica="x" * MAX_MESSAGE_BYTES), "bytes; at most"),
        (wire().replace(b": 1,", b": " + b"9" * 5000 + b",", 1), ""),
        (wire().replace(b'tion": 1', b'tion": -' + b"9" * 5000, 1), ""),
    ],
)
def test_what_is_wrong_is_named(data: bytes, reason: str) -> None:
    assert reason in refused(data)


@given(message=MESSAGES, data=st.data())
def test_a_field_that_is_given_twice_breaks_nothing(message: Any, data: st.DataObject) -> None:
    good = encode(message, Incarnation(1)).decode()
    field, value = data.draw(st.sampled_from(sorted(json.loads(good)))), data.draw(JSON)
    again = f"{json.dumps(field)}: {json.dumps(value)}"

    for text in (f"{good[:-1]}, {again}}}", f"{{{again}, {good[1:]}"):
        answer = decode(text)
        assert isinstance(answer, Envelope) or answer.reason


def test_an_extra_field_deep_inside_is_refused() -> None:
    order = Order(
        generation=2,  # type: ignore[arg-type]
        members=(Seat(replica=ReplicaId("r1"), endpoint="h:1"),),
    )
    good = json.loads(encode(Prepare(to=(ReplicaId("r1"),), order=order), Incarnation(1)))
    good["order"]["members"][0]["extra"] = 1

    assert refused(json.dumps(good)) == "prepare.order.members[0].extra: unknown field"


def test_a_left_out_default_is_refused() -> None:
    order = Order(generation=2, members=())  # type: ignore[arg-type]
    good = json.loads(encode(Prepare(to=(), order=order), Incarnation(1)))
    del good["order"]["hold"]

    assert refused(json.dumps(good)) == "prepare.order.hold: missing field"


def test_a_number_is_not_rounded_into_a_count() -> None:
    beat = Progressed(replica=ReplicaId("r1"), generation=1, committed=2, calls=0)  # type: ignore[arg-type]
    good = json.loads(encode(beat, Incarnation(1)))

    assert "committed" in refused(json.dumps({**good, "committed": 2.5}))
    assert "committed" in refused(json.dumps({**good, "committed": True}))
    assert "committed" in refused(json.dumps({**good, "committed": "2"}))


def test_a_message_that_is_not_the_senders_to_say_is_refused() -> None:
    beat = Progressed(replica=ReplicaId("r1"), generation=1, committed=2, calls=0)  # type: ignore[arg-type]

    answer = decode(encode(beat, Incarnation(1)), COMMANDS)

    assert answer == Refusal(reason="progressed is not for this side to say")


def sent_with(secret: object, kind: str = "prepare") -> dict[str, Any]:
    if kind == "join_hosts":
        joint = JoinHosts(head=NodeId("a"), parts=(NodeId("b"),), endpoint="h:1")
        return {**json.loads(encode(joint, Incarnation(1))), "secret": secret}
    order = Order(generation=2, members=())  # type: ignore[arg-type]
    return {**json.loads(encode(Prepare(to=(), order=order), Incarnation(1))), "secret": secret} | {
        "type": kind
    }


@pytest.mark.parametrize("kind", ["prepare", "reform", "join_hosts"])
@pytest.mark.parametrize(
    "secret",
    [
        SECRET[:-1],
        SECRET + "0",
        SECRET + "\n",
        SECRET.upper(),
        " " + SECRET[1:],
        "0x" + SECRET[2:],
        "\u0661" * 64,
        "g" + SECRET[1:],
        [SECRET],
        {SECRET: SECRET},
        int(SECRET, 16),
        None,
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(kind: str, secret: object) -> None:
    reason = refused(json.dumps(sent_with(secret, kind)))

    assert reason.startswith(f"{kind}.secret: ")
    assert len(reason) < 80
    assert SECRET[1:9] not in reason.lower()
    assert str(int(SECRET, 16))[:8] not in reason


@settings(max_examples=300)
@given(
    at=st.floats(0, 0.999),
    cut=st.integers(0, 3),
    put=st.binary(max_size=3) | st.sampled_from([b'"', b'","', b"\\", b"}", b'":"', b"\xff"]),
)
def test_no_refusal_repeats_a_part_of_a_secret(at: float, cut: int, put: bytes) -> None:
    data = json.dumps(sent_with(SECRET)).encode()
    start = int(len(data) * at)

    answer = decode(data[:start] + put + data[start + cut :])

    if isinstance(answer, Refusal):
        assert not any(SECRET[i : i + 8] in answer.reason for i in range(16))


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

    monkeypatch.setattr(codec, "decode", noted)
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
