"""Each generation of each coordinator has a secret; it is sent, and written down nowhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from pliant.coordinator.outbox import GenerationSecrets
from pliant.core.commands import Command, Prepare, Reform, Release, Switch
from pliant.core.values import Generation, Incarnation, Order, ReplicaId, Seat
from pliant.observe.log import fields_of
from pliant.wire.codec import Envelope, decode, encode

R1 = ReplicaId("r1")


def order(generation: int) -> Order:
    return Order(generation=Generation(generation), members=(Seat(replica=R1, endpoint="h:1"),))


def prepare(generation: int) -> Prepare:
    return Prepare(to=(R1,), order=order(generation))


def reform(generation: int) -> Reform:
    return Reform(to=(R1,), order=order(generation))


def secret_of(given: GenerationSecrets, command: Command, incarnation: int = 1) -> str:
    (sent,) = given.added_to(command, Incarnation(incarnation))
    assert isinstance(sent, Prepare | Reform)
    return sent.secret


def test_a_command_that_is_sent_again_has_the_same_secret() -> None:
    given = GenerationSecrets()

    assert secret_of(given, prepare(3)) == secret_of(given, prepare(3))
    assert secret_of(given, prepare(3)) == secret_of(given, reform(3))


def test_generations_incarnations_and_coordinators_have_secrets_of_their_own() -> None:
    given, other = GenerationSecrets(), GenerationSecrets()

    found = [
        secret_of(whose, command(generation), incarnation)
        for whose in (given, other)
        for generation in (1, 2, 11, 12)
        for incarnation in (1, 2, 11)
        for command in (prepare,)
    ]

    assert len(set(found)) == len(found)
    assert all(len(bytes.fromhex(secret)) == 32 for secret in found)


def test_processes_have_secrets_of_their_own() -> None:
    program = (
        "from tests.coordinator.test_outbox import *;"
        "print(secret_of(GenerationSecrets(), prepare(1)))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, text=True
        ).stdout
        for _ in range(2)
    }

    assert len(found) == 2


@pytest.mark.parametrize("command", [Switch(to=(R1,), order=order(1)), Release(to=(R1,))])
def test_no_other_command_has_one(command: Command) -> None:
    assert GenerationSecrets().added_to(command, Incarnation(1)) == [command]


@pytest.mark.parametrize("command", [prepare(1), reform(1)])
def test_a_command_shows_its_secret_to_its_receiver_only(command: Prepare | Reform) -> None:
    given = GenerationSecrets()
    (sent,) = given.added_to(command, Incarnation(1))
    assert isinstance(sent, Prepare | Reform)

    received = decode(encode(sent, Incarnation(1)))

    assert isinstance(received, Envelope)
    assert received.message == sent
    assert command.secret == ""
    for shown in (repr(sent), str(sent), f"{received}", repr(fields_of(sent))):
        assert sent.secret not in shown
    assert "secret" not in fields_of(sent)


def test_a_leaver_learns_of_the_generation_and_not_its_secret() -> None:
    leaver = ReplicaId("r9")
    command = replace(prepare(4), to=(*prepare(4).to, leaver))

    members, others = GenerationSecrets().added_to(command, Incarnation(1))

    assert isinstance(members, Prepare)
    assert isinstance(others, Prepare)
    assert members.to == prepare(4).to
    assert len(members.secret) == 64
    assert others == replace(prepare(4), to=(leaver,))
