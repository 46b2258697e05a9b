"""Train a GPT in two stages, each on a worker of its own: pipeline parallelism.

pliant run --workers-per-replica 2 --max 2 train_pipeline.py    # two replicas of two workers
"""

from __future__ import annotations

import argparse

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import pliant
from pliant.recipes.gpt import GPTConfig, GPTStage, next_byte_loss

STAGES = 2
CHUNKS = 4


def main() -> None:
    """Build one stage of the model, and train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps in all")
    args = parser.parse_args()

    pliant.seed(1)  # before the model is built
    mesh = pliant.mesh(pp=STAGES)
    number = mesh["pp"].get_local_rank()
    config = GPTConfig(context=16, width=32, heads=2, layers=4, tied=False)
    model = GPTStage(config, number, STAGES)  # the layers of this stage only
    stage = PipelineStage(model, number, STAGES, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, CHUNKS, loss_fn=next_byte_loss)
    text = torch.randint(0, 256, (256, 17))

    with pliant.Session(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=text,
        global_batch_size=32,
        micro_batch_size=8,  # of which a chunk is a quarter
        drop_last=True,
    ) as session:
        for step in session.steps(args.steps):
            for batch in step:  # the same one on both stages
                step.pipeline(schedule, batch[:, :-1], target=batch[:, 1:])
        digest = session.state_digest()
        if session.leader:
            print(f"loss {step.loss:.3f}, digest {digest}")


if __name__ == "__main__":
    main()
