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
from operator import attrgetter
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


class Criterion(nn.Module):
    """A loss without parameters, annealed by the script."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0


def put(path: str, value: object) -> Callable[[Any], Any]:
    """Return what sets an attribute."""
    holders, _, name = path.rpartition(".")

    def change(own: Any) -> Any:
        setattr(attrgetter(holders)(own) if holders else own, name, value)
        return own

    return change


def averaged(own: nn.Module) -> nn.Module:
    with torch.no_grad():
        next(own.parameters()).add_(1.0)
    return own


def stepped(own: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for parameter in own.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    own.step()
    return own


def drawn(own: Any) -> Any:
    own.random()
    return own


KINDS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any], Any], str]] = {
    "number": (lambda net: 1.0, lambda own: 0.5, "own"),
    "none": (lambda net: None, lambda own: 0.5, "own"),
    "text": (lambda net: "warm", lambda own: "cold", "own"),
    "average": (AveragedModel, averaged, "own"),
    "copied": (copy.deepcopy, averaged, "own"),
    "tensor": (lambda net: torch.zeros(3), lambda own: own + 1, "own"),
    "array": (lambda net: np.zeros(3), lambda own: own + 1, "own"),
    "shadow": (
        lambda net: {"weight": torch.zeros(3)},
        lambda own: {"weight": own["weight"] + 1},
        "own",
    ),
    "bank": (
        lambda net: deque([torch.zeros(3)], maxlen=4),
        lambda own: deque([*own, torch.ones(3)], maxlen=4),
        "own",
    ),
    "optimizer": (lambda net: torch.optim.AdamW(net.parameters()), stepped, "own"),
    "python": (lambda net: random.Random(0), drawn, "own"),
    "numpy": (lambda net: np.random.default_rng(0), drawn, "own"),
    "torch": (lambda net: torch.Generator(), lambda own: own.manual_seed(1), "own"),
    "trainer": (lambda net: Trainer(), put("beta", 0.9), "own.beta"),
    "meter": (lambda net: Trainer(), put("meter.count", 1), "own.meter.count"),
    "private": (lambda net: Trainer(), put("_beta", 0.9), "own._beta"),
    "options": (lambda net: argparse.Namespace(phase="warm"), put("phase", "cold"), "own.phase"),
    "criterion": (lambda net: nn.Sequential(Criterion()), put("0.beta", 0.97), "own.0.beta"),
    "shared": (lambda net: multiprocessing.Value("i", 0), put("value", 1), "own"),
}
"""What a script makes beside the model that it trains, what a tail does to it, and its name."""


def made(kind: str) -> Any:
    torch.manual_seed(0)
    return KINDS[kind][0](nn.Linear(4, 3))


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


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_tail_changed_beside_the_state_is_named(kind: str) -> None:
    _, change, name = KINDS[kind]

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
