"""A team of a pool as it is typed: what is not named stays as it was."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.cli.team_arguments import rules_of
from pliant.core.errors import ConfigError

NOTHING: dict[str, Any] = {
    "quota": None,
    "no_quota": False,
    "borrow_limit": None,
    "no_borrow_limit": False,
    "reclaim": None,
    "by": None,
}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({}, {}),
        ({"quota": 0}, {"quota": 0}),
        ({"no_quota": True}, {"quota": None}),
        ({"quota": 2, "borrow_limit": 0}, {"quota": 2, "borrowLimit": 0}),
        ({"quota": 2, "no_borrow_limit": True}, {"quota": 2, "borrowLimit": None}),
        ({"reclaim": "Never"}, {"reclaim": {"from": "Never"}}),
        ({"by": ["urgent", "high"]}, {"reclaim": {"by": ["urgent", "high"]}}),
        ({"by": ["*"]}, {"reclaim": {"by": None}}),
    ],
)
def test_only_what_is_named_is_said(typed: dict[str, Any], said: dict[str, Any]) -> None:
    assert rules_of(**{**NOTHING, **typed}) == said


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ({"quota": 2, "no_quota": True}, "--quota 2 and --no-quota: leave out one of them"),
        (
            {"quota": 2, "borrow_limit": 1, "no_borrow_limit": True},
            "--borrow-limit 1 and --no-borrow-limit: leave out one of them",
        ),
        ({"borrow_limit": 1}, "--borrow-limit 1 counts from a quota; give --quota, too"),
        ({"borrow_limit": 1, "no_quota": True}, "--borrow-limit 1 counts from a quota"),
    ],
)
def test_what_contradicts_itself_is_refused(typed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rules_of(**{**NOTHING, **typed})

    assert str(caught.value).startswith(sentence)
