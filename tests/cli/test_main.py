"""Every command answers, or refuses with one sentence on stderr and exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typer
from tests.observe.story import Story, eventful

from pliant.cli.main import app, code_of
from pliant.observe.status import board_of

GOLDEN = Path(__file__).parent / "help.txt"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PLIANT_")]:
        monkeypatch.delenv(name)


class Coordinator(BaseHTTPRequestHandler):
    """Answers as a job would, and remembers what it was asked."""

    asked: ClassVar[list[tuple[str, str, Any, str]]] = []
    answer: ClassVar[tuple[int, Any]] = (202, {})

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    do_PATCH = do_POST  # noqa: N815 - the name that the server looks for

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self, body: Any) -> None:
        token = self.headers["Authorization"]
        self.asked.append((self.command, self.path, body, token))
        code, values = self.answer
        data = json.dumps(values).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[type[Coordinator]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Coordinator)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Coordinator.asked.clear()
    Coordinator.answer = (202, {"target_replicas": 4, "reason": "start r3, r4"})
    jobs = tmp_path / "state" / "pliant" / "jobs"
    jobs.mkdir(parents=True)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    out = tmp_path / "runs" / "gpt"
    values = {"job": "gpt", "url": url, "pid": os.getpid(), "started": 1.0, "out": str(out)}
    (jobs / "gpt.json").write_text(json.dumps(values))
    (jobs / "gpt.token").write_text("secret")
    out.mkdir(parents=True)
    lines = [json.dumps(record) + "\n" for record in eventful().planned().records]
    (out / "events.jsonl").write_text("".join(lines))
    (out / "logs").mkdir()
    yield Coordinator
    server.shutdown()
    thread.join()
    server.server_close()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert code_of(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err.removeprefix("pliant: ").strip()


LAYOUTS: tuple[list[str], ...] = ([], ["resume"], ["pool"])
"""What the layout is reviewed of: all commands, one command, a group; what options every command
has and what each means is on ``docs/reference/commands.md``.
"""


def commands(words: list[str], group: Any) -> Iterator[list[str]]:
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from commands([*words, name], command)


def test_the_help_is_the_reviewed_one(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("NO_COLOR", "1")
    pages = {}
    for words in commands([], typer.main.get_command(app)):
        assert code_of([*words, "--help"]) == 0
        pages[" ".join(words)] = capsys.readouterr().out
        assert f"Usage: {' '.join(['pliant', *words])} " in pages[" ".join(words)]
    layouts = "\n".join(pages[" ".join(words)] for words in LAYOUTS)
    shown = "\n".join(line.rstrip() for line in layouts.splitlines()) + "\n"
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text(shown)

    assert shown == GOLDEN.read_text()


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["scale", "4"], ["drain", "r3"], ["kill", "r2"], ["stop"], ["suspend"],
     ["explain"], ["audit"], ["logs", "r1"]],
)  # fmt: skip
def test_without_a_job_every_command_says_how_to_start_one(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert refused(capsys, *arguments) == "no job is running; start one with pliant run"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nowhere.py"], "the script nowhere.py does not exist"),
        (["run", "--min", "3", "--max", "2", "here.py"], "--min 3 is greater than --max 2"),
        (["run", "--name", "A", "here.py"], "--name 'A' must be lower-case"),
        (["run", "--balance", "fast", "here.py"], "--balance fast must be one of even, speed"),
        (["run", "--verify-every", "-1", "here.py"], "--verify-every -1 must be at least 0"),
        (["run", "--init", "gone.pt", "here.py"], "--init gone.pt does not exist"),
        (["run", "--out", "here.py/x", "here.py"], "here.py/x cannot be written: Not a directory"),
        (["run", "job.yaml"], "job.yaml cannot be read: No such file"),
        (["coordinator", "here.py"], "a coordinator needs a place of its own"),
        (["agent", "--join", "here", "--token-file", "here.py"], "--join here is no HOST:PORT"),
        (
            ["agent", "--join", "127.0.0.1:7", "--token-file", "x"],
            "the token file x cannot be read: No such",
        ),
        (["scale", "many"], "Invalid value for 'N': "),
        (["scale", "0"], "a job has at least 1 replica, not 0; pliant stop ends it"),
        (
            ["scale", "2", "--job", "x"],
            "no job named x is running; none is; start one with pliant run",
        ),
        (["drain", "r3", "--notice", "soon"], "--notice 'soon' is no duration"),
        (["drain", "r3", "--notice", "0s"], "--notice 0s must be more than 0"),
        (["run", "--max", "2", "--max", "3", "here.py"], "--max is given more than once: give it"),
        (["demo", "--port", "8642"], "--port is that of the page: it goes with --dashboard"),
        (["demo", "--dashboard", "--json"], "--dashboard shows a page and runs nothing: leave out"),
        (["--frobnicate"], "No such option: --frobnicate"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["drain"], "pliant drain needs REPLICA (Who leaves, e.g. r3); see pliant drain"),
        (
            ["agent", "--join", "h:1"],
            "pliant agent needs --token-file FILE (DIR/token of the coordinator's --out, or a copy",
        ),
        (["scale", "-1"], "pliant scale: -1 is read as an option; a number here is not negative"),
    ],
)
def test_bad_input_gets_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    Path("here.py").touch()

    said = refused(capsys, *arguments)

    assert said.startswith(sentence)
    assert sorted(path.name for path in Path().iterdir()) == ["here.py"]


@pytest.mark.usefixtures("coordinator")
def test_a_command_asks_the_job_with_its_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["scale", "4"]) == 0
    assert code_of(["drain", "r3", "--notice", "2m"]) == 0
    assert code_of(["kill", "r2", "--job", "gpt"]) == 0
    assert code_of(["stop", "--json"]) == 0

    assert Coordinator.asked == [
        ("POST", "/v1/scale", {"target": 4}, "Bearer secret"),
        ("POST", "/v1/replicas/r3/drain", {"notice_s": 120.0}, "Bearer secret"),
        ("POST", "/v1/replicas/r2/kill", {}, "Bearer secret"),
        ("POST", "/v1/stop", {}, "Bearer secret"),
    ]
    said = capsys.readouterr().out
    assert said.startswith("target 4 replicas: start r3, r4\n")
    assert json.loads(said[said.index("{") :]) == Coordinator.answer[1]


def test_a_refusal_is_the_jobs_own_sentence(
    capsys: pytest.CaptureFixture[str], coordinator: type[Coordinator]
) -> None:
    coordinator.answer = (409, {"detail": "1 replica would be below minReplicas=2"})

    assert refused(capsys, "scale", "1") == "1 replica would be below minReplicas=2"


def test_an_answer_that_is_no_sentence_names_its_status(
    capsys: pytest.CaptureFixture[str], coordinator: type[Coordinator]
) -> None:
    coordinator.answer = (500, None)

    assert refused(capsys, "stop") == "the job refused the request with HTTP status 500"


def test_a_refused_value_is_named(
    capsys: pytest.CaptureFixture[str], coordinator: type[Coordinator]
) -> None:
    problem = {"loc": ["body", "notice_s"], "msg": "Input should be greater than 0"}
    coordinator.answer = (422, {"detail": [problem]})

    assert refused(capsys, "drain", "r1", "--notice", "1s") == (
        "notice_s: Input should be greater than 0"
    )


def test_status_is_for_people_or_for_machines(
    capsys: pytest.CaptureFixture[str], coordinator: type[Coordinator]
) -> None:
    shape = board_of(eventful().planned().records).as_json()
    coordinator.answer = (200, shape)

    assert code_of(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shape
    assert code_of(["status"]) == 0
    drawn = capsys.readouterr().out
    assert "step 49/100" in drawn
    assert "r5 training" in drawn


def test_stop_says_what_happens_and_no_target(
    capsys: pytest.CaptureFixture[str], coordinator: type[Coordinator]
) -> None:
    coordinator.answer = (202, {"target_replicas": 2, "reason": "stop after the next step"})

    assert code_of(["stop"]) == 0
    assert capsys.readouterr().out == "stop after the next step\n"


def test_the_policy_is_shown_as_a_job_file_has_it(
    coordinator: type[Coordinator], capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.answer = (200, {"maxReplicas": None, "backoff": {"factor": 2.0}, "spares": 1})

    assert code_of(["policy", "show"]) == 0

    assert capsys.readouterr().out == "maxReplicas: none\nbackoff:\n  factor: 2\nspares: 1\n"


def test_changes_of_the_policy_are_sent_as_they_are_typed(
    coordinator: type[Coordinator], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["maxReplicas=6", "backoff.factor=1.5", "replicaDiscreteValues=2,4,8", "spares=none"]

    assert code_of(["policy", "set", *words, "amortization=false"]) == 0

    asked = {
        "maxReplicas": 6,
        "backoff": {"factor": 1.5},
        "replicaDiscreteValues": [2, 4, 8],
        "spares": None,
        "amortization": False,
    }
    assert coordinator.asked == [("PATCH", "/v1/policy", asked, "Bearer secret")]
    assert capsys.readouterr().out == "start r3, r4\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["maxReplicas"], "'maxReplicas' is not KEY=VALUE, for instance maxReplicas=6"),
        (["maxReplicas="], "'maxReplicas=' is not KEY=VALUE, for instance maxReplicas=6"),
        (["spares=1", "spares=2"], "spares is given twice"),
        (["backoff=none", "backoff.factor=2"], "backoff.factor and backoff are both given"),
    ],
)
def test_what_is_no_change_of_the_policy_is_refused(
    coordinator: type[Coordinator],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    assert refused(capsys, "policy", "set", *words) == sentence
    assert coordinator.asked == []


def test_a_policy_that_the_job_refuses_changes_nothing_and_says_why(
    coordinator: type[Coordinator], capsys: pytest.CaptureFixture[str]
) -> None:
    why = "the policy: minReplicas 3 is greater than maxReplicas 2"
    coordinator.answer = (422, {"detail": why})

    assert refused(capsys, "policy", "set", "minReplicas=3") == why


@pytest.mark.usefixtures("coordinator")
def test_explain_shows_decisions_with_their_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    with Path("runs/gpt/events.jsonl").open("a") as log:
        held = Story().decided(
            3, "stay at 3 replicas: 4 possible, but", would_change="time alone", looks_again_s=60.0
        )
        log.write(json.dumps(held.records[-1]) + "\n")
    assert code_of(["explain", "--json"]) == 0

    decisions = json.loads(capsys.readouterr().out)["decisions"]
    assert decisions[-2]["reason"] == "grow from 2 to 3 replicas: r2 is lost"
    assert decisions[-1]["would_change"] == "time alone"
    assert decisions[-1]["looks_again_at"] == decisions[-1]["at"] + 60.0
    assert code_of(["explain"]) == 0
    said = capsys.readouterr().out
    assert "r2 is lost" in said
    assert "changes with time alone" in said
    assert "looks again at " in said


@pytest.mark.usefixtures("coordinator")
def test_an_audit_that_fails_says_so_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["audit"]) == 1
    assert "the ledger has no committed step" in capsys.readouterr().out
    assert code_of(["audit", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["samples_exactly_once"] is False


@pytest.mark.usefixtures("coordinator")
def test_logs_show_what_a_replica_printed_rotated_files_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs = Path("runs/gpt/logs")
    (logs / "r1.log").write_text("three\n")
    (logs / "r1.log.1").write_text("two\n")
    (logs / "r1.log.2").write_text("one\n")

    assert code_of(["logs"]) == 0
    assert capsys.readouterr().out == "one\ntwo\nthree\n"

    (logs / "r2.log").write_text("other\n")
    assert code_of(["logs", "r2"]) == 0
    assert capsys.readouterr().out == "other\n"
    assert refused(capsys, "logs") == "say whose output: r1, r2"
    assert refused(capsys, "logs", "r9") == "there is no output of r9; there is of r1, r2"


@pytest.mark.usefixtures("coordinator")
def test_logs_show_all_workers_of_a_replica_each_behind_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs = Path("runs/gpt/logs")
    (logs / "r1.0.log").write_text("zero\n")
    (logs / "r1.1.log").write_text("one\ntwo")

    for asked in ([], ["r1"]):
        assert code_of(["logs", *asked]) == 0
        assert capsys.readouterr().out == "r1.0 | zero\nr1.1 | one\nr1.1 | two\n"
    assert code_of(["logs", "r1.1"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert code_of(["logs", "r1", "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first == {"run": "gpt", "replica": "r1.0", "line": "zero"}


@pytest.mark.usefixtures("coordinator")
def test_the_fork_servers_output_is_shown_only_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    logs = Path("runs/gpt/logs")
    (logs / "forkserver.log").write_text("cannot fork\n")

    assert refused(capsys, "logs") == "say whose output: forkserver"
    (logs / "r1.log").write_text("hello\n")
    assert code_of(["logs"]) == 0
    assert code_of(["logs", "forkserver"]) == 0

    assert capsys.readouterr().out == "hello\ncannot fork\n"


def test_following_ends_with_the_job(
    capsys: pytest.CaptureFixture[str], coordinator: type[Coordinator], tmp_path: Path
) -> None:
    Path("runs/gpt/logs/r1.log").write_text("one\n")
    (tmp_path / "state" / "pliant" / "jobs" / "gpt.json").unlink()

    assert code_of(["logs", "-f", "r1", "--out", "runs/gpt"]) == 0

    assert capsys.readouterr().out == "one\n"


@pytest.mark.parametrize(
    ("arguments", "first"),
    [([], "Usage: pliant [OPTIONS]"), (["pool"], "Usage: pliant pool [OPTIONS]")],
)
def test_alone_it_prints_its_help(
    capsys: pytest.CaptureFixture[str], arguments: list[str], first: str
) -> None:
    assert code_of(arguments) == 0

    said = capsys.readouterr()
    assert said.out.startswith(first)
    assert "Commands:\n" in said.out
    assert said.err == ""


def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pliant", "config", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stderr) == (
        1,
        "pliant: the output cannot be written: No space left on device\n",
    )


def test_top_watches_the_job_where_there_is_no_pool_and_a_pool_says_its_address(
    coordinator: type[Coordinator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    coordinator.answer = (200, {"state": "training"})

    assert code_of(["top", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"state": "training"}

    jobs = tmp_path / "state" / "pliant" / "jobs"
    values = json.loads((jobs / "gpt.json").read_text()) | {"pool": "default"}
    (pools := jobs.with_name("pools")).mkdir()
    (pools / "default.json").write_text(json.dumps(values))
    (pools / "default.token").write_text("secret")
    assert code_of(["pool", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["url"] == values["url"]
