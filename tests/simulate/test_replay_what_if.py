"""Under another policy the same core answers what it would have; certain up to another command."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulate.recorded import SCENARIOS, a_run, record

from pliant.core.errors import ConfigError
from pliant.core.policy.decide import Policy
from pliant.simulate.replay import Step, replayed
from pliant.simulate.replay_log import entries
from pliant.simulate.replay_what_if import Otherwise, change_of, what_if


def steps_of(text: str, tmp_path: Path) -> list[Step]:
    log = tmp_path / "events.jsonl"
    record(text, log)
    return list(replayed(entries(log)))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_under_the_same_policy_the_same_is_decided_at_the_same_moments(
    path: Path, tmp_path: Path
) -> None:
    steps = steps_of(path.read_text(), tmp_path)

    answers = list(what_if(steps, lambda policy: policy))

    assert [one.difference for one in answers if one.difference] == []
    assert [one.decided for one in answers if one.decided] == []
    assert not any(one.is_own and one.ready.commands for one in answers)


def ended(answers: list[Otherwise]) -> Otherwise:
    *certain, last = answers
    assert all(one.difference is None for one in certain)
    assert last.difference is not None
    return last


def test_certainty_ends_with_the_first_command_that_would_not_have_been_given(
    tmp_path: Path,
) -> None:
    steps = steps_of("policy max=3\nat 0 node n1 devices=3\nat 1 spare r1 r2 r3\n", tmp_path)

    last = ended(list(what_if(steps, change_of({"maxReplicas": 2}))))

    assert last.difference == "nothing, where the run had start r3 on n1"
    assert last.decided is not None
    assert last.decided.target_replicas == 2
    assert last.turn.place.where == "events.jsonl:2"


GROWING = """\
policy max=4
at 0 node n1 devices=2
at 1 spare r1 r2
at 1 prepared 1 r1 r2
at 1 switched 1 r1 r2
at 10 node n2 devices=1
until 40 r1 r2
at 41 exit r2 signal SIGKILL
"""


def test_what_the_other_policy_waits_for_comes_at_its_own_moment(tmp_path: Path) -> None:
    text = GROWING.replace("policy max=4", "policy max=4 scaling_timeout_s=25")
    steps = steps_of(text, tmp_path)

    last = ended(list(what_if(steps, change_of({"scalingTimeoutInSeconds": 9.25}))))

    assert last.is_own
    assert last.now_s == 19.25
    assert last.difference == "start r3 on n2, where the run had nothing"


def test_a_policy_that_was_set_meanwhile_is_changed_as_well(tmp_path: Path) -> None:
    text = GROWING.replace("at 10 node n2 devices=1", "at 5 set max=3\nat 10 node n2 devices=1")
    steps = steps_of(text, tmp_path)

    last = ended(list(what_if(steps, change_of({"scalingTimeoutInSeconds": 10}))))

    assert last.difference == "nothing, where the run had start r3 on n2"
    assert last.now_s == 10.0


def test_a_coordinator_that_takes_over_keeps_what_was_set(tmp_path: Path) -> None:
    text = (
        "policy max=4\nat 0 node n1 devices=4\nat 1 spare r1 r2 r3 r4\n"
        "at 1 prepared 1 r1 r2 r3 r4\nat 1 switched 1 r1 r2 r3 r4\nat 2 set max=4\nat 3 restart\n"
        "at 3 node n1 devices=4 runs=r1,r2,r3,r4\nat 4 registered r1 r2 r3 r4 current=1\n"
    )
    steps = steps_of(text, tmp_path)

    answers = list(what_if(steps, change_of({"minStabilityPeriodInSeconds": 7})))

    assert [one.difference for one in answers if one.difference] == []
    policy = answers[-1].job.policy
    assert policy is not None
    assert policy.min_stability_period_s == 7


def test_a_policy_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    log = a_run(tmp_path / "events.jsonl")

    with pytest.raises(ConfigError, match="minReplicas 9 is greater than maxReplicas 4"):
        list(what_if(replayed(entries(log)), change_of({"minReplicas": 9})))


def test_fields_that_are_not_named_stay() -> None:
    policy = Policy(max_replicas=6, start_replicas=2, spares=1)

    changed = change_of({"spares": 0})(policy)

    assert changed == Policy(max_replicas=6, start_replicas=2)
