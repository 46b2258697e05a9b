"""A user's own page: all runs, what is passed on to a running job, and what is not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.observe.test_run_index import gone
from tests.observe.test_runs import begun
from tests.observe.test_view import RECORDED

from pliant.core.errors import ConfigError
from pliant.dashboard import app as app_of_all
from pliant.dashboard.app import Runs, create_app, key_of
from pliant.http.client import Caller
from pliant.http.login import Logins
from pliant.machine.registry import RuntimeFiles, StateDirectory
from pliant.observe.runs import known_runs

OWN = {"Origin": "http://127.0.0.1:7000"}


class World:
    """The page of a user who has one run, which ended."""

    def __init__(self, directory: Path) -> None:
        self.state = StateDirectory(directory / "state")
        self.out = begun(self.state, "gpt", gone()).out
        (self.out / "events.jsonl").write_bytes(RECORDED.read_bytes())
        self.key = key_of(self.out)
        logins = Logins()
        self.client = TestClient(
            create_app(Runs(self.state), logins), base_url="http://127.0.0.1:7000"
        )
        self.client.post("/login", headers={"X-Pliant-Code": logins.new_code(), **OWN})

    def get(self, path: str) -> Any:
        answer = self.client.get(f"/v1/runs/{self.key}/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: object = None) -> tuple[int, Any]:
        answer = self.client.post(f"/v1/runs/{self.key}/v1/{path}", json=body, headers=OWN)
        return answer.status_code, answer.json().get("detail") or answer.json().get("reason")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with world.client:
        yield world


def test_all_runs_are_listed_with_how_they_ended(world: World) -> None:
    (run,) = world.client.get("/v1/runs").json()["runs"]

    assert (run["key"], run["job"], run["state"]) == (world.key, "gpt", "suspended")
    assert (run["step"], run["total_steps"]) == (91, 3000)


def test_a_run_whose_files_are_gone_is_listed_and_leads_nowhere(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    begun(state, "gpt", gone())
    known_runs(state)  # which notes how it ended
    shutil.rmtree(tmp_path / "runs")
    logins = Logins()
    client = TestClient(create_app(Runs(state), logins), base_url=OWN["Origin"])
    client.post("/login", headers={"X-Pliant-Code": logins.new_code(), **OWN})

    (run,) = client.get("/v1/runs").json()["runs"]

    assert (run["job"], run["state"], run["key"]) == ("gpt", "killed", None)


def test_a_run_that_ended_is_shown_from_its_files(world: World) -> None:
    (world.out / "logs").mkdir()
    (world.out / "logs" / "r1.log").write_bytes(b"hello\n")

    view = world.get("view")

    assert (view["headline"]["state"], view["headline"]["is_resumable"]) == ("suspended", True)
    assert world.get("logs") == {"workers": ["r1"]}
    event = view["events"][0]
    (record,) = world.get(f"events?after={event['position']}&most=1")["records"]
    assert record["kind"] == event["kind"]


def test_one_run_is_read_before_somebody_asks_and_shown_as_ever(world: World) -> None:
    runs, logins = Runs(world.state, [world.out]), Logins()
    runs.read(world.out)
    client = TestClient(create_app(runs, logins), base_url=OWN["Origin"])
    client.post("/login", headers={"X-Pliant-Code": logins.new_code(), **OWN})

    view = client.get(f"/v1/runs/{world.key}/v1/view").json()

    assert {**view, "now": 0} == {**world.get("view"), "now": 0}


def test_without_a_login_nothing_is_answered(world: World) -> None:
    world.client.cookies.clear()

    for path in ("/v1/runs", f"/v1/runs/{world.key}/v1/view", "/v1/runs/x/v1/view"):
        assert world.client.get(path).status_code == 401


def test_a_run_that_is_not_there_is_not_found(world: World) -> None:
    assert world.client.get("/v1/runs/0000/v1/view").status_code == 404


def test_what_a_person_asks_is_asked_of_the_running_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Asked:
        def __init__(self, job: Any) -> None:
            self.name = job.name

        def close(self) -> None:
            pass

        def ask(self, *words: object) -> dict[str, object]:
            asked.append((self.name, *words))
            if words[1] == "/v1/scale":
                raise ConfigError("only up to 4")
            return {"reason": "so it is"}

    monkeypatch.setattr(app_of_all, "Caller", Asked)
    files = RuntimeFiles.of("job", "gpt", world.state.jobs)
    files.write(url="http://127.0.0.1:1", token="secret", out=world.out)

    assert world.post("replicas/r1/kill") == (202, "so it is")
    assert world.post("scale", {"target": 9}) == (409, "only up to 4")
    assert asked == [
        ("gpt", "POST", "/v1/replicas/r1/kill", None),
        ("gpt", "POST", "/v1/scale", {"target": 9}),
    ]


def test_a_pool_is_shown_by_its_own_words_and_its_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = world.state.pools / "default"
    out.mkdir(parents=True)
    granted = {"kind": "grant", "at": 2.0, "mono": 2.0, "name": "ada", "devices": [0], "to": 1}
    (out / "events.jsonl").write_text(json.dumps({"v": 1, **granted}) + "\n")
    RuntimeFiles.of("pool", "default", world.state.pools).write(
        url="http://127.0.0.1:1", token="secret", out=out
    )
    asked: list[tuple[str, str, Any]] = []

    def ask(self: Caller, method: str, path: str, body: Any = None) -> dict[str, Any]:
        asked.append((method, path, body))
        return {"pool": "default", "reason": "so it is"}

    monkeypatch.setattr(Caller, "ask", ask)

    base = "/v1/pools/default/v1"

    assert world.client.get("/v1/runs").json()["pools"] == ["default"]
    assert world.client.get(f"{base}/status").json()["pool"] == "default"
    view = world.client.get(f"{base}/view").json()
    assert view["lanes"] == [{"device": 0, "spans": [["ada", 2.0, None]]}]
    for method, path, body in (
        ("POST", "release", {"claim": "ada"}),
        ("POST", "devices/0/drain", {"reason": "hot"}),
        ("PUT", "teams/vision", {"name": "vision", "quota": 4}),
        ("DELETE", "teams/vision", None),
        ("POST", "stop", None),
    ):
        answer = world.client.request(method, f"{base}/{path}", json=body, headers=OWN)
        assert (answer.status_code, answer.json()["reason"]) == (202, "so it is")
        assert asked[-1] == (method, f"/v1/{path}", body)
    for path in ("claims/ada", "login", "devices/x/drain", "devices/0/kill", "teams/a/b"):
        assert world.client.put(f"{base}/{path}", headers=OWN).status_code == 404
    assert world.client.post(f"{base}/stop").status_code == 403
    assert asked[-1] == ("POST", "/v1/stop", None)
    assert world.client.get("/v1/pools/other/v1/status").status_code == 404
    world.client.cookies.clear()
    assert world.client.get(f"{base}/status").status_code == 401


def test_other_paths_are_passed_on_to_nobody(world: World) -> None:
    for path in ("nodes/a/leave", "agents", "replicas/r1/kill/x", "login", "scale/../offer"):
        assert world.post(path)[0] in (404, 405)
    assert world.post("scale", {"target": 2})[0] == 409
    assert world.client.post(f"/v1/runs/{world.key}/v1/stop").status_code == 403
    bad = world.client.post(f"/v1/runs/{world.key}/v1/scale", headers=OWN, content="{2")
    assert (bad.status_code, bad.json()["detail"][:20]) == (422, "the body is no JSON:")


def test_a_run_that_cannot_go_on_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state.path))
    (world.out / "events.jsonl").write_text("")

    code, said = world.post("resume")

    assert code == 409
    assert said
    assert os.environ["XDG_STATE_HOME"] == str(world.state.path)
