"""What a script asks of its environment is noticed; what others ask, and what is secret, is not."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.engine.guard.test_differences import Replica

from pliant.engine.guard import environment_reads

ASKS = """
import argparse, os, subprocess
scale = float(os.environ["LOSS_SCALE"])
for name in ("DATA_DIR", "MISSING_ONE"):
    os.environ.get(name)
path = os.getenv("SHARDS", "4")
is_set = "DEBUG_DATA" in os.environ
hidden = os.environ.get("WANDB_API_KEY"), os.environ.get("HOSTNAME"), os.environ.get("RANK")
hidden = os.environ["DATABASE_URL"], os.environ.get("MYSQL_PWD"), os.environ.get("SENTRY_DSN")
each_hosts_own = [os.environ.get(name) for name in ("NODE_RANK", "POD_NAME", "NODE_NAME")]
copies = dict(os.environ), {**os.environ}, os.environ.copy()
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Let a script ask; nothing of that stays."""
    names: dict[str, str] = {}
    monkeypatch.setattr(environment_reads, "_asked", names)
    values = {"LOSS_SCALE": "2.0", "DATA_DIR": "/a", "DEBUG_DATA": "2.0", "WANDB_API_KEY": "hidden"}
    for name, value in {**values, "DATABASE_URL": "postgres://me:hidden@host/data"}.items():
        monkeypatch.setenv(name, value)
    kind = type(os.environ)
    environment_reads.watch(os.environ)
    try:
        exec(compile(ASKS, "/of/a/user/train.py", "exec"), {})
        yield names
    finally:
        os.environ.__class__ = kind


def test_the_names_that_a_script_asks_for_are_known(asked: dict[str, str]) -> None:
    assert set(asked) == {"LOSS_SCALE", "DATA_DIR", "MISSING_ONE", "SHARDS", "DEBUG_DATA"}
    assert asked["MISSING_ONE"] == "missing"
    assert not any(value in "".join(asked.values()) for value in ("2.0", "/a"))


def test_who_goes_on_without_a_rank_is_told_once(asked: dict[str, str]) -> None:
    """Every replica took itself for the first, and wrote each row again."""
    del asked
    told: list[str] = []
    environment_reads.tell_rank(told.append)
    ask = 'import os\ntry: os.environ["RANK"]\nexcept KeyError: pass\n'
    exec(compile(ask, "/of/a/user/train.py", "exec"), {})
    assert not told

    for _ in range(2):
        exec(compile('import os\nos.getenv("RANK", 0)', "/of/a/user/train.py", "exec"), {})

    (note,) = told
    assert note.startswith(
        "the script asks for RANK, which torchrun sets and pliant does not: with"
    )


def test_that_two_variables_are_alike_is_not_told(asked: dict[str, str]) -> None:
    assert os.environ["LOSS_SCALE"] == os.environ["DEBUG_DATA"]
    assert asked["LOSS_SCALE"] != asked["DEBUG_DATA"]


def test_a_joiner_whose_environment_differs_names_the_variables_and_no_value(
    asked: dict[str, str],
) -> None:
    """Seen: a loss that is scaled by a variable of one host, and nobody saw it."""
    training, joiner = Replica(), Replica()
    packed = training.attributes.pack_for_joiners()
    asked["LOSS_SCALE"] = "another"
    asked["SHARDS"] = "another"

    joiner.attributes.compare([packed])

    assert joiner.notes == [
        "LOSS_SCALE and SHARDS in the environment, which the script reads, are not what the "
        "replicas that train have: if what it trains depends on it, their gradients do not fit "
        "together; set it alike on every host"
    ]


def test_what_a_checkpoint_keeps_says_nothing_of_the_environment(asked: dict[str, str]) -> None:
    assert b"LOSS_SCALE" in Replica().attributes.pack_for_joiners()
    assert b"LOSS_SCALE" not in Replica().attributes.pack()
