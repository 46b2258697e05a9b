"""Graphs: kernels that were recorded once, and that a device replays by itself.

Owns how they are recognised, and the refusals.  A replayed backward calls no hook of the session,
or gives it gradients in memory that the next replay writes to: micro-batches would be missing, or
count twice, without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from pliant.core.errors import ConfigError, UsageError

COMPILED = (
    "torch.compile records graphs of kernels here, as with mode='reduce-overhead' or "
    "'max-autotune', and their replay overwrites the gradients of the micro-batch before; compile "
    "without mode=, or with mode='max-autotune-no-cudagraphs'"
)

CAPTURING = (
    "step.backward was called while a graph of kernels is captured, whose replay would call "
    "nothing of the session: every later micro-batch would be missing; capture no backward"
)

RECORDED = (
    "the loss goes back to what make_graphed_callables has recorded, whose replay overwrites the "
    "gradients of the micro-batch before; leave make_graphed_callables out"
)

_KEY = "triton.cudagraphs"
"""Of Inductor's configuration: it records graphs."""


def refuse_compiled(model: torch.nn.Module) -> None:
    """Refuse a model that is compiled so that its backward is replayed.

    Raises:
        ConfigError: it is, or a module of it.
    """
    for module in model.modules():
        for compiled in (module, getattr(module, "_compiled_call_impl", None)):
            asked = getattr(compiled, "get_compiler_config", None)
            if asked is not None and (asked() or {}).get(_KEY):
                raise ConfigError(COMPILED)


def refuse_recorded(node: Any) -> None:
    """Refuse an operation of a loss whose backward is replayed.

    Raises:
        UsageError: it is.
    """
    made_by = getattr(getattr(node, "_forward_cls", None), "__qualname__", "")
    if made_by.startswith("make_graphed_callables."):
        raise UsageError(RECORDED)


def refuse_replayed(wheres: Iterable[torch.device]) -> None:
    """Refuse that Inductor has recorded a backward on one of these, of whatever was compiled.

    Raises:
        UsageError: it has.
    """
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return
    for where in wheres:
        manager = trees.get_manager(where.index, create_if_none_exists=False)
        modes = () if manager is None else manager.id_to_mode.values()
        if any(mode.name == "BACKWARD" for mode in modes):
            raise UsageError(COMPILED)
