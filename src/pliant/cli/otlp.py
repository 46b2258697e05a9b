"""The resizes of a trace as spans, and sending them to who takes OTLP over HTTP.

Owns what is a span of what: each resize is a trace of its own, with its parts and what each replica
did in it.  Steps and checkpoints are in the file for Perfetto alone: there may be a million.  Knows
nothing of logs.  Ids follow from the job and the generation, so what is sent twice is there once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import Any

from pliant.core.errors import ConfigError
from pliant.observe.trace import RESIZES, STEPS

SCHEME = "otlp:"
TRACES = "/v1/traces"

ANSWER_S = 10.0
"""Longest wait for who takes them, in seconds."""


def send(trace: dict[str, Any], url: str) -> int:
    """Send the resizes of a trace; return how many there are.

    Raises:
        ConfigError: nobody takes them, or the package is not there.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"--to {SCHEME}{url} is no address; write {SCHEME}http://HOST:4318, for instance"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--to {SCHEME}{url} needs OpenTelemetry: pip install 'pliant[otlp]'"
        ) from error
    found = list(spans(trace))
    if not found:
        raise ConfigError("nothing was sent: the log has no resize yet")
    endpoint = url.rstrip("/")
    endpoint += TRACES * (not endpoint.endswith(TRACES))
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # said below, in one sentence
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=ANSWER_S)
    if exporter.export(found) is not SpanExportResult.SUCCESS:
        raise ConfigError(
            f"{endpoint} does not take the trace; see that an OTLP receiver listens there over HTTP"
        )
    return sum(span.parent is None for span in found)


def spans(trace: dict[str, Any]) -> Iterator[Any]:
    """Yield each resize of a trace as a span, before what is part of it."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, TraceFlags

    about, events = trace["otherData"], trace["traceEvents"]
    named = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    resource = Resource({"service.name": "pliant", "pliant.run": about["job"]})

    def span(one: dict[str, Any], resize: dict[str, Any], parent: Any) -> Any:
        track = named[one["tid"]]
        key = f"{about['job']} {about['began_at']} {resize['name']}"
        own = hashlib.blake2b(f"{key} {track} {one['name']}".encode(), digest_size=8)
        context = SpanContext(
            trace_id=int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "big"),
            span_id=int.from_bytes(own.digest(), "big"),
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
        begin_ns = round(about["began_at"] * 1e9) + one["ts"] * 1000
        said = {f"pliant.{name}": value for name, value in one["args"].items()}
        return ReadableSpan(
            name=one["name"] if track == RESIZES else f"{one['name']} {track}",
            context=context,
            parent=parent,
            resource=resource,
            attributes={name: value for name, value in said.items() if value is not None},
            start_time=begin_ns,
            end_time=begin_ns + one["dur"] * 1000,
        )

    resize: dict[str, Any] = {}
    root: Any = None
    for one in events:  # a resize comes before its parts
        if one["ph"] != "X":
            continue
        if "joined" in one["args"]:
            resize, root = one, span(one, one, None)
            yield root
        elif resize and (one["cat"] == RESIZES or _is_of(one, resize)):
            yield span(one, resize, root.context)


def _is_of(one: dict[str, Any], resize: dict[str, Any]) -> bool:
    """Whether a slice is what a replica did in a resize."""
    generation: int = resize["args"]["generation"]
    return bool(one["cat"] != STEPS and one["args"].get("generation") == generation)
