"""Scripts for HyperPod find what they import, and are answered as there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.restart.test_event import confirmed, said

from pliant.integrations.hyperpod import COORDINATION
from pliant.restart.processes import ON_PATH

SCRIPT = """
from hyperpod_elastic_agent.elastic_event_handler import elastic_event_detected
print([elastic_event_detected() for _ in range(3)])
"""


def test_an_event_is_detected_at_the_agreed_call(tmp_path: Path) -> None:
    page = confirmed(tmp_path)
    environ = {COORDINATION: "distributed", "PYTHONPATH": str(ON_PATH)}
    found = said(SCRIPT, tmp_path / "page", **environ)

    assert (found.stdout, found.stderr) == ("[False, True, True]\n", "")
    assert page.calls == 3


def test_without_coordination_none_is_and_that_is_said_once(tmp_path: Path) -> None:
    page = confirmed(tmp_path)
    found = said(SCRIPT, tmp_path / "page", PYTHONPATH=str(ON_PATH))

    assert found.stdout == "[False, False, False]\n"
    assert found.stderr == (
        "elastic_event_detected() answers False, as HYPERPOD_SIGNAL_COORDINATION is not"
        " 'distributed'\n"
    )
    assert page.calls == 0


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from hyperpod_elastic_agent import run", "hyperpod_elastic_agent.run"),
        ("import hyperpod_elastic_agent.rendezvous", "hyperpod_elastic_agent.rendezvous"),
        ("from hyperpod_elastic_agent.agent import x", "hyperpod_elastic_agent.agent"),
    ],
)
def test_other_names_are_refused_with_a_sentence(line: str, name: str) -> None:
    found = said(line, PYTHONPATH=str(ON_PATH))

    assert found.stderr.splitlines()[-1] == (
        f"ImportError: pliant has no {name}: of hyperpod_elastic_agent it has"
        " elastic_event_detected in hyperpod_elastic_agent.elastic_event_handler only; install the"
        " package, or leave that out"
    )
