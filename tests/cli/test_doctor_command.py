"""What ``pliant doctor`` makes of the answers of whatever serves at the place of a coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pliant.cli.doctor_command import _coordinator

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
    look = _coordinator(serve(200, status), "x" * 20)

    assert look is not None
    assert (look.obstacle, look.token) == ("", said)


@pytest.mark.parametrize(("health", "status"), [(404, 404), (200, 404), (503, 503), (200, 302)])
def test_what_does_not_answer_as_a_coordinator_does_is_none(
    serve: Serve, health: int, status: int
) -> None:
    look = _coordinator(serve(health, status), "x" * 20)

    assert look is not None
    assert look.obstacle.startswith("it answers, but no coordinator (status ")
