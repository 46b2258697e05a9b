"""A register as a coordinator of one host has it."""

from __future__ import annotations

from pathlib import Path

from pliant.coordinator.register import StoredRegister
from pliant.coordinator.register_places import LockedFile


class RegisterFile(StoredRegister):
    """In one file below a lock."""

    def __init__(self, path: Path) -> None:
        super().__init__(LockedFile(path))
