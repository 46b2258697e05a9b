"""A shared pool is told from a private one by what its owner did, whatever the umask was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.machine.device_locks import take_device
from pliant.machine.discovery import StateDirectory
from pliant.machine.files import is_shared_directory
from pliant.machine.granted_locks import make_entered
from pliant.machine.shared_pools import pool_place


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o750, 0o755, 0o770, 0o775])
def test_a_private_pools_directory_of_any_mode_is_private(tmp_path: Path, mode: int) -> None:
    """Made by hand, or under another umask."""
    directory = tmp_path / "default"
    directory.mkdir()
    directory.chmod(mode)

    assert not is_shared_directory(directory)
    lock = take_device(directory, 3, claim="gpt")
    assert lock is not None
    lock.release()


@pytest.mark.parametrize("mode", [0o710, 0o750, 0o755, 0o777])
def test_a_shared_pools_directory_stays_one_if_its_mode_is_changed(
    tmp_path: Path, mode: int
) -> None:
    """Else two processes could use one device: each takes it in another way."""
    state = StateDirectory(tmp_path / "state", shared_pools=tmp_path)
    make_entered(tmp_path / "ml", os.getegid())
    (tmp_path / "ml").chmod(mode)

    assert pool_place("ml", state) == tmp_path
    assert take_device(tmp_path / "ml", 3, claim="gpt", within_s=0) is None  # not granted


def test_one_that_an_older_version_made_for_a_group_is_still_shared(tmp_path: Path) -> None:
    tmp_path.chmod(0o710)

    assert is_shared_directory(tmp_path)
