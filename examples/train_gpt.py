"""Train a byte-level GPT on Python's own documentation.

python train_gpt.py                                    # alone
pliant run --min 1 --max 4 --start 2 train_gpt.py      # elastic, with the same final weights
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import pliant
from pliant.recipes.gpt import GPT, GPTConfig, next_byte_loss
from pliant.recipes.text import NextByte, python_topics


def main() -> None:
    """Build the model and the data, train, save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="optimizer steps in all")
    parser.add_argument("--until", help="stop early once this file exists")
    parser.add_argument("--global-batch", type=int, default=16, help="samples per step")
    parser.add_argument("--micro-batch", type=int, default=2, help="samples per forward pass")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warm-up", type=int, default=20, help="steps of rising learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", help="directory to keep checkpoints in, to go on from")
    parser.add_argument("--save", help="file for the finished weights")
    parser.add_argument("--digest", help="file for the digest of the final state")
    args = parser.parse_args()

    pliant.seed(args.seed)  # before the model is built
    config = GPTConfig()
    model = GPT(config)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / args.warm_up)
    )

    with pliant.Session(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        dataset=NextByte(python_topics(), config.context),
        global_batch_size=args.global_batch,
        micro_batch_size=args.micro_batch,
        max_grad_norm=1.0,
        checkpoint=pliant.Checkpoint(args.checkpoint, every="auto") if args.checkpoint else None,
    ) as session:
        for step in session.steps(args.steps):
            for tokens, targets in step:  # the micro-batches that this replica owns
                step.backward(next_byte_loss(model(tokens), targets))
            session.log(loss=step.loss, learning_rate=scheduler.get_last_lr()[0])
            if args.until and Path(args.until).exists():
                step.stop()  # all replicas, after the same step
        if args.save:
            session.save(args.save)
        if args.digest and session.leader:
            Path(args.digest).write_text(session.state_digest() + "\n")


if __name__ == "__main__":
    main()
