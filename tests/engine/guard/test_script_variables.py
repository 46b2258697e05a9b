"""What a tail changes in the script's own variables is named where a joiner does not have it."""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from pliant.engine.guard.differences import DatasetAttributes, Differences
from pliant.engine.guard.script_variables import ScriptVariables


class Trainer:
    """As scripts keep their things together."""

    def __init__(self) -> None:
        self.beta = self._beta = 1.0
        self.meter = Meter()


class Meter:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0


def made(kind: str) -> Any:
    """Return what a script makes before its session, beside the model that it trains."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    return {
        "number": 1.0,
        "average": AveragedModel(net),
        "copied": copy.deepcopy(net),
        "tensor": torch.zeros(3),
        "array": np.zeros(3),
        "shadow": {"weight": torch.zeros(3)},
        "bank": deque([torch.zeros(3)], maxlen=4),
        "optimizer": torch.optim.AdamW(net.parameters()),
        "python": random.Random(0),
        "numpy": np.random.default_rng(0),
        "torch": torch.Generator().manual_seed(0),
        "trainer": Trainer(),
        "meter": Trainer(),
        "none": None,
        "text": "warm",
        "options": argparse.Namespace(phase="warm"),
        "private": Trainer(),
        "criterion": nn.Sequential(Criterion()),
        "shared": multiprocessing.Value("i", 0),
    }[kind]


class Criterion(nn.Module):
    """A loss without parameters, annealed by the script."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0


LATER: dict[str, Callable[[Any], tuple[Any, str, Any]]] = {
    "options": lambda own: (own, "phase", "cold"),
    "private": lambda own: (own, "_beta", 0.9),
    "criterion": lambda own: (own[0], "beta", 0.97),
    "shared": lambda own: (own, "value", 1),
}


def moved(kind: str, value: Any) -> Any:
    """Return it as a tail leaves it."""
    if kind in ("number", "none", "text"):
        return {"text": "cold"}.get(kind, 0.5)
    if kind in ("average", "copied"):
        with torch.no_grad():
            next(value.parameters()).add_(1.0)
    elif kind in ("tensor", "array"):
        value += 1.0
    elif kind == "shadow":
        value["weight"].add_(1.0)
    elif kind == "bank":
        value.append(torch.ones(3))
    elif kind == "optimizer":
        for parameter in value.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        value.step()
    elif kind in ("python", "numpy"):
        value.random()
    elif kind == "torch":
        torch.rand(1, generator=value)
    elif kind == "trainer":
        value.beta *= 0.9
    elif kind == "meter":
        value.meter.count += 1
    return value


def attributes(notes: list[str], *known: object) -> Differences:
    dataset = DatasetAttributes([0, 1], is_copied=True)
    return Differences(dataset, nn.Linear(4, 3), notes.append, ScriptVariables(known))


def notes_of_joiner(
    kind: str, change: Callable[[Any], Any], set_anew: Callable[[Any], Any] = lambda own: own
) -> list[str]:
    """Return what a joiner says at its first step, if those who train have changed ``own``."""
    notes: list[str] = []

    def train(own: Any) -> bytes:
        return attributes([]).pack()

    def join(own: Any, packed: bytes) -> None:
        joiner = attributes(notes)
        joiner.compare([packed])
        own = set_anew(own)
        joiner.on_step(5)

    join(made(kind), train(change(made(kind))))
    return notes


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("number", "own"),
        ("average", "own"),
        ("copied", "own"),
        ("tensor", "own"),
        ("array", "own"),
        ("shadow", "own"),
        ("bank", "own"),
        ("optimizer", "own"),
        ("python", "own"),
        ("numpy", "own"),
        ("torch", "own"),
        ("none", "own"),
        ("trainer", "own.beta"),
        ("meter", "own.meter.count"),
        ("text", "own"),
        ("options", "own.phase"),
        ("private", "own._beta"),
        ("criterion", "own.0.beta"),
        ("shared", "own"),
    ],
)
def test_what_a_tail_changed_beside_the_state_is_named(kind: str, name: str) -> None:
    def change(own: Any) -> Any:
        if kind not in LATER:
            return moved(kind, own)
        where, attribute, later = LATER[kind](own)
        setattr(where, attribute, later)
        return own

    (note,) = notes_of_joiner(kind, change)

    assert note.startswith(f"the script's '{name}' is ")
    assert "on the replicas that train" in note
    assert "extra_state=" in note


@pytest.mark.parametrize("kind", ["number", "average", "optimizer", "bank", "trainer"])
def test_what_is_alike_is_not_named(kind: str) -> None:
    assert notes_of_joiner(kind, lambda own: own) == []


@pytest.mark.parametrize("text", ["out/r2/log.txt", "cuda:1", f"on {os.uname().nodename}"])
def test_a_text_that_names_a_replica_a_device_or_a_host_is_no_difference(text: str) -> None:
    assert "text" not in ScriptVariables().words()
    assert text


def test_a_random_number_generator_of_the_system_has_no_state_to_compare() -> None:
    secure = random.SystemRandom()

    words, generators = ScriptVariables().words(), ScriptVariables().generators()

    assert secure.random() < 1.0
    assert (words["secure"], generators["secure"]) == (
        ScriptVariables().words()["secure"], ScriptVariables().generators()["secure"]
    )  # fmt: skip


def test_what_the_loop_sets_for_each_step_is_not_named() -> None:
    changed = notes_of_joiner("number", lambda own: 0.5, set_anew=lambda own: 0.25)

    assert changed == []


def test_a_reading_of_a_clock_is_no_difference() -> None:
    for clock in (time.time, time.monotonic, time.perf_counter):
        began = clock()
        assert "began" not in ScriptVariables().words()
        began -= 1e9
        assert "began" in ScriptVariables().words()


def test_what_travels_is_not_looked_at() -> None:
    net = nn.Linear(4, 3)
    parts = {"net": net, "layers": [net], "weight": net.weight.detach()}

    words = ScriptVariables([net]).words()

    assert parts
    assert not {"net", "parts"} & words.keys()
    assert {"net", "parts"} <= ScriptVariables().words().keys()


def test_a_large_script_is_looked_at_in_little_time() -> None:
    many = [torch.zeros(100) for _ in range(100_000)]
    further = {number: np.zeros(10) for number in range(100_000)}

    began_s = time.process_time()
    ScriptVariables().words()

    assert time.process_time() - began_s < 1.0
    assert len(many) == len(further)
