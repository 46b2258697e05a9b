"""Nobody in the engine but ``engine.device`` knows where tensors are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pliant
from pliant.core.errors import ConfigError
from pliant.engine.device import here, host

ENGINE = Path(pliant.__file__).parent / "engine"

NAMES = {"cpu", "cuda"}
ATTRIBUTES = {"data_ptr", "numpy", "from_numpy", "frombuffer", "pin_memory"}

MAKERS = {
    "arange",
    "as_tensor",
    "empty",
    "empty_strided",
    "full",
    "ones",
    "randint",
    "tensor",
    "zeros",
}
"""Of ``torch``: without ``device=`` they make tensors where the script's default device is."""

EXCEPTIONS = {
    ("reduce/accumulate.py", "data_ptr"): "noted for the next line",
    ("reduce/gradient_tree.py", "data_ptr"): "only compared, once per leaf and micro-batch",
    ("data/from_loader.py", "pin_memory"): "an argument of the script's DataLoader",
    ("data/loading.py", "numpy"): "samples between a loader process and its worker: on the host",
    ("data/loading.py", "from_numpy"): "the same",
    ("state/tagged_codec.py", "frombuffer"): "of numpy: arrays of the script",
    ("comm/nccl.py", "cuda"): "of a vendor's library",
    ("comm/connection.py", "memoryview"): "bytes of frames and notes, which are no tensors",
    ("comm/handshake.py", "memoryview"): "bytes of a handshake",
}


def found_in(path: Path) -> Iterator[tuple[str, str, int]]:
    name = str(path.relative_to(ENGINE))
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Constant(value=str(text)) if text in NAMES:
                yield name, text, node.lineno
            case ast.Attribute(attr=attribute) if attribute in ATTRIBUTES:
                yield name, attribute, node.lineno
            case ast.Call(func=ast.Name(id="memoryview")):
                yield name, "memoryview", node.lineno
            case ast.Call(func=ast.Attribute(ast.Name("torch"), maker)) if maker in MAKERS:
                if all(keyword.arg != "device" for keyword in node.keywords):
                    yield name, maker, node.lineno
            case _:
                pass


def test_nobody_else_names_a_device_or_views_memory() -> None:
    files = [path for path in ENGINE.rglob("*.py") if path.parent != ENGINE / "device"]
    found = [each for path in sorted(files) for each in found_in(path)]

    assert [each for each in found if each[:2] not in EXCEPTIONS] == []
    assert {each[:2] for each in found} == EXCEPTIONS.keys(), "an exception that nobody needs"


def words_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Constant(value=str(word)) | ast.Name(id=word) | ast.Attribute(attr=word):
                yield word
            case ast.alias(name=word):
                yield from word.split(".")
            case _:
                pass


def test_one_module_knows_a_vendors_devices() -> None:
    named = {
        str(path.relative_to(ENGINE)) for path in ENGINE.rglob("*.py") if "cuda" in words_in(path)
    }

    assert named <= {"device/cuda.py", "comm/nccl.py"}


def test_a_model_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="'w' is on meta, where tensors have no values"):
        here.device.check("w", torch.empty(1, device="meta"))


def test_a_word_and_a_digest_are_of_the_logical_bytes() -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    columns = rows.t().contiguous().t()  # the same numbers, laid out in another order

    assert here.device.word(rows) == here.device.word(columns)
    assert bytes(host.bytes_of(rows)) == rows.numpy().tobytes()
    assert here.device.word(rows, 0, 4) != here.device.word(rows)


def test_a_change_of_minus_zero_is_no_change() -> None:
    zero = torch.zeros(2, dtype=torch.float64)

    assert here.device.change_word(-zero) == here.device.change_word(zero)


def test_generators_go_back_to_where_they_were() -> None:
    states = here.device.generators()
    first = torch.rand(3)
    here.device.seed(7)
    here.device.restore_generators(states)

    assert torch.equal(torch.rand(3), first)
