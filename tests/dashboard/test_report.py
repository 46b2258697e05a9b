"""One file that shows a run: nothing of the run is ever run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

from tests.observe.test_view import RECORDED

from pliant.dashboard.page import FILES, MODULES
from pliant.dashboard.report import report_of

END = "</script><script>alert(1)</script>"


def test_only_our_scripts_are_in_it_and_each_by_its_digest(tmp_path: Path) -> None:
    job = json.dumps(END)
    (tmp_path / "events.jsonl").write_text(RECORDED.read_text().replace('"gpt"', job))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "r1.log").write_text(END)

    report = report_of(tmp_path)

    held, *scripts = re.findall(r"<script[^>]*>(.*?)</script>", report, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", report, re.DOTALL)
    policy = re.findall(r'Content-Security-Policy" content="([^"]+)"', report)[0]
    for text in (*scripts, *styles):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert len(scripts) == 2
    assert "unsafe" not in policy
    assert json.loads(held)["v1/view"]["headline"]["job"] == END
    assert json.loads(held)["v1/logs/r1"] == {"text": END}
    assert "src=" not in report.partition("</head>")[0].replace(scripts[0], "")


def test_a_run_in_restart_mode_says_why_it_has_no_proof(tmp_path: Path) -> None:
    begun = re.sub(r'("kind": ?"job_started")', r'\1, "mode": "restart"', RECORDED.read_text())
    (tmp_path / "events.jsonl").write_text(begun)

    held = re.findall(r'id="data">(.*?)</script>', report_of(tmp_path), re.DOTALL)[0]

    assert "there is no ledger to audit" in json.loads(held)["v1/audit"]["detail"]


def test_in_one_script_no_name_is_there_twice() -> None:
    names: list[str] = []
    for module in MODULES:
        found = re.findall(r"^(?:export )?(?:async )?(?:const|let|function|class) (.*)$",
                           FILES[module].read_text(), re.MULTILINE)  # fmt: skip
        names += [re.match(r"\w+", text)[0] for text in found if re.match(r"\w+", text)]  # type: ignore[index]

    assert sorted(names) == sorted(set(names))
