"""A mesh is over the workers of this replica, and says so where it cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.live.prompt import run_together, run_typed

import pliant
from pliant.core.errors import ConfigError
from pliant.engine.worker import bootstrap

CONTEXT = Path(__file__).with_name("context.py")


@pytest.fixture
def two_workers() -> Iterator[None]:
    assignment = SimpleNamespace(workers_per_replica=2, place=0, inner="")
    context: Any = SimpleNamespace(assignment=assignment)
    bootstrap.set_context(context)
    yield
    bootstrap.set_context(None)


@pytest.mark.usefixtures("two_workers")
def test_sizes_that_do_not_fit_are_told_with_both_numbers() -> None:
    with pytest.raises(ConfigError) as refused:
        pliant.mesh(shard=2, tp=2)

    assert str(refused.value) == (
        "pliant.mesh(shard=2, tp=2) is of 4 workers, and a replica of this job has 2; say other "
        "sizes, or --workers-per-replica 4"
    )


def test_a_mesh_has_dimensions() -> None:
    with pytest.raises(ConfigError, match="takes the size of each dimension"):
        pliant.mesh()


@pytest.mark.usefixtures("two_workers")
def test_a_dimension_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        pliant.mesh(ep=2)

    assert str(refused.value) == (
        "pliant.mesh(ep=2): 'ep' is not possible yet; the dimensions of a mesh are shard, tp and pp"
    )


@pytest.mark.usefixtures("two_workers")
def test_the_copies_of_a_model_are_replicas() -> None:
    with pytest.raises(ConfigError) as refused:
        pliant.mesh(replicate=2, shard=1)

    assert str(refused.value) == (
        "pliant.mesh(replicate=2, shard=1): 'replicate' would be copies of the model, and those "
        "are the replicas of the job; leave it out, and say how many with --max"
    )


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("two_workers")
def test_context_parallelism_is_refused_as_long_as_torch_has_none_on_the_cpu(
    tmp_path: Path,
) -> None:
    """What torch says on two processes of a CPU is the reason; once it works, this fails."""
    with pytest.raises(ConfigError) as refused:
        pliant.mesh(cp=2)

    assert str(refused.value) == (
        "pliant.mesh(cp=2): context parallelism is not possible on the CPU, for which PyTorch's "
        "context_parallel has no attention; the dimensions of a mesh are shard, tp and pp"
    )
    commands = [(CONTEXT, tmp_path, rank) for rank in (0, 1)]
    both = run_together(*commands, cwd=tmp_path, environment=os.environ)
    said = [process.stdout for process in both]
    assert [text.partition(":")[0] for text in said] == ["failed"] * 2, said


@pytest.mark.parametrize("size", [0, -1, 1.0, True])
def test_a_size_is_a_positive_integer(size: Any) -> None:
    with pytest.raises(ConfigError, match="every size is an integer of at least 1"):
        pliant.mesh(shard=size)


def test_alone_what_changes_bits_needs_its_workers() -> None:
    with pytest.raises(ConfigError, match=r"pliant.mesh\(shard=2, tp=2\) needs 4 workers"):
        pliant.mesh(shard=2, tp=2)


def test_a_mesh_is_of_the_device_that_a_worker_has() -> None:
    with pytest.raises(ConfigError) as refused:
        pliant.mesh("meta", shard=1)

    assert str(refused.value) == (
        "pliant.mesh(meta, ...) asks for another kind of device than pliant.device(), which is "
        "cpu; leave the device out"
    )


def test_a_script_that_runs_alone_has_a_mesh_of_one(tmp_path: Path) -> None:
    code = (
        "import pliant; mesh = pliant.mesh(shard=4); assert mesh is pliant.mesh(shard=2)\n"
        "print(tuple(mesh.shape), mesh.mesh_dim_names, mesh['shard'].size())\n"
        "try: pliant.mesh(other=1)\n"
        "except ValueError as error: print(error)"
    )
    (tmp_path / "train.py").write_text(code)
    done = run_typed("train.py", cwd=tmp_path, environment=os.environ)

    assert done.stdout.splitlines() == [
        "(1,) ('shard',) 1",
        "pliant.mesh was called twice with different sizes; a replica has one",
    ], done.stderr
