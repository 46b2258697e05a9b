"""Buffers move by a rule that does not depend on who computed which slot."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pliant.core.errors import ConfigError, UsageError
from pliant.engine.state.buffers import LARGE_NUMEL, BufferRules


class Holder(nn.Module):
    mean: torch.Tensor
    ema: torch.Tensor
    count: torch.Tensor
    seen: torch.Tensor
    mask: torch.Tensor

    def __init__(self, **buffers: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)
        self.inner = nn.Module()
        self.inner.register_buffer("deep", torch.zeros(2), persistent=False)


def run(
    model: nn.Module, change: Callable[[int], None], slots: int = 4, **rules: str
) -> BufferRules:
    """Let every slot change the model, then commit the sum of the changes."""
    kept = BufferRules(model, rules, num_slots=slots)
    total = torch.zeros(kept.width, dtype=torch.float64)
    kept.begin()
    for slot in range(slots):
        kept.rewind()
        change(slot)
        total += kept.changes(slot)
    kept.check(total, slots)
    kept.commit(total, slots)
    return kept


def test_a_float_moves_by_the_mean_and_every_slot_starts_alike() -> None:
    model = Holder(mean=torch.ones(3))
    seen = []

    def change(slot: int) -> None:
        seen.append(model.mean.clone())
        model.mean += slot
        model.get_buffer("inner.deep").fill_(slot)

    run(model, change)

    assert all(torch.equal(start, torch.ones(3)) for start in seen)
    assert model.mean.tolist() == [2.5] * 3
    assert model.get_buffer("inner.deep").tolist() == [1.5] * 2


def test_a_rebound_buffer_keeps_its_first_tensor() -> None:
    model = Holder(ema=torch.zeros(2))
    first = model.ema

    run(model, lambda slot: setattr(model, "ema", model.ema * 0.5 + slot))

    assert model.ema is first
    assert model.ema.tolist() == [1.5, 1.5]


def test_integers_and_booleans_make_the_one_change_all_slots_made() -> None:
    model = Holder(count=torch.tensor(7), seen=torch.tensor([True, False]))

    def change(slot: int) -> None:
        del slot
        model.count += 1
        model.seen[1] = True

    run(model, change)

    assert int(model.count) == 8
    assert model.seen.tolist() == [True, True]


@pytest.mark.parametrize(
    ("rule", "expected"), [("sum", 7 + 0 + 1 + 2 + 3), ("max", 10), ("local", 7 + 0 + 1 + 2 + 3)]
)
def test_slots_that_disagree_need_a_rule(rule: str, expected: int) -> None:
    model = Holder(count=torch.tensor(7))

    def change(slot: int) -> None:
        model.count += slot

    with pytest.raises(UsageError, match=r"changed buffer 'count' in different ways; call"):
        run(model, change)
    model.count.fill_(7)
    run(model, change, count=rule)
    assert int(model.count) == expected


def test_a_large_buffer_may_not_change_unless_a_rule_is_given() -> None:
    model = Holder(mask=torch.zeros(LARGE_NUMEL + 1))

    def change(slot: int) -> None:
        model.mask[0] += slot

    assert run(model, lambda slot: None).width == 2
    with pytest.raises(UsageError, match="'mask' has 16385 elements and changed during a step"):
        run(model, change)
    model.mask.zero_()
    run(model, change, mask="mean")
    assert float(model.mask[0]) == 1.5


def test_an_unknown_buffer_or_rule_is_refused() -> None:
    model = Holder(count=torch.tensor(7))

    with pytest.raises(ConfigError, match="names 'cuont', which the model has not"):
        BufferRules(model, {"cuont": "sum"}, 1)
    with pytest.raises(ConfigError, match="the rule must be one of"):
        BufferRules(model, {"count": "median"}, 1)
    with pytest.raises(ConfigError, match="int64 has no mean"):
        BufferRules(model, {"count": "mean"}, 1)


def test_a_buffer_that_changes_its_shape_is_refused_by_name() -> None:
    model = Holder(grows=torch.zeros(1))

    with pytest.raises(UsageError, match="buffer 'grows' changed its shape"):
        run(model, lambda slot: setattr(model, "grows", torch.zeros(2)))


def test_a_buffer_that_a_forward_resizes_has_its_size_again_when_the_step_is_given_up() -> None:
    model = Holder(mean=torch.ones(2))
    kept = BufferRules(model, {}, num_slots=1)
    kept.begin()
    model.mean.resize_(5)

    with pytest.raises(UsageError, match="run one batch through the model before the session"):
        kept.changes(0)
    kept.rewind()

    assert model.mean.tolist() == [1.0, 1.0]


class Quantiser(nn.Module):
    """What torch.ao has, with a range and what follows from it."""

    largest: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor
    observer_enabled: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.ones(()))
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("zero_point", torch.zeros(1, dtype=torch.int32))
        self.register_buffer("observer_enabled", torch.ones(1, dtype=torch.int64))

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.largest / 2, (self.largest * 10).int()

    def see(self, largest: float) -> None:
        """Set the range and what follows from it, as a forward does."""
        self.largest.fill_(largest)
        scale, zero_point = self.calculate_qparams()
        self.scale.copy_(scale)
        self.zero_point.copy_(zero_point)


def test_scale_and_zero_point_of_a_fake_quantiser_follow_from_the_mean_of_its_range() -> None:
    model = Quantiser()

    run(model, lambda slot: model.see(1.0 + slot))

    assert float(model.largest) == 2.5
    assert float(model.scale) == 1.25
    assert int(model.zero_point) == 25


def test_a_fake_quantiser_that_no_longer_observes_keeps_scale_and_zero_point() -> None:
    model = Quantiser()
    run(model, lambda slot: model.see(3.0))
    model.observer_enabled.zero_()
    model.largest.fill_(9.0)

    run(model, lambda slot: None)

    assert float(model.scale) == 1.5
    assert int(model.zero_point) == 30


def test_a_buffer_made_in_a_forward_is_refused_by_name() -> None:
    model = Holder(ema=torch.zeros(1))
    model.register_buffer("cache", None)

    with pytest.raises(UsageError, match="buffer 'cache' was made after the session"):
        run(model, lambda slot: setattr(model, "cache", torch.zeros(2)))


def test_what_is_no_finite_number_stays_what_it_is() -> None:
    mask = torch.full((3, 3), -math.inf).triu(1)
    model = Holder(mask=mask.clone(), ema=torch.tensor([math.nan, 1.0]), mean=torch.zeros(1))

    def change(slot: int) -> None:
        model.mean += slot

    run(model, change, mask="mean")

    assert torch.equal(model.mask, mask)
    assert math.isnan(model.ema[0])
    assert model.ema[1] == 1.0


def test_a_buffer_that_starts_at_infinity_moves_to_the_mean() -> None:
    model = Holder(mean=torch.tensor([math.inf]))

    run(model, lambda slot: setattr(model, "mean", torch.tensor([float(slot)])))

    assert model.mean.tolist() == [1.5]
