"""The blocks that the models of recipes are made of; each maps ``[..., width]`` to the same shape.

Owns what is odd about a model: where its parameters lie, which buffers it moves, when a gradient
is absent.  Imports nothing of pliant: a plain loop trains the same models.

Shapes: B samples, L positions (absent for vectors), W width.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

RULES = {"buffer-sum": "sum", "buffer-max": "max", "buffer-local": "local"}
"""Parts whose buffer, named ``value``, needs a rule of its own."""


class Around(nn.Module):
    """A block and how it is called."""

    def __init__(self, inner: nn.Module, wrap: str) -> None:
        super().__init__()
        self.inner = inner
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2 if "twice" in self.wrap else 1):
            x = self._call(x)
        return x

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor
        if "reentrant" in self.wrap or "checkpoint" in self.wrap:
            result = checkpoint(self.inner, x, use_reentrant="reentrant" in self.wrap)
        else:
            result = self.inner(x)
        return x + result if self.wrap == "residual" else result


class Apply(nn.Module):
    """A block whose forward is a function of the block and its input."""

    def __init__(self, function: Callable[[Any, torch.Tensor], torch.Tensor], **inner: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in inner.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def make(kind: str, width: int) -> nn.Module:
    """Return a new block of this kind."""
    return _MAKERS[kind](width)


# --- ordinary layers -------------------------------------------------------------------


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


def _over_channels(norm: nn.Module) -> nn.Module:
    """Normalise W/4 channels of length 4, so that a batch of one has statistics."""
    return Apply(
        lambda self, x: self.norm(x.reshape(-1, x.shape[-1] // 4, 4)).view_as(x), norm=norm
    )


def _attention(width: int) -> nn.Module:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        rows = x if x.dim() == 3 else x.unsqueeze(1)
        q, k, v = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(rows).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result.reshape(x.shape)

    return Apply(forward, qkv=nn.Linear(width, 3 * width), out=nn.Linear(width, width))


def _gru(width: int) -> nn.Module:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        rows = x if x.dim() == 3 else x.unsqueeze(1)
        result: torch.Tensor = self.gru(rows)[0]
        return result.reshape(x.shape)

    return Apply(forward, gru=nn.GRU(width, width, batch_first=True))


def _conv1d(width: int) -> nn.Module:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        rows = x if x.dim() == 3 else x.unsqueeze(1)
        result: torch.Tensor = self.conv(rows.transpose(1, 2)).transpose(1, 2)
        return result.reshape(x.shape)

    return Apply(forward, conv=nn.Conv1d(width, width, 3, padding=1))


def _experts(width: int) -> nn.Module:
    """Every row goes to one of four experts; some see nothing of a micro-batch."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, width)
        gates = self.router(rows).softmax(-1)
        weight, chosen = gates.max(-1)
        mixed = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            picked = (chosen == number).nonzero().squeeze(-1)
            if len(picked):
                part = weight[picked, None] * expert(rows[picked])
                mixed = mixed.index_add(0, picked, part.to(mixed.dtype))
        return (rows + mixed).view_as(x)

    experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
    return Apply(forward, router=nn.Linear(width, 4), experts=experts)


def _rare(width: int) -> nn.Module:
    """A layer that only some micro-batches reach."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if float(x.detach().float().mean()) > 0.05:
            return x + torch.tanh(self.layer(x))
        return x * 1.0

    return Apply(forward, layer=nn.Linear(width, width))


def _embedding(width: int) -> nn.Module:
    """Rows looked up by the sign pattern of the input; most get no gradient."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        bits = (x.detach()[..., :3] > 0).long()
        result: torch.Tensor = x + self.table(bits[..., 0] + 2 * bits[..., 1] + 4 * bits[..., 2])
        return result

    return Apply(forward, table=nn.Embedding(8, width, padding_idx=0))


# --- parameters in odd places -----------------------------------------------------------


def _lora(width: int) -> nn.Module:
    base = nn.Linear(width, width)
    base.requires_grad_(requires_grad=False)
    down, up = nn.Linear(width, 2, bias=False), nn.Linear(2, width, bias=False)
    return Apply(lambda self, x: self.base(x) + self.up(self.down(x)), base=base, down=down, up=up)


