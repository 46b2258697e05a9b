"""Elastic events, as a script sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from pliant.restart.page import PAGE_VARIABLE, Page

EVENT = {"reason": "stop", "deadline": 7.5, "old_size": 2, "new_size": 0, "leaving": True}


def said(script: str, page: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    found: dict[str, Any] = environ if page is None else {**environ, PAGE_VARIABLE: str(page)}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=found, capture_output=True, text=True, check=False)


def confirmed(directory: Path) -> Page:
    page = Page(directory / "page", is_new=True)
    page.propose(2, EVENT)
    page.confirm()
    return page


def test_a_script_sees_the_event_and_acknowledges_it(tmp_path: Path) -> None:
    page = confirmed(tmp_path)
    script = """
import pliant
assert pliant.elastic_event() is None
event = pliant.elastic_event()
assert event is pliant.elastic_event()
try:
    event.saved(40, "nowhere")
except pliant.ConfigError as error:
    assert "there is nothing; save it before" in str(error)
event.saved(40, "s3://somewhere")
print(event)
"""
    found = said(script, tmp_path / "page")

    assert found.stdout == (
        "ElasticEvent(reason='stop', deadline=7.5, old_size=2, new_size=0, leaving=True)\n"
    ), found.stderr
    assert page.saved == (1, 40, 3, "s3://somewhere")


def test_there_are_no_events_outside_restart_mode() -> None:
    found = said("import pliant, sys; print(pliant.elastic_event(), 'torch' in sys.modules)")

    assert found.stdout == "None False\n", found.stderr


def test_a_process_that_the_script_forks_is_not_counted(tmp_path: Path) -> None:
    page = confirmed(tmp_path)
    script = """
import os, pliant
pliant.elastic_event()
if (child := os.fork()) == 0:
    print([pliant.elastic_event() for _ in range(3)], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert said(script, tmp_path / "page").stdout == "[None, None, None]\n"
    assert page.calls == 1
