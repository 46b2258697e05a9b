"""Commands about a job that another host coordinates: the same words for all of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.observe.story import eventful

from pliant.cli.main import code_of
from pliant.observe.status import Board

TOKEN = "a-token-of-22-letters-"


class DistantCoordinator(BaseHTTPRequestHandler):
    """Answers as a job would who shows its token, and remembers what it was asked."""

    asked: ClassVar[list[tuple[str, str, Any]]] = []
    records: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    do_PATCH = do_POST  # noqa: N815 - the name that the server looks for

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self, body: Any) -> None:
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._say(401, {"detail": "the job's token is missing or wrong"})
        path, _, after = self.path.partition("?after=")
        self.asked.append((self.command, path, body))
        if path == "/v1/status":
            return self._say(200, {**Board().as_json(), "job": "gpt", "state": "training"})
        if path == "/v1/events":
            page = self.records[int(after) :][:10]
            return self._say(200, {"records": page, "next": int(after) + len(page)})
        return self._say(202, {"target_replicas": 4, "reason": "start r3, r4"})

    def _say(self, code: int, values: Any) -> None:
        data = json.dumps(values).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the words that name a coordinator elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), DistantCoordinator)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    DistantCoordinator.asked.clear()
    DistantCoordinator.records[:] = eventful().planned().records
    Path("token").write_text(TOKEN)
    yield ["--join", f"127.0.0.1:{server.server_address[1]}", "--token-file", "token"]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("words", "request_made"),
    [
        (["status"], ("GET", "/v1/status", None)),
        (["scale", "4"], ("POST", "/v1/scale", {"target": 4})),
        (["drain", "r2"], ("POST", "/v1/replicas/r2/drain", {"notice_s": 30.0})),
        (["kill", "r2"], ("POST", "/v1/replicas/r2/kill", {})),
        (["stop"], ("POST", "/v1/stop", {})),
        (["suspend"], ("POST", "/v1/suspend", {})),
        (["policy", "set", "maxReplicas=4"], ("PATCH", "/v1/policy", {"maxReplicas": 4})),
        (["policy", "show"], ("GET", "/v1/policy", None)),
    ],
    ids=lambda one: one[0] if isinstance(one, list) else "",
)
def test_a_job_elsewhere_is_asked_with_its_token(
    there: list[str], words: list[str], request_made: tuple[str, str, Any]
) -> None:
    assert code_of([*words, *there, "--json"]) == 0

    assert DistantCoordinator.asked == [request_made]


def test_a_job_elsewhere_is_shown_as_one_here(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["status", *there]) == 0
    assert "gpt" in capsys.readouterr().out


def test_why_a_job_elsewhere_has_its_size_is_told_from_its_log(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run").mkdir()
    lines = [json.dumps(record) + "\n" for record in DistantCoordinator.records]
    Path("run/events.jsonl").write_text("".join(lines))
    assert code_of(["explain", "--out", "run", "--json"]) == 0
    here = json.loads(capsys.readouterr().out)

    assert code_of(["explain", *there, "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["decisions"] == here["decisions"] != []


@pytest.mark.parametrize("words", [["status"], ["scale", "4"], ["explain"], ["stop"]])
def test_a_wrong_token_is_one_sentence(
    there: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("token").write_text("another-token-of-22-le")

    assert code_of([*words, *there]) == 2

    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "pliant: the job's token is missing or wrong\n")
    assert DistantCoordinator.asked == []


@pytest.mark.parametrize(
    "place", ["10.0.0.1:7000,10.0.0.2:7000", "gpu1:port", "@runs/gpt/coordinator.json", "http://"]
)
@pytest.mark.parametrize("words", [["status"], ["stop"]])
def test_what_is_not_one_place_is_refused(
    there: list[str], place: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of([*words, "--join", place, *there[2:]]) == 2

    said = capsys.readouterr().err
    assert said.startswith(f"pliant: --join {place} is not the place of one coordinator"), said
