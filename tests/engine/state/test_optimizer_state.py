"""Whatever an optimizer remembers reaches a joiner, or is refused with its name."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engine.state.test_training_state import transfer
from torch import nn

from pliant.core.errors import UsageError
from pliant.engine.state.optimizer_state import OptimizerState, with_nested
from pliant.engine.state.training_state import State
from pliant.engine.update import LOOKED_AT

Optimizer = torch.optim.Optimizer


class Lookahead(Optimizer):
    """As in timm: slow weights in the state of the optimizer that it wraps, which is another's."""

    def __init__(self, base: Optimizer, every: int = 2) -> None:
        self._optimizer_step_pre_hooks: Any = {}
        self._optimizer_step_post_hooks: Any = {}
        self._base_optimizer = base
        self.param_groups = base.param_groups
        self.defaults = base.defaults
        self.state = defaultdict(dict)
        for group in self.param_groups:
            group.setdefault("lookahead_step", 0)
        self.every = every

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._base_optimizer.step()
        for group in self.param_groups:
            group["lookahead_step"] += 1
            for p in group["params"]:
                slow = self._base_optimizer.state[p].setdefault("slow", p.clone())
                if group["lookahead_step"] % self.every == 0:
                    p.copy_(slow.add_(p - slow, alpha=0.5))


class ListLookahead(Optimizer):
    """As in the first ones on the net: slow weights in a list of its own, and a counter."""

    def __init__(self, base: Optimizer, every: int = 2) -> None:
        super().__init__(base.param_groups, base.defaults)
        self.optimizer = base
        self.param_groups = base.param_groups
        self.every = every
        self.count = 0
        self.slow_weights = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step()
        self.count += 1
        if self.count % self.every == 0:
            params = [p for g in self.param_groups for p in g["params"]]
            for p, slow in zip(params, self.slow_weights, strict=True):
                p.data.copy_(slow.add_(p.data - slow, alpha=0.5))


class Averaging(Optimizer):
    """As SWA was: an average in the state of its own, over an optimizer in a list."""

    def __init__(self, base: Optimizer) -> None:
        super().__init__([p for g in base.param_groups for p in g["params"]], {"lr": 0.0})
        self.bases = [base]
        self.base_state = base.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.bases[0].step()
        for p in self.param_groups[0]["params"]:
            average = self.state[p].setdefault("average", torch.zeros_like(p))
            average.add_(p, alpha=0.1)
            p.add_(average, alpha=0.01)


class Ordinary(Optimizer):
    """What most people write."""

    def __init__(self, params: Any, table: torch.Tensor | None = None) -> None:
        super().__init__(params, {"lr": 0.1, "momentum": 0.9})
        self.table = torch.linspace(0.0, 1.0, 5) if table is None else table
        self.all = [p for group in self.param_groups for p in group["params"]]
        self.is_ready = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.all:
            if not self.is_ready:
                self.state[p]["velocity"] = torch.zeros_like(p)
            self.state[p]["velocity"].mul_(0.9).add_(p.grad)
            p.sub_(self.state[p]["velocity"] * self.table[2])
        self.is_ready = True


def adam(model: nn.Module) -> Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


MAKERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "lookahead": lambda model: Lookahead(adam(model)),
    "twice": lambda model: Lookahead(Lookahead(adam(model)), every=3),
    "list": lambda model: ListLookahead(adam(model)),
    "averaging": lambda model: Averaging(adam(model)),
    "ordinary": lambda model: Ordinary(model.parameters()),
}


