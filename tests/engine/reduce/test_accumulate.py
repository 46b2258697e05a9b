"""Sums of slot gradients are the same bits for every way to divide the slots."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pliant.core.errors import UsageError
from pliant.core.step import batching
from pliant.core.step.batching import Node
from pliant.engine.reduce import accumulate, gradient_tree
from pliant.engine.reduce.accumulate import GradientSums
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.gradient_tree import positions


@pytest.fixture(autouse=True, params=[0, 24], ids=["hooks for all", "small ones without"])
def _small_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Biases are small in the second case, and most weights are not."""
    monkeypatch.setattr(gradient_tree, "SMALL_BYTES", request.param)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.second = nn.Linear(5, 2)
        self.sometimes = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor, *, extra: bool) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        out = self.second(hidden)
        return torch.add(out, self.sometimes(hidden)) if extra else torch.as_tensor(out)


def summed(
    model: nn.Module,
    layout: Layout,
    nodes: Sequence[Node],
    losses: dict[int, torch.Tensor | None],
    factor: float = 1.5,
) -> list[torch.Tensor]:
    sums = GradientSums(dict(model.named_parameters()), layout)
    ready: list[int] = []
    sums.begin(len(nodes), ready.append)
    for position in positions(nodes):
        sums.open(
            merges=position.merges,
            part=position.part,
            is_last_of_part=position.is_last_of_part,
            is_last=position.is_last,
        )
        loss = losses[position.slot]
        if loss is not None:
            sums.capture(partial(torch.autograd.backward, loss, retain_graph=True), factor)
        sums.close()
    assert sorted(ready) == list(range(sums.num_buckets))
    partials = [partial.clone() for partial in sums.partials(0)]
    sums.release()
    sums.unhook()
    return partials


def losses_of(model: Net, num_slots: int, chooser: random.Random) -> dict[int, torch.Tensor | None]:
    return {
        slot: None
        if chooser.random() < 0.2
        else model(torch.randn(2, 3), extra=chooser.random() < 0.3).square().mean()
        for slot in range(num_slots)
    }


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("num_slots", [1, 2, 3, 5, 7, 8, 12])
def test_any_ownership_folds_to_the_same_bits(num_slots: int, factor: float) -> None:
    chooser = random.Random(num_slots)
    model = Net()
    layout = Layout.of(model.named_parameters(), extras=1)
    losses = losses_of(model, num_slots, chooser)
    (whole,) = summed(model, layout, [batching.root(num_slots)], losses, factor)

    for num_replicas in range(1, min(num_slots, 5) + 1):
        owners = batching.ownership(num_slots, num_replicas)
        nodes = batching.partials(num_slots, owners)
        partials = [p for mine in nodes for p in summed(model, layout, mine, losses, factor)]
        flat = [node for mine in nodes for node in mine]
        for left, right in batching.fold_plan(num_slots, flat):
            partials[left] = partials[left] + partials[right]

        assert whole.numpy().tobytes() == partials[0].numpy().tobytes()


def test_a_negative_zero_and_an_absent_leaf_give_a_positive_zero_everywhere() -> None:
    model = nn.Linear(1, 1, bias=False)
    layout = Layout.of(model.named_parameters(), extras=1)
    minus_zero = {0: (model.weight * -0.0).sum(), 1: None}

    (whole,) = summed(model, layout, [batching.root(2)], minus_zero)

    assert not torch.signbit(whole).any()


def test_gradients_that_share_memory_are_not_added_into_each_other() -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2, 2))

    model = Twins()
    weights = [torch.randn(4) for _ in range(4)]
    layout = Layout.of(model.named_parameters(), extras=1)
    losses: dict[int, torch.Tensor | None] = {
        slot: ((model.a.view(4) + model.b.view(4)) * w).sum() for slot, w in enumerate(weights)
    }

    (whole,) = summed(model, layout, [batching.root(4)], losses)

    expected = 1.5 * ((weights[0] + weights[1]) + (weights[2] + weights[3]))
    for view in layout.buckets[0].views(whole).values():
        torch.testing.assert_close(view.reshape(-1), expected)


def test_half_precision_gradients_are_added_in_single_precision() -> None:
    model = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    layout = Layout.of(model.named_parameters(), extras=1)
    losses: dict[int, torch.Tensor | None] = {
        slot: (model(torch.ones(1, 4, dtype=torch.bfloat16)) * (256.0 if slot else 1.0)).sum()
        for slot in range(2)
    }

    (whole,) = summed(model, layout, [batching.root(2)], losses)

    assert whole.dtype == torch.float32
    assert set(whole.tolist()) == {1.5 * 257.0}  # bfloat16 has no 257