def _two_views(width: int) -> nn.Module:
    """Two parameters whose gradients are views of one tensor."""
    a, b = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(1, width))
    return Apply(lambda self, x: x * (self.a.view(-1) + self.b.view(-1)), a=a, b=b)


def _transposed(width: int) -> nn.Module:
    weight = nn.Parameter((torch.randn(width, width) / width).t())
    return Apply(lambda self, x: torch.tanh(x @ self.weight), weight=weight)


def _channels_last(width: int) -> nn.Module:
    conv = nn.Conv2d(width, width, (3, 1), padding=(1, 0), bias=False)
    conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        rows = x if x.dim() == 3 else x.unsqueeze(1)
        image = rows.transpose(1, 2).unsqueeze(-1)
        result: torch.Tensor = self.conv(image).squeeze(-1).transpose(1, 2)
        return result.reshape(x.shape)

    return Apply(forward, conv=conv)


def _tied_pair(width: int) -> nn.Module:
    first, second = nn.Linear(width, width), nn.Linear(width, width)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def _scalar(width: int) -> nn.Module:
    del width
    return Apply(lambda self, x: x * self.scale, scale=nn.Parameter(torch.tensor(0.9)))


def _empty(width: int) -> nn.Module:
    nothing = nn.Parameter(torch.empty(0, width))
    return Apply(lambda self, x: x * 1.0 + self.nothing.sum(), nothing=nothing)


def _unused(width: int) -> nn.Module:
    return Apply(lambda self, x: x * 1.0, never=nn.Linear(width, width))


def _frozen(width: int) -> nn.Module:
    layer = nn.Linear(width, width)
    layer.requires_grad_(requires_grad=False)
    return layer


class _Cube(torch.autograd.Function):
    """A derivative of the user's own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        return scale * torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, scale = ctx.saved_tensors
        bent = torch.tanh(x)
        by_x = grads[0] * scale * (1 - bent * bent)
        by_scale = (grads[0] * bent).flatten(0, -2).sum(0).to(scale.dtype)
        return by_x.to(x.dtype), by_scale


_cube: Any = _Cube.apply


def _own_function(width: int) -> nn.Module:
    scale = nn.Parameter(torch.ones(width))
    return Apply(lambda self, x: _cube(x, self.scale), scale=scale)


def _in_place(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width))


def _hooked(width: int) -> nn.Module:
    """Hooks of the user's own: on a gradient, and around forward and backward."""
    layer: Any = nn.Linear(width, width)
    layer.weight.register_hook(lambda grad: grad * 0.5)
    layer.bias.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    layer.bias.register_post_accumulate_grad_hook(_halve)
    layer.register_forward_hook(lambda module, args, out: out * 1.5)
    hooked: nn.Module = layer
    return hooked


