"""An FSDP2 script as people have it for torchrun: checkpoints by DCP, and nothing of pliant.

``torchrun --nproc-per-node 2 torchrun_fsdp2.py kept`` goes on from the directory ``kept``.
"""

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Training(Stateful):
    """What a checkpoint keeps; DCP shares it out anew among any number of processes."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def newest(kept: str) -> str | None:
    """Return the newest checkpoint that is complete: DCP writes ``.metadata`` last."""
    found = sorted(name for name in os.listdir(kept) if name.startswith("step-"))
    whole = [name for name in found if os.path.exists(os.path.join(kept, name, ".metadata"))]
    return os.path.join(kept, whole[-1]) if whole else None


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kept")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=24, help="of all processes together")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to wait after a step")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 32), torch.nn.GELU()
    )
    model.append(torch.nn.Linear(32, 1))
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(480, 16, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler: DistributedSampler[int] = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=args.batch_size // world, sampler=sampler)

    training = Training(model, optimizer)
    os.makedirs(args.kept, exist_ok=True)
    if (checkpoint := newest(args.kept)) is not None:
        dcp.load({"training": training}, checkpoint_id=checkpoint)  # type: ignore[attr-defined]
    if rank == 0:
        restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(f"{world} processes begin at step {training.step}, restart {restarts}", flush=True)

    while training.step < args.steps:
        epoch, skipped = divmod(training.step, len(loader))
        sampler.set_epoch(epoch)
        for batch, (x, y) in enumerate(loader):
            if batch < skipped or training.step == args.steps:
                continue
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            training.step += 1
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {training.step} loss {shown.item() / world:.6f}", flush=True)
            if training.step % args.save_every == 0 or training.step == args.steps:
                path = os.path.join(args.kept, f"step-{training.step:08d}")
                dcp.save({"training": training}, checkpoint_id=path)  # type: ignore[attr-defined]
            time.sleep(args.pace)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