class Run:
    def __init__(self, make: Callable[[nn.Module], Optimizer]) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.state = State(
            model=self.model,
            local_buffers=frozenset(),
            optimizers=[make(self.model)],
            schedulers=[],
            scaler=None,
            extra={},
        )

    def step(self, number: int) -> None:
        torch.manual_seed(number)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.state.optimizers[0].step()
        for part in self.state.optimizer_states:
            if number < LOOKED_AT:
                part.refuse_hidden()
            else:
                part.refuse_changed()

    def steps(self, count: int) -> None:
        for number in range(count):
            self.step(number)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_joiner_goes_on_exactly_as_those_it_joins(kind: str) -> None:
    old, new = Run(MAKERS[kind]), Run(MAKERS[kind])
    for number in range(5):
        old.step(number)

    transfer(old.state, new.state)
    joined = old.state.digest(5) == new.state.digest(5)
    for number in range(5, 12):
        old.step(number)
        new.step(number)

    assert joined
    assert torch.equal(old.model.weight, new.model.weight)
    assert old.state.digest(12) == new.state.digest(12)


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


class Hiding(torch.optim.SGD):
    """Keeps something where nobody finds it."""

    def __init__(self, params: Any, value: Any, change: Callable[[Any], object]) -> None:
        super().__init__(params, lr=0.1)
        self.hidden = Holder(value)
        self.change = change

    def step(self, closure: Any = None) -> Any:
        self.change(self.hidden)
        return super().step(closure)


@pytest.mark.parametrize(
    ("value", "change", "sentence"),
    [
        (torch.zeros(3), lambda hidden: None, "a tensor in hidden.value"),
        (0, lambda h: setattr(h, "value", h.value + 1), "changes from step to step in hidden.va"),
        ([{}], lambda h: h.value[0].update(a=torch.ones(1)), r"a tensor in hidden.value\[0\]\['a"),
    ],
)
def test_what_is_hidden_in_objects_is_refused_with_its_name(
    value: Any, change: Callable[[Any], object], sentence: str
) -> None:
    run = Run(lambda model: Hiding(model.parameters(), value, change))

    with pytest.raises(UsageError, match=f"Hiding keeps .*{sentence}"):
        run.steps(3)


@pytest.mark.parametrize(
    ("value", "change", "sentence"),
    [
        (0, lambda h: setattr(h, "value", h.value + 1), "changes from step to step in hidden.va"),
        ([0], lambda h: h.value.append(torch.ones(1)), r"a tensor in hidden.value\[1\]"),
    ],
)
def test_what_begins_to_change_late_is_refused_when_it_does(
    value: Any, change: Callable[[Any], object], sentence: str
) -> None:
    """A warm-up of seven steps, and then it counts."""
    seen: list[int] = []

    def late(hidden: Any) -> None:
        seen.append(0)
        if len(seen) > 7:
            change(hidden)

    run = Run(lambda model: Hiding(model.parameters(), value, late))

    with pytest.raises(UsageError, match=f"Hiding keeps .*{sentence}"):
        run.steps(20)
    assert len(seen) == 8


