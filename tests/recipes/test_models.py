"""Models of recipes: the weights that they begin with, what sees what, and what is exported."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.playing import alone

import pliant
from pliant.core.errors import ConfigError
from pliant.recipes.estimate import estimate
from pliant.recipes.models import build, from_mxfp4, tensors
from pliant.recipes.tasks import Task
from pliant.recipes.tokens import tokenizer_of
from pliant.spec.load import check
from pliant.spec.recipe import Recipe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),  # PEFT's
    pytest.mark.skipif(find_spec("transformers") is None, reason="pip install transformers peft"),
]

FAMILIES = ["llama", "gpt-oss", "gpt2"]


def recipe(**fields: Any) -> Recipe:
    least = {"data": {"train": "a.jsonl"}, "training": {"steps": 1}}
    return check(Recipe, {**least, **fields}, source="job.yaml")


def made(wanted: Recipe) -> Any:
    pliant.seed(3)
    return build(wanted, tokenizer_of(wanted), workers=1)


def batch_of(tokens: list[list[int]], documents: list[list[int]]) -> dict[str, torch.Tensor]:
    places = [[row[:i].count(row[i]) for i in range(len(row))] for row in documents]
    return {
        "tokens": torch.tensor(tokens),
        "labels": torch.tensor(tokens),
        "documents": torch.tensor(documents),
        "positions": torch.tensor(places),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_no_document_sees_another(family: str) -> None:
    wanted = recipe(model={"family": family})
    model, task = made(wanted), Task(wanted, None)
    documents = [[1] * 40 + [2] * 30]
    one = batch_of([[*range(70)]], documents)
    other = batch_of([[9] * 40 + [*range(40, 70)]], documents)
    alone = batch_of([[*range(40, 70)]], [[1] * 30])

    with torch.no_grad():
        a, b, c = (task.forward(model, batch) for batch in (one, other, alone))

    torch.testing.assert_close(a[:, 40:], b[:, 40:], rtol=0, atol=1e-5)
    torch.testing.assert_close(a[:, 40:], c, rtol=0, atol=1e-5)
    assert not torch.allclose(a[:, :40], b[:, :40], atol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_model_and_its_mask_are_those_of_transformers(family: str) -> None:
    """Of one document without packing, the model says what it says without our masks."""
    wanted = recipe(model={"family": family})
    model = made(wanted).eval()
    tokens = torch.arange(50)[None]

    with torch.no_grad():
        ours = Task(wanted, None).forward(model, batch_of(tokens.tolist(), [[1] * 50]))
        plain = model(input_ids=tokens, use_cache=False).logits

    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_read_tensor_by_tensor_and_nothing_may_be_missing(
    family: str, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    first = made(recipe(model={"family": family}))
    first.save_pretrained(tmp_path / "w", max_shard_size="200kB")
    tokenizer_of(recipe()).save_pretrained(tmp_path / "w")
    from_files = recipe(model={"family": family, "weights": str(tmp_path / "w")})

    again = made(from_files)

    assert len(list((tmp_path / "w").glob("*.safetensors"))) > 1
    mine, theirs = first.state_dict(), again.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert all(torch.equal(a, b) for a, b in zip(first.buffers(), again.buffers(), strict=True))
    path = max((tmp_path / "w").glob("*.safetensors"))
    kept = load_file(path)
    lost = min(kept)
    save_file({name: one for name, one in kept.items() if name != lost}, path, {"format": "pt"})
    with pytest.raises(ConfigError, match=f"has no tensor {lost}"):
        made(from_files)
    save_file({**kept, "strange": torch.zeros(1)}, path, {"format": "pt"})
    with pytest.raises(ConfigError, match="has a tensor strange, and the model has none"):
        made(from_files)


def test_gpt2_as_it_was_published_is_read(tmp_path: Path) -> None:
    """Its names lack the prefix, and the mask is among the tensors."""
    from safetensors.torch import save_file

    first = made(recipe(model={"family": "gpt2"}))
    first.config.save_pretrained(tmp_path)
    found = {name: value.clone() for name, value in first.transformer.state_dict().items()}
    mask = {"h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.1.attn.bias": torch.ones(1, 1, 8, 8)}
    save_file({**found, **mask}, tmp_path / "model.safetensors", {"format": "pt"})

    again = made(recipe(model={"weights": str(tmp_path), "tokenizer": "bytes"}))

    mine, theirs = first.state_dict(), again.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_gpt2_refuses_more_tokens_than_it_has_positions() -> None:
    with pytest.raises(ConfigError, match="2048 is more than the 1024 positions"):
        made(recipe(model={"family": "gpt2"}, data={"train": "a", "sequenceLength": 2048}))


def test_adapters_of_gpt2_are_as_many_as_estimated() -> None:
    wanted = recipe(model={"family": "gpt2"}, lora={"rank": 4})
    learned = [one.numel() for one in made(wanted).parameters() if one.requires_grad]

    assert sum(learned) == estimate(wanted).trained


def test_experts_in_four_bits_are_what_transformers_makes_of_them(tmp_path: Path) -> None:
    from safetensors.torch import save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 8, 2, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 135, (3, 8, 2), generator=generator, dtype=torch.uint8)
    save_file({"e_blocks": blocks, "e_scales": scales}, tmp_path / "model.safetensors")

    ((name, found),) = tensors(tmp_path)

    assert name == "e"
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, convert_moe_packed_tensors(blocks, scales))
    assert torch.equal(found, from_mxfp4(blocks, scales))


def test_what_is_exported_is_what_transformers_loads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lines = [
        {"messages": [{"role": "user", "content": f"say {w}"}, {"role": "assistant", "content": w}]}
        for w in ("tea", "sun", "fog")
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    training = {"steps": 80, "globalBatchSize": 3, "learningRate": 0.01}
    wanted = recipe(
        task="sft",
        data={"train": "chats.jsonl", "packing": "none"},
        training=training,
        export={"path": "out"},
    )
    alone(tmp_path, *wanted.command())

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    for line in lines:
        asked = tokenizer.apply_chat_template(
            line["messages"][:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        said = model.generate(**asked, max_new_tokens=8, do_sample=False)
        answer = tokenizer.decode(said[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
        assert answer == line["messages"][1]["content"]


def test_adapters_are_exported_as_peft_loads_them(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    (tmp_path / "a.jsonl").write_text('{"text": "a fine day"}\n' * 80)
    base = made(recipe())
    base.save_pretrained(tmp_path / "base")
    tokenizer_of(recipe()).save_pretrained(tmp_path / "base")
    fields = {
        "model": {"weights": "base"},
        "lora": {"rank": 2},
        "training": {"steps": 2, "globalBatchSize": 2, "learningRate": 0.01},
    }
    for name, merge in (("adapter", False), ("merged", True)):
        wanted = recipe(**fields, export={"path": name, "merge": merge})
        alone(tmp_path, *wanted.command())

    adapted: Any = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        a, b, c = (one(input_ids=tokens).logits for one in (adapted, merged, base.eval()))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    assert not torch.allclose(a, c, atol=1e-3)
