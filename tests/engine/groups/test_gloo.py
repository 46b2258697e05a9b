"""What torch does not promise and ``gloo.py`` relies on; seen with torch 2.13.0 (CPU, Linux)."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

from pliant.engine.groups import gloo

KNOWN = ("2.9", "2.10", "2.11", "2.12", "2.13")
"""Versions that are expected to work; this file passed on 2.13."""


def test_this_torch_is_one_of_those_that_the_module_names() -> None:
    assert torch.__version__.startswith(tuple(f"{version}." for version in KNOWN))


def test_the_names_that_are_not_public_exist() -> None:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]

    options._devices = []
    options._timeout = timedelta(seconds=1)
    for name in ("alltoall_base", "allreduce", "broadcast", "send", "recv", "set_timeout"):
        assert hasattr(dist.ProcessGroupGloo, name)


def test_a_store_listens_on_its_address_alone() -> None:
    server = gloo.StoreServer("127.0.0.1")
    host, port = gloo.parse_endpoint(server.endpoint)

    with socket.create_connection((host, port), timeout=2):
        pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=2)


def test_an_endpoint_may_be_an_ipv6_address() -> None:
    assert gloo.parse_endpoint("[::1]:80") == ("::1", 80)
    assert gloo.parse_endpoint("10.0.0.7:4000") == ("10.0.0.7", 4000)


def a_pair() -> list[gloo.GlooBackend]:
    """Connect two members that live in this process."""
    server = gloo.StoreServer()
    devices = [gloo.Device.open("127.0.0.1") for _ in range(2)]
    assert all(device.listens_at for device in devices)
    made: dict[int, gloo.GlooBackend] = {}

    def connect(rank: int) -> None:
        made[rank] = gloo.GlooBackend(
            gloo.open_store(server.endpoint, "g1", timeout_s=5),
            rank=rank,
            size=2,
            device=devices[rank],
            peers=[device.listens_at for device in devices if device.listens_at],
            connect_s=5,
            collective_s=30,
        )

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return [made[rank] for rank in range(2)]


def test_a_cut_ends_what_waits_for_a_silent_peer_and_the_group_dies_quickly() -> None:
    mine, theirs = a_pair()
    rung = threading.Event()
    work = mine.all_reduce(torch.ones(1000))
    work.get_future().add_done_callback(lambda _: rung.set())
    assert not rung.wait(0.2)
    assert mine.is_cuttable

    mine.cut()

    assert rung.wait(2)
    started_at = time.monotonic()
    del work
    mine.destroy()
    theirs.destroy()
    assert time.monotonic() - started_at < 2


def test_a_peer_that_is_gone_is_noticed_without_any_operation() -> None:
    mine, theirs = a_pair()
    assert not mine.has_lost_a_peer()

    theirs.cut()  # what the kernel does when a process dies
    deadline_s = time.monotonic() + 5
    while not mine.has_lost_a_peer() and time.monotonic() < deadline_s:
        time.sleep(0.01)

    assert mine.has_lost_a_peer()
    mine.destroy()
    theirs.destroy()


def test_a_cut_spares_sockets_that_are_not_the_groups() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    mine, theirs = a_pair()
    bystander = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()

    mine.cut()
    mine.cut()

    bystander.sendall(b"still here")
    assert accepted.recv(100) == b"still here"
    for each in (bystander, accepted, listener):
        each.close()
    mine.destroy()
    theirs.destroy()


def test_what_torch_says_becomes_one_line() -> None:
    long = RuntimeError(
        "[/__w/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1. This is typically "
        "caused by a remote worker crashing.\nsecond line"
    )

    assert gloo.first_line(long) == "Connection closed by peer [127.0.0.1]:1"
    assert gloo.first_line(RuntimeError()) == "RuntimeError"
