"""The recipes are ordinary PyTorch, and the examples are the scripts that people get."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pliant.core.errors import ConfigError
from pliant.recipes import text, train_gpt
from pliant.recipes.gpt import GPT, GPTConfig, next_byte_loss
from pliant.recipes.text import NextByte, python_topics

ROOT = Path(__file__).parents[2]
TINY = GPTConfig(context=8, width=16, heads=2, layers=1, dropout=0.0)


def parameters(config: GPTConfig) -> int:
    return sum(parameter.numel() for parameter in GPT(config).parameters())


def test_the_demo_model_has_about_three_million_parameters() -> None:
    assert 2.9e6 < parameters(GPTConfig()) < 3.5e6


def test_tied_embeddings_are_one_parameter() -> None:
    model = GPT(TINY)

    assert model.head.weight is model.token_embedding.weight


def test_no_token_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model = GPT(TINY).eval()
    tokens = torch.randint(256, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256

    before, after = model(tokens), model(changed)

    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_an_untrained_model_guesses_bytes() -> None:
    torch.manual_seed(0)
    tokens, targets = torch.randint(256, (2, 4, 8))

    loss = next_byte_loss(GPT(TINY)(tokens), targets)

    assert loss.item() == pytest.approx(5.55, abs=0.2)  # ln 256


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="width=10 is not a multiple of heads=4"):
        GPTConfig(width=10, heads=4)


def test_windows_cover_the_text_once_and_shift_by_one() -> None:
    data = NextByte(bytes(range(10)), context=3)

    assert len(data) == 3
    tokens, targets = data[1]
    assert (tokens.tolist(), targets.tolist()) == ([3, 4, 5], [4, 5, 6])


def test_the_text_is_pythons_own_documentation() -> None:
    topics = python_topics()

    assert b"assert" in topics
    assert len(topics) > 300_000


def test_a_python_without_its_topics_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MODULE", "pydoc_data.missing")

    with pytest.raises(ConfigError, match=r"has no pydoc_data\.missing"):
        python_topics()


def test_the_example_is_the_script_of_the_demo() -> None:
    recipe = Path(train_gpt.__file__).read_text()

    assert (ROOT / "examples" / "train_gpt.py").read_text() == recipe
