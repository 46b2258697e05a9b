"""A disk that is full, read-only or forbidden: one sentence, and the last checkpoint stays."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkpoint import broken_disk
from tests.checkpoint.reading import newest
from tests.checkpoint.states import contents, save

from pliant.checkpoint.failures import StorageError, Trouble
from pliant.checkpoint.store.directory import LocalStorage


def may_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_a_real_disk_that_breaks_is_told_apart_and_keeps_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    if not may_mount():
        pytest.skip("needs the right to mount in a namespace of its own")
    root = tmp_path / "disk"
    root.mkdir()

    done = subprocess.run(
        ["unshare", "--mount", sys.executable, broken_disk.__file__, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["before"] == said["after"] == "saved"
    assert said["full"].startswith(f"FULL: {root}/step-00000200-l1/__0_1.distcp cannot be written")
    assert said["full"].endswith("the storage is full (No space left on device)")
    assert said["swept"].endswith("step-00000200-l1")
    assert said["denied"].startswith("PERMISSION: ")
    assert said["read_only"].startswith("READ_ONLY: ")
    assert said["newest"] == "step-00000201-l1"
    assert list(root.iterdir()) == []


def test_a_file_that_may_not_grow_is_a_full_storage(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    save(storage, 500)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(StorageError, match="the storage is full") as caught:
            save(storage, 600, state=contents(rows=100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert caught.value.kind is Trouble.FULL
    assert newest(storage).committed == 500


def test_a_place_that_is_a_file_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "root").touch()

    with pytest.raises(StorageError, match=r"cannot be written: .*(Not a directory|File exists)"):
        save(LocalStorage(str(tmp_path / "root")))
