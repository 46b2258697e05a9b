"""Starts hostile neighbours beside what a test does, and tells what they got."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.live.neighbour import Address

NEIGHBOUR = Path(__file__).with_name("neighbour.py")
DEADLINE_S = 30.0
EVERY_WAY = ("idle", "garbage", "half", "wrong", "drip", "burst", "steal")


@dataclass
class Harassment:
    """What neighbours have done; complete when the context has ended."""

    users: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Connections by their ways, and all tries."""

    inputs: list[IO[bytes]] = field(default_factory=list, repr=False)
    """Of the neighbours."""

    heard: bytes = b""
    """Whatever anybody said to them."""

    def point_at(self, address: Address) -> None:
        """Have this address attacked, too."""
        for each in self.inputs:
            each.write(json.dumps(address).encode() + b"\n")
            each.flush()


@contextmanager
def harassed(
    *neighbours: Sequence[str],
    known: Sequence[Address],
    recorded: bytes = b"",
) -> Iterator[Harassment]:
    """Have a neighbour for each sequence of ways (``neighbour.py``) attack for as long as this."""
    found = Harassment()
    words = {
        "known": known,
        "recorded": recorded.hex(),
    }
    started = [
        subprocess.Popen(
            [sys.executable, NEIGHBOUR, json.dumps({"ways": list(ways), **words})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for ways in neighbours
    ]
    try:
        for each in started:
            assert each.stdout is not None
            assert each.stdin is not None
            found.inputs.append(each.stdin)
            found.users.append(each.stdout.readline().decode().strip())
        yield found
        for each in started:
            said = json.loads(each.communicate(timeout=DEADLINE_S)[0])
            found.counts.update(said["counts"])
            found.heard += bytes.fromhex(said["heard"])
    finally:
        for each in started:
            each.kill()
            each.communicate()


def is_another_user(found: Harassment) -> bool:
    """Return whether the neighbours were of another user than this process."""
    return os.getuid() == 0 and set(found.users) == {"nobody"}