def test_a_gradient_that_comes_again_in_a_later_slot_first_ends_no_attempt_early() -> None:
    """Reentrant checkpointing after slots that had no backward, as with a weight of 0."""
    model = nn.Linear(3, 3)
    layout = Layout.of(model.named_parameters(), extras=1)
    sums = GradientSums(dict(model.named_parameters()), layout)

    def backward() -> None:
        hidden: Any = torch.ones(2, 3, requires_grad=True)
        for _ in range(3):
            hidden = checkpoint(model, hidden, use_reentrant=True)
        hidden.sum().backward()

    found = []
    for _ in range(2):
        sums.begin(1)
        for position in positions([batching.root(4)]):
            sums.open(
                merges=position.merges,
                part=position.part,
                is_last_of_part=position.is_last_of_part,
                is_last=position.is_last,
            )
            if position.slot == 3:
                sums.capture(backward, factor=1.0)
            sums.close()
        found.append(sums.is_invalid)
    sums.unhook()
    backward()

    assert found == [True, False]
    for name, view in layout.buckets[0].views(sums.partials(0)[0]).items():
        torch.testing.assert_close(view, model.get_parameter(name).grad)


def test_a_gradient_that_comes_twice_in_one_backward_is_merged_once_seen() -> None:
    model = nn.Linear(3, 3)
    layout = Layout.of(model.named_parameters(), extras=1)
    sums = GradientSums(dict(model.named_parameters()), layout)

    def backward() -> None:
        x = torch.ones(2, 3, requires_grad=True)
        hidden = checkpoint(model, x, use_reentrant=True)
        checkpoint(model, hidden, use_reentrant=True).sum().backward()

    def attempt() -> torch.Tensor:
        sums.begin(1)
        for position in positions([batching.root(2)]):
            sums.open(
                merges=position.merges,
                part=position.part,
                is_last_of_part=position.is_last_of_part,
                is_last=position.is_last,
            )
            sums.capture(backward, factor=1.0)
            sums.close()
        return sums.partials(0)[0].clone()

    attempt()
    assert sums.is_invalid
    second = attempt()
    assert not sums.is_invalid
    sums.unhook()

    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for _ in range(2):
        model.zero_grad()
        backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            expected[name] += parameter.grad
    for name, view in layout.buckets[0].views(second).items():
        assert torch.equal(view, expected[name])


