"""A training script around the models of ``tests/engine/models.py``.

    python tests/processes/train_model.py --model gpt --steps 12 --digest-file F

Runs alone or under an agent.  Whoever reaches the end appends a line to the digest file; every
tail appends one to the tails file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from tests.engine import models

import pliant
from pliant import Session
from pliant.core.text import worker_name
from pliant.engine.comm import transport
from pliant.engine.member import elastic
from pliant.engine.reduce import shared_memory
from pliant.engine.state import transfer
from pliant.engine.worker.bootstrap import worker_context
from pliant.testing import faults


def main() -> None:
    options = parse()
    me = own_name()
    if options.device == "sim":
        from tests.accelerator import sim

        # Other delays in each worker.
        os.environ["SIM_SEED"] = os.environ.get("SIM_SEED", "") + "".join(filter(str.isdigit, me))
        sim.install()
    if options.mesh:
        pliant.mesh(**json.loads(options.mesh))
    case = build(options, me)
    if options.seed_by_rank:
        reset(case.model)
    prepare(options, case)
    elastic.LEFT_EARLY_S = 1.0
    shared_memory.SMALL_BYTES = options.windows_above

    who: list[Session] = []

    def on_session(session: Session) -> None:
        who.append(session)
        if options.faults:
            faults.install_plan(options.faults, replica=me)

    def on_tail(session: Session, step: Any) -> None:
        line = {
            "replica": me,
            "step": step.index,
            # Who asks in the last tail has something to do there that nobody makes up for.
            "leader": not (options.die_before_save and step.is_last) and session.leader,
            "loss": step.loss.hex(),
        }
        append(options.tails_file, line)
        if options.until is not None and options.until.exists():
            step.stop()
        session.log(loss=step.loss)
        go_wrong(options, me, case, step.index)

    def on_end(session: Session) -> None:
        threading.Event().wait(json.loads(options.naps).get(me, 0.0))
        if options.die_before_save == me:
            os.kill(os.getpid(), signal.SIGKILL)
        if options.save:
            session.save(options.save)

    def on_batch() -> None:
        fail_device(options, me, who[0].committed if who else 0)
        threading.Event().wait(float(options.slow[1]) if me == options.slow[0] else options.pace)

    who_breaks, breaks_at = options.break_at
    break_at = int(breaks_at) if who_breaks in (me, "all") else None
    digest = models.train(
        case,
        options.steps,
        on_session=on_session,
        on_tail=on_tail,
        on_batch=on_batch,
        on_end=on_end,
        num_workers=options.num_workers,
        checkpoint=checkpoint(options),
        reduction=options.reduction,
        break_at=break_at,
        **{
            name: value
            for name in ("global_batch_size", "micro_batch_size")
            if (value := getattr(options, name)) is not None
        },
    )
    await_file(options.leave_when)
    line = {"replica": me, "digest": digest, "committed": who[0].committed}
    append(options.digest_file, line)


class Slowly(torch.utils.data.Dataset[Any]):
    """A dataset whose samples take their time."""

    def __init__(self, dataset: Any, sample_s: float) -> None:
        self.dataset, self.sample_s = dataset, sample_s

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        threading.Event().wait(self.sample_s)
        return self.dataset[index]


def prepare(options: argparse.Namespace, case: models.Case) -> None:
    """Put the model, and new tensors, where they are to be; break what is to be broken."""
    if options.sample_s:
        case.dataset = Slowly(case.dataset, options.sample_s)
    if options.device != "cpu":
        from tests.accelerator import sim

        sim.move(case, options.device)
    if options.by_library:
        from tests.accelerator.stand_in import StandIn

        transport.LIBRARIES[options.device] = cache(StandIn)
    if options.plain_attention:
        torch.backends.cuda.enable_flash_sdp(enabled=False)  # of the CPU, too
    if options.default_device is not None:
        torch.set_default_device(options.default_device)
    if options.unsent:
        transfer._send = refuse_to_send  # type: ignore[assignment]


def refuse_to_send(*state: Any) -> None:
    raise RuntimeError("no memory to send from")


def build(options: argparse.Namespace, me: str) -> models.Case:
    """Build what this worker trains: as it was said, unless it is the one with something else."""
    if me.split(".")[0] == options.misfit and options.misfit_kind:
        return models.build("fed", kind=options.misfit_kind)
    if me == options.misfit:
        return models.build("gpt", width=48)
    return models.build(options.model, **json.loads(options.options))


def own_name() -> str:
    """Return the name of this worker: r1, or r1.1 of the second one of its replica."""
    context = worker_context()
    return "alone" if context is None else worker_name(context.replica, context.worker or None)


def reset(model: torch.nn.Module) -> None:
    """Draw other weights on each worker of a replica."""
    torch.manual_seed(int(os.environ["RANK"]))
    for module in model.modules():
        if callable(again := getattr(module, "reset_parameters", None)):
            again()


def checkpoint(options: argparse.Namespace) -> pliant.Checkpoint | None:
    if options.checkpoint is None:
        return None
    return pliant.Checkpoint(
        options.checkpoint, every=options.every, max_unprotected=options.max_unprotected
    )


def go_wrong(options: argparse.Namespace, me: str, case: models.Case, step: int) -> None:
    """Do in a tail what a script should not."""
    if options.fail_at and me == options.fail_at[0] and step == int(options.fail_at[1]):
        raise RuntimeError("the script failed")
    if options.spoil == me.split(".")[0] and step == 5:
        with torch.no_grad():
            next(case.model.parameters()).mul_(2)


def fail_device(options: argparse.Namespace, me: str, committed: int) -> None:
    """Let the device fail, once, before a micro-batch of a step."""
    who, step, how = options.device_fault
    if who not in (me, "all") or committed != int(step):
        return
    options.device_fault = ("", 0, "")
    if how == "memory":
        torch.empty(1 << 40, device=options.device)
    if options.device == "sim":
        accelerator: Any = sys.modules["tests.accelerator.sim"].install()
        if how == "hang":
            accelerator.launch(0, [], lambda _: threading.Event().wait())
        else:
            accelerator.fail(0, how)
    else:
        torch.cuda._sleep(1 << 40)  # type: ignore[no-untyped-call]  # the same, nearly


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--model", choices=sorted({*models.CASES, *models.OF_SEVERAL_WORKERS}), required=True
    )
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--global-batch-size", type=int)
    parser.add_argument("--micro-batch-size", type=int)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--reduction", default="exact")
    parser.add_argument("--device", default="cpu", help="on which the model is")
    parser.add_argument("--by-library", action="store_true", help="gradients from there to there")
    parser.add_argument(
        "--plain-attention", action="store_true", help="of operations that every device has"
    )
    parser.add_argument("--default-device", help="of tensors that name none")
    parser.add_argument("--digest-file", type=Path)
    parser.add_argument("--tails-file", type=Path)
    parser.add_argument("--faults", default="", help="see pliant.testing.faults")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to wait per micro-batch")
    parser.add_argument("--sample-s", type=float, default=0.0, help="seconds for each sample")
    parser.add_argument("--slow", nargs=2, default=("", 0), help="a worker, and its own pace")
    parser.add_argument("--mesh", help="JSON: sizes of a mesh over the workers of a replica")
    parser.add_argument("--until", type=Path, help="file that ends the run as soon as it exists")
    parser.add_argument("--misfit", help="the replica that has another model")
    parser.add_argument("--misfit-kind", help="of data, and not another model")
    parser.add_argument("--seed-by-rank", action="store_true", help="weights by RANK")
    parser.add_argument("--fail-at", nargs=2, help="replica and step whose tail raises")
    parser.add_argument(
        "--break-at", nargs=2, default=("", 0), help="replica, or all, and step whose tail breaks"
    )
    parser.add_argument(
        "--device-fault",
        nargs=3,
        default=("", 0, ""),
        help="replica, or all; step; memory, hang, or what the device says from then on",
    )
    parser.add_argument("--leave-when", type=Path, help="file without which nobody leaves")
    parser.add_argument("--save", type=Path, help="file for the weights at the end")
    parser.add_argument("--die-before-save", help="the replica that is killed there")
    parser.add_argument("--naps", default="{}", help="JSON: seconds to wait there, by worker")
    parser.add_argument("--unsent", action="store_true", help="no state can be sent")
    parser.add_argument("--spoil", help="the replica that changes its weights in a tail")
    parser.add_argument("--checkpoint", help="where the run is kept")
    parser.add_argument("--every", default="3steps", help="how often")
    parser.add_argument("--max-unprotected", help="how long it may go on without")
    parser.add_argument(
        "--windows-above", type=int, default=0, help="bytes of a bucket; these models are small"
    )
    parser.add_argument("--options", default="{}", help="JSON, for the model's case")
    return parser.parse_args()


def await_file(path: Path | None) -> None:
    """Wait until the file exists, if there is one to wait for."""
    while path is not None and not path.exists():
        threading.Event().wait(0.02)


def append(path: Path | None, line: dict[str, Any]) -> None:
    """Write one whole line, or nothing."""
    if path is None:
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, (json.dumps(line) + "\n").encode())
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
