"""A dataset that gets harder while it is trained on: what a tail changes is ``extra_state``.

Start it with ``python`` or with ``pliant run``; a replica that joins late gets the same samples.
"""

import torch

import pliant


class Curriculum(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences to be summed up, of which only the first numbers are not zero."""

    def __init__(self) -> None:
        self.inputs = torch.randn(4096, 16)
        self.length = 4

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.inputs[index] * (torch.arange(16) < self.length)
        return x, x.sum(dim=0, keepdim=True)

    def state_dict(self) -> dict[str, int]:
        return {"length": self.length}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.length = state["length"]


pliant.seed(1)  # before the model is built
model = torch.nn.Linear(16, 1)
dataset = Curriculum()

with pliant.Session(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=3e-2),
    dataset=dataset,  # fetched in this process: loader processes would not see the change
    extra_state=dataset,
    global_batch_size=64,
    micro_batch_size=8,
) as session:
    for step in session.steps(200):
        for x, y in step:
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        session.log(loss=step.loss, length=dataset.length)
        if step.loss < 0.1 and dataset.length < 16:
            dataset.length += 1  # on every replica alike: step.loss is
