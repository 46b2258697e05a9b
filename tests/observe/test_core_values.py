"""What is written of a core value is the same again; anything else is refused in a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.support.player import CoreAlone, play
from tests.support.recorded import SCENARIOS
from tools.replay_log import event_in

from pliant.core import events
from pliant.core.commands import EndReplica
from pliant.core.job.state import Job, JobSettings, Nodes, Offer
from pliant.core.membership.state import Membership, Orders
from pliant.core.policy.decide import Policy, PolicyBackoff
from pliant.core.values import Generation, Incarnation, NodeId, Register, ReplicaId
from pliant.observe.core_values import value_of, written


def again(kind: Any, value: Any) -> Any:
    return value_of(kind, json.loads(json.dumps(written(kind, value))))


@pytest.mark.parametrize("path", SCENARIOS[::5], ids=lambda path: path.stem)
def test_what_a_core_knows_at_any_moment_is_the_same_again(path: Any) -> None:
    class Keeping(CoreAlone):
        def hear_event(self, event: events.Event, *, now_s: float, age: int) -> Any:
            answer = super().hear_event(event, now_s=now_s, age=age)
            for one in self._coordinators:
                assert again(Job, one.job) == one.job
                assert again(Register, one.register) == one.register
            return answer

    play(path.read_text(), Keeping)


def test_a_log_names_no_part_of_a_job_and_its_fields_as_it_always_did() -> None:
    offer, orders = Offer(replicas=3, reason="less"), Orders(issued=Generation(4))
    membership = Membership(incarnation=Incarnation(2), orders=orders)
    job = Job(
        membership=membership, named=7, offer=offer, nodes=Nodes(silent=frozenset({NodeId("n")}))
    )

    found = written(Job, job)

    fields = {"named": 7, "offered": 3, "offer_reason": "less", "silent": ["n"], "nodes": []}
    parts = {"offer", "sizing", "stragglers", "budget", "start", "ending", "checkpoints"}
    assert fields.items() <= found.items()
    assert found["membership"]["issued"] == 4
    assert not parts & found.keys()
    assert len(found) == 57
    assert len(found["membership"]) == 33
    assert value_of(Job, found) == job


def test_settings_are_the_same_again() -> None:
    backoff = PolicyBackoff(initial_s=1.0, max_s=2.0)
    policy = Policy(min_replicas=2, replica_discrete_values=(2, 4), backoff=backoff)
    settings = JobSettings(policy=policy, restart_budget=9)

    assert again(JobSettings, settings) == settings


def test_a_farewell_says_which_command_it_is() -> None:
    kind = EndReplica | None | events.Busy

    found = written(kind, EndReplica(replica=ReplicaId("r1"), reason="drained"))

    assert found == {"is": "end_replica", "replica": "r1", "reason": "drained"}


def test_an_event_is_read_from_its_record() -> None:
    record = {"v": 1, "kind": "exited", "exited_kind": "signal", "replica": "r1", "detail": "x"}

    found = event_in(events.Exited, record)

    assert found == events.Exited(replica=ReplicaId("r1"), kind=events.ExitKind.SIGNAL, detail="x")


def test_a_field_that_is_missing_has_its_default_and_an_unknown_one_does_not_matter() -> None:
    joined = {"node": "n1", "devices": 2, "colour": "red"}

    found = value_of(events.NodeJoined, joined)

    assert found == events.NodeJoined(node=NodeId("n1"), devices=2)


@pytest.mark.parametrize(
    ("kind", "data", "sentence"),
    [
        (events.NodeJoined, {"node": "n1", "devices": 10**30}, "devices: '1000"),
        (events.NodeJoined, {"node": "n1"}, "no whole node_joined: "),
        (events.NodeJoined, [], "no node_joined"),
        (events.Busy, {"replica": "r1", "max_s": "nan"}, "max_s: 'nan' is no number"),
        (events.Exited, {"replica": "r1", "kind": "bored"}, "kind: 'bored' is not a valid"),
        (JobSettings, {"restart_budget": -1}, "restart_budget must be at least 0"),
        (Job, {"kept": [{"is": "end_job"}]}, "kept: none of 30 kinds of values"),
        (Register, {"homes": [["r1"]]}, "homes: 1 values where 2 belong together"),
    ],
)
def test_anything_else_is_refused(kind: Any, data: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        value_of(kind, data)

    assert str(caught.value).startswith(sentence)


def test_what_is_not_compared_is_not_written() -> None:
    spare = events.Spare(replica=ReplicaId("r1"), calls=0, num_slots=4, layout="l", endpoint="h:1")
    told = replace(spare, calls=Generation(2))

    assert again(events.Spare, told) == told
