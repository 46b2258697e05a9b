"""A real browser, and servers beside it that stop and come back.

Needs Debian's Chromium and playwright; what asks for it skips with a reason without them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from pliant.http.server import answering, open_socket

CHROMIUM = Path("/usr/bin/chromium")


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a browser without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    with api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def served(app: FastAPI, port: int = 0) -> Iterator[int]:
    """Serve an app on a thread of its own; yield the port."""
    sock, ended = open_socket("127.0.0.1", port), threading.Event()
    ready, found = threading.Event(), sock.getsockname()[1]

    async def serve() -> None:
        async with answering(app, sock):
            ready.set()
            while not ended.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        yield found
    finally:
        ended.set()
        thread.join(20)


class Page:
    """One page in a browser, and all that it complained of."""

    def __init__(
        self, started: Any, *, width: int = 1280, theme: str = "light", **more: Any
    ) -> None:
        viewport = {"width": width, "height": 900}
        self.context = started.new_context(viewport=viewport, color_scheme=theme, **more)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)
        self.page.set_default_timeout(20_000)

    def _note(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def open(self, link: str) -> None:
        self.page.goto(link)

    def wait_for(self, text: str, where: str = "body") -> None:
        """Wait until this text is shown somewhere."""
        self.page.locator(where).get_by_text(text).first.wait_for()

    def text(self, where: str) -> str:
        return str(self.page.locator(where).first.inner_text())

    def fact(self, label: str) -> str:
        """Return what the headline says under a label."""
        return str(self.page.locator(f"dt:text-is('{label}') + dd").inner_text())

    def wait_for_fact(self, label: str, text: str) -> None:
        self.page.locator(f"dt:text-is('{label}') + dd").get_by_text(text).wait_for()

    def rows(self, table: str) -> list[list[str]]:
        """Return the cells of a table of this name, as they are shown."""
        rows = self.page.get_by_role("region", name=table, exact=True).locator("tbody tr").all()
        return [[cell.inner_text() for cell in row.locator("td").all()] for row in rows]

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()
