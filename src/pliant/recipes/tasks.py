"""Tasks of a recipe: what the loss of a micro-batch is, and how much the micro-batch counts.

Owns the arithmetic.  Shapes: B samples, T tokens, V vocabulary.

Sources: Rafailov et al., Direct Preference Optimization (2023), equation 7; the auxiliary loss of
a mixture is that of transformers' model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pliant.recipes.samples import IGNORED
from pliant.spec.recipe import Recipe

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Counted:
    """The loss of a micro-batch, and by how much it counts in that of the step."""

    loss: Tensor
    weight: float
    logged: Mapping[str, Tensor]


def mask_of(documents: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
    """Return what attention adds to its scores, (B, 1, T, T): 0 where a token sees another.

    It sees those of its own document before it, of the last ``window``, and itself.
    """
    place = torch.arange(documents.shape[1], device=documents.device)
    distance = place[:, None] - place[None, :]
    sees = (documents[:, :, None] == documents[:, None, :]) & (distance >= 0)
    if window is not None:
        sees &= distance < window
    mask = torch.zeros(sees.shape, dtype=dtype, device=documents.device)
    return mask.masked_fill_(~sees, torch.finfo(dtype).min)[:, None]


def logits_of(model: nn.Module, batch: Batch, dtype: torch.dtype) -> Tensor:
    """Run a model; no document sees another."""
    config: Any = model.config
    documents = batch["documents"]
    mask: Any = None
    positions: Tensor | None = batch["positions"]
    if config.model_type == "gpt_oss":
        windowed = mask_of(documents, dtype, config.sliding_window)
        mask = {"full_attention": mask_of(documents, dtype), "sliding_attention": windowed}
    elif int(documents.max()) > 1:
        mask = mask_of(documents, dtype)
    else:  # one document a sample: causal attention, which needs no mask, is all
        positions = None
    out = model(
        input_ids=batch["tokens"], attention_mask=mask, position_ids=positions, use_cache=False
    )
    found: Tensor = out.logits
    return found


@contextmanager
def routed(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what the routers of a mixture say of each token, layer by layer, (B T, E)."""
    said: list[Tensor] = []
    is_asked = getattr(model.config, "router_aux_loss_coef", 0) > 0
    hooks = [
        module.register_forward_hook(lambda _, __, out: said.append(out[0]))
        for module in (model.modules() if is_asked else ())
        if type(module).__name__.endswith("Router")
    ]
    try:
        yield said
    finally:
        for hook in hooks:
            hook.remove()


def balance_of(routers: list[Tensor], is_token: Tensor, config: Any) -> Tensor:
    """Return the auxiliary loss of a micro-batch: least where all experts have as much to do.

    It is not linear in tokens: the same tokens in other micro-batches give another value.
    """
    from transformers.models.gpt_oss.modeling_gpt_oss import load_balancing_loss_func

    experts, active = config.num_local_experts, config.num_experts_per_tok
    found: Any = load_balancing_loss_func(tuple(routers), experts, active, is_token)  # type: ignore[arg-type, unused-ignore]
    return torch.as_tensor(found)


def scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each token's successor, (B, T); 0 where it is not learned."""
    wanted = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)  # so that no logits are copied
    losses = functional.cross_entropy(
        logits.float().flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return -losses.view_as(wanted)


@dataclass(frozen=True, slots=True)
class Task:
    """What a recipe trains for."""

    recipe: Recipe
    reference: nn.Module | None
    """For preferences: a frozen model with the weights at the start; None: the adapter says it, or
    the batch."""

    def loss(self, model: nn.Module, batch: Batch) -> Counted:
        """Return the loss of a micro-batch."""
        device = next(model.parameters()).device
        batch = {name: part.to(device) for name, part in batch.items()}
        found = _preference if self.recipe.task == "dpo" else _next_token
        return found(self, model, batch)

    def figures(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], float]:
        """Return what an evaluation says of a micro-batch, and its weight."""
        counted = self.loss(model, batch)
        return {"loss": counted.loss, **counted.logged}, counted.weight

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Run the model on a micro-batch; return its logits, (B, T, V)."""
        is_mixed = self.recipe.model.precision == "mixed"
        dtype = torch.bfloat16 if is_mixed else next(model.parameters()).dtype
        with torch.autocast(batch["tokens"].device.type, torch.bfloat16, enabled=is_mixed):
            return logits_of(model, batch, dtype)


def _next_token(task: Task, model: nn.Module, batch: Batch) -> Counted:
    """Weigh by tokens: a step is the mean over all that it learns, however it is divided."""
    config: Any = model.config
    with routed(model) as routers:
        logits = task.forward(model, batch)
    count = int((batch["labels"][:, 1:] != IGNORED).sum())
    loss = -scores(logits, batch["labels"]).sum() / max(1, count)
    if not routers:
        return Counted(loss, float(count), {})
    auxiliary = balance_of(routers, batch["documents"] > 0, config)
    logged = {"next_token_loss": loss.detach(), "auxiliary_loss": auxiliary.detach()}
    return Counted(loss + config.router_aux_loss_coef * auxiliary, float(count), logged)


def _preference(task: Task, model: nn.Module, batch: Batch) -> Counted:
    """Weigh by pairs."""
    entry, pairs = task.recipe.preference, batch["tokens"].shape[0] // 2
    policy = scores(task.forward(model, batch), batch["labels"]).sum(1)
    if (reference := batch.get("reference")) is None:
        alone: Any = nullcontext if task.reference is not None else model.disable_adapter
        with torch.no_grad(), alone():
            logits = task.forward(task.reference or model, batch)
            reference = scores(logits, batch["labels"]).sum(1)
    rewards = (entry.beta if entry else 0.1) * (policy - reference)
    margins = rewards[:pairs] - rewards[pairs:]
    loss = -functional.logsigmoid(margins).mean()
    right = (margins.detach() > 0).float().mean()
    return Counted(loss, float(pairs), {"margin": margins.detach().mean(), "accuracy": right})
