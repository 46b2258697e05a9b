"""A training script around one job of the catalogue; alone or under an agent.

    python tests/features/train_features.py --job structure --steps 20 --directory D

Whoever reaches the end appends its digests to ``D/digests``; every tail a line to ``D/tails``.
In the tail of step N it waits while a file ``D/hold-N`` lies there, so that a resize can be placed
at a step.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.features import catalogue, data, feature, several_workers
from tests.processes.train_model import append, own_name

import pliant
from pliant import Session
from pliant.engine.worker.bootstrap import worker_context
from pliant.testing import faults

HOLD_S = 60.0
"""Longest wait in a tail."""


def main() -> None:
    options = parse()
    directory = options.directory
    sessions: list[Session] = []
    share_micro_batches(is_sharded=options.shard)

    def on_session(session: Session) -> None:
        sessions.append(session)
        faults.install_plan(options.faults, replica=own_name())

    def on_tail(session: Session, step: Any) -> None:
        line = {
            "replica": own_name(),
            "step": step.index,
            "leader": session.leader,
            "loss": step.loss.hex(),
        }
        append(directory / "tails", line)
        wait_while(directory / f"hold-{step.index}")

    features = catalogue.JOBS.get(options.job) or [catalogue.named(options.job)]
    if options.shard and options.job in catalogue.JOBS:
        features = several_workers.alike_when_sharded(features)
    digests = feature.train(
        features,
        options.steps,
        on_session=on_session,
        on_tail=on_tail,
        num_workers=num_workers(features),
    )
    (session,) = sessions
    line = {"replica": own_name(), "committed": session.committed, "digest": digests.pop("")}
    append(directory / "digests", line | {"features": digests})


def share_micro_batches(*, is_sharded: bool) -> None:
    """Let the workers of a replica, if it has several, compute different ones."""
    if workers := int(os.environ.get("WORLD_SIZE", "0")):
        mesh = pliant.mesh(shard=workers)
        if is_sharded:
            feature.sharding.mesh = mesh


def num_workers(features: list[feature.Feature]) -> int:
    """Return as many as the replica's name says: r1 has one, r4 none."""
    context = worker_context()
    is_about_data = any(one in data.FEATURES for one in features)
    if context is None or not is_about_data:
        return 0
    return int(context.replica.removeprefix("r")) % 4


def wait_while(path: Path) -> None:
    deadline_s = time.monotonic() + HOLD_S
    while path.exists() and time.monotonic() < deadline_s:
        threading.Event().wait(0.02)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True, help="of the catalogue, or one feature's name")
    parser.add_argument("--shard", action="store_true", help="the model, over the workers")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--faults", default="", help="see pliant.testing.faults")
    return parser.parse_args()


if __name__ == "__main__":
    main()
