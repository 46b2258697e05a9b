"""What the page consists of, and under which policy it is served."""

from __future__ import annotations

import re

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from pliant.dashboard.page import FILES, MODULES, STATIC, add_page, html
from pliant.http.login import Logins


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    add_page(app, "job", Logins())
    return TestClient(app, base_url="http://127.0.0.1:7000")


def test_the_page_asks_for_nothing_from_elsewhere_and_runs_no_script_of_its_own_text(
    client: TestClient,
) -> None:
    page = client.get("/")

    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    for name in re.findall(r'(?:src|href)="(page/[^"]+)"', page.text):
        found = client.get(f"/{name}")
        assert found.status_code == 200
        assert found.headers["Content-Security-Policy"] == policy
    assert not re.search(r"<script>|<style>| on\w+=| style=|https?:", page.text)


@pytest.mark.parametrize("name", MODULES)
def test_text_stays_text(name: str) -> None:
    text = (STATIC / name).read_text()

    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", text)
    assert not re.search(r"new Function|https?://(?!www\.w3\.org/)", text)


def test_every_module_is_served_behind_those_that_it_imports() -> None:
    for at, name in enumerate(MODULES):
        imported = re.findall(r'from "\./([^"]+)"', (STATIC / name).read_text())
        assert set(imported) <= set(MODULES[:at])


def test_only_the_files_of_the_page_are_served(client: TestClient) -> None:
    for name in ("index.html", "page.py", "..%2Fpage.py", "uPlot.LICENSE", ""):
        assert client.get(f"/page/{name}").status_code == 404


def test_a_name_of_another_machine_is_refused(client: TestClient) -> None:
    for path in ("/", "/page/main.js"):
        assert client.get(path, headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200
    assert client.get("/page/main.js", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_the_page_knows_what_it_shows() -> None:
    assert 'data-mode="runs"' in html("runs")
    assert {path.is_file() for path in FILES.values()} == {True}
    assert (STATIC / "vendor" / "uPlot.LICENSE").read_text().startswith("The MIT License")
