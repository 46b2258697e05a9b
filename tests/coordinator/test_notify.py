"""A webhook hears once of each news, after failures too, and nothing waits for it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.live.stage import MARK, FreshStage
from tests.observe.story import Story

from pliant.client import Job
from pliant.coordinator import notify
from pliant.coordinator.notify import notifying
from pliant.observe.status import Board


class Hook(BaseHTTPRequestHandler):
    """Refuses as often as it is told to, and keeps what it takes."""

    taken: ClassVar[list[dict[str, Any]]] = []
    refusals: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code = self.refusals.pop() if self.refusals else 204
        if code == 204:
            self.taken.append(body)
        self.send_response(code)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(notify, "AGAIN_S", (0.01, 0.01, 0.01))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    Hook.taken.clear()
    Hook.refusals.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook"
    server.shutdown()
    thread.join()
    server.server_close()


def play(story: Story, url: str) -> list[dict[str, Any]]:
    """Tell a hook of a job's records; return what it took."""
    board = Board()
    with notifying(url, lambda: board) as notifier:
        for record in story.records:
            board.add(record)
            notifier.record(record)
    return list(Hook.taken)


def training() -> Story:
    return Story().started().planned().start("r1", "r2").spare("r1", "r2").switch("r1", "r2")


def test_a_save_that_fails_is_told_once_until_one_does_not_and_then_the_end(url: str) -> None:
    story = training().steps(3)
    for _ in range(2):
        story.write("save_failed", reason="the storage is full", retry_s=1.0, replica="r1")
    story.saved("step-3").steps(1)
    story.write("job_ended", exit_code=0, reason="4 steps are done")

    told = play(story, url)

    assert [(one["event"], one["step"], one["reason"]) for one in told] == [
        ("save_failed", 3, "the storage is full"),
        ("ended", 4, "4 steps are done"),
    ]
    assert told[1]["exit_code"] == 0
    assert told[1]["text"] == "gpt: ended after step 4: 4 steps are done"


@pytest.mark.parametrize(
    ("code", "request_made", "event"),
    [
        (1, None, "failed"),
        (4, None, "failed"),
        (3, "suspend_requested", "suspended"),
        (3, "stop_requested", "ended"),
    ],
)
def test_how_a_job_ended_is_told(url: str, code: int, request_made: str | None, event: str) -> None:
    story = training().steps(1)
    if request_made is not None:
        story.write(request_made)
    story.write("job_ended", exit_code=code, reason="why")

    assert [one["event"] for one in play(story, url)] == [event]


def test_fewer_than_the_minimum_is_told_each_time_it_comes_to_that(url: str) -> None:
    story = training().steps(1)
    for held in (True, True, False, True):
        story.generation += 1
        order = {**story.order(story.generation, ("r1",)), "hold": held}
        story.write("reform", to=["r1"], order=order)

    told = play(story, url)

    assert [(one["event"], one["num_replicas"]) for one in told] == [("below_minimum", 1)] * 2


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(240)
def test_the_end_of_a_real_job_is_told(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copy(Path(__file__).parents[2] / "examples/minimal.py", "train.py")
    here = FreshStage()
    monkeypatch.setenv(MARK, here._mark)
    try:
        end = Job.submit("train.py", max=1, notify=url).wait(120)
        while here.processes():  # the notification is the last that it does
            threading.Event().wait(0.1)
    finally:
        here.end()

    assert (end.state, end.step) == ("finished", 200)
    assert [(one["event"], one["step"], one["job"]) for one in Hook.taken] == [
        ("ended", 200, "train")
    ]


def test_who_refuses_is_told_again_a_few_times(url: str) -> None:
    Hook.refusals[:] = [500, 503]
    story = training().steps(1)
    story.write("job_ended", exit_code=0, reason="")

    assert [one["event"] for one in play(story, url)] == ["ended"]


def test_nobody_there_ends_nothing_and_is_said(caplog: pytest.LogCaptureFixture, url: str) -> None:
    story = training().steps(1)
    story.write("job_ended", exit_code=0, reason="")

    told = play(story, "http://127.0.0.1:9/secret")

    assert told == []
    assert "127.0.0.1 was not told" in caplog.text
    assert "secret" not in caplog.text
