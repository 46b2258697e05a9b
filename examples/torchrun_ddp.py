"""A DDP script as people have it for torchrun: it keeps a snapshot, and knows nothing of pliant.

``torchrun --nproc-per-node 2 torchrun_ddp.py kept`` goes on from the directory ``kept``.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


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
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs = torch.randn(480, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler: DistributedSampler[int] = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=args.batch_size // world, sampler=sampler)

    snapshot, step = os.path.join(args.kept, "snapshot.pt"), 0
    os.makedirs(args.kept, exist_ok=True)
    if os.path.exists(snapshot):
        state = torch.load(snapshot)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    if rank == 0:
        restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(f"{world} processes begin at step {step}, restart {restarts}", flush=True)

    while step < args.steps:
        epoch, skipped = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for batch, (x, y) in enumerate(loader):
            if batch < skipped or step == args.steps:
                continue
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            dist.all_reduce(loss)
            if rank == 0:
                print(f"step {step} loss {loss.item() / world:.6f}", flush=True)
                if step % args.save_every == 0 or step == args.steps:
                    new = {"model": model.module.state_dict(), "step": step}
                    torch.save({**new, "optimizer": optimizer.state_dict()}, snapshot + ".new")
                    os.replace(snapshot + ".new", snapshot)
            time.sleep(args.pace)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
