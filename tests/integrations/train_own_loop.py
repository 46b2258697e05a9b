"""A DDP script with a loop of its own: ``train_own_loop.py DIRECTORY EPOCHS PACE_S``."""

from __future__ import annotations

import json
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pliant


def main() -> None:
    here, epochs, pace_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs = torch.randn(50, 4)
    data = torch.utils.data.TensorDataset(torch.arange(50), inputs, inputs.sum(1, keepdim=True))
    loader = pliant.ElasticDataLoader(data, 8, seed=3)
    kept: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    step = pliant.load_checkpoint(here / "kept", **kept) or 0
    while loader.epoch < epochs:
        for index, x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y) * loader.scale
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            used: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(used, index.tolist() if loader.scale else [])
            if dist.get_rank() == 0:
                (here / f"{step}.json").write_text(json.dumps([*chain(*used)]))
            event = pliant.elastic_event()
            if event or step % 5 == 0:
                pliant.save_checkpoint(here / "kept", step, **kept)
            if event:
                event.saved(step, here / "kept")
                dist.destroy_process_group()
                sys.exit(0)
            time.sleep(pace_s)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), here / "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
