"""How long it takes to leave an exchange whose peer was stopped; for ``benchmarks.exchange``.

Rank 0 and the last rank exchange 40 MB; the last one is stopped (SIGSTOP) in the middle, rank 0
abandons the group.  Timed is until ``abandon`` returns, a thread that waited for the result is
awake, and the communication thread has ended; for other members until they are awake.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time

import torch

from benchmarks.processes import Member
from pliant.engine.comm.communicator import Communicator, GroupBroken
from pliant.engine.comm.group import Group, Ticket

NBYTES = 40_000_000

_BEFORE_S, _STOPPED_S = 0.02, 0.1


def measure_abort(member: Member, times: int) -> None:
    """Run on every rank; rank 0 prints."""
    source = torch.zeros(NBYTES, dtype=torch.uint8)
    targets = [torch.empty_like(source) for _ in range(member.size)]
    control = member.group(1)
    last = member.size - 1
    pid = int(control.all_gather(torch.tensor([os.getpid()]))[last])
    returned_s, ended_s, others_s = [], [], []
    for number in range(times):
        group = member.group(2 + number)
        control.all_gather(torch.zeros(1))
        ticket = group.submit(lambda comm: _exchange_until_broken(comm, source, targets))
        began_at = woken_at = 0.0
        if member.rank == 0:
            time.sleep(_BEFORE_S)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(_STOPPED_S)
            began_at, returned_at, woken_at = _abandon(group, ticket)
            os.kill(pid, signal.SIGCONT)
            returned_s.append(returned_at - began_at)
        else:
            woken_at = _await_end(ticket)
        rows = control.all_gather(torch.tensor([began_at, woken_at], dtype=torch.float64))
        if member.rank == 0:
            ended_s.append(woken_at - began_at)
            others_s += [float(rows[rank, 1]) - began_at for rank in range(1, last)]
    if member.rank == 0:
        print(f"W={member.size}, 40 MB with each member under way, rank {last} stopped, {times} x")
        _report("abandon has returned", returned_s)
        _report("who waited is awake, thread ended", ended_s)
        _report("the others that run are awake", others_s)


def _exchange_until_broken(
    comm: Communicator, source: torch.Tensor, targets: list[torch.Tensor]
) -> None:
    while True:
        comm.all_to_all([source] * comm.size, targets)


def _abandon(group: Group, ticket: Ticket[None]) -> tuple[float, float, float]:
    """Return when it began, had returned, and everything had ended."""
    woken: list[float] = []
    waiter = threading.Thread(target=lambda: woken.append(_await_end(ticket)))
    waiter.start()
    communication = next(t for t in threading.enumerate() if t.name == f"comm-g{group.generation}")
    time.sleep(0.01)
    began_at = time.monotonic()
    group.abandon("the benchmark wants to know")
    returned_at = time.monotonic()
    communication.join()
    ended_at = time.monotonic()
    waiter.join()
    return began_at, returned_at, max(ended_at, *woken)


def _await_end(ticket: Ticket[None]) -> float:
    with contextlib.suppress(GroupBroken):
        ticket.wait()
    return time.monotonic()


def _report(what: str, found_s: list[float]) -> None:
    if found_s:
        median, most = statistics.median(found_s), max(found_s)
        print(f"  {what:36} median {median * 1e3:6.2f} ms, max {most * 1e3:6.2f} ms", flush=True)
