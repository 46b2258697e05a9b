"""A DDP script as people have it for torchrun: it keeps checkpoints, and knows no pliant."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@record
def main() -> None:
    snapshot, steps, until = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    if os.path.exists(snapshot):
        state = torch.load(snapshot)
        model.module.load_state_dict(state["model"])
        step = state["step"]
    data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} begins at step {step}", flush=True)
    while step < steps or not os.path.exists(until):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            if dist.get_rank() == 0:
                torch.save({"model": model.module.state_dict(), "step": step}, snapshot + ".new")
                os.replace(snapshot + ".new", snapshot)
        over = torch.tensor([float(os.path.exists(until))])
        dist.all_reduce(over, dist.ReduceOp.MIN)
        if over and step >= steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
