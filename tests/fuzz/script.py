"""Trains one recipe with a Session; alone or under an agent.

    python tests/fuzz/script.py --seed 7
    python tests/fuzz/script.py --recipe F --out D

With ``--out`` whoever reaches the end appends a line to ``D/digests``, every tail appends one to
``D/tails``, and no tail ends before the file ``D/permits`` allows it.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import xxhash
from tests.fuzz import generator, workload
from tests.fuzz.generator import Recipe

import pliant
from pliant.engine.reduce import shared_memory
from pliant.engine.state.tagged_codec import encode
from pliant.testing import faults

DEADLINE_S = 60.0
"""Longest wait for a permit, in seconds."""


def main() -> None:
    options = parse()
    recipe = (
        generator.recipe(options.seed)
        if options.recipe is None
        else generator.parse(options.recipe.read_text())
    )
    if recipe.seed % 3:  # these models are small: the others use their sockets
        shared_memory.SMALL_BYTES = 0
    permits = None if options.permits is None else Permits(options.permits)
    out: Path | None = options.out

    def on_session(session: pliant.Session) -> None:
        if out is not None and session.replica != "alone":
            faults.install_plan(",".join(recipe.faults), replica=session.replica)

    def on_tail(session: pliant.Session, step: Any) -> None:
        session.log(loss=step.loss)
        line = {
            "replica": session.replica,
            "step": step.index,
            "leader": session.leader,
            "loss": step.loss.hex(),
        }
        append(out and out / "tails", line)
        if permits is not None:
            permits.wait_beyond(step.index)

    def on_end(session: pliant.Session) -> None:
        line = {
            "replica": session.replica,
            "committed": session.committed,
            "digest": session.state_digest(),
            "parts": digests(session),
        }
        append(out and out / "digests", line)
        if out is None:
            sys.stdout.write(f"{json.dumps(line)}\n")

    train(recipe, on_session=on_session, on_tail=on_tail, on_end=on_end)


def train(
    recipe: Recipe,
    *,
    on_session: Callable[[pliant.Session], None] = lambda session: None,
    on_tail: Callable[[pliant.Session, Any], None] = lambda session, step: None,
    on_end: Callable[[pliant.Session], None] = lambda session: None,
) -> None:
    """Do what the recipe says, in as many ``steps()`` calls as it has phases."""
    with workload.process_of(recipe):
        pliant.seed(recipe.seed)
        _train(workload.build(recipe), on_session, on_tail, on_end)


def _train(
    work: workload.Workload,
    on_session: Callable[[pliant.Session], None],
    on_tail: Callable[[pliant.Session, Any], None],
    on_end: Callable[[pliant.Session], None],
) -> None:
    recipe = work.recipe
    with session_of(work) as session:
        on_session(session)
        with work.outside():
            for until, action in [*recipe.phases, (recipe.num_steps, "nothing")]:
                for step in session.steps(until):
                    work.keepsakes.head(step.index)
                    for batch in step:
                        if step.index == recipe.stop_at and workload.says_stop(batch):
                            step.stop()
                        loss, weight = work.loss(batch)
                        if loss is not None:
                            step.backward(loss, weight=weight)
                    norm = step.grad_norm if "history" in recipe.tail else 0.0
                    work.keepsakes.update(step.index, loss=step.loss, grad_norm=norm)
                    if {"evaluate", "feed"} & set(recipe.tail) and step.index % 3 == 2:
                        _evaluate(session, work, step.index)
                    on_tail(session, step)
                work.change(action)
        on_end(session)


def digests(session: pliant.Session) -> dict[str, str]:
    """Return a hash of each part of the state, to tell which of them differs."""
    found: dict[str, str] = {}

    def look(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                look(f"{path}.{key}", inner)
        elif not isinstance(value, list) or not value:
            document, tensors = encode(value)
            hasher = xxhash.xxh3_64(document)
            for tensor in tensors:
                hasher.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
            found[path] = hasher.hexdigest()
        else:
            for number, inner in enumerate(value):
                look(f"{path}.{number}", inner)

    look("", session._state.capture())
    for name in session._state.local_buffers:
        found.pop(f".buffers.{name}", None)
    return found


def _evaluate(session: pliant.Session, work: workload.Workload, step: int) -> None:
    score = session.evaluate(work.dataset, work.score)
    assert isinstance(score, float)
    work.keepsakes.scores[step] = score
    if "feed" in work.recipe.tail:
        session.feed(score=score)


def session_of(work: workload.Workload) -> pliant.Session:
    """Return the session of these objects, closed."""
    recipe = work.recipe
    return pliant.Session(
        model=work.model,
        optimizer=work.optimizers,
        dataset=work.dataset,
        global_batch_size=recipe.num_slots * recipe.micro_batch_size,
        micro_batch_size=recipe.micro_batch_size,
        scheduler=work.schedulers,
        max_grad_norm=recipe.max_grad_norm,
        collate_fn=work.collate_fn,
        num_workers=recipe.data.num_workers,
        scaler=work.scaler,
        extra_state=work.keepsakes,
        drop_last=recipe.data.drop_last,
        shuffle=recipe.data.shuffle,
        buffers=work.buffers(),
        plateau=work.plateau,
        warmup=work.warm_up if recipe.warmup else None,
    )


class Permits:
    """How many steps may be left behind; one number in a file that somebody else writes."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(struct.pack("<q", 0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    def allow(self, steps: int) -> None:
        """Let tails end up to the one that makes ``steps`` steps."""
        struct.pack_into("<q", self._memory, 0, steps)

    def wait_beyond(self, step: int) -> None:
        """Wait until the tail of ``step`` may end."""
        deadline_s = time.monotonic() + DEADLINE_S
        while struct.unpack_from("<q", self._memory)[0] <= step:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"nobody allowed the end of step {step}")
            threading.Event().wait(0.002)


def append(path: Path | None, line: dict[str, Any]) -> None:
    """Write one whole line, or nothing."""
    if path is None:
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, (json.dumps(line) + "\n").encode())
    finally:
        os.close(fd)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--recipe", type=Path, help="a file with a printed recipe")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--permits", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
