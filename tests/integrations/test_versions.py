"""One sentence where a framework is missing, too old or too new."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pliant.core.errors import ConfigError
from pliant.integrations import versions


@pytest.fixture(autouse=True)
def _in_no_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "tell_in_a_sentence", lambda: None)


def test_a_version_that_was_tried_is_taken() -> None:
    versions.require("pytest", least="7", below="1000")


@pytest.mark.parametrize(
    ("package", "least", "below", "sentence"),
    [
        (
            "no-such-trainer",
            "1",
            "2",
            r"needs no-such-trainer .*pip install 'no-such-trainer>=1,<2'",
        ),
        ("pytest", "900.1", "1000", r"was tried with pytest 900.1 to below 1000, and this is \d"),
        ("pytest", "0.1", "1.0.5", r"was tried with pytest"),
    ],
)
def test_another_one_is_refused_with_what_to_install(
    package: str, least: str, below: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        versions.require(package, least=least, below=below)


def test_a_replica_of_several_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(assignment=SimpleNamespace(workers_per_replica=2))
    monkeypatch.setattr(versions, "worker_context", lambda: context)

    with pytest.raises(ConfigError, match="trainer of pytest has one worker in each replica, and"):
        versions.require("pytest", least="7", below="1000")
