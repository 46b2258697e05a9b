"""The table of settings is made of what means them, and leaves nothing out."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from pydantic.alias_generators import to_camel

from pliant.cli.main import code_of
from pliant.cli.run_commands import rows
from pliant.cli.settings import SETTINGS
from pliant.core.job.state import JobSettings
from pliant.core.membership.state import Timeouts
from pliant.core.policy.decide import Policy, PolicyBackoff


def outside(name: str) -> str:
    """Return how a field of the core is called in a job file."""
    return to_camel(f"{name.removesuffix('_s')}_in_seconds" if name.endswith("_s") else name)


def test_every_limit_of_the_core_has_a_row_with_its_default() -> None:
    found = {row.name: row for row in rows()}
    settings, timeouts = JobSettings(), Timeouts()
    limits = {outside(field.name): getattr(timeouts, field.name) for field in fields(Timeouts)}
    for field in fields(JobSettings):
        if field.name.endswith("_s"):
            limits[outside(field.name)] = getattr(settings, field.name)

    assert {name: found[name].default for name in limits} == {
        name: f"{default:g}" for name, default in limits.items()
    }
    assert {found[name].unit for name in limits} == {"s"}
    unasked = {"policy", "timeouts"}
    unasked |= {"nodes_may_come", "core_replicas", "is_restarting"}  # follow from the command
    others = {field.name for field in fields(JobSettings)} - unasked
    assert {name for name in others if not name.endswith("_s")} == {
        "restart_budget",
        "placement",
    }
    assert found["max_restarts"].default == str(settings.restart_budget)


def test_every_field_of_the_policy_and_every_setting_has_a_row() -> None:
    names = {row.name for row in rows()}
    policy = {outside(field.name) for field in fields(Policy)} - {"startReplicas"}

    assert policy <= names
    assert {f"backoff.{outside(field.name)}" for field in fields(PolicyBackoff)} <= names
    assert {item.name for item in SETTINGS} <= names
    assert {"devices", "node", "give_up", "token_file"} <= names


def test_every_row_says_where_it_is_set_and_what_it_means() -> None:
    found = list(rows())

    assert all(row.where and row.meaning for row in found)
    assert len({(row.name, row.where) for row in found}) == len(found)


def test_the_table_is_printed_for_people_and_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert code_of(["config"]) == 0
    assert "hangInSeconds" in capsys.readouterr().out

    assert code_of(["config", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["hangInSeconds"]["default"] == "1800"
    assert found["hangInSeconds"]["where"] == "--limit, spec.limits"
    assert found["minReplicas"]["where"] == "--min, spec.elasticPolicy"


def test_names_are_whole_in_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert code_of(["config"]) == 0

    words = capsys.readouterr().out.replace(",", " ").split()
    for row in rows():
        assert {row.name, *row.where.replace(",", " ").split()} <= set(words)
