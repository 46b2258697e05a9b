"""What is started in the background."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pliant.run.background import EndedError, start


def test_it_reads_its_document_though_no_directory_takes_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    with pytest.raises(EndedError, match=r"^}$") as ended:
        start(["json.tool"], {"steps": 7}, log=tmp_path / "log", find=lambda: None)

    assert ended.value.code == 0
    assert (tmp_path / "log").read_text() == '{\n    "steps": 7\n}\n'
