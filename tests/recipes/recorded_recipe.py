"""Trains a recipe, and notes which samples came when, and each loss: ``RECIPE OUT``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pliant
from pliant.recipes import samples, train

drawn: list[int] = []
losses: list[float] = []


def noting(kind: Any) -> None:
    read = kind.__getitem__

    def read_and_note(self: Any, index: int) -> Any:
        drawn.append(index)
        return read(self, index)

    kind.__getitem__ = read_and_note


noting(samples.Pairs if '"dpo"' in sys.argv[1] else samples.Alone)
log = pliant.Session.log


def log_and_note(self: Any, **values: Any) -> None:
    losses.append(float(values["loss"]))
    log(self, **values)


pliant.Session.log = log_and_note  # type: ignore[method-assign]
out = Path(sys.argv.pop())
train.main()
out.write_text(json.dumps({"drawn": drawn, "losses": losses}))
