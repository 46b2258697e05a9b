"""What of a working directory is copied for a history, and what a history has changed in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.run import check


def test_a_copy_has_what_counts_and_links_what_is_only_read(tmp_path: Path) -> None:
    here, into = tmp_path / "here", tmp_path / "copy"
    for name in ("train.py", "data/large.bin", "sub/part.txt", ".git/HEAD", "runs/old/log"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)

    check._copy(here, into, frozenset({here / "data"}))

    assert sorted(str(one.relative_to(into)) for one in check._files(into)) == [
        *("data", "sub/part.txt", "train.py"),
    ]
    assert (into / "data").is_symlink()
    assert not (into / "train.py").is_symlink()


def test_what_is_new_changed_or_gone_is_seen(tmp_path: Path) -> None:
    here, into = tmp_path / "here", tmp_path / "copy"
    here.mkdir()
    for name in ("same", "changed", "gone"):
        (here / name).write_text(name)
    before = check._copy(here, into, frozenset())

    (into / "gone").unlink()
    (into / "changed").write_text("1\n2\n")
    (into / "new").write_bytes(b"\0")

    found = check._changed(into, before)
    assert sorted(found) == ["changed", "gone", "new"]
    assert (found["changed"].lines, found["new"].lines) == (("1", "2"), ())


def test_outputs_in_runs_are_compared_and_the_index_of_a_step_log_is_not(tmp_path: Path) -> None:
    for name in ("runs/gpt.pt", "log.csv", ".log.csv.steps", "my.steps"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    assert sorted(check._changed(tmp_path, {})) == ["log.csv", "my.steps", "runs/gpt.pt"]


def test_a_directory_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MOST_BYTES", 3)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "data").write_text("1234")

    with pytest.raises(ConfigError, match="as --link data"):
        check._copy(tmp_path / "here", tmp_path / "copy", frozenset())