def test_backward_outside_of_a_slot_is_refused() -> None:
    model = nn.Linear(2, 1)
    sums = GradientSums(
        dict(model.named_parameters()), Layout.of(model.named_parameters(), extras=1)
    )
    sums.begin(1)

    with pytest.raises(UsageError, match=r"call step\.backward"):
        model(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("is_behind", [False, True], ids=["before", "behind"])
def test_a_stray_backward_that_reaches_no_hook_is_refused_too(is_behind: bool) -> None:
    model = nn.Linear(4, 2)
    sums = GradientSums(
        dict(model.named_parameters()), Layout.of(model.named_parameters(), extras=1)
    )
    sums.begin(1)
    sums.open(merges=0, part=0, is_last_of_part=True, is_last=True)
    own = lambda: sums.capture(lambda: model(torch.ones(1, 4)).sum().backward(), 1.0)  # noqa: E731
    stray = lambda: torch.autograd.backward(model.bias.sum())  # noqa: E731

    def compute() -> None:
        for call in (own, stray, sums.close) if is_behind else (stray, own, sums.close):
            call()

    with pytest.raises(UsageError, match=r"call step\.backward"):
        compute()


class Twice(torch.autograd.Function):
    """Twice its argument, by a function of the script's own that keeps the gradient it gave."""

    kept: ClassVar[list[torch.Tensor]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        Twice.kept.append(grad * 2)
        return Twice.kept[-1].view_as(grad)


def test_a_gradient_that_somebody_keeps_is_not_added_to() -> None:
    Twice.kept.clear()
    model = nn.Linear(3, 4, bias=False)
    layout = Layout.of(model.named_parameters(), extras=1)
    inputs = torch.randn(4, 1, 3)
    losses: dict[int, torch.Tensor | None] = {
        slot: nn.functional.linear(x, Twice.apply(model.weight)).sum()
        for slot, x in enumerate(inputs)
    }

    summed(model, layout, [batching.root(4)], losses, factor=1.0)

    for x, kept in zip(inputs, Twice.kept, strict=True):
        assert torch.equal(kept, 2 * x.expand(4, 3))


def test_a_hook_of_the_script_sees_the_gradient_of_one_slot() -> None:
    model = nn.Linear(3, 4, bias=False)
    seen: list[torch.Tensor] = []
    model.weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
        lambda one: seen.append(one.grad.clone())
    )
    inputs = torch.randn(4, 1, 3)
    losses: dict[int, torch.Tensor | None] = {slot: model(x).sum() for slot, x in enumerate(inputs)}

    layout = Layout.of(model.named_parameters(), extras=1)
    summed(model, layout, [batching.root(4)], losses, factor=1.0)

    for x, one in zip(inputs, seen, strict=True):
        assert torch.equal(one, x.expand(4, 3))


@pytest.mark.parametrize("num_slots", [2, 3, 4, 5, 6, 8, 12])
def test_who_does_the_first_merge_changes_no_bit(
    num_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = random.Random(num_slots)
    model = Net()
    layout = Layout.of(model.named_parameters(), extras=1)
    losses = losses_of(model, num_slots, chooser)
    lent = []
    lend = gradient_tree.GradientColumn.lend

    def counted(column: gradient_tree.GradientColumn) -> None:
        lend(column)
        lent.append(column.lent is not None)

    monkeypatch.setattr(gradient_tree.GradientColumn, "lend", counted)
    (by_autograd,) = summed(model, layout, [batching.root(num_slots)], losses, factor=1.0)
    monkeypatch.setattr(accumulate, "has_own_memory", lambda _: False)
    monkeypatch.setattr(gradient_tree.GradientColumn, "lend", lambda _: None)
    (by_hooks,) = summed(model, layout, [batching.root(num_slots)], losses, factor=1.0)

    assert any(lent) or num_slots < 4
    assert by_autograd.numpy().tobytes() == by_hooks.numpy().tobytes()


def test_buckets_are_ready_while_the_last_backward_still_runs() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    layout = Layout.of(model.named_parameters(), extras=1, bucket_bytes=160)
    sums = GradientSums(dict(model.named_parameters()), layout)
    ready: list[int] = []
    ready_in_backward: list[int] = []
    hidden = torch.ones(1, 4, requires_grad=True)
    hidden.register_hook(lambda _: ready_in_backward.extend(ready))  # type: ignore[no-untyped-call]

    for _ in range(2):
        ready.clear()
        sums.begin(1, ready.append)
        sums.open(merges=0, part=0, is_last_of_part=True, is_last=True)
        sums.capture(lambda: model(hidden).sum().backward(), 1.0)
        sums.close()
    sums.unhook()

    assert sums.num_buckets == 3
    assert ready == [0, 1, 2]
    assert ready_in_backward[-2:] == [0, 1]


def test_the_outermost_sum_lies_in_the_buffer_that_is_sent_once_two_sums_were_merged() -> None:
    model = nn.Linear(3, 2, bias=False)
    layout = Layout.of(list(model.named_parameters()), extras=1)
    sums = GradientSums(dict(model.named_parameters()), layout)
    inputs = torch.randn(4, 1, 3)
    sums.begin(1)

    for position in positions([Node(0, 8, "root")])[:4]:
        sums.open(
            merges=position.merges,
            part=position.part,
            is_last_of_part=position.is_last_of_part,
            is_last=position.is_last,
        )
        loss = model(inputs[position.slot]).sum()
        sums.capture(partial(torch.autograd.backward, loss), factor=1.0)
        sums.close()

    expected = (inputs[0] + inputs[1] + (inputs[2] + inputs[3])).expand(2, 3).reshape(-1)
    assert torch.equal(sums.partials(0)[0], expected)


def test_lent_buffers_hold_the_sums_as_long_as_they_are_lent() -> None:
    model = nn.Linear(3, 2)
    layout = Layout.of(model.named_parameters(), extras=1)
    sums = GradientSums(dict(model.named_parameters()), layout)
    lent = [[layout.buckets[0].empty()], []]
    offers: list[list[list[torch.Tensor]]] = [lent, [], lent, [[], []]]
    results = []

    for offered in offers:
        sums.begin(1, lent=offered)
        sums.open(merges=0, part=0, is_last_of_part=True, is_last=True)
        sums.capture(lambda: model(torch.ones(1, 3)).sum().backward(), 1.0)
        sums.close()
        results.append(sums.partials(0)[0])
    sums.unhook()

    assert [flat is lent[0][0] for flat in results] == [True, False, True, False]
    assert all(torch.equal(flat, results[0]) for flat in results)


def test_values_whose_version_rises_in_every_forward_may_do_so_from_the_second_attempt_on() -> None:
    """The forward of a joiner's first slot may have run before the attempt that takes it."""
    model = Net()
    layout = Layout.of(model.named_parameters(), extras=1)
    sums = GradientSums(dict(model.named_parameters()), layout)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            weight: Any = model.first.weight
            weight.set_(weight.detach())  # as parametrizing it does
        out: torch.Tensor = model(torch.ones(2, 3), extra=True).sum()
        return out

    def attempt(*, has_run: bool) -> None:
        loss = forward() if has_run else None
        sums.begin(1)
        sums.open(merges=0, part=0, is_last_of_part=True, is_last=True)
        sums.capture((loss if loss is not None else forward()).backward, 1.0)

    for has_run in (True, False, False):
        attempt(has_run=has_run)
        sums.close()
    attempt(has_run=False)
    with torch.no_grad():
        model.first.weight.mul_(2)
    with pytest.raises(UsageError, match=r"the values of 'first.weight' changed inside the loop"):
        sums.close()
    sums.release()
    sums.unhook()
