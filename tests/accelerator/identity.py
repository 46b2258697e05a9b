"""What a session on the test accelerator says, sets and refuses; run by ``test_sessions``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.utils.deterministic
from tests.accelerator import checks, sim
from tests.engine import models
from torch import nn

import pliant
from pliant.core.errors import ConfigError, UsageError
from pliant.engine import session as sessions
from pliant.engine.device import accelerator, here, numerics
from pliant.engine.worker import script_errors
from pliant.engine.worker.reporter import Printer

SIM = "sim:0"


class Scores(nn.Linear):
    """A model whose loss is what a check makes of its output."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.loss_of: Callable[[torch.Tensor], torch.Tensor] = torch.sum


def train(model: Scores, steps: int = 1, **options: Any) -> pliant.Session:
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.1)
    with pliant.Session(
        model=model,
        optimizer=optimizer,
        dataset=models.Points(20),
        global_batch_size=4,
        micro_batch_size=2,
        **options,
    ) as session:
        for step in session.steps(steps):
            for points, _ in step:
                step.backward(model.loss_of(model(points.to(SIM))))
    return session


def refusal(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except (RuntimeError, ConfigError, UsageError) as error:
        sessions._live = None
        return error
    raise AssertionError("it was allowed")


@contextmanager
def instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def settings() -> tuple[Any, ...]:
    import torch._inductor.config as inductor

    memory: Any = torch.utils.deterministic
    mode = torch.get_deterministic_debug_mode()
    return mode, memory.fill_uninitialized_memory, inductor.deterministic


# --- identity


def check_the_identity_names_the_device_and_how_it_rounds() -> None:
    said = dict(train(Scores().to(SIM))._parts.identity())
    assert (said["device_type"], said["device"]) == ("sim", "Sim")
    assert said["device_numerics"] == said["numerics"], "it computes with the kernels of the host"


def check_the_word_of_a_device_waits_once_and_draws_nothing() -> None:
    states = torch.get_rng_state(), sim.install().get_rng_state()
    others = {k: v for k, v in numerics._OPERATIONS.items() if k != "convolution"}
    with (
        instead(numerics, "_OPERATIONS", others),  # in which this device waits by itself
        sim.install().waits() as counted,
    ):
        numerics.word_of_device(torch.device(SIM))
    assert counted.total() == 1, counted
    now = torch.get_rng_state(), sim.install().get_rng_state()
    assert all(map(torch.equal, states, now))


def check_an_operation_that_a_device_has_not_is_left_out_by_name() -> None:
    lacking = {"fft": lambda where: [torch.fft.fft(torch.ones(8, device=where)).real]}
    with instead(numerics, "_OPERATIONS", numerics._OPERATIONS | lacking):
        word = numerics.word_of_device(torch.device(SIM))
    assert word == f"{numerics.word_of_device(torch.device(SIM))} without fft"


def check_a_device_that_lacks_what_is_needed_is_refused_by_name() -> None:
    def lacks(kind: str) -> None:
        raise TypeError("Cannot convert a Tensor to float64\nat line 5")

    with instead(here, "_NEEDS", {"float64": lacks}):
        assert str(refusal(lambda: here.refuse_kind("other"))) == (
            "a session needs float64 of an accelerator, and 'other' has none: train on the CPU, or "
            "on another kind; torch says: Cannot convert a Tensor to float64"
        )


def check_a_checkpoint_of_another_kind_is_gone_on_from_with_a_note() -> None:
    """NAdam is another order of operations on a device, as torch has it, if it may choose."""
    with tempfile.TemporaryDirectory() as place:
        kept_by(place, "cpu", 2)
        digest, noted = kept_by(place, SIM, 4)
        back, _ = kept_by(place, "cpu", 4)
    with tempfile.TemporaryDirectory() as place:
        assert digest == back == kept_by(place, "cpu", 4)[0]
    assert any("device_type is sim here and cpu in checkpoint" in text for text in noted), noted


def kept_by(place: str, where: str, steps: int) -> tuple[str, list[str]]:
    """Train with a checkpoint; return the digest, and what was noted."""
    pliant.seed(1)
    model, noted = Scores().to(where), list[str]()
    with (
        instead(Printer, "noted", lambda self, text, **_: noted.append(text)),
        pliant.Session(
            model=model,
            optimizer=torch.optim.NAdam(model.parameters(), lr=0.1, foreach=True),
            dataset=models.Points(20),
            global_batch_size=4,
            micro_batch_size=2,
            checkpoint=pliant.Checkpoint(Path(place), every="1step"),
        ) as session,
    ):
        for step in session.steps(steps):
            for batch, _ in step:
                step.backward(model(batch.to(where)).sum())
        return session.state_digest(), noted


# --- what exact mode sets


def watched() -> tuple[Scores, list[Any]]:
    """Return a model, and the settings that each of its losses finds."""
    model, seen = Scores().to(SIM), list[Any]()

    def loss(scores: torch.Tensor) -> torch.Tensor:
        seen.append(settings())
        return scores.sum()

    model.loss_of = loss
    return model, seen


def check_exact_mode_alone_sets_what_gives_equal_bits_and_puts_it_back() -> None:
    model, seen = watched()
    before = settings()
    train(model)
    assert set(seen) == {(2, False, True)}
    assert settings() == before == (0, True, False)
    seen.clear()
    train(model, reduction="fast")
    assert set(seen) == {before}


def check_what_the_script_has_chosen_stays() -> None:
    model, seen = watched()
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = settings()
    train(model)
    assert set(seen) == {(2, True, True)}
    assert settings() == before
    torch.use_deterministic_algorithms(False)


def check_an_operation_without_equal_bits_is_refused_by_name() -> None:
    sim.install().set_async(False, 0, 0)  # else a stream's thread finds it out, and fails for good
    model, at = Scores().to(SIM), torch.tensor([0], device=SIM)
    model.loss_of = lambda scores: scores.put(at, scores.new_zeros(1)).sum()
    error = refusal(lambda: train(model))
    assert script_errors.explained(error, {}) == (
        "put_ gives other bits from one time to the next on this device, which "
        'reduction="exact" does not allow; use another operation, or Session(reduction="fast")'
    ), error
    train(model, reduction="fast")
    sim.install().set_async(True, 300, 0)


# --- graphs of kernels


def check_a_backward_within_a_capture_is_refused() -> None:
    with instead(torch.sim, "is_current_stream_capturing", lambda: True):  # type: ignore[attr-defined]
        device = accelerator.Accelerator("sim")
    assert "while a graph of kernels is captured" in str(refusal(device.refuse_graphs))


def check_a_model_compiled_into_graphs_is_refused() -> None:
    model = Scores().to(SIM)
    model.compile(mode="reduce-overhead")
    assert "mode='reduce-overhead'" in str(refusal(lambda: train(model)))
    whole: Any = torch.compile(Scores().to(SIM), mode="max-autotune")
    assert "mode='max-autotune-no-cudagraphs'" in str(refusal(lambda: train(whole)))


def check_a_backward_that_inductor_has_recorded_is_refused() -> None:
    modes = {1: SimpleNamespace(name="FORWARD"), 2: SimpleNamespace(name="BACKWARD")}
    trees: Any = ModuleType("cudagraph_trees")
    trees.get_manager = lambda index, create_if_none_exists: SimpleNamespace(id_to_mode=modes)
    sys.modules["torch._inductor.cudagraph_trees"] = trees
    try:
        error = refusal(lambda: train(Scores().to(SIM)))
    finally:
        del sys.modules["torch._inductor.cudagraph_trees"]
    assert "their replay overwrites the gradients" in str(error)


def make_graphed_callables() -> Any:
    class Graphed(torch.autograd.Function):
        """Is called as torch calls its own."""

        @staticmethod
        def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
            return scores.sum()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0].expand(2, 3)

    return Graphed.apply


def check_a_recorded_callable_is_refused() -> None:
    model = Scores().to(SIM)
    model.loss_of = make_graphed_callables()
    assert "leave make_graphed_callables out" in str(refusal(lambda: train(model)))


if __name__ == "__main__":
    checks.main(globals())
