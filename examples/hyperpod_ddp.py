"""A script for HyperPod's elastic agent: it saves and exits at an elastic event.

``elastic_event_detected`` is what that agent gives, or ``pliant run --mode restart`` in its place;
either wants ``HYPERPOD_SIGNAL_COORDINATION=distributed`` in the environment.  The loader keeps its
place in the data: it stands where torchdata's StatefulDataLoader did, and goes on at any size.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from hyperpod_elastic_agent.elastic_event_handler import (  # type: ignore[import-not-found]
    elastic_event_detected,
)
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from pliant import ElasticDataLoader


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kept")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=22, help="of all processes together")
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
    loader = ElasticDataLoader(data, args.batch_size, seed=1)

    snapshot, step = os.path.join(args.kept, "snapshot.pt"), 0
    os.makedirs(args.kept, exist_ok=True)
    if os.path.exists(snapshot):
        state = torch.load(snapshot)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
    if rank == 0:
        restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(f"{world} processes begin at step {step}, restart {restarts}", flush=True)

    def save() -> None:
        new = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**new, "loader": loader.state_dict(), "step": step}, snapshot + ".new")
        os.replace(snapshot + ".new", snapshot)

    while step < args.steps:
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y) * loader.scale
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step} loss {shown.item() / world:.6f}", flush=True)
            is_over = elastic_event_detected()
            if rank == 0 and (is_over or step % args.save_every == 0 or step == args.steps):
                save()
            if is_over or step == args.steps:
                dist.destroy_process_group()
                sys.exit(0)
            time.sleep(args.pace)


if __name__ == "__main__":
    main()
