"""The smallest elastic script: start it with ``python`` or with ``pliant run``."""

import torch

import pliant

pliant.seed(1)  # before the model is built
model = torch.nn.Linear(16, 1)
inputs = torch.randn(4096, 16)
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))

with pliant.Session(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
    dataset=dataset,
    global_batch_size=64,
    micro_batch_size=8,
) as session:
    for step in session.steps(200):
        for x, y in step:  # the micro-batches that this replica owns
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        session.log(loss=step.loss)
