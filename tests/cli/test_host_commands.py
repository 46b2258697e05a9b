"""What ``pliant doctor`` makes of the answers of whatever serves at the place of a coordinator."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pliant.cli.host_commands import _coordinator
from pliant.cli.main import code_of
from pliant.core.values import Incarnation
from pliant.machine import host_look
from pliant.run.register_location import CoordinatorSign, write_sign

Serve = Callable[[int, int], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return what serves the two answers, and says where."""
    with ExitStack() as stack:

        def served(health: int, status: int) -> str:
            class Answers(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    self.send_response(health if self.path == "/healthz" else status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

                def log_message(self, *_: object) -> None:
                    pass

            server = stack.enter_context(HTTPServer(("127.0.0.1", 0), Answers))
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, args=(0.05,)).start()
            return f"127.0.0.1:{server.server_port}"

        yield served


@pytest.mark.parametrize(
    ("status", "said"), [(200, "taken"), (503, "taken"), (401, "refused"), (403, "refused")]
)
def test_a_busy_coordinator_has_taken_the_token(serve: Serve, status: int, said: str) -> None:
    look = _coordinator(serve(200, status), "x" * 20, None)

    assert (look.obstacle, look.token) == ("", said)


@pytest.mark.parametrize(("health", "status"), [(404, 404), (200, 404), (503, 503), (200, 302)])
def test_what_does_not_answer_as_a_coordinator_does_is_none(
    serve: Serve, health: int, status: int
) -> None:
    look = _coordinator(serve(health, status), "x" * 20, None)

    assert look.obstacle.startswith("it answers, but no coordinator (status ")


def test_places_are_named_as_agents_name_them(
    serve: Serve,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_look, "torch_here", lambda: ("2.13.0", ""))
    place, nobody = serve(200, 200), "127.0.0.1:1"
    (tmp_path / "token").write_text("x" * 22)
    sign = tmp_path / "coordinator.json"
    write_sign(sign, CoordinatorSign(url=f"http://{place}", incarnation=Incarnation(1)))

    def told(join: str) -> list[str]:
        code_of(["doctor", "--join", join, "--token-file", str(tmp_path / "token"), "--json"])
        found = json.loads(capsys.readouterr().out)["findings"]
        return [one["found"] for one in found if one["name"] == "coordinator"]

    first, second = told(f"{nobody},{place}")
    assert first.startswith(nobody)
    assert first.endswith("it is not needed now")
    assert second.startswith(f"{place} answers")
    (first,) = told(f"@{sign}")
    assert first.startswith(f"http://{place} answers")
    (first,) = told(f"@{sign}.old")
    assert "there is no such file; it is the coordinator.json of the coordinator" in first
