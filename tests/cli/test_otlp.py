"""Resizes as OpenTelemetry's traces, taken by a receiver on loopback that reads its messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from tests.observe.story import Story, eventful

from pliant.cli import otlp
from pliant.core.errors import ConfigError
from pliant.observe.trace import trace_of

messages = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="opentelemetry is not installed",
)
pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")


class Receiver(HTTPServer):
    """Takes traces."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths: list[str] = []
        self.resources: list[Any] = []
        self.spans: list[Any] = []


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        asked = messages.ExportTraceServiceRequest.FromString(data)
        self.server.paths.append(self.path)
        for one in asked.resource_spans:
            self.server.resources.append(one.resource)
            self.server.spans += [span for scope in one.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(messages.ExportTraceServiceResponse().SerializeToString())

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def grown() -> Story:
    """A job of one, and of two once the other has its state."""
    story = Story().started().start("r1").spare("r1").switch("r1").steps(3)
    story.write("scaled", target=2)
    story.decided(2, "asked for").start("r2").spare("r2", after_s=4.0).prepare("r1", "r2")
    story.now += 0.5
    story.write("prepared", replica="r2", generation=2)
    story.switch("r1", "r2")
    story.records[-1].update(received_bytes=8_000_000, received_s=0.5)
    return story.steps(1)


def test_each_resize_is_a_trace_with_its_parts_and_transfers(receiver: Receiver) -> None:
    trace = trace_of(grown().records)

    count = otlp.send(trace, f"http://127.0.0.1:{receiver.server_port}/")

    assert receiver.paths == ["/v1/traces"]
    (resource,) = receiver.resources
    names = {one.key: one.value.string_value for one in resource.attributes}
    assert (names["service.name"], names["pliant.run"]) == ("pliant", trace["otherData"]["job"])
    roots = [one for one in receiver.spans if not one.parent_span_id]
    assert [one.name for one in roots] == [
        "resize to generation 1: +r1", "resize to generation 2: +r2",
    ]  # fmt: skip
    assert count == len(roots) == len({one.trace_id for one in receiver.spans})
    parts = [one for one in receiver.spans if one.parent_span_id == roots[1].span_id]
    assert {"start", "prepare", "connect r2", "transfer r2"} <= {one.name for one in parts}
    assert all(roots[1].start_time_unix_nano <= one.start_time_unix_nano for one in parts)
    (transfer,) = (one for one in parts if one.name == "transfer r2")
    said = {one.key: one.value.int_value for one in transfer.attributes}
    assert said["pliant.bytes"] == 8_000_000
    assert said["pliant.bytes_per_s"] == 16_000_000


def test_what_is_sent_twice_has_the_same_ids(receiver: Receiver) -> None:
    trace = trace_of(eventful().records)

    for _ in range(2):
        otlp.send(trace, f"http://127.0.0.1:{receiver.server_port}")

    ids = [(one.trace_id, one.span_id) for one in receiver.spans]
    assert ids[: len(ids) // 2] == ids[len(ids) // 2 :]
    assert len(set(ids)) == len(ids) // 2


def test_what_cannot_be_sent_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "ANSWER_S", 0.2)
    trace = trace_of(eventful().records)

    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1/v1/traces does not take the trace"):
        otlp.send(trace, "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="is no address"):
        otlp.send(trace, "collector:4318")
    with pytest.raises(ConfigError, match="has no resize yet"):
        otlp.send(trace_of([]), "http://127.0.0.1:1")
