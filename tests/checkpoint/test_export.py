"""A checkpoint is taken elsewhere as safetensors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file
from tests.checkpoint.states import plain_save, save
from torch import nn

from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.read import open_checkpoint
from pliant.checkpoint.export import INDEX, export, export_like, weight_files
from pliant.checkpoint.failures import DamagedError
from pliant.checkpoint.starting_weights import write_starting_weights
from pliant.checkpoint.store.directory import LocalStorage
from pliant.core.errors import ConfigError


@pytest.fixture
def root(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "root"))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(5).to(torch.bfloat16)


def saved_tied(root: LocalStorage) -> tuple[Tied, str]:
    torch.manual_seed(3)
    model = Tied()
    nn.init.normal_(model.norm.weight)
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = Contents(tensors={f"model.{name}": t.detach() for name, t in named.items()})
    aliases = {"model.head.weight": "model.embed.weight"}
    return model, save(root, state=state, aliases=aliases).name


def test_weights_are_exported_for_safetensors_with_tied_ones_once(
    root: LocalStorage, tmp_path: Path
) -> None:
    model, name = saved_tied(root)
    file = tmp_path / "model.safetensors"

    done = export(open_checkpoint(root, name), file)

    assert done.tied == {"head.weight": "embed.weight"}
    torch.manual_seed(4)
    fresh = Tied()
    missing, unexpected = load_model(fresh, str(file))
    assert (list(missing), list(unexpected)) == ([], [])
    for (key, value), other in zip(
        model.state_dict().items(), fresh.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), key


def test_weights_are_exported_for_plain_torch_under_every_name(
    root: LocalStorage, tmp_path: Path
) -> None:
    model, name = saved_tied(root)
    file = tmp_path / "model.safetensors"

    export(open_checkpoint(root, name), file, repeat_tied=True)

    fresh = Tied()
    fresh.load_state_dict(load_file(str(file)))
    assert torch.equal(fresh.head.weight, model.embed.weight)


def test_a_foreign_checkpoint_can_be_exported(root: LocalStorage, tmp_path: Path) -> None:
    weight = torch.randn(30, 4)
    plain_save({"net": {"w": weight, "b": torch.ones(3, dtype=torch.int16)}}, tmp_path / "theirs")
    theirs = open_checkpoint(LocalStorage(str(tmp_path)), "theirs")

    with pytest.raises(ConfigError, match="holds no tensors under 'model'; it has net"):
        export(theirs, tmp_path / "x")
    export(theirs, tmp_path / "x", under="net")

    found = load_file(str(tmp_path / "x"))
    assert torch.equal(found["w"], weight)
    assert found["b"].dtype is torch.int16


def test_a_damaged_checkpoint_is_not_exported_and_leaves_no_file(
    root: LocalStorage, tmp_path: Path
) -> None:
    name = save(root).name
    for data in Path(root.place(name)).glob("*.distcp"):
        data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))

    with pytest.raises(DamagedError):
        export(open_checkpoint(root, name), tmp_path / "x.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_a_type_that_safetensors_lacks_is_named(root: LocalStorage, tmp_path: Path) -> None:
    state = Contents(tensors={"model.z": torch.zeros(2, dtype=torch.complex128)})
    name = save(root, state=state).name

    with pytest.raises(ConfigError, match="z is complex128, which safetensors does not have"):
        export(open_checkpoint(root, name), tmp_path / "x")


def shards_in(directory: Path, model: Tied) -> Path:
    """Write a model as Hugging Face does: in two files with an index, and what belongs to it."""
    directory.mkdir()
    state = {name: t for name, t in model.state_dict().items() if name != "head.weight"}
    files = {name: f"model-{1 + name.startswith('norm')}.safetensors" for name in state}
    for file in set(files.values()):
        save_file({n: t for n, t in state.items() if files[n] == file}, directory / file)
    index = {"metadata": {}, "weight_map": files}
    (directory / INDEX).write_text(json.dumps(index))
    (directory / "config.json").write_text('{"model_type": "tied"}')
    (directory / "tokenizer.json").write_text("{}")
    (directory / "pytorch_model.bin").write_bytes(b"old weights")
    return directory


def test_a_directory_as_the_model_came_from_is_written_and_started_from(
    root: LocalStorage, tmp_path: Path
) -> None:
    model, name = saved_tied(root)
    like = shards_in(tmp_path / "like", Tied())  # other weights
    checkpoint = open_checkpoint(root, name)

    done = export_like(checkpoint, tmp_path / "new", like)

    there = {path.name for path in (tmp_path / "new").iterdir()}
    assert there == {path.name for path in like.iterdir()} - {"pytorch_model.bin"}
    index = json.loads((tmp_path / "new" / INDEX).read_text())
    assert index["weight_map"] == json.loads((like / INDEX).read_text())["weight_map"]
    assert index["metadata"]["total_size"] == done.num_bytes
    write_starting_weights(str(tmp_path / "new"), tmp_path / "init.pt")
    fresh, points = Tied(), torch.arange(7)
    loaded: dict[str, torch.Tensor] = {}
    for file in weight_files(tmp_path / "new"):
        loaded |= load_file(tmp_path / "new" / file)
    for weights in (
        loaded,
        torch.load(tmp_path / "init.pt", weights_only=True)["model"],
    ):
        nn.init.zeros_(fresh.embed.weight)
        fresh.load_state_dict(weights, strict=False)
        assert torch.equal(fresh.head(fresh.embed(points)), model.head(model.embed(points)))
        assert torch.equal(fresh.norm.weight, model.norm.weight)
    with pytest.raises(ConfigError, match="exists"):
        export_like(checkpoint, tmp_path / "new", like)


def test_a_directory_of_another_model_is_refused_and_nothing_is_left(
    root: LocalStorage, tmp_path: Path
) -> None:
    _, name = saved_tied(root)
    like = shards_in(tmp_path / "like", Tied())
    save_file({"other": torch.ones(1)}, like / "model-1.safetensors")
    for sentence in ("names 'embed.weight', not in model-1", "'other' is in one of"):
        with pytest.raises(ConfigError, match=sentence):
            export_like(open_checkpoint(root, name), tmp_path / "new", like)
        (like / INDEX).unlink(missing_ok=True)
    assert {path.name for path in tmp_path.iterdir()} == {"like", "root"}
    with pytest.raises(ConfigError, match="cannot be read"):
        write_starting_weights(str(broken(tmp_path / "x.safetensors")), tmp_path / "init.pt")


def broken(path: Path) -> Path:
    path.write_bytes(b"no weights")
    return path


def test_without_the_library_one_sentence_says_what_to_install(
    root: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)

    with pytest.raises(ConfigError, match=re.escape("pip install 'pliant[export]'")):
        export(open_checkpoint(root, save(root).name), tmp_path / "x")
