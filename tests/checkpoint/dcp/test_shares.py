"""A checkpoint exists all at once or not at all."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.checkpoint.faulty import CrashError, FaultyStorage, Fuse
from tests.checkpoint.reading import nested, newest
from tests.checkpoint.states import contents, differing, save

from pliant.checkpoint import catalogue
from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.layout import Piece, name_of
from pliant.checkpoint.dcp.read import load, open_checkpoint
from pliant.checkpoint.dcp.shares import (
    NotAllowedError,
    present,
    publish,
    write_piece,
    write_share,
)
from pliant.checkpoint.failures import DamagedError, MissingError, StoppedError
from pliant.checkpoint.store.base import Data
from pliant.checkpoint.store.directory import LocalStorage
from pliant.core.errors import ConfigError
from pliant.engine.local_tensors import TensorPart


@pytest.mark.parametrize("num_shares", [1, 2, 3, 4, 5])
def test_what_any_number_of_members_wrote_is_read_back_to_the_byte(
    tmp_path: Path, num_shares: int
) -> None:
    storage = LocalStorage(str(tmp_path))
    state = contents(rows=20_000)

    manifest = save(storage, state=state, num_shares=num_shares)

    found = load(open_checkpoint(storage, manifest.name))
    assert differing(found, state) == []
    assert len(manifest.files) == num_shares + 1
    assert manifest.versions["torch"] == torch.__version__


def in_parts(state: Contents, count: int, place: int) -> Contents:
    """Return what one of so many workers has: of some tensors a part along an axis."""
    tensors, parts = dict(state.tensors), {}
    for name, axis in {"model.linear.weight": 0, "model.turned": 1, "model.empty": 0}.items():
        whole = tensors[name]
        size = -(-whole.shape[axis] // count)
        first = min(place * size, whole.shape[axis])
        last = min(first + size, whole.shape[axis])
        tensors[name] = whole.narrow(axis, first, last - first)
        begins = [0] * whole.dim()
        begins[axis] = first
        parts[name] = TensorPart(
            shape=tuple(whole.shape),
            begins=tuple(begins),
            sizes=tuple(tensors[name].shape),
            is_first=whole.numel() > 0 or place == 0,
        )
    return replace(state, tensors=tensors, parts=parts, num_workers=count)


@pytest.mark.parametrize(("count", "others"), [(2, 3), (3, 2), (4, 1), (1, 4), (6, 6)])
def test_what_workers_have_in_parts_is_read_in_other_parts(
    tmp_path: Path, count: int, others: int
) -> None:
    storage = LocalStorage(str(tmp_path))
    state = contents(rows=41)
    name = name_of(500, 1)
    for replica in range(2):
        for place in range(count):
            write_share(
                storage,
                name,
                in_parts(state, count, place),
                rank=replica * count + place,
                num_shares=2 * count,
                generation=3,
            )
    publish(storage, name, generation=3, num_shares=2 * count, job="gpt")

    assert differing(load(open_checkpoint(storage, name)), state) == []
    for place in range(others):
        theirs = in_parts(state, others, place)
        into = {name: torch.empty_like(tensor) for name, tensor in theirs.tensors.items()}
        found = load(open_checkpoint(storage, name), into=into, parts=theirs.parts)
        assert differing(found, theirs) == []


def test_a_part_of_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    name = save(storage, state=contents(rows=41)).name
    theirs = in_parts(contents(rows=40), 2, 1)

    with pytest.raises(ConfigError, match=r"is float32 \[41, 7\] in .* and float32 \[40, 7\] here"):
        load(open_checkpoint(storage, name), into=dict(theirs.tensors), parts=theirs.parts)


def test_shares_of_another_generation_do_not_count(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    name = name_of(500, 1)
    for rank in range(2):
        write_share(storage, name, contents(), rank=rank, num_shares=3, generation=3)
    write_share(storage, name, contents(), rank=0, num_shares=1, generation=4)

    assert present(storage, name, generation=3) == {0, 1}
    assert present(storage, name, generation=4) == {0}
    with pytest.raises(MissingError, match=r"share-3-2\.json cannot be read: it does not exist"):
        publish(storage, name, generation=3, num_shares=3, job="gpt")
    publish(storage, name, generation=4, num_shares=1, job="gpt")


def test_a_late_writer_of_an_older_generation_cannot_damage_what_is_published(
    tmp_path: Path,
) -> None:
    storage = LocalStorage(str(tmp_path))
    name = save(storage, num_shares=2, generation=4).name

    write_share(storage, name, contents(99), rank=0, num_shares=2, generation=3)

    assert catalogue.verify(storage, name).is_sound
    assert differing(load(open_checkpoint(storage, name)), contents(500)) == []


def test_members_that_hold_different_states_publish_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    name = name_of(500, 1)
    other = contents(rows=41)
    write_share(storage, name, contents(), rank=0, num_shares=2, generation=3)
    write_share(storage, name, other, rank=1, num_shares=2, generation=3)

    with pytest.raises(DamagedError, match="its shares are parts of different states"):
        publish(storage, name, generation=3, num_shares=2, job="gpt")
    assert catalogue.listed(storage) == []


def test_a_share_that_has_shrunk_since_is_not_published(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    name = name_of(500, 1)
    write_share(storage, name, contents(), rank=0, num_shares=1, generation=3)
    data = tmp_path / name / "__0_3.distcp"
    size = data.stat().st_size
    data.write_bytes(data.read_bytes()[:100])

    with pytest.raises(DamagedError, match=f"is damaged: 100 of {size} bytes are there"):
        publish(storage, name, generation=3, num_shares=1, job="gpt")
    assert catalogue.listed(storage) == []


def test_a_share_that_an_earlier_run_left_is_not_published(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    name = name_of(500, 1)
    write_share(storage, name, contents(99), rank=1, num_shares=2, generation=1, run="killed")
    write_share(storage, name, contents(), rank=0, num_shares=2, generation=1, run="new")

    with pytest.raises(DamagedError, match="it is the record of another share"):
        publish(storage, name, generation=1, num_shares=2, job="gpt", run="new")
    write_share(storage, name, contents(), rank=1, num_shares=2, generation=1, run="new")
    publish(storage, name, generation=1, num_shares=2, job="gpt", run="new")
    assert catalogue.verify(storage, name).is_sound


def test_what_has_lost_a_file_is_published_again(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    name = save(storage, num_shares=2, generation=4).name
    (tmp_path / name / "__1_4.distcp").unlink()

    write_share(storage, name, contents(), rank=0, num_shares=1, generation=5)
    publish(storage, name, generation=5, num_shares=1, job="gpt")

    assert catalogue.verify(storage, name).is_sound


def test_publishing_again_changes_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    first = save(storage)

    again = publish(storage, first.name, generation=9, num_shares=1, job="other")

    assert again == first


def test_whoever_lost_the_lease_publishes_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    name = name_of(500, 1)
    write_share(storage, name, contents(), rank=0, num_shares=1, generation=3)

    with pytest.raises(NotAllowedError, match="is not published: another job holds its root"):
        publish(storage, name, generation=3, num_shares=1, job="gpt", allowed=lambda: False)
    assert catalogue.listed(storage) == []


def test_a_write_stops_when_it_is_told_to(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    asked = iter([False, False, True])

    with pytest.raises(StoppedError, match="the write of step-00000500-l1 was stopped"):
        write_share(
            storage,
            name_of(500, 1),
            contents(),
            rank=0,
            num_shares=1,
            generation=3,
            stop=lambda: next(asked),
        )
    assert present(storage, name_of(500, 1), generation=3) == frozenset()


def test_a_share_that_is_written_again_does_not_count_meanwhile(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    name = name_of(500, 1)
    write_share(storage, name, contents(), rank=0, num_shares=1, generation=3)

    with pytest.raises(StoppedError):
        write_share(
            storage, name, contents(), rank=0, num_shares=1, generation=3, stop=lambda: True
        )
    assert present(storage, name, generation=3) == frozenset()


def test_tied_weights_are_written_once_and_read_under_both_names(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    manifest = save(storage, aliases={"model.head.weight": "model.linear.weight"})

    found = load(open_checkpoint(storage, manifest.name))

    assert torch.equal(found["model.head.weight"], found["model.linear.weight"])
    written = sum((tmp_path / manifest.name / f.name).stat().st_size for f in manifest.files)
    assert manifest.num_bytes == written


def test_a_piece_is_written_from_the_tensors_own_memory() -> None:
    tensor = torch.randn(100, 50)
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    large = []

    class Out:
        def write(self, data: Data, /) -> int:
            if len(data) > 1000:
                address = np.frombuffer(data, dtype=np.uint8).ctypes.data
                large.append((address >= start and address + len(data) <= end, len(data)))
            return len(data)

        def flush(self) -> None:
            pass

    write_piece(tensor[Piece("x", (20, 0), (30, 50)).box()], Out())

    assert large == [(True, 30 * 50 * 4)]


def test_items_can_be_had_as_plain_torch_nests_them(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    checkpoint = open_checkpoint(storage, save(storage).name)

    found = nested(checkpoint, load(checkpoint))

    assert found["optim"]["param_groups"] == [{"lr": 0.125, "betas": (0.9, 0.999)}]
    assert list(found["optim"]["state"]["linear.weight"]) == ["exp_avg"]


def few(committed: int) -> Contents:
    tensors = {f"model.{n}": torch.full((3, n + 1), float(committed)) for n in range(3)}
    return Contents(tensors=tensors, objects={"pliant.document": b"x"})


def next_save(storage: FaultyStorage) -> None:
    """What a job does after its first checkpoint: write, publish, prune, sweep."""
    save(storage, 600, state=few(600))
    catalogue.prune(storage, keep=1, known_sound=["step-00000600-l1"])
    catalogue.sweep(storage)


def operations(directory: Path) -> int:
    inner = LocalStorage(str(directory))
    save(inner, 500, state=few(500))
    fuse = Fuse()
    next_save(FaultyStorage(inner, fuse))
    return fuse.count


@pytest.mark.timeout(120)
def test_a_crash_at_any_operation_leaves_a_checkpoint_that_verifies(tmp_path: Path) -> None:
    total = operations(tmp_path / "counted")
    assert total > 25
    found = set()
    for moment in range(total):
        inner = LocalStorage(str(tmp_path / str(moment)))
        save(inner, 500, state=few(500))

        with pytest.raises(CrashError):
            next_save(FaultyStorage(inner, Fuse(blows_at=moment)))

        assert [one.damage for one in catalogue.listed(inner) if one.damage] == []
        kept = newest(inner)
        assert differing(load(open_checkpoint(inner, kept.name)), few(kept.committed)) == []
        next_save(FaultyStorage(inner, Fuse()))  # and the job goes on
        (left,) = catalogue.listed(inner)
        assert catalogue.verify(inner, left.name).is_sound
        assert {e.name for e in inner.entries()} == {"step-00000600-l1"}
        found.add(kept.committed)
    assert found == {500, 600}


WRITER = """
import sys, torch
from pliant.checkpoint.store.directory import LocalStorage
from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.shares import publish, write_share
from pliant.checkpoint.dcp.layout import name_of
from pliant.checkpoint import catalogue
storage = LocalStorage(sys.argv[1])
print("ready", flush=True)
for committed in range(1, 10_000):
    tensors = {f"model.{n}": torch.full((100, 100), float(committed)) for n in range(20)}
    name = name_of(committed, 1)
    write_share(storage, name, Contents(tensors=tensors), rank=0, num_shares=1, generation=1)
    publish(storage, name, generation=1, num_shares=1, job="gpt")
    catalogue.prune(storage, keep=1, known_sound=[name])
    print(committed, flush=True)
"""


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_killed_writer_leaves_what_it_last_published(tmp_path: Path) -> None:
    for wait_for in (1, 4):
        root = tmp_path / str(wait_for)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            said = 0
            for line in writer.stdout:
                said = int(line) if line.strip().isdigit() else 0
                if said == wait_for:
                    break
            writer.send_signal(signal.SIGKILL)
            said = max([said, *(int(line) for line in writer.stdout if line.strip().isdigit())])

        storage = LocalStorage(str(root))
        kept = newest(storage)

        assert kept.committed in (said, said + 1)
        values = load(open_checkpoint(storage, kept.name))
        assert all(bool((t == kept.committed).all()) for t in values.values())
        catalogue.sweep(storage)
        assert all(catalogue.verify(storage, e.name).is_sound for e in storage.entries())


def test_objects_alone_make_a_checkpoint(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    state = Contents(tensors={}, objects={"pliant.document": b"x"})

    name = save(storage, state=state, num_shares=3).name

    assert load(open_checkpoint(storage, name)) == {"pliant.document": b"x"}
