"""A whole job with everything that can be logged: no secret of a generation is anywhere."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest
from tests.coordinator.traces import traces, traces_in_files
from tests.processes.launching import FAKE_WORKER, environment
from tests.processes.run_job import STARTS

from pliant.coordinator.outbox import GenerationSecrets
from pliant.core.commands import Command, Prepare, Reform
from pliant.core.job.state import JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.values import Incarnation
from pliant.observe.log import Record
from pliant.observe.reading import read
from pliant.run.job_config import JobConfig
from pliant.run.local import run_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

TALKATIVE = f"""
import logging, runpy, sys

logging.basicConfig(level=logging.DEBUG)
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
runpy.run_path({str(FAKE_WORKER)!r}, run_name="__main__")
"""


class Witness:
    """Follows a job, keeps what was handed out, and kills r2 once it has trained."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}
        self.lines: list[str] = []
        self._pid: int | None = None

    def added_to(
        self, given: GenerationSecrets, command: Command, incarnation: Incarnation
    ) -> list[Command]:
        told = ADDED_TO(given, command, incarnation)
        for sent in told:
            if isinstance(sent, Prepare | Reform) and sent.secret:
                self.secrets[f"{type(sent).__name__} {sent.order.generation}"] = sent.secret
        return told

    def record(self, record: Record) -> None:
        if record["kind"] == "worker" and record["replica"] == "r2":
            self._pid = record["pid"]
        if record["kind"] == "commit" and record["step"] == 5 and self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            self._pid = None

    def output(self, replica: str, text: str) -> None:
        self.lines.append(text)


ADDED_TO = GenerationSecrets.added_to


def test_no_secret_is_in_a_file_or_a_log_of_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    witness = Witness()
    monkeypatch.setattr(GenerationSecrets, "added_to", lambda *words: witness.added_to(*words))
    for part in ("out", "tmp"):
        (tmp_path / part).mkdir()
    script = tmp_path / "talkative.py"
    script.write_text(TALKATIVE)
    config = JobConfig(
        name="job",
        argv=(str(script), "250", "0.02"),
        environ=environment(tmp_path),
        out=tmp_path / "out",
        settings=JobSettings(policy=Policy(min_replicas=1, max_replicas=2)),
    )

    assert run_job(config, observer=witness, start_server=STARTS["cold"]) == 0

    kinds = [name.split()[0] for name in witness.secrets]
    assert kinds.count("Prepare") >= 2  # the first, and the one with a replacement
    assert "Reform" in kinds
    secrets = witness.secrets.values()
    assert len(set(secrets)) == len(secrets)
    assert traces_in_files(secrets, tmp_path) == []
    assert caplog.records
    for shown in (caplog.text, *witness.lines):
        assert traces(secrets, shown.encode()) == []
    formed = [
        record
        for record in read(tmp_path / "out" / "events.jsonl")
        if record["kind"] in ("prepare", "reform")
    ]
    assert len(formed) == len(secrets)
    assert not any("secret" in record for record in formed)
