"""Requests to every route of an app, sensible and mad, for tests that none ends in a 500."""

from __future__ import annotations

import json
from typing import Any

import httpx
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

TEXTS = st.sampled_from(
    ["", "r1", "gpt", "default", "\ud800", "a\ud800b", "\x1b[2J", "[/x]", "../..", "é", "x" * 300]
) | st.text(max_size=8)
NUMBERS = (
    st.integers(-3, 5)
    | st.sampled_from([1 << 31, 1 << 53, 1 << 63, 1 << 64, -(1 << 64), 10**400])
    | st.floats()
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def ask_anything(
    app: FastAPI, people: httpx.Client, *, without: tuple[str, ...] = (), num_examples: int = 50
) -> None:
    """Ask a served app for everything, in a thread beside its event loop."""

    @settings(max_examples=num_examples, database=None)
    @given(asked=requests(app, without))
    def ask(asked: tuple[str, str, bytes]) -> None:
        method, path, body = asked
        answer = people.request(method, path, content=body)
        assert answer.status_code < 500, (asked, answer.text)
        assert people.get("/v1/status").status_code == 200, asked

    ask()


def requests(app: FastAPI, without: tuple[str, ...]) -> st.SearchStrategy[tuple[str, str, bytes]]:
    """Return (method, path, body) of any route below ``/v1`` and of those for machines."""
    page = app.openapi()
    paths = [path for path in page["paths"] if not path.endswith(without or "?")]
    routes = [(path, method, page) for path in paths for method in page["paths"][path]]
    return st.sampled_from(routes).flatmap(lambda route: _request(*route))


def _request(path: str, method: str, page: dict[str, Any]) -> st.SearchStrategy[Any]:
    route = page["paths"][path][method]
    named = {one["name"]: one["in"] for one in route.get("parameters", ())}
    parts = {name: TEXTS | NUMBERS.map(str) for name in named}
    schema = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    fields = _fields(schema.get("schema", {}), page)
    body = st.fixed_dictionaries({}, optional=dict.fromkeys(fields, VALUES)) if fields else VALUES
    return st.builds(
        lambda given, sent, raw: (method.upper(), _filled(path, named, given), raw or _json(sent)),
        st.fixed_dictionaries(parts),
        body | VALUES,
        st.just(b"") | st.sampled_from([b"", b"{", b"\xff", b'{"a": NaN}', b"[" * 50_000]),
    )


def _fields(schema: dict[str, Any], page: dict[str, Any]) -> list[str]:
    for part in (schema, *schema.get("anyOf", ())):
        if "$ref" in part:
            part = page["components"]["schemas"][part["$ref"].rsplit("/", 1)[1]]
        if "properties" in part:
            return list(part["properties"])
    return []


def _filled(path: str, named: dict[str, str], given: dict[str, str]) -> str:
    query = {}
    for name, value in given.items():
        quoted = httpx.QueryParams({"q": value.encode(errors="replace").decode()})
        if named[name] == "path":
            path = path.replace("{" + name + "}", str(quoted)[2:])
        else:
            query[name] = str(quoted)[2:]
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{path}?{asked}" if asked else path


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
