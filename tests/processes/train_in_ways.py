"""A training script that does what people do around their loops; runs alone or under an agent.

    python tests/processes/train_in_ways.py WAY --steps 40 --notes F

Each way is a function that gets the step in its tail.  Whoever reaches a place worth knowing of
appends a line to the notes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from tests.engine import models
from torch import nn
from torch.nn.functional import cross_entropy

import pliant


class Script:
    """One run of the script."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        pliant.seed(7)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 3))
        self.began_s = time.monotonic()
        self.tail = getattr(self, options.way)
        with pliant.Session(
            model=self.model,
            optimizer=torch.optim.AdamW(self.model.parameters(), lr=1e-2),
            dataset=models.Points(40),
            global_batch_size=8,
            micro_batch_size=2,
        ) as self.session:
            if options.swallow:
                self.swallow()
            else:
                self.train()
            self.note("end", digest=self.session.state_digest())

    def train(self) -> None:
        try:
            for step in self.session.steps(self.options.steps):
                for points, labels in step:
                    sys.stdout.write(f"\r{step.index / self.options.steps:.0%}")
                    time.sleep(self.options.pace)
                    step.backward(cross_entropy(self.model(points), labels))
                self.tail(step)
        finally:
            self.note("finally", leaving=self.session.leaving)

    def swallow(self) -> None:
        """Train as one does who is afraid of every exception."""
        try:
            self.train()
        except BaseException as error:  # what is tested
            self.note("swallowed", kind=type(error).__name__)

    def note(self, what: str, **more: Any) -> None:
        committed = self.session.committed
        line = {"what": what, "replica": self.session.replica, "committed": committed, **more}
        fd = os.open(self.options.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, (json.dumps(line) + "\n").encode())
        os.close(fd)

    # --- the ways ---------------------------------------------------------------------

    def plainly(self, step: Any) -> None:
        """Train, and nothing else."""

    def stops_by_clock(self, step: Any) -> None:
        """One replica has had enough; the others have not."""
        if self.session.replica == "r2" and time.monotonic() > self.began_s + 1.0:
            step.stop()

    def stops_by_loss(self, step: Any) -> None:
        if step.loss < 0.8:
            step.stop()

    def has_threads(self, step: Any) -> None:
        """A thread that nobody ends must not keep a process alive."""
        if step.index == 0:
            threading.Thread(target=time.sleep, args=(3600,)).start()

    def evaluates_long(self, step: Any) -> None:
        """Two seconds per micro-batch, on every replica, announced."""
        if step.index == 4:
            with self.session.busy(max_s=60):
                value = self.session.evaluate(models.Points(4), self._slow, micro_batch_size=2)
            self.note("evaluated", value=value)

    def _slow(self, batch: Any) -> torch.Tensor:
        time.sleep(2.0)
        return cross_entropy(self.model(batch[0]), batch[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--swallow", action="store_true")
    parser.add_argument("--notes", type=Path, required=True)
    options = parser.parse_args()
    Script(options)


if __name__ == "__main__":
    main()
