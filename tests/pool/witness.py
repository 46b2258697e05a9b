"""Says of its own accord which devices it uses, and when: what a checker compares.

    python tests/pool/witness.py DIRECTORY     until SIGTERM; devices from PLIANT_DEVICES

Every beat is one line ``pid monotonic-seconds`` in ``DIRECTORY/<device>.beats``, written by whoever
uses the device.  Neither the pool nor a lock has a part in it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

BEAT_S = 0.02


def beat(directory: Path) -> None:
    """Write beats of this process's devices, in a thread, until it dies."""
    devices = os.environ["PLIANT_DEVICES"].split(",")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    files = [os.open(directory / f"{device}.beats", flags, 0o600) for device in devices]

    def beating() -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_S):
            line = f"{os.getpid()} {time.monotonic():.4f}\n".encode()
            for file in files:
                os.write(file, line)

    threading.Thread(target=beating, daemon=True).start()


if __name__ == "__main__":
    beat(Path(sys.argv[1]))
    threading.Event().wait()
