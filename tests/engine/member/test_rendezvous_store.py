"""The store of a replica over several hosts is one dictionary, and PyTorch takes it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.live.prompt import run_together

from pliant.engine.member import rendezvous_store as meeting_store
from pliant.engine.member.rendezvous_store import MeetingStore, RemoteStore, StoreServer
from pliant.wire.launch import STORE_SOCKET

WITHIN_S = 60.0


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[MeetingStore, MeetingStore]]:
    """Return the store of worker 0, and that of another worker."""
    server = StoreServer(tmp_path)
    remote = RemoteStore(tmp_path, WITHIN_S)
    yield MeetingStore(server.answer), MeetingStore(remote.ask)
    remote.close()
    server.close()


def test_what_one_worker_says_the_other_finds(stores: tuple[MeetingStore, MeetingStore]) -> None:
    for one, other in (stores, stores[::-1]):
        one.set("key", b"\x00value")
        assert other.get("key") == b"\x00value"
        assert (one.add("count", 2), other.add("count", -5)) in ((2, -3), (-1, -6))
        one.append("text", "ab")
        other.append("text", b"c")
        assert one.get("text").endswith(b"abc")
        assert one.compare_set("new", b"", b"first") == b"first"
        assert other.compare_set("new", b"other", b"second") == b"first"
        assert other.num_keys() == 4
        assert (one.check(["key", "text"]), one.check(["key", "none"])) == (True, False)
        assert other.delete_key("new")
        assert not one.delete_key("new")


def test_a_value_is_waited_for_until_another_worker_says_it(
    stores: tuple[MeetingStore, MeetingStore],
) -> None:
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(stores[1].get("late")))
    waiting.start()
    stores[1].set("other", b"1")  # a thread that waits keeps no other from asking

    stores[0].set("late", b"2")

    waiting.join(WITHIN_S)
    assert found == [b"2"]


def test_a_value_that_nobody_says_is_missed_after_the_time_that_was_given(
    stores: tuple[MeetingStore, MeetingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting_store, "LOOK_S", 0.01)
    for store in stores:
        with pytest.raises(TimeoutError, match="no worker of this replica has said 'never'"):
            store.wait(["never"], timedelta(seconds=0.05))


def test_what_cannot_be_read_ends_its_own_connection_only(
    stores: tuple[MeetingStore, MeetingStore], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(tmp_path / STORE_SOCKET))
        stranger.sendall(b"\xff" * 4)
        stranger.settimeout(WITHIN_S)
        assert stranger.recv(1) == b""

    stores[1].set("key", b"1")
    assert stores[0].get("key") == b"1"


GROUP = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from pliant.engine.member.rendezvous_store import MeetingStore, RemoteStore, StoreServer
directory, place = Path(sys.argv[1]), int(sys.argv[2])
ask = RemoteStore(directory, 60.0).ask if place else StoreServer(directory).answer
store = MeetingStore(ask)
dist.init_process_group("gloo", store=store, rank=place, world_size=2)
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("shard", "tp"))
found = torch.tensor([place + 1.0])
dist.all_reduce(found, group=mesh["shard"].get_group())
print(found.item())
dist.barrier()
"""


@pytest.mark.processes
def test_a_process_group_meets_in_it(tmp_path: Path) -> None:
    (tmp_path / "meet.py").write_text(GROUP)
    commands = [("meet.py", tmp_path, place) for place in (1, 0)]  # the first waits for worker 0

    workers = run_together(*commands, cwd=tmp_path, environment=os.environ)

    assert [worker.stdout for worker in workers] == ["3.0\n", "3.0\n"], workers
