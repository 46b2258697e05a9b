"""A training script with code between two calls of ``steps()``; runs alone or under an agent.

    python tests/processes/train_in_calls.py --digest-file F

With ``--meeting D`` replica r3 comes to its first call only when r1 is in the last tail of its
own, where it stays until the file ``D/go`` exists; in the second call nobody hurries before r3 has
come.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from tests.engine import models
from torch import nn

import pliant
from pliant.engine.worker.bootstrap import worker_context
from pliant.testing import faults

FIRST_CALL, SECOND_CALL = 4, 12


def come_late(me: str, options: argparse.Namespace) -> None:
    """Let others come first: the run's number of steps is that of who waits first."""
    if me == options.short:
        time.sleep(1.0)
    if options.meeting and me == "r3":
        wait_for(options.meeting / "last-tail")


def main() -> None:
    options = parse()
    context = worker_context()
    me = "alone" if context is None else context.replica
    meeting = options.meeting
    if workers := int(os.environ.get("WORLD_SIZE", "0")):
        pliant.mesh(shard=workers)
    pliant.seed(5)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    come_late(me, options)
    with pliant.Session(
        model=model,
        optimizer=optimizer,
        dataset=models.Points(40),
        global_batch_size=8,
        micro_batch_size=2,
    ) as session:
        if options.faults:
            faults.install_plan(options.faults, replica=session.replica)
        log = session.open_log(options.digest_file.with_name("log.csv"))
        print("step,loss", file=log)
        gain = 1.0
        for total in (FIRST_CALL, SECOND_CALL):
            for step in session.steps(total - (me == options.short)):
                for points, labels in step:
                    if step.index == options.stop_at:
                        step.stop()
                    step.backward(nn.functional.cross_entropy(model(points * gain), labels))
                print(step.index, step.loss, sep=",", file=log)
                fail(session, is_asked=options.leader_fails == "tail" and session.committed == 3)
                if meeting and step.index == FIRST_CALL - 1:
                    (meeting / "last-tail").touch()
                    wait_for(meeting / "go")
                elif meeting and step.index >= FIRST_CALL:
                    if me == "r3":
                        (meeting / "came").touch()
                    wait_for(meeting / "came", at_most_s=1.5)
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            nn.init.normal_(next(model[2].parameters()))
            gain += torch.rand(1).item() + random.random()  # of a phase, on each replica alike
            print("reached", total, file=log)
        fail(session, is_asked=options.leader_fails == "end")
        linger(options.lingers if me == "r1" else None)
        line = {"replica": me, "committed": session.committed, "digest": session.state_digest()}
        fd = os.open(options.digest_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, (json.dumps(line) + "\n").encode())
        os.close(fd)


def fail(session: pliant.Session, *, is_asked: bool) -> None:
    if is_asked and session.leader and session.replica in ("alone", "r1"):
        raise OSError("no space left")


def linger(until: Path | None) -> None:
    if until is not None:
        wait_for(until)


def wait_for(path: Path, at_most_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + at_most_s
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--digest-file", type=Path, required=True)
    parser.add_argument("--meeting", type=Path)
    parser.add_argument("--stop-at", type=int)
    parser.add_argument("--short", help="replica whose calls go less far")
    parser.add_argument("--leader-fails", help="end: behind the last step; tail: of step 2")
    parser.add_argument("--lingers", type=Path, help="file without which r1 stays behind all")
    parser.add_argument("--faults", default="", help="see pliant.testing.faults")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except OSError:
        if "tail" not in sys.argv:
            raise
