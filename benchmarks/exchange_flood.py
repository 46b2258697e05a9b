"""How long members take to meet while strangers flood their ports; for ``benchmarks.exchange``.

All members begin at once to build a group; timed is until the last of them has it.  The strangers
are two threads of a program in C (``flood.c``, which needs a compiler) that connect to the ports of
all members as fast as they can: ``silent`` says nothing, ``talk`` says what no member says and
stays, ``close`` and ``reset`` say it and end the connection in an orderly way or with a reset.  The
main thread of each member waits, or computes in pure Python, which gives the interpreter's lock
away only when it is asked to.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks import certificates
from benchmarks.processes import Member
from pliant.engine.comm.group import Group
from pliant.engine.comm.mesh import parse_endpoint
from pliant.engine.comm.rendezvous import Rendezvous
from pliant.engine.comm.transport import SocketTransport
from pliant.engine.reduce.buckets import Layout
from pliant.machine.tls import TlsContexts

KINDS = ("none", "silent", "talk", "close", "reset")
MAIN_THREADS = ("waits", "pure Python")

_SOURCE = Path(__file__).with_name("flood.c")
_BEFORE_S = 0.3
"""For so long strangers flood before anybody meets."""


def compile_flood(folder: Path) -> None:
    """Compile the strangers' program.

    Raises:
        SystemExit: there is no compiler.
    """
    try:
        command = ["cc", "-O2", "-pthread", "-o", str(folder / "flood"), str(_SOURCE)]
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"--flood needs a C compiler called cc: {error}") from None


def measure_flood(member: Member, folder: Path, *, times: int, encrypts: bool) -> None:
    """Run on every rank; rank 0 prints."""
    control = member.group(1)
    tls = certificates.contexts(folder) if encrypts else None
    generation = 2
    if member.rank == 0:
        what = " with TLS" if encrypts else ""
        print(f"W={member.size}, members meet{what} beside a flood, {times} x, ms")
    for main_thread in MAIN_THREADS:
        for kind in KINDS:
            found_s = []
            control.all_gather(torch.zeros(1))
            with _flooded(member, folder, kind):
                for _ in range(times):
                    row = _met(member, control, generation, main_thread, tls)
                    found_s.append(float(row.max()))
                    generation += 1
                control.all_gather(torch.zeros(1))
            if member.rank == 0:
                _report(f"main thread {main_thread}, strangers: {kind}", found_s)


@contextlib.contextmanager
def _flooded(member: Member, folder: Path, kind: str) -> Iterator[None]:
    if kind == "none" or member.rank != 0:
        yield
        return
    ports = [str(parse_endpoint(endpoint)[1]) for endpoint in member.endpoints]
    with subprocess.Popen([str(folder / "flood"), kind, *ports]) as strangers:
        try:
            time.sleep(_BEFORE_S)
            yield
        finally:
            strangers.kill()


def _met(
    member: Member, control: Group, generation: int, main_thread: str, tls: TlsContexts | None
) -> torch.Tensor:
    """Build a group as a worker does, on a thread of its own; return how long that took whom."""
    settings = {**member.settings(generation, Layout.of([])), "tls": tls}
    took_s = [0.0]

    def build() -> None:
        began_at = time.monotonic()
        group = SocketTransport().group(Rendezvous(**settings))
        took_s[0] = time.monotonic() - began_at
        control.all_gather(torch.zeros(1))  # nobody gives it up before all have it
        group.retire()

    control.all_gather(torch.zeros(1))
    builder = threading.Thread(target=build)
    builder.start()
    if main_thread != "waits":
        while builder.is_alive():
            sum(range(100))
    builder.join()
    return control.all_gather(torch.tensor(took_s, dtype=torch.float64))


def _report(what: str, found_s: list[float]) -> None:
    median, most = statistics.median(found_s), max(found_s)
    p90 = sorted(found_s)[int(0.9 * (len(found_s) - 1))]
    print(
        f"  {what:44} median {median * 1e3:7.1f}  p90 {p90 * 1e3:7.1f}  max {most * 1e3:7.1f}",
        flush=True,
    )
