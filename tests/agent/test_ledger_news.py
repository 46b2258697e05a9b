"""Each line of a ledger goes up once, in pieces that a message may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.agent import ledger_news
from pliant.agent.ledger_news import LedgerNews


def test_whole_lines_go_up_once_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_news, "PIECE_BYTES", 8)
    ledgers = tmp_path / "ledger"
    ledgers.mkdir()
    (ledgers / "r2.jsonl").write_text("aaa\nbbb\nccc\nd")
    (ledgers / "r2.000001.jsonl").write_text("eee\n")
    (ledgers / "notes.txt").write_text("no ledger\n")
    news = LedgerNews(tmp_path)

    first = [(one.replica, one.part, one.offset, one.lines) for one in news.new()]

    assert sorted(first) == [
        ("r2", 0, 0, "aaa\nbbb\n"),
        ("r2", 0, 8, "ccc\n"),
        ("r2", 1, 0, "eee\n"),
    ]
    with (ledgers / "r2.jsonl").open("a") as ledger:
        ledger.write("dd\n")
    assert [(one.offset, one.lines) for one in news.new()] == [(12, "ddd\n")]
    assert list(news.new()) == []


def test_without_ledgers_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert list(LedgerNews(tmp_path).new()) == []


def test_the_ledger_of_a_follower_goes_up_as_its_own(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    for name in ("r3.1.jsonl", "r3.1.000002.jsonl"):
        (tmp_path / "ledger" / name).write_text("a\n")

    said = {(one.replica, one.worker, one.part) for one in LedgerNews(tmp_path).new()}

    assert said == {("r3", 1, 0), ("r3", 1, 2)}


def test_a_line_that_no_message_has_room_for_goes_up_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_news, "PIECE_BYTES", 8)
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "r2.jsonl").write_text("a" * 20 + "\nb\n")

    assert "".join(one.lines for one in LedgerNews(tmp_path).new()) == "a" * 20 + "\nb\n"


def test_of_a_long_ledger_only_what_was_told_lately_goes_up_again(tmp_path: Path) -> None:
    ledgers = tmp_path / "ledger"
    ledgers.mkdir()
    news = LedgerNews(tmp_path, looks_kept=3)
    for look in range(10):
        with (ledgers / "r2.1.jsonl").open("a") as ledger:
            ledger.write(f"{look}\n")
        if look == 8:
            (ledgers / "r3.1.jsonl").write_text("first\n")
        assert len(list(news.new())) == (2 if look == 8 else 1)

    news.tell_again()

    assert [(one.replica, one.offset, one.lines) for one in news.new()] == [
        ("r2", 14, "7\n8\n9\n"),
        ("r3", 0, "first\n"),
    ]
    assert list(news.new()) == []


def test_what_is_told_again_may_have_to_be_once_more(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "r2.1.jsonl").write_text("a\n")
    news = LedgerNews(tmp_path, looks_kept=3)
    for _ in range(3):
        assert [one.lines for one in news.new()] == ["a\n"]
        news.tell_again()
