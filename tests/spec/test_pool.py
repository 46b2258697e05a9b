"""A pool's file either loads or is refused with one sentence that says what to change."""

from __future__ import annotations

import pytest

from pliant.core.errors import ConfigError
from pliant.spec.load import parse
from pliant.spec.pool import PoolFile, devices_of

GOOD = """\
apiVersion: pliant.dev/v1alpha1
kind: Pool
metadata: {name: gpu}
spec:
  devices: 8
  priorityClasses:
    - {name: nightly, value: -500}
  teams:
    - {name: vision, quota: 5}
    - {name: speech, quota: 3, borrowLimit: 2, reclaim: {from: SameTeam, by: [urgent]}}
"""


def load_pool(text: str) -> PoolFile:
    return parse(PoolFile, text, source="pool.yaml")


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_pool(text)
    return str(caught.value)


def test_the_documented_pool_loads() -> None:
    pool = load_pool(GOOD)

    assert (pool.metadata.name, pool.spec.devices) == ("gpu", 8)
    assert [(entry.name, entry.value) for entry in pool.spec.priority_classes] == [
        ("nightly", -500)
    ]
    vision, speech = pool.spec.teams
    assert (vision.quota, vision.borrow_limit, vision.reclaim.from_) == (5, None, "LowerPriority")
    assert (speech.quota, speech.borrow_limit, speech.reclaim.from_) == (3, 2, "SameTeam")
    assert speech.reclaim.by == ["urgent"]


def test_devices_may_be_of_kinds_as_on_the_command_line() -> None:
    pool = load_pool(GOOD.replace("devices: 8", "devices: cuda:0-6+cpu:0-7,8-15"))

    assert devices_of(pool.spec.devices or 0, given="--devices") == (
        9,
        (*(f"cuda:{n}" for n in range(7)), "cpu:0-7", "cpu:8-15"),
    )


def test_everything_has_a_default() -> None:
    pool = load_pool("apiVersion: pliant.dev/v1alpha1\nkind: Pool\n")

    assert (pool.metadata.name, pool.spec.devices) == ("default", None)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "quota: 5",
            "quotas: 5",
            "pool.yaml line 9: unknown field spec.teams[0].quotas; did you mean quota?",
        ),
        ("kind: Pool", "kind: Pond", "pool.yaml line 2: kind must be Pool, not 'Pond'"),
        (
            "quota: 5",
            "quota: -1",
            "pool.yaml line 9: spec.teams[0].quota must be at least 0, not -1",
        ),
        (
            "from: SameTeam",
            "from: Anyone",
            "pool.yaml line 10: spec.teams[1].reclaim.from must be LowerPriority, SameTeam or"
            " Never, not 'Anyone'",
        ),
        (
            "by: [urgent]",
            "by: [urgnt]",
            "pool.yaml line 4: team speech lets class urgnt reclaim, which does not exist; classes"
            " are high, low, nightly, normal, urgent",
        ),
        (
            "quota: 5",
            "quota: 6",
            "pool.yaml line 4: the quotas 6 (vision) + 3 (speech) are more than the pool's 8"
            " devices; lower one or give the pool more",
        ),
        ("name: speech", "name: vision", "pool.yaml line 4: team vision is given twice"),
        (
            "quota: 3, ",
            "",
            "pool.yaml line 10: team speech has a borrowLimit of 2 but no quota that it could"
            " exceed; give it a quota",
        ),
        (
            "name: nightly",
            "name: Night",
            "pool.yaml line 7: name 'Night' must be lower-case letters, digits and dashes, at"
            " most 63 of them",
        ),
        (
            "devices: 8",
            "devices: 8.5",
            "pool.yaml line 5: spec.devices must be a whole number, or a list such as cuda:0-3, not"
            " 8.5",
        ),
        ("devices: 8", "devices: [cuda]", "pool.yaml line 5: spec.devices must be a whole number"),
        ("devices: 8", "devices: -1", "pool.yaml line 5: spec.devices -1 must be between 1 and"),
        (
            "devices: 8",
            "devices: cuda",
            "pool.yaml line 5: spec.devices 'cuda' is neither a number nor a list such as cuda:0-3",
        ),
        (
            "devices: 8",
            "devices: cuda:0-3+cuda:3-9",
            "pool.yaml line 5: spec.devices 'cuda:0-3+cuda:3-9': cuda 3 is in two devices",
        ),
        (
            "devices: 8",
            "devices: cuda:0-3+cpu:0-7,8-15",
            "pool.yaml line 4: the quotas 5 (vision) + 3 (speech) are more than the pool's 6",
        ),
    ],
)
def test_a_contradiction_is_refused_with_its_line(old: str, new: str, sentence: str) -> None:
    assert refusal(GOOD.replace(old, new)).startswith(sentence)
