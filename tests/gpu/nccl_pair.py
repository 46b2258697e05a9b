"""Two ranks on one GPU by NCCL, in one process: prints JSON.  They need NCCL 2.30 or newer."""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial

os.environ |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_SOCKET_IFNAME": "=lo"}

import torch
from tests.engine.comm.circle import over_sockets

from pliant.engine.comm import nccl
from pliant.engine.comm.communicator import Communicator
from pliant.engine.comm.device_communicator import DeviceCommunicator
from pliant.engine.comm.group import Group
from pliant.engine.comm.sockets import SocketCommunicator
from pliant.engine.device import here
from pliant.engine.device.base import Mark

WHERE = torch.device("cuda", 0)
WITHIN_S = 20.0


def swap(mark: Mark, mine: torch.Tensor, into: torch.Tensor, comm: Communicator) -> None:
    with here.device.behind(mark, WHERE):
        comm.swap(mine, into)


def main() -> None:
    torch.zeros(1, device=WHERE)
    here.choose([torch.zeros(1, device=WHERE)])
    library = nccl.library()
    assert library is not None
    unique_id = library.unique_id()
    made: list[DeviceCommunicator] = []

    def connect(sockets: SocketCommunicator) -> None:
        group = library.connect(unique_id, rank=sockets.rank, size=2, where=WHERE)
        one = DeviceCommunicator(sockets, library, group, where=WHERE, collective_s=WITHIN_S)
        made.append(one)
        one.connected(WITHIN_S)

    ends = [each for each in over_sockets(2, WITHIN_S) if isinstance(each, SocketCommunicator)]
    threads = [threading.Thread(target=connect, args=(each,)) for each in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    groups = [Group(each, collective_s=WITHIN_S) for each in made]
    theirs = [torch.zeros(1024, device=WHERE) for _ in groups]
    tickets = []
    for group, into in zip(groups, theirs, strict=True):
        mine = torch.full((1024,), float(group.rank + 1), device=WHERE)
        tickets.append(group.submit(partial(swap, here.device.mark(WHERE), mine, into)))
    for ticket in tickets:
        ticket.wait(WITHIN_S)
    sums = {str(group.rank): float(into.sum()) for group, into in zip(groups, theirs, strict=True)}
    for group in groups:
        group.abandon("seen")
    sys.stdout.write(json.dumps({"library": library.name, "sums": sums}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
