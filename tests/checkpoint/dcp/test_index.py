"""An index from anywhere is read as data: it runs nothing, and fails in one way."""

from __future__ import annotations

import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint.states import contents, plain_save, save
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from pliant.checkpoint.dcp.index import dump_index, load_index
from pliant.checkpoint.dcp.manifest import Chunk, Item
from pliant.checkpoint.failures import DamagedError, UntrustedError
from pliant.checkpoint.store.directory import LocalStorage

ITEMS = (
    Item(
        name="model.a",
        path=("model", "a"),
        kind="tensor",
        dtype="bfloat16",
        shape=(4, 3),
        chunks=(
            Chunk(file="__0_1.distcp", offset=0, length=900, offsets=(0, 0), sizes=(2, 3)),
            Chunk(file="__1_1.distcp", offset=7, length=1 << 40, offsets=(2, 0), sizes=(2, 3)),
        ),
    ),
    Item(
        name="optim.param_groups.0.lr",
        path=("optim", "param_groups", 0, "lr"),
        kind="object",
        chunks=(Chunk(file="__0_1.distcp", offset=900, length=12),),
    ),
)
OURS = dump_index(ITEMS)


def torchs(directory: Path) -> bytes:
    """Return the index that plain torch writes of a small state."""
    state = {"model": {"w": torch.ones(3, 2)}, "optim": {"param_groups": [{"lr": 0.1}]}}
    plain_save(state, directory)
    return (directory / ".metadata").read_bytes()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return torchs(tmp_path_factory.mktemp("theirs"))


def test_what_is_written_is_read_back() -> None:
    assert load_index(OURS, "here") == ITEMS


def test_plain_torch_unpickles_it_as_its_own() -> None:
    """The classes are named, not imported: seen on torch 2.13."""
    found = pickle.loads(OURS)

    assert type(found) is Metadata
    entry = found.state_dict_metadata["model.a"]
    assert isinstance(entry, TensorStorageMetadata)
    assert entry.size == torch.Size((4, 3))
    assert entry.properties.dtype is torch.bfloat16
    assert entry.properties.memory_format is torch.contiguous_format
    assert found.planner_data["optim.param_groups.0.lr"] == ("optim", "param_groups", 0, "lr")
    places = {(key.fqn, key.offset): at for key, at in found.storage_data.items()}
    assert places["model.a", torch.Size((2, 0))].length == 1 << 40
    assert load_index(pickle.dumps(found, protocol=5), "here") == ITEMS


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_an_index_of_any_usual_protocol_is_read(theirs: bytes, protocol: int) -> None:
    again = pickle.dumps(pickle.loads(theirs), protocol=protocol)

    (w,) = [item for item in load_index(again, "here") if item.kind == "tensor"]

    assert (w.name, w.path, w.dtype, w.shape) == ("model.w", ("model", "w"), "float32", (3, 2))


class Touch:
    """A pickle of it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_runs_something_is_refused_and_named(tmp_path: Path) -> None:
    hostile = pickle.dumps(Touch(tmp_path / "ran"))

    with pytest.raises(UntrustedError, match=r"names posix\.mkdir, which no index needs; reading"):
        load_index(hostile, "here")

    assert list(tmp_path.iterdir()) == []


def test_what_is_trusted_is_unpickled(theirs: bytes, tmp_path: Path) -> None:
    metadata = pickle.loads(theirs)
    metadata.storage_meta = Touch(tmp_path / "ran")
    data = pickle.dumps(metadata)

    with pytest.raises(UntrustedError):
        load_index(data, "here")
    names = [item.name for item in load_index(data, "here", trust=True)]

    assert names == ["model.w", "optim.param_groups.0.lr"]
    assert (tmp_path / "ran").is_dir()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"not a pickle",
        b"\x80\x02]q\x00.",
        OURS[:-1],
        b"\x80\x04r\xff\xff\xff\xff.",  # a memo of 4 billion entries
        b"\x80\x02K\x01r\xff\xff\xff\xff.",
        b"\x80\x04" + b")\x85" * 100_000 + b"K\x01s.",  # hashing this overflows the stack
        b"\x80\x04}" + b")" + b"\x85" * 200_000 + b"K\x01s.",
        b"\x80\x04\x8b\x00\x00\x00\x7f.",  # a number of 2 GB
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x04\x82\x01.",  # an extension of copyreg
        b"\x80\x02ctorch\nSize\n)\x81N(U\x08__call__Nu\x86b.",
        pickle.dumps({"a": 1}),
        pickle.dumps(torch.Size((1, 2))),
    ],
    ids=lambda data: repr(data[:24]),
)
def test_what_is_no_index_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError, match=r"^here is damaged: it is no index of torch"):
        load_index(data, "here")


def test_an_entry_outside_of_the_checkpoint_is_refused() -> None:
    (item,) = ITEMS[1:]
    elsewhere = Chunk(file="../../etc/passwd", offset=0, length=12)

    with pytest.raises(DamagedError):
        load_index(
            dump_index([Item(name="x", path=("x",), kind="object", chunks=(elsewhere,))]), "x"
        )
    assert item.chunks[0].file == "__0_1.distcp"


OPCODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
EDITS = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(0, 3), st.binary(max_size=8)), max_size=6
)


@given(st.booleans(), EDITS)
@settings(max_examples=400)
def test_a_mutated_index_never_raises_anything_else(
    theirs: bytes, is_ours: bool, edits: list[tuple[int, int, bytes]]
) -> None:
    data = bytearray(OURS if is_ours else theirs)
    for at, drop, put in edits:
        at %= len(data)
        data[at : at + drop] = put

    check(bytes(data))


@given(st.lists(st.sampled_from(OPCODES) | st.binary(max_size=6), max_size=40))
@settings(max_examples=400)
def test_random_operations_never_raise_anything_else(parts: list[bytes]) -> None:
    check(b"\x80\x04" + b"".join(parts) + b".")


NAMES = [b"cposix\nsystem\n", b"cbuiltins\neval\n", b"cbuiltins\ngetattr\n", b"cos\nmkdir\n",
         b"ctorch\nSize\n", b"ctorch.distributed.checkpoint.metadata\nMetadata\n",
         b"ctorch.distributed.checkpoint.metadata\nMetadata.__init__\n"]  # fmt: skip
ACTS = [b"R", b"\x81", b"b", b"o", b")", b"(", b"t", b"\x85", b"\x86", b"}", b"]", b"u", b"s", b"e",
        b"a", b"0", b"2", b"X\x04\x00\x00\x00true", b"N", b"q\x01", b"h\x01", b"\x93"]  # fmt: skip


@given(st.lists(st.sampled_from(NAMES + ACTS), max_size=30))
@settings(max_examples=400)
def test_hostile_calls_are_never_made(
    parts: list[bytes],
) -> None:
    check(b"\x80\x04" + b"".join(parts) + b".")


def check(data: bytes) -> None:
    """Read it: an answer or one class of error, and nothing is imported or changed."""
    before = dict(vars(Metadata))
    try:
        items = load_index(data, "here")
    except DamagedError:
        pass
    else:
        assert all(type(item.name) is str for item in items)
    assert dict(vars(Metadata)) == before


def test_a_published_index_tells_what_the_manifest_tells(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    manifest = save(storage, state=contents())

    found = load_index(storage.read(f"{manifest.name}/.metadata"), "here")

    def told(items: tuple[Item, ...]) -> list[Any]:
        return sorted(
            (i.name, i.path, i.dtype, i.shape, [(c.file, c.offset, c.offsets) for c in i.chunks])
            for i in items
        )

    assert told(found) == told(manifest.items)
