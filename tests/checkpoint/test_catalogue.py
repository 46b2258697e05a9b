"""What is damaged is found and named; what may go is removed, and never the last that is whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.checkpoint.reading import newest
from tests.checkpoint.states import contents, plain_save, save

from pliant.checkpoint import catalogue
from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.manifest import Manifest
from pliant.checkpoint.dcp.read import load, open_checkpoint
from pliant.checkpoint.dcp.shares import write_share
from pliant.checkpoint.failures import DamagedError, MissingError
from pliant.checkpoint.store.directory import LocalStorage
from pliant.core.errors import ConfigError


@pytest.fixture
def root(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def owner(manifest: Manifest, file: str, at: int) -> str | None:
    """Return the item that a byte of a file belongs to."""
    for item in manifest.items:
        for chunk in item.chunks:
            if chunk.file == file and chunk.offset <= at < chunk.offset + chunk.length:
                return item.name
    return None


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_byte_anywhere_is_found_and_its_tensor_named(
    root: LocalStorage, tmp_path: Path, data: st.DataObject
) -> None:
    root.remove("")
    manifest = save(root)
    directory = tmp_path / manifest.name
    files = sorted(path.name for path in directory.iterdir() if path.suffix != ".json")
    file = data.draw(st.sampled_from([*files, layout.MANIFEST]))
    at = data.draw(st.integers(0, (directory / file).stat().st_size - 1))

    flip(directory / file, at)

    verdict = catalogue.verify(root, manifest.name)
    assert not verdict.is_sound
    named = owner(manifest, file, at)
    if named is not None:
        assert [sentence.partition(" is ")[0] for sentence in verdict.damage] == [named]
        with pytest.raises(DamagedError, match=named.replace(".", r"\.")):
            load(open_checkpoint(root, manifest.name))
    assert file in verdict.damage[0]


def test_a_file_that_is_gone_names_what_it_held(root: LocalStorage, tmp_path: Path) -> None:
    name = save(root).name
    (tmp_path / name / "__1_3.distcp").unlink()

    verdict = catalogue.verify(root, name)

    assert len(verdict.damage) == 1
    assert verdict.damage[0].startswith(f"{tmp_path}/{name}/__1_3.distcp is missing, and with it ")
    (one,) = catalogue.listed(root)
    assert one.damage == f"{tmp_path}/{name}/__1_3.distcp is missing"


def test_a_short_file_is_found_without_reading_it(root: LocalStorage, tmp_path: Path) -> None:
    name = save(root).name
    path = tmp_path / name / "__0_3.distcp"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])

    (one,) = catalogue.listed(root)
    verdict = catalogue.verify(root, name)

    assert one.damage == f"{path} is damaged: it has {size - 1} bytes instead of {size}"
    assert verdict.damage[0] == one.damage
    assert f"ends at byte {size - 1}" in verdict.damage[1]


def test_a_damaged_index_for_plain_torch_is_damage(root: LocalStorage, tmp_path: Path) -> None:
    name = save(root).name
    flip(tmp_path / name / ".metadata", 10)

    damage = catalogue.verify(root, name).damage

    assert damage == (f"{tmp_path}/{name}/.metadata is damaged: its digest does not match",)


def test_all_that_were_published_are_listed_newest_first(
    root: LocalStorage, tmp_path: Path
) -> None:
    save(root, 900, lineage=1)
    save(root, 500, lineage=2)
    save(root, 600, lineage=2)
    save(root, 700, lineage=2)
    write_share(
        root, layout.name_of(800, 2), contents(), rank=0, num_shares=2, generation=3
    )  # never published
    flip(tmp_path / "step-00000700-l2" / "__0_3.distcp", 3000)
    (tmp_path / "step-00000600-l2" / "__1_3.distcp").unlink()

    assert newest(root).name == "step-00000500-l2"
    names = ["step-00000700-l2", "step-00000600-l2", "step-00000500-l2", "step-00000900-l1"]
    assert [one.name for one in catalogue.listed(root)] == names


def test_prune_keeps_the_newest_and_the_milestones(root: LocalStorage) -> None:
    for committed in (100, 200, 300, 400, 500):
        save(root, committed)

    assert catalogue.prune(root, keep=1, milestones=200, dry_run=True) == [
        "step-00000100-l1",
        "step-00000300-l1",
    ]
    assert catalogue.prune(root, keep=2, milestones=[100]) == [
        "step-00000200-l1",
        "step-00000300-l1",
    ]
    assert [one.committed for one in catalogue.listed(root)] == [500, 400, 100]
    with pytest.raises(ConfigError, match="keep=0 must be at least 1"):
        catalogue.prune(root, keep=0)
    with pytest.raises(ConfigError, match="milestones=0 must be at least 1"):
        catalogue.prune(root, keep=1, milestones=0)


def test_prune_never_removes_the_newest_that_verifies(root: LocalStorage, tmp_path: Path) -> None:
    for committed in (100, 200, 300, 400):
        save(root, committed)
    for committed in (300, 400):
        flip(tmp_path / layout.name_of(committed, 1) / "__0_3.distcp", 3000)

    removed = catalogue.prune(root, keep=2)

    assert removed == ["step-00000100-l1"]
    assert newest(root).committed == 200


def test_prune_removes_nothing_if_nothing_verifies(root: LocalStorage, tmp_path: Path) -> None:
    for committed in (100, 200):
        save(root, committed)
        flip(tmp_path / layout.name_of(committed, 1) / "__0_3.distcp", 3000)

    assert catalogue.prune(root, keep=1) == []


def test_sweep_removes_what_was_never_finished_and_nothing_else(
    root: LocalStorage, tmp_path: Path
) -> None:
    name = save(root).name
    for committed in (600, 700):
        write_share(
            root, layout.name_of(committed, 1), contents(), rank=0, num_shares=2, generation=3
        )
    (tmp_path / name / "__5_2.distcp").touch()
    (tmp_path / ".lease.json.12ab.new").touch()
    os.utime(tmp_path / ".lease.json.12ab.new", (0, 0))
    (tmp_path / ".place.34cd.new").touch()  # of a process that is about to rename it
    (tmp_path / "notes.txt").touch()
    (tmp_path / "my-model").mkdir()

    removed = catalogue.sweep(root, sparing=["step-00000700-l1"])

    assert sorted(removed) == [
        ".lease.json.12ab.new",
        f"{name}/__5_2.distcp",
        f"{name}/share-3-0.json",
        f"{name}/share-3-1.json",
        "step-00000600-l1",
    ]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {name, "step-00000700-l1", "notes.txt", "my-model", ".place.34cd.new"}
    assert catalogue.verify(root, name).is_sound


def test_a_foreign_checkpoint_is_verified_as_far_as_that_goes(
    root: LocalStorage, tmp_path: Path
) -> None:
    plain_save({"model": {"w": torch.ones(30, 20)}}, tmp_path / "theirs")
    (data,) = (tmp_path / "theirs").glob("*.distcp")

    assert catalogue.verify(root, "theirs").is_sound
    data.write_bytes(data.read_bytes()[:-100])
    verdict = catalogue.verify(root, "theirs")

    assert "model.w is damaged" in verdict.damage[0]
    with pytest.raises(MissingError):
        catalogue.verify(root, "nowhere")


def test_tensors_are_filled_in_place_or_refused_by_name(root: LocalStorage) -> None:
    state = contents()
    checkpoint = open_checkpoint(root, save(root, state=state).name)
    mine = torch.zeros(40, 7)

    found = load(checkpoint, ["model.linear.weight"], into={"model.linear.weight": mine})

    assert found["model.linear.weight"].data_ptr() == mine.data_ptr()
    assert torch.equal(mine, state.tensors["model.linear.weight"])
    with pytest.raises(
        ConfigError, match=r"model\.linear\.bias is bfloat16 \[7\] in .* float32 \["
    ):
        load(checkpoint, ["model.linear.bias"], into={"model.linear.bias": torch.zeros(7)})
    with pytest.raises(ConfigError, match=r"step-00000500-l1 holds no model\.other"):
        load(checkpoint, ["model.other"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_large_tensors_fill_any_target_from_memory_that_is_not_aligned(
    root: LocalStorage, dtype: torch.dtype
) -> None:
    wanted = (torch.randn(3000, 100) * 3).to(dtype)
    tensors = {"model.a": torch.ones(3, dtype=torch.uint8), "model.b": wanted}
    name = save(root, state=Contents(tensors=tensors), num_shares=3).name
    checkpoint = open_checkpoint(root, name)
    turned = torch.empty(100, 3000, dtype=dtype).t()

    assert all(chunk.memory for chunk in checkpoint.items["model.b"].chunks)
    load(checkpoint, into={"model.b": turned})
    fresh = load(checkpoint)["model.b"]

    assert torch.equal(turned, wanted)
    assert torch.equal(fresh, wanted)


def test_an_unfinished_checkpoint_cannot_be_opened(root: LocalStorage) -> None:
    write_share(root, "step-00000500-l1", contents(), rank=0, num_shares=2, generation=3)

    with pytest.raises(ConfigError, match=r"was never finished: it has no pliant\.json"):
        open_checkpoint(root, "step-00000500-l1")
