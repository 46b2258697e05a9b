"""Looks for secrets where none may be."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

LEAST = 16
"""Consecutive digits of a secret that count as found."""


def traces(secrets: Iterable[str], data: bytes) -> list[str]:
    """Return the secrets of which ``data`` holds a part, as text or as bytes."""
    return [
        secret
        for secret in secrets
        if bytes.fromhex(secret)[:LEAST] in data
        or any(
            secret[at : at + LEAST].encode() in data.lower()
            for at in range(len(secret) - LEAST + 1)
        )
    ]


def traces_in_files(secrets: Iterable[str], directory: Path) -> list[Path]:
    """Return the files below a directory, names included, that hold a part of a secret."""
    known = tuple(secrets)
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if traces(known, bytes(path) + path.read_bytes())]
