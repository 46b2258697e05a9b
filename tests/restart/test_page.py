"""The page that a restart worker shares with a process of its script."""

from __future__ import annotations

import threading
from pathlib import Path

from pliant.restart.page import Page

EVENT = {"reason": "resize", "old_size": 1, "new_size": 3}


def two_sides(directory: Path) -> tuple[Page, Page]:
    return Page(directory / "page", is_new=True), Page(directory / "page")


def test_the_event_is_seen_at_the_agreed_call_and_at_each_later_one(tmp_path: Path) -> None:
    worker, script = two_sides(tmp_path)
    assert [script.call() for _ in range(4)] == [None] * 4
    worker.propose(6, EVENT)
    worker.confirm()

    assert worker.calls == 4
    assert [script.call() for _ in range(3)] == [None, EVENT, EVENT]


def test_a_process_waits_at_a_provisional_call_until_it_is_confirmed(tmp_path: Path) -> None:
    worker, script = two_sides(tmp_path)
    worker.propose(1, EVENT)
    seen: list[object] = []
    calling = threading.Thread(target=lambda: seen.append(script.call()))
    calling.start()
    calling.join(0.05)
    assert seen == []

    worker.confirm()
    calling.join()
    assert seen == [EVENT]


def test_a_process_goes_on_where_the_call_is_raised(tmp_path: Path) -> None:
    worker, script = two_sides(tmp_path)
    worker.propose(1, EVENT)
    seen: list[object] = []
    calling = threading.Thread(target=lambda: seen.append(script.call()))
    calling.start()
    calling.join(0.02)
    worker.propose(2, EVENT)
    calling.join()
    worker.confirm()

    assert seen == [None]
    assert script.call() == EVENT


def test_a_save_is_acknowledged_with_its_step_and_place(tmp_path: Path) -> None:
    worker, script = two_sides(tmp_path)
    assert worker.saved == (0, 0, 0, "")
    script.call()
    script.save(120, "/ckpt/120")

    assert worker.saved == (1, 120, 1, "/ckpt/120")


def test_a_path_longer_than_the_page_is_cut(tmp_path: Path) -> None:
    worker, script = two_sides(tmp_path)
    script.save(1, "x" * 9000)

    assert worker.saved[3] == "x" * 2046
