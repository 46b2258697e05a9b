"""Where the number of devices comes from, when nobody sets it by hand.

Owns the two sources that change by themselves: a file that somebody writes a number into, and a
trace that is replayed.  Each yields the numbers as they come, and never ends the pool: what cannot
be read is said once and left out.  Decides nothing about who gets the devices.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.spec.trace import Change

LOOK_S = 0.5
"""Between two looks at a watched file, in seconds."""


async def watched(
    path: Path, most: int, log_complaint: Callable[[str], None]
) -> AsyncIterator[int]:
    """Yield the number in a file whenever it changes, ``most`` at most."""
    said, last = "", -1
    while True:
        try:
            devices = await asyncio.to_thread(read_number, path)
        except ConfigError as error:
            if str(error) != said:
                said = str(error)
                log_complaint(f"{said}; the capacity stays as it is")
        else:
            said = ""
            if min(devices, most) != last:
                last = min(devices, most)
                yield last
        await asyncio.sleep(LOOK_S)


async def replayed(
    changes: list[Change], *, time_scale: float, elapsed_s: float = 0.0
) -> AsyncIterator[int]:
    """Yield the numbers of a trace, ``time_scale`` times as fast as they came.

    Args:
        changes: ascending in time.
        time_scale: 60 makes a minute of the trace a second.
        elapsed_s: real seconds since it began, in an earlier life of the pool.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time() - elapsed_s
    past = [change for change in changes if change.at_s / time_scale <= elapsed_s]
    if past:
        yield past[-1].devices
    for change in changes[len(past) :]:
        await asyncio.sleep(began_s + change.at_s / time_scale - loop.time())
        yield change.devices


def read_number(path: Path) -> int:
    """Read the number of devices from a file.

    Raises:
        ConfigError: there is none, or it is no whole number.
    """
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = "binary data"
    if not text.isdecimal() or not math.isfinite(float(text)):
        raise ConfigError(f"{path} holds {text[:40]!r}; expected a number of devices, such as 8")
    return int(text)
