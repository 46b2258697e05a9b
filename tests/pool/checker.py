"""Watches from outside that no device is used by two at a time.

    python tests/pool/checker.py LOCKS BEATS REPORT     until its standard input is closed

It believes nobody: it reads the beats of those who use devices (``witness.py``), and looks through
``/proc`` for who shares the lock of each device.  Violations are

    two beat on one device in turns;
    someone goes on beating after it was seen that others share the device's lock, and it does not;
    the processes that share a lock have not got it from one taker.
"""

from __future__ import annotations

import json
import select
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pliant.machine.device_locks import holders

LOOK_S = 0.05
FRESH_S = 0.2
"""A beat that is younger is of someone who uses the device now, in seconds."""


@dataclass
class Device:
    """What was seen on one device."""

    number: int
    offset: int = 0
    users: list[int] = field(default_factory=list)
    """In the order in which they began; the last one has it."""

    beat_at: float = 0.0
    suspect: tuple[int, float] | None = None
    """Who did not share the lock, and when that was seen: it may have been dying."""


@dataclass
class Report:
    """What was seen in all."""

    looks: int = 0
    beats: int = 0
    changes: int = 0
    """How often a device passed from one user to another."""

    violations: list[str] = field(default_factory=list)


def read(device: Device, path: Path, report: Report) -> None:
    """Take up new beats; one of an earlier user after one of a later is a violation."""
    try:
        with path.open("rb") as file:
            file.seek(device.offset)
            data = file.read()
    except FileNotFoundError:
        return
    whole, _, _ = data.rpartition(b"\n")
    device.offset += len(whole) + 1 if whole else 0
    for line in whole.splitlines():
        pid, at = int(line.split()[0]), float(line.split()[1])
        report.beats += 1
        device.beat_at = max(device.beat_at, at)
        if device.suspect is not None and device.suspect[0] == pid and at > device.suspect[1]:
            report.violations.append(f"device {device.number}: {pid} beats without the lock")
            device.suspect = None
        if pid in device.users[:-1]:
            report.violations.append(f"device {device.number}: {pid} and {device.users[-1]} beat")
        elif not device.users or device.users[-1] != pid:
            device.users.append(pid)
            report.changes += 1


def look(device: Device, locks: Path, report: Report) -> None:
    """Compare who beats now with who shares the lock."""
    sharing = holders(locks, device.number)
    takers = {holder.taker for holder in sharing} - {0}
    if len(takers) > 1:
        report.violations.append(f"device {device.number}: taken by {sorted(takers)}")
    pids, now = {holder.pid for holder in sharing}, time.monotonic()
    if pids and now - device.beat_at < FRESH_S and device.users[-1] not in pids:
        device.suspect = (device.users[-1], now)


def main() -> None:
    locks, beats, out = (Path(word) for word in sys.argv[1:])
    devices, report = [Device(number) for number in range(64)], Report()
    while not select.select([0], [], [], LOOK_S)[0]:
        for device in devices:
            if (locks / f"{device.number}.lock").exists():
                read(device, beats / f"{device.number}.beats", report)
                look(device, locks, report)
        report.looks += 1
    for device in devices:
        read(device, beats / f"{device.number}.beats", report)
    out.write_text(json.dumps(report.__dict__))


if __name__ == "__main__":
    main()
