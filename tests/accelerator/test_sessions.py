"""One script alone on the test accelerator has the bits of the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.accelerator import checks

pytestmark = [checks.needs_compiler, pytest.mark.timeout(900)]

SESSIONS = Path(__file__).with_name("sessions.py")
IDENTITY = Path(__file__).with_name("identity.py")
COPIES = Path(__file__).with_name("copies.py")

FEW = 6
"""Of so many features `make test` trains one."""

OTHER_LISTS = "autocast of a device computes other operations in 16 bits"
DRAWS = "draws random numbers on the device, which has a generator of its own"
SCRIPT = "this script does not move all that it computes with"
SWAPS = "torch swaps tensors there, which this device needs, and forbids it beside a graph"

DIFFERENT = {
    "bfloat16 autocast": OTHER_LISTS,
    "float16 autocast with GradScaler": OTHER_LISTS,
    "GradScaler, inf in one slot": OTHER_LISTS,
    "random augmentation": DRAWS,
    "attention with dropout": DRAWS,
    "dropout and random activations": DRAWS,
    "datasets that return objects": SCRIPT,
    "a second model trained in the tail": SCRIPT,
    "weight_norm, old style": SWAPS,
    "an adapter that each forward puts on a parameter and takes off": SWAPS,
    "LSTM": "this device has no fused cell",
}
"""At most one in ten; why each does."""


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_it_has_the_bits_of_the_cpu(is_async: bool) -> None:
    assert checks.failed_in(SESSIONS, is_async=is_async) == {}


def test_no_copy_beside_training_is_too_early_or_too_late() -> None:
    assert checks.failed_in(COPIES, is_async=True) == {}


@pytest.mark.slow
def test_it_says_sets_and_refuses_what_its_device_needs() -> None:
    assert checks.failed_in(IDENTITY, is_async=True) == {}


OTHER_BITS = """
from tests.accelerator import sim
sim.install()
import torch, pliant
device = torch.device("sim")
model = torch.nn.Linear(4, 3).to(device)
with pliant.Session(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    dataset=torch.ones(8, 4),
    global_batch_size=4,
    micro_batch_size=2,
) as session:
    for step in session.steps(1):
        for points in step:
            scores = model(points.to(device))
            first = torch.tensor([0], device=device)
            step.backward(scores.put(first, scores.new_zeros(1)).sum())
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [[], ["-m", "pliant", "run", "--max", "1"]], ids=["", "run"])
def test_an_operation_without_equal_bits_ends_the_run_in_a_sentence(
    command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(OTHER_BITS)

    ended = subprocess.run(
        [sys.executable, *command, "train.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(checks.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2, ended.stderr
    assert "put_ gives other bits from one time to the next on this device" in ended.stderr
    assert "train.py, line 18" in ended.stderr
    assert "Traceback" not in ended.stderr


def differences(*, every: int, is_async: bool = False, seed: int = 0) -> dict[str, str]:
    """Train features on both; return in what those differ that do."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.accelerator.features", "--every", str(every)],
        cwd=checks.ROOT,
        env=os.environ | {"SIM_ASYNC": str(int(is_async)), "SIM_SEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    said: dict[str, str] = {}
    for line in ended.stdout.splitlines():
        said |= json.loads(line)
    assert len(said) > 100 // every - 5
    return {name: what for name, what in said.items() if what}


def test_some_features_have_the_bits_of_the_cpu() -> None:
    assert differences(every=FEW, is_async=True).keys() <= DIFFERENT.keys()


@pytest.mark.soak
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_features_have_the_bits_of_the_cpu_but_for_those_with_a_reason(is_async: bool) -> None:
    assert differences(every=1, is_async=is_async).keys() == DIFFERENT.keys()
