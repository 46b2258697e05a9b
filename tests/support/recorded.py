"""Logs of runs that never were: scenario files played, and recorded as a coordinator does."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.support.player import Answer, CoreAlone, MakeDriver, play
from tools.replay_log import entries, log_at
from tools.replay_telling import Account
from tools.replay_turns import replayed

from pliant.coordinator.journal import InputLog
from pliant.core.errors import ConflictError
from pliant.core.events import Event
from pliant.core.job.state import Job, JobSettings
from pliant.core.values import Register
from pliant.observe.log import EventLog

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))

STARTED_AT = 1_767_225_600.0


class Recorder(CoreAlone):
    """The core alone, whose coordinators write into one log what they are told and answer."""

    def __init__(self, settings: JobSettings, path: Path) -> None:
        super().__init__(settings)
        self.now_s = 0.0
        self.path = path
        self.logs: list[tuple[EventLog, InputLog]] = []

    def begin(self, *, now_s: float) -> None:
        found: Register | None = self._register
        super().begin(now_s=now_s)
        self.now_s = now_s
        log = EventLog(
            self.path, job="j", wall=lambda: STARTED_AT + self.now_s, monotonic=lambda: self.now_s
        )
        log.speak_for(self.incarnation)
        inputs = InputLog(log, self._settings)
        inputs.begin(now_s=now_s, register=found, is_asked=False)
        self.logs.append((log, inputs))

    def hear_event(self, event: Event, *, now_s: float, age: int) -> Answer:
        self.now_s = now_s
        coordinator = self._coordinators[-1 - age]
        log, inputs = self.logs[-1 - age]
        before = coordinator.job
        try:
            answer = super().hear_event(event, now_s=now_s, age=age)
        except ConflictError:
            log.write_value(event, now_s=now_s)
            raise
        ready = answer.ready
        inputs.write_event(event, ready, states=(before, coordinator.job), now_s=now_s)
        for command in ready.commands:
            log.write_value(command)
        return answer

    @property
    def job(self) -> Job:
        return self._coordinators[-1].job

    def close(self) -> None:
        """Write what is left, and what the newest core knows."""
        self.logs[-1][1].write_state(self.job)
        for log, _ in self.logs:
            log.close()


def record(text: str, path: Path) -> str:
    """Play a scenario and leave its log there; return the transcript."""
    recorders: list[Recorder] = []

    def make(settings: JobSettings) -> Recorder:
        recorders.append(Recorder(settings, path))
        return recorders[-1]

    maker: MakeDriver = make
    transcript = play(text, maker)
    for recorder in recorders:
        recorder.close()
    return transcript


def a_run(path: Path, name: str = "a_joiner_is_drained") -> Path:
    """Record one of the scenarios."""
    (found,) = (one for one in SCENARIOS if one.stem == name)
    record(found.read_text(), path)
    return path


def check_decisions(out: Path) -> None:
    """Assert that all that was decided in a run is decided again as it was recorded."""
    account = Account()
    for step in replayed(entries(log_at(out))):
        account.add(step)
    assert account.difference is None, account.sentence
    assert account.inputs, account.sentence
    assert not account.gaps, account.sentence


def lines_of_log(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def cut(lines: list[bytes], *, first: int, last: int) -> bytes:
    """Return a log without the lines from one to another."""
    return b"".join(itertools.chain(lines[:first], lines[last:]))
