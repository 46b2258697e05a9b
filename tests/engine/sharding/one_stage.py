"""Trains a model of one stage in a session, and in a plain loop; says whether both end alike.

python tests/engine/sharding/one_stage.py
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn
from torch.distributed import pipelining

import pliant

mesh = pliant.mesh(pp=1)
data = torch.randn(16, 4)


def schedule(kind: str, model: nn.Module) -> pipelining.schedules.PipelineScheduleSingle:
    group = mesh.get_group("pp")
    stage = pipelining.PipelineStage(model, 0, 1, torch.device("cpu"), group=group)
    made: pipelining.schedules.PipelineScheduleSingle = getattr(pipelining, kind)(
        stage, 4, loss_fn=nn.functional.mse_loss
    )
    return made


def main() -> None:
    for kind in ("ScheduleGPipe", "Schedule1F1B"):
        pliant.seed(2)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        plain = copy.deepcopy(model)
        optimizers = [torch.optim.AdamW(one.parameters(), lr=0.1) for one in (model, plain)]
        given, alone = schedule(kind, model), schedule(kind, plain)
        with pliant.Session(
            model=model,
            optimizer=optimizers[0],
            dataset=data,
            global_batch_size=16,
            micro_batch_size=16,
            shuffle=False,
        ) as session:
            for step in session.steps(3):
                for batch in step:
                    step.pipeline(given, batch, target=-batch)
        for _ in range(3):
            alone.step(data, target=-data)
            optimizers[1].step()
            optimizers[1].zero_grad()
        is_equal = all(map(torch.equal, model.parameters(), plain.parameters()))
        sys.stdout.write("equal\n" if is_equal else "different\n")


if __name__ == "__main__":
    main()
