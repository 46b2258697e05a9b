"""A training script that does around its loops what people do; alone or under an agent.

    python tests/features/train_loop.py --job loops --steps 20 --directory D

The whole of it is under autocast.  It leaves in ``D`` what ``train_features`` leaves, and beside it
the weights, a line of the leader for each step, and what ``finally`` saw.
"""

from __future__ import annotations

import copy
import io
import math
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from tests.engine import models
from tests.features.feature import GLOBAL_BATCH, MICRO_BATCH, NUM_SAMPLES, SEED
from tests.features.train_features import parse, share_micro_batches, wait_while
from tests.processes.train_model import append, own_name
from torch import nn

import pliant
from pliant.testing import faults

FIRST_PHASE = 12
"""Steps of the first call of ``steps()``."""

FOR_EVER = 10**6


def train(directory: Path, steps: int, *, plan: str = "") -> str:
    """Train until somebody stops it after ``steps``; return the digest."""
    pliant.seed(SEED)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    optimizer.register_step_pre_hook(lambda *_: clip_values(model))
    best = pliant.State(loss=math.inf, step=-1)
    seen: dict[str, Any] = {"slots": []}
    is_done = threading.Event()
    threading.Thread(target=compute_aside, args=(is_done,), daemon=False).start()
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pliant.Session(
            model=model,
            optimizer=optimizer,
            dataset=models.Points(NUM_SAMPLES),
            global_batch_size=GLOBAL_BATCH,
            micro_batch_size=MICRO_BATCH,
            scheduler=lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(
                optimizer, steps // 4, 0.9
            ),
            scheduler_every="epoch",
            extra_state={"best": best, "seen": seen},
        ) as session,
    ):
        faults.install_plan(plan, replica=session.replica)
        try:
            for total in (FIRST_PHASE, FOR_EVER):
                for step in session.steps(total):
                    optimizer.zero_grad()  # nothing is there to be zeroed
                    for points, labels in step:
                        if step.index == steps - 1 and session.replica in ("r3", "alone"):
                            step.stop()  # its own clock says so
                        session.max_grad_norm = 0.2 + step.index
                        loss = nn.functional.cross_entropy(model(points), labels)
                        step.backward(loss)
                        step.log(loss=loss, slot=step.slot)
                        step.log(weight=float(labels.sum()), mean=points.mean())
                    if step.loss < best.loss:
                        best.loss, best.step = step.loss, step.index
                    seen["slots"] = [*seen["slots"][-9:], step.logged_weights["slot"]]
                    line = {
                        "best": best.state_dict(),
                        **seen,
                        "lr": optimizer.param_groups[0]["lr"],
                    }
                    tail(session, step, model, directory, steps, line)
                model[0].requires_grad_(requires_grad=False)
                optimizer.param_groups[0]["lr"] *= 0.5
        except BaseException as error:  # too wide, as in many scripts
            append(directory / "caught", {"replica": own_name(), "error": repr(error)})
        finally:
            is_done.set()
            append(directory / "finally", {"replica": own_name(), "leaving": session.leaving})
        digest = session.state_digest()
        line = {"replica": own_name(), "committed": session.committed, "digest": digest}
        if not session.leaving:
            append(directory / "digests", line)
        return digest


def tail(
    session: pliant.Session,
    step: Any,
    model: nn.Module,
    directory: Path,
    steps: int,
    kept: dict[str, Any],
) -> None:
    line = {
        "replica": own_name(),
        "step": step.index,
        "leader": session.leader,
        "loss": step.loss.hex(),
        "logged": step.logged,
    }
    if step.logged["loss"] != step.loss:
        raise AssertionError(f"{step.logged['loss']} is not {step.loss}")
    append(directory / "tails", line)
    sys.stdout.write(f"\r{(step.index + 1) / steps:4.0%}|{'#' * step.index}")
    noise = float(torch.rand(()))
    session.log(loss=step.loss, noise=noise)
    if session.leader:
        append(directory / "notes", {"step": step.index, "noise": noise, **kept, **step.logged})
    session.save(directory / "weights.pt")
    look_at(model)
    with session.busy(60.0):
        wait_while(directory / f"hold-{step.index}")


def look_at(model: nn.Module) -> None:
    """Copy, pickle and evaluate the model, which draws random numbers of the tail."""
    torch.save(model, io.BytesIO())
    copied = copy.deepcopy(model).eval()
    with torch.no_grad():
        copied(torch.randn(3, 4))
    copied.zero_grad()
    torch.autograd.backward(copied(torch.randn(3, 4)).sum())


def clip_values(model: nn.Module) -> None:
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)


def compute_aside(is_done: threading.Event) -> None:
    """Compute something on a thread that no exit waits for by itself."""
    numbers = torch.ones(8)
    while not is_done.wait(0.01):
        numbers = numbers * 0.5 + 1.0


def main() -> None:
    options = parse()
    share_micro_batches(is_sharded=False)
    train(options.directory, options.steps, plan=options.faults)


if __name__ == "__main__":
    main()