class Growing(torch.optim.SGD):
    """Has an object from the fifth step on."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if self.calls == 5:
            self.late = Holder(0)
        if self.calls > 5:
            self.late.value += 1
        return super().step(closure)


def test_an_object_that_comes_late_is_looked_at_as_well() -> None:
    run = Run(lambda model: Growing(model.parameters(), lr=0.1))

    with pytest.raises(UsageError, match=r"Growing keeps a value .* in late\.value"):
        run.steps(8)


class Late(torch.optim.SGD):
    """Changes an attribute that it has, or has not, from the fifth step on."""

    def __init__(self, params: Any, begin: Callable[[Any], Any], go_on: Callable[[Any], Any]):
        super().__init__(params, lr=0.1, momentum=0.9)
        self.calls = 0
        self.nothing = None
        self.parts: list[Any] = []
        self.begin = begin
        self.go_on = go_on

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.calls += 1
        if self.calls == 5:
            self.begin(self)
        if self.calls > 5:
            self.go_on(self)
        return result


def weights(optimizer: Optimizer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in optimizer.param_groups[0]["params"]]


@pytest.mark.parametrize(
    ("begin", "go_on"),
    [
        (
            lambda o: setattr(o, "slow", weights(o)),
            lambda o: [slow.lerp_(p, 0.5) for slow, p in zip(o.slow, weights(o), strict=True)],
        ),
        (lambda o: setattr(o, "seen", {"n": 0}), lambda o: o.seen.update(n=o.seen["n"] + 1)),
        (lambda o: setattr(o, "nothing", [0]), lambda o: o.nothing.append(o.calls)),
        (lambda o: setattr(o, "nothing", torch.ones(2)), lambda o: o.nothing.mul_(2)),
    ],
)
def test_what_travels_may_come_late(
    begin: Callable[[Any], Any], go_on: Callable[[Any], Any]
) -> None:
    def make(model: nn.Module) -> Optimizer:
        return Late(model.parameters(), begin, go_on)

    old, new = Run(make), Run(make)
    old.steps(8)

    transfer(old.state, new.state)
    for number in range(8, 12):
        old.step(number)
        new.step(number)

    assert old.state.digest(12) == new.state.digest(12)


def count(holder: Holder) -> None:
    holder.value += 1


def momenta(optimizer: Optimizer) -> list[torch.Tensor]:
    return [entries["momentum_buffer"] for entries in optimizer.state.values()]


@pytest.mark.parametrize(
    ("begin", "go_on", "sentence"),
    [
        (
            lambda o: setattr(o, "nothing", Holder(0)),
            lambda o: count(o.nothing),
            r"a value that changes from step to step in nothing\.value",
        ),
        (
            lambda o: o.parts.append(Holder(0)),
            lambda o: count(o.parts[0]),
            r"a value that changes from step to step in parts\[0\]\.value",
        ),
        (lambda o: o.parts.append(Holder(torch.ones(1))), lambda o: None, r"parts\[0\]\.value"),
        (lambda o: setattr(o, "nothing", momenta(o)[0]), lambda o: None, "a tensor in nothing"),
        (lambda o: o.parts.extend(momenta(o)), lambda o: None, r"a tensor in parts\[0\]"),
    ],
)
def test_what_does_not_travel_is_refused_where_something_else_was_first(
    begin: Callable[[Any], Any], go_on: Callable[[Any], Any], sentence: str
) -> None:
    run = Run(lambda model: Late(model.parameters(), begin, go_on))

    with pytest.raises(UsageError, match=f"Late keeps .*{sentence}"):
        run.steps(8)


class Aliasing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.buffers = [entries["momentum_buffer"] for entries in self.state.values()]
        return result


def test_a_second_name_for_a_tensor_of_the_state_is_refused() -> None:
    run = Run(lambda model: Aliasing(model.parameters(), lr=0.1, momentum=0.9))

    with pytest.raises(UsageError, match=r"Aliasing keeps a tensor in buffers\[0\]"):
        run.step(0)


def of_torch() -> list[type[Optimizer]]:
    others = {torch.optim.LBFGS, torch.optim.SparseAdam, Optimizer}  # refused otherwise
    kinds = [kind for _, kind in inspect.getmembers(torch.optim, inspect.isclass)]
    return [kind for kind in kinds if issubclass(kind, Optimizer) and kind not in others]


@pytest.mark.parametrize("kind", of_torch())
def test_no_optimizer_of_torch_is_refused_or_has_more_to_carry(kind: Any) -> None:
    def make(model: nn.Module) -> Optimizer:
        matrices = [p for p in model.parameters() if p.ndim == 2]  # all that Muon takes
        optimizer: Optimizer = kind(matrices, lr=0.01)
        torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return optimizer

    run = Run(make)
    for number in range(4):
        run.step(number)

    (part,) = run.state.optimizer_states
    assert part.attributes() == {}


def test_a_closed_circle_of_wrappers_is_walked_once() -> None:
    model = nn.Linear(1, 1)
    one, two = adam(model), adam(model)
    one.other, two.other = two, [one]  # type: ignore[attr-defined]

    assert with_nested([one]) == [one, two]
    assert OptimizerState(one, {id(p): n for n, p in model.named_parameters()}).attributes() == {}