def _halve(parameter: torch.Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad.mul_(0.5)


def _shared_norm(width: int) -> nn.Module:
    """One module in two places: its buffers move twice a pass."""
    norm = _over_channels(nn.BatchNorm1d(width // 4))
    return nn.Sequential(norm, nn.Linear(width, width), norm)


def _in_dtype(dtype: torch.dtype) -> Callable[[int], nn.Module]:
    def make_in(width: int) -> nn.Module:
        weight = nn.Parameter((torch.randn(width, width) / width).to(dtype))
        return Apply(lambda self, x: (x.to(dtype) @ self.weight).to(x.dtype), weight=weight)

    return make_in


def _complex(width: int) -> nn.Module:
    weight = nn.Parameter(torch.randn(width, width, dtype=torch.complex64) / width)

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        turned: torch.Tensor = x.to(torch.complex64) @ self.weight
        return torch.view_as_real(turned).sum(-1).to(x.dtype)

    return Apply(forward, weight=weight)


# --- buffers ------------------------------------------------------------------------------


class Watching(nn.Module):
    """Moves a buffer named ``value`` with everything it sees, and passes its input on."""

    def __init__(
        self,
        value: torch.Tensor,
        move: Callable[[Any, torch.Tensor], None],
        *,
        persistent: bool = True,
    ) -> None:
        super().__init__()
        self.register_buffer("value", value, persistent=persistent)
        self.move = move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.move(self, x.detach().float())
        return x * 1.0


def _rebind(self: Any, x: torch.Tensor) -> None:
    self.value = 0.9 * self.value + 0.1 * x.mean(dim=tuple(range(x.dim() - 1)))


def _move_infinite(self: Any, x: torch.Tensor) -> None:
    self.value[1:] += 0.1 * x.mean()


def _move_max(self: Any, x: torch.Tensor) -> None:
    self.value.copy_(torch.maximum(self.value, x.abs().max()))


_BUFFERS: dict[str, Callable[[int], nn.Module]] = {
    "buffer-rebound": lambda width: Watching(torch.zeros(width), _rebind),
    "buffer-integer": lambda width: Watching(
        torch.zeros(3, dtype=torch.int64), lambda self, x: self.value.add_(1)
    ),
    "buffer-bool": lambda width: Watching(
        torch.zeros(2, dtype=torch.bool), lambda self, x: self.value.fill_(True)
    ),
    "buffer-complex": lambda width: Watching(
        torch.zeros(2, dtype=torch.complex64),
        lambda self, x: self.value.add_(torch.complex(x.mean(), x.std())),
    ),
    "buffer-infinite": lambda width: Watching(
        torch.tensor([float("-inf"), 0.0, 1.0]), _move_infinite
    ),
    "buffer-not-saved": lambda width: Watching(torch.zeros(width), _rebind, persistent=False),
    "buffer-sum": lambda width: Watching(
        torch.zeros((), dtype=torch.int64), lambda self, x: self.value.add_(int(x[..., 0].numel()))
    ),
    "buffer-max": lambda width: Watching(torch.zeros(1), _move_max),
    "buffer-local": lambda width: Watching(
        torch.zeros(2), lambda self, x: self.value.add_(x.sum())
    ),
}


# --- random numbers -------------------------------------------------------------------------


def _layer_drop(width: int) -> nn.Module:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0 if float(torch.rand(())) < 0.4 else x + torch.tanh(self.layer(x))

    return Apply(forward, layer=nn.Linear(width, width))


def _python_drop(width: int) -> nn.Module:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0 if random.random() < 0.3 else torch.relu(self.layer(x))

    return Apply(forward, layer=nn.Linear(width, width))


_MAKERS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda width: nn.Linear(width, width),
    "mlp": _mlp,
    "layernorm": nn.LayerNorm,
    "rmsnorm": nn.RMSNorm,
    "groupnorm": lambda width: _over_channels(nn.GroupNorm(1, width // 4)),
    "batchnorm": lambda width: _over_channels(nn.BatchNorm1d(width // 4)),
    "batchnorm-average": lambda width: _over_channels(nn.BatchNorm1d(width // 4, momentum=None)),
    "batchnorm-eval": lambda width: _over_channels(nn.BatchNorm1d(width // 4).eval()),
    "instancenorm": lambda width: _over_channels(
        nn.InstanceNorm1d(width // 4, affine=True, track_running_stats=True)
    ),
    "attention": _attention,
    "gru": _gru,
    "conv1d": _conv1d,
    "experts": _experts,
    "rare": _rare,
    "embedding": _embedding,
    "weight-norm": lambda width: parametrizations.weight_norm(nn.Linear(width, width)),
    "spectral-norm": lambda width: parametrizations.spectral_norm(nn.Linear(width, width)),
    "orthogonal": lambda width: parametrizations.orthogonal(nn.Linear(width, width)),
    "lora": _lora,
    "two-views": _two_views,
    "transposed": _transposed,
    "channels-last": _channels_last,
    "tied-pair": _tied_pair,
    "scalar": _scalar,
    "empty": _empty,
    "unused": _unused,
    "frozen": _frozen,
    "own-function": _own_function,
    "in-place": _in_place,
    "hooked": _hooked,
    "shared-norm": _shared_norm,
    "float64": _in_dtype(torch.float64),
    "bfloat16": _in_dtype(torch.bfloat16),
    "complex": _complex,
    **_BUFFERS,
    "dropout": lambda width: nn.Dropout(0.2),
    "alpha-dropout": lambda width: nn.AlphaDropout(0.1),
    "noise": lambda width: Apply(lambda self, x: x + 0.05 * torch.randn_like(x)),
    "layer-drop": _layer_drop,
    "python-drop": _python_drop,
}
