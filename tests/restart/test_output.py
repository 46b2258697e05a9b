"""What a process of a script prints goes on, to a file, or both."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.restart.output import ERR, OUT, Logs, Output, streams_of

TOLD = {"LOCAL_RANK": "1", "RANK": "5", "ROLE_NAME": "default"}


@pytest.mark.parametrize(
    ("said", "rank", "streams"),
    [("0", 1, 0), ("3", 1, OUT | ERR), ("1", 1, OUT), ("0:1,1:2", 1, ERR), ("0:1,1:2", 2, 0)],
)
def test_streams_are_meant_for_all_or_for_each(said: str, rank: int, streams: int) -> None:
    assert streams_of(said, rank, "--tee") == streams


@pytest.mark.parametrize("said", ["4", "x", "1,2", "0:1,3", ""])
def test_what_means_no_streams_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match="must be 0 to 3, or such as 0:1,1:2"):
        streams_of(said, 0, "--tee")


def printed(
    capfd: pytest.CaptureFixture[str], logs: Logs, stream: int = OUT, text: str = "a\nb"
) -> str:
    with subprocess.Popen(["printf", text], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.wait()
        Output(process.stdout, stream, logs, TOLD).close()
    out, err = capfd.readouterr()
    return out if stream == OUT else err


def test_what_is_neither_redirected_nor_tee_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert printed(capfd, Logs(directory=tmp_path)) == "a\nb"
    assert list(tmp_path.iterdir()) == []


def test_what_is_redirected_is_in_a_file_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert printed(capfd, Logs(directory=tmp_path, redirects="1:2"), ERR) == ""
    assert (tmp_path / "1" / "stderr.log").read_text() == "a\nb"


def test_what_is_tee_is_in_a_file_and_goes_on_with_a_prefix(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    template = "${role_name} ${rank}/${local_rank}: "
    logs = Logs(directory=tmp_path, tee="3", template=template)

    assert printed(capfd, logs) == "default 5/1: a\ndefault 5/1: b\n"
    assert (tmp_path / "1" / "stdout.log").read_text() == "a\nb"


def test_who_is_filtered_out_prints_nothing_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert printed(capfd, Logs(directory=tmp_path, tee="3", shown=frozenset({0}))) == ""
    assert (tmp_path / "1" / "stdout.log").exists()


def test_variables_say_where_files_go(tmp_path: Path) -> None:
    given = {"PET_LOG_DIR": str(tmp_path), "PET_TEE": "1", "PET_LOCAL_RANKS_FILTER": "0,2"}
    found = Logs.of(given, job="gpt", restarts=2, default=Path("elsewhere"))

    assert found.directory == tmp_path / "gpt" / "attempt_2"
    assert (found.tee, found.redirects, found.shown) == ("1", "0", frozenset({0, 2}))
    with pytest.raises(ConfigError, match="must be local ranks"):
        Logs.of({"PET_LOCAL_RANKS_FILTER": "a"}, job="gpt", restarts=0, default=tmp_path)
