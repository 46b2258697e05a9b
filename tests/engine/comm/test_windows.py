"""Windows: who can read and write them, what a mark prevents, and what is left."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.live.prompt import run_typed

from pliant.engine.comm.communicator import OperationFailed, WindowSize
from pliant.engine.comm.windows import (
    Window,
    WindowCache,
    WindowError,
    Windows,
    WindowView,
    neighbourhoods,
)

SIZE = WindowSize(nbytes=100_000)


def test_others_see_what_the_owner_writes() -> None:
    window = Window(SIZE)
    view = WindowView(window.address)

    window.memory[:5] = torch.arange(5, dtype=torch.uint8)
    window.enter(7)

    assert view.memory[:5].tolist() == [0, 1, 2, 3, 4]
    assert view.memory.numel() >= SIZE.nbytes
    assert view.mark == 7


def test_the_kernel_lets_nobody_else_write() -> None:
    window = Window(SIZE)
    path = Path(f"/proc/{os.getpid()}/fd/{window.address.descriptor}")

    with pytest.raises(PermissionError), path.open("r+b") as file:
        mmap.mmap(file.fileno(), 4096)
    with pytest.raises(PermissionError):
        os.truncate(path, 10)


@pytest.mark.timeout(180)
def test_writing_into_a_view_ends_the_process(tmp_path: Path) -> None:
    script = """
from pliant.engine.comm.windows import *
window = Window(WindowSize(nbytes=100))
WindowView(window.address).memory.fill_(1)
"""
    (tmp_path / "script.py").write_text(script)

    done = run_typed("script.py", cwd=tmp_path, environment=os.environ)

    assert done.returncode < 0


def test_memory_is_provided_at_once_but_for_what_is_reserved() -> None:
    megabyte = 1 << 20
    window = Window(WindowSize(nbytes=4 * megabyte, reserved=2 * megabyte, spare=megabyte))

    allocated = os.fstat(window.address.descriptor).st_blocks * 512

    assert megabyte <= allocated < 2 * megabyte


# What is refused


def test_another_window_at_the_same_place_is_refused() -> None:
    window = Window(SIZE)

    with pytest.raises(WindowError, match="another window"):
        WindowView(replace(window.address, token="00" * 16))
    with pytest.raises(WindowError, match="another window"):
        WindowView(replace(window.address, nbytes=4096))


def test_what_is_no_window_is_refused_without_opening_it(tmp_path: Path) -> None:
    window = Window(SIZE)
    read_end, write_end = os.pipe()
    with (tmp_path / "file").open("w") as file:
        for descriptor in (read_end, file.fileno()):
            with pytest.raises(WindowError, match="is not a window"):
                WindowView(replace(window.address, descriptor=descriptor))
    os.close(read_end)
    os.close(write_end)


def test_a_window_that_is_gone_is_refused() -> None:
    address = Window(SIZE).address
    gc.collect()

    with pytest.raises(WindowError, match="cannot be opened"):
        WindowView(address)
    with pytest.raises(WindowError, match="cannot be opened"):
        WindowView(replace(address, pid=2**22 + 1))


# Marks


def both(generation: int) -> tuple[Windows, Window, Window]:
    mine, theirs = Window(SIZE), Window(SIZE)
    windows = Windows(generation, mine, [None, WindowView(theirs.address)])
    return windows, mine, theirs


def test_what_was_read_counts_only_while_all_serve_the_generation() -> None:
    windows, _, theirs = both(3)
    windows.enter()
    theirs.enter(3)
    windows.check()

    theirs.enter(4)

    with pytest.raises(OperationFailed, match="rank 1 has gone on to another generation"):
        windows.check()


def test_nobody_writes_for_a_generation_that_the_window_has_left() -> None:
    windows, mine, _ = both(3)
    windows.enter()
    with windows.writing():
        pass

    mine.enter(4)

    with pytest.raises(OperationFailed, match="gone on"), windows.writing():
        pass


def test_entering_a_generation_waits_for_who_writes_for_an_earlier_one() -> None:
    windows, mine, _ = both(3)
    windows.enter()
    entered = threading.Event()

    def enter() -> None:
        mine.enter(4)
        entered.set()

    with windows.writing():
        thread = threading.Thread(target=enter)
        thread.start()
        is_early = entered.wait(0.05)
    thread.join(5)

    assert not is_early
    assert entered.is_set()


# The window_cache


def test_a_window_is_kept_as_long_as_it_fits() -> None:
    window_cache = WindowCache()
    window = window_cache.provide(WindowSize(nbytes=100_000))

    assert window_cache.provide(WindowSize(nbytes=60_000)) is window
    assert window_cache.existing(WindowSize(nbytes=10)) is window
    assert window_cache.existing(WindowSize(nbytes=200_000)) is None
    assert window_cache.provide(WindowSize(nbytes=200_000)) is not window
    assert window_cache.provide(WindowSize(nbytes=60_000)).memory.numel() < 100_000


def test_a_view_is_mapped_once_while_somebody_uses_it() -> None:
    window_cache, window = WindowCache(), Window(SIZE)
    view = window_cache.map(window.address)

    assert window_cache.map(window.address) is view


def mapped() -> tuple[int, int]:
    """Count the process's windows: mappings and descriptors."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("pliant-window")
    descriptors = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            descriptors += "pliant-window" in str(path.readlink())
    return maps, descriptors


def test_a_dropped_window_leaves_no_mapping_and_no_descriptor() -> None:
    before = mapped()
    windows, mine, theirs = both(1)
    part = windows.memories[1][10:20]
    during = mapped()
    del windows, mine, theirs

    assert during == (before[0] + 3, before[1] + 2)
    assert mapped() == (before[0] + 1, before[1])  # a tensor keeps what it shows
    assert part.numel() == 10
    del part
    assert mapped() == before


# Hosts


@pytest.mark.parametrize(
    ("reach", "hosts"),
    [
        ([{1, 2}, {0, 2}, {0, 1}], ((0, 1, 2),)),
        ([{2}, {3}, {0}, {1}], ((0, 2), (1, 3))),
        ([{1, 2}, {0}, {0}], ((0, 1), (2,))),
        ([{1}, set(), {0, 1}], ((0,), (1,), (2,))),
    ],
    ids=["one", "two", "not all reach each other", "only one way"],
)
def test_members_that_all_reach_each_other_are_of_one_host(
    reach: list[set[int]], hosts: tuple[tuple[int, ...], ...]
) -> None:
    assert neighbourhoods(reach) == hosts


def test_a_worker_without_a_window_has_none_to_enter_and_nothing_to_check() -> None:
    windows = Windows(3, None, [None, None], rank=1, hosts=[(0,), (1,)], sizes=[100, 0])

    windows.enter()
    windows.check()

    assert [memory.numel() for memory in windows.memories] == [0, 0]
