"""Breaks a real disk under a checkpoint root, in a mount namespace of its own.

    unshare --mount python broken_disk.py DIRECTORY

Mounts a small tmpfs, fills it, remounts it read-only, and takes the permission to write away from a
process that is not root.  Prints one line of JSON: what each save said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from pliant.checkpoint import catalogue
from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.shares import publish, write_share
from pliant.checkpoint.failures import StorageError
from pliant.checkpoint.store.directory import LocalStorage


def save(storage: LocalStorage, committed: int, *, kilobytes: int) -> str:
    name = layout.name_of(committed, 1)
    tensors = {f"model.{n}": torch.ones(kilobytes * 64) for n in range(4)}
    try:
        contents = Contents(tensors=tensors)
        write_share(storage, name, contents, rank=0, num_shares=1, generation=1)
        publish(storage, name, generation=1, num_shares=1, job="gpt")
    except StorageError as error:
        return f"{error.kind.name}: {error}"
    return "saved"


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def as_nobody(storage: LocalStorage, root: Path) -> str:
    """Save in a child that is not root, after the permission to write is gone."""
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.setuid(65534)
        os.write(writable, save(storage, 300, kilobytes=100).encode())
        os._exit(0)
    os.close(writable)
    os.wait()
    with os.fdopen(readable) as said:
        return said.read()


def main() -> None:
    root = Path(sys.argv[1])
    mount("-t", "tmpfs", "-o", "size=2m,mode=755", "none", str(root))
    storage = LocalStorage(str(root))
    said = {"before": save(storage, 100, kilobytes=200), "full": save(storage, 200, kilobytes=4000)}
    said["swept"] = " ".join(catalogue.sweep(storage))
    said["after"] = save(storage, 201, kilobytes=100)
    said["denied"] = as_nobody(storage, root)
    mount("-o", "remount,ro", str(root))
    said["read_only"] = save(storage, 400, kilobytes=100)
    sound = (
        n.name for n in catalogue.listed(storage) if catalogue.verify(storage, n.name).is_sound
    )
    said["newest"] = next(sound, "")
    print(json.dumps(said))


if __name__ == "__main__":
    main()
