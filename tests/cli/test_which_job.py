"""Commands about a job that another host coordinates: the same words for all of them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.observe.story import eventful

from pliant.cli import which_job
from pliant.cli.main import code_of
from pliant.core.values import Incarnation
from pliant.observe.audit import Audit
from pliant.observe.goodput import goodput_of
from pliant.observe.status import Board
from pliant.run.register_location import CoordinatorSign, write_sign

TOKEN = "a-token-of-22-letters-"
PRINTED = b"step 1\n\x1b[2J[bold]gone\n 10%\r100%\nTraceback: no\nlast"


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
        if self.path == "/healthz":
            return self._say(200, {"status": "ok"})
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._say(401, {"detail": "the job's token is missing or wrong"})
        path, _, after = self.path.partition("?after=")
        self.asked.append((self.command, path, body))
        if path == "/v1/logs":
            return self._say(200, {"workers": ["r1", "r2"]})
        if path == "/v1/logs/r2":
            return self._print(PRINTED, int(after.partition("-")[2]))
        if path == "/v1/audit":
            audit = {**asdict(Audit(committed_steps=7)), "samples_exactly_once": True}
            return self._say(200, {**audit, "goodput": asdict(goodput_of([]))})
        if path == "/v1/status":
            return self._say(200, {**Board().as_json(), "job": "gpt", "state": "training"})
        if path == "/v1/events":
            page = self.records[int(after) :][:10]
            return self._say(200, {"records": page, "next": int(after) + len(page)})
        return self._say(202, {"target_replicas": 4, "reason": "start r3, r4"})

    def _print(self, printed: bytes, after: int) -> None:
        self.send_response(200)
        self.send_header("Pliant-Next", f"1-{after + 20}")
        self.send_header("Content-Length", str(len(printed[after : after + 20])))
        self.end_headers()
        self.wfile.write(printed[after : after + 20])

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


def test_what_a_replica_elsewhere_printed_is_plain_text(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["logs", "r2", *there]) == 0

    lines = ["step 1", "\\x1b[2J[bold]gone", "100%", "Traceback: no", "last"]
    assert capsys.readouterr().out.splitlines() == lines


def test_whose_output_is_to_be_said_where_there_is_that_of_several(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["logs", *there]) == 2
    assert capsys.readouterr().err == "pliant: say whose output: r1, r2\n"


def test_an_audit_is_made_where_the_ledgers_are(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["audit", *there]) == 0
    assert "every sample counted exactly once\n7 committed steps" in capsys.readouterr().out

    assert code_of(["audit", "--json", *there]) == 0
    assert json.loads(capsys.readouterr().out)["committed_steps"] == 7


def test_top_of_a_job_elsewhere_is_its_panel(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["top", *there]) == 0
    assert " gpt " in capsys.readouterr().out

    assert code_of(["top", "--pool", "p", *there]) == 2
    assert "--pool p is a pool, and --job or --join a job" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["status"], ["scale", "4"], ["explain"], ["stop"], ["logs"], ["logs", "-f"], ["audit"]],
)
def test_a_wrong_token_is_one_sentence(
    there: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("token").write_text("another-token-of-22-le")

    assert code_of([*words, *there]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"pliant: --token-file: the job at {there[1]} has another token; give the file token in "
        "the coordinator's --out, or a copy of it\n"
    )
    assert DistantCoordinator.asked == []


@pytest.mark.parametrize(
    "place",
    ["gpu1:port", "http://", "a@b:7000", "127.0.0.1", "127.0.0.1:99999", "ftp://127.0.0.1:21"],
)
@pytest.mark.parametrize("words", [["status"], ["stop"]])
def test_what_is_no_place_is_refused(
    there: list[str], place: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of([*words, "--join", place, *there[2:]]) == 2

    said = capsys.readouterr().err
    assert said.startswith(f"pliant: --join {place} is not the place of a coordinator"), said


def test_of_several_places_the_one_that_answers_is_asked(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As agents find it: the job may have moved to another host of the list."""
    _, place, *token = there
    sign = CoordinatorSign(url=f"http://{place}", incarnation=Incarnation(1))
    write_sign(Path("coordinator.json"), sign)

    for join in (f"127.0.0.1:1,{place}", f"{place},127.0.0.1:1", "@coordinator.json"):
        assert code_of(["status", "--join", join, *token]) == 0
        assert " gpt " in capsys.readouterr().out
    assert code_of(["status", "--join", "127.0.0.1:1,127.0.0.1:2", *token]) == 2
    said = (
        "pliant: no coordinator answers at 127.0.0.1:1 or 127.0.0.1:2; see pliant doctor --join\n"
    )
    assert capsys.readouterr().err == said


@pytest.mark.timeout(20)
def test_a_coordinator_that_hangs_is_passed_over(
    there: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listens as long as its host lives, while another host coordinates."""
    monkeypatch.setattr(which_job, "HANGS_S", 0.2, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        join = f"127.0.0.1:{hangs.getsockname()[1]},{there[1]}"

        assert code_of(["status", "--join", join, *there[2:]]) == 0

    assert " gpt " in capsys.readouterr().out


def test_nobody_at_the_place_is_one_sentence(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        place = f"127.0.0.1:{sock.getsockname()[1]}"

    assert code_of(["status", "--join", place, *there[2:]]) == 2

    said = capsys.readouterr().err
    assert said.startswith(f"pliant: no coordinator answers at http://{place}: Connection refused;")
    assert "the job has ended, or trains on until one is there again" in said


def test_a_name_that_is_not_known_here_says_nothing_of_the_job(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["status", "--join", "gpu1.invalid:7000", *there[2:]]) == 2

    assert capsys.readouterr().err.startswith("pliant: gpu1.invalid is not known on this host: ")


@pytest.mark.parametrize("option", ["--token-file", "--tls-ca", "--tls-certificate", "--tls-key"])
def test_what_is_for_a_coordinator_elsewhere_needs_its_place(
    option: str, there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["status", option, "token"]) == 2

    said = capsys.readouterr().err
    assert said == f"pliant: {option} is for the coordinator that --join names; give both\n"


@pytest.mark.parametrize("command", ["status", "audit", "top"])
def test_a_host_whose_environment_says_its_tls_files_asks_the_jobs_that_are_here(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the guide to TLS says; a coordinator has an audit of its job made by this command, too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("CA", "CERTIFICATE", "KEY"):
        monkeypatch.setenv(f"PLIANT_TLS_{name}", str(tmp_path / f"{name}.pem"))

    code_of([command])

    assert "--join" not in capsys.readouterr().err
