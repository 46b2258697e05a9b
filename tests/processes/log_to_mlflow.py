"""A training script that logs to MLflow from its tails; each leader goes on with the same run."""

from __future__ import annotations

import mlflow
import torch

import pliant

pliant.seed(1)
model = torch.nn.Linear(4, 1)
points = torch.randn(64, 4)
dataset = torch.utils.data.TensorDataset(points, points.sum(dim=1, keepdim=True))
client = mlflow.MlflowClient("file:./mlruns")


def run_id() -> str:
    """Return the one run of the experiment; the first leader makes both."""
    found = client.get_experiment_by_name("sums")
    experiment = client.create_experiment("sums") if found is None else found.experiment_id
    runs = client.search_runs([experiment])
    run = runs[0] if runs else client.create_run(experiment)
    return str(run.info.run_id)


with pliant.Session(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    dataset=dataset,
    global_batch_size=8,
    micro_batch_size=2,
) as session:
    for step in session.steps(200):
        for x, y in step:
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        if session.leader:
            client.log_metric(run_id(), "loss", step.loss, step=step.index)
