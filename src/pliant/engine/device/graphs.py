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


def refuse_compiled(model: torch.nn.Module) -> None:
    """Refuse a model of which something is compiled so that its backward is replayed."""
    for module in model.modules():
        for compiled in (module, getattr(module, "_compiled_call_impl", None)):
            asked = getattr(compiled, "get_compiler_config", None)
            if asked is not None and (asked() or {}).get("triton.cudagraphs"):
                raise ConfigError(COMPILED)


def refuse_captured(*, is_capturing: bool) -> None:
    """Refuse a backward while a graph is captured."""
    if is_capturing:
        raise UsageError(CAPTURING)


def refuse_recorded(node: Any) -> None:
    """Refuse an operation of a loss whose backward is replayed."""
    made_by = getattr(getattr(node, "_forward_cls", None), "__qualname__", "")
    if made_by.startswith("make_graphed_callables."):
        raise UsageError(
            "the loss goes back to what make_graphed_callables has recorded, whose replay "
            "overwrites the gradients of the micro-batch before; leave make_graphed_callables out"
        )


def refuse_replayed(wheres: Iterable[torch.device]) -> None:
    """Refuse that Inductor has recorded a backward on one of these, of whatever was compiled."""
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    for where in wheres if trees is not None else ():
        manager = trees.get_manager(where.index, create_if_none_exists=False)
        if manager and any(mode.name == "BACKWARD" for mode in manager.id_to_mode.values()):
            raise UsageError(COMPILED)
