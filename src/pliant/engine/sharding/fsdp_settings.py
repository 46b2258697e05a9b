"""FSDP settings: what a script may tell the modules of ``fully_shard`` about their gradients.

Owns the look at four of them, by which the gradient of a micro-batch would not be that of a model
that is whole: kept back for a later one or for a call, divided, or added up by the script's own
code.  What of FSDP2 is private for it was seen with torch 2.15
(``tests/engine/sharding/test_fsdp.py``).  Must not know slots, nor what the gradients are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pliant.core.errors import ConfigError, UsageError
from pliant.engine.local_tensors import sharding_modules

OWN_ADDERS = ("DefaultReduceScatter", "ProcessGroupAllocReduceScatter", "SlotReduceScatter")
"""Who adds up where the script has no class of its own: FSDP itself, or an earlier session."""


class FsdpSettings:
    """Of one model, as they are when this is made; ``check`` before each backward."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Look at them."""
        self._groups = [
            (name, module, group, group._reduce_scatter_comm)  # noqa: SLF001  see the module's text
            for name, module, group in _named_groups(model)
        ]

    def on_loss(self, loss: object) -> None:
        """Make sure that no gradient is kept back or changed.

        Raises:
            UsageError: names the module, and what it was told.
        """
        for name, module, group, adder in self._groups:
            if said := _told(module, group, adder):
                raise UsageError(_sentence(name, said))


def refuse_told(model: torch.nn.Module) -> None:
    """Refuse a model that was told so before there is a session.

    Raises:
        ConfigError: names the module, and what it was told.
    """
    for name, module, group in _named_groups(model):
        if said := _told(module, group, None):
            raise ConfigError(_sentence(name, said))


def groups_of(module: Any) -> list[Any]:
    """Return what FSDP does together of a module that it shards: a group for each mesh."""
    state = module._get_fsdp_state()  # noqa: SLF001  see the module's text
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)  # noqa: SLF001
    group = state._fsdp_param_group  # noqa: SLF001  of a torch that has one at most
    return [] if group is None else [group]


def _named_groups(model: torch.nn.Module) -> Iterator[tuple[str, Any, Any]]:
    sharding = set(sharding_modules(model))
    for name, module in model.named_modules():
        for group in groups_of(module) if module in sharding else ():
            yield name or "the model", module, group


def _told(module: Any, group: Any, adder: object) -> str:
    """Return what a group was told that is refused; ``adder``: who adds up, None: FSDP itself."""
    if not group.reduce_grads:
        return "set_requires_gradient_sync(False)"
    backward = module._get_fsdp_state()._state_ctx  # noqa: SLF001  see the module's text
    if getattr(backward, "manual_backward_finalization", False):  # torch 2.11 has none
        return "set_manual_backward_finalization(True)"
    if group.gradient_divide_factor not in (None, 1.0):
        return f"set_gradient_divide_factor({group.gradient_divide_factor:g})"
    now = group._reduce_scatter_comm  # noqa: SLF001  see the module's text
    is_own = type(now).__name__ in OWN_ADDERS if adder is None else now is adder
    return "" if is_own else "set_custom_reduce_scatter(...)"


def _sentence(name: str, said: str) -> str:
    return (
        f"{name!r} was told {said}, and so would have another gradient of a micro-batch; leave it "
        "out: the session adds up micro-batches by itself, and weighs them by "
        "step.backward(loss, weight=...)"
    )
