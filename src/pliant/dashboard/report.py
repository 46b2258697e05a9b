"""``pliant dashboard --export``: one file that shows a run without a server.

Owns how the page, its scripts and all that it would ask for become one HTML file.  The policy in it
names each script and style by its digest, so that nothing else in the file is ever run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pliant.core.errors import ConfigError
from pliant.dashboard.app import concluded
from pliant.dashboard.page import FILES, MODULES, html
from pliant.machine import run_files
from pliant.observe.audit import audit_run
from pliant.observe.printed import PrintedUntil, printed_after, printers
from pliant.observe.reading import follow
from pliant.observe.view import MOST_POINTS, LogView

PRINTED_BYTES = 64 << 10
"""Of the end of what each worker printed."""

MOST_PRINTERS = 64


def report_of(out: Path) -> str:
    """Return a file that shows a run as it is now.

    Raises:
        OSError: its files cannot be read.
    """
    log = run_files.event_log(out)
    view = json.loads(LogView(log, lambda board: concluded(out, board)).as_json(points=MOST_POINTS))
    try:
        audit = audit_run(out, is_growing=view["ended"] is None)
        proof = {**asdict(audit), "samples_exactly_once": audit.exactly_once}
    except ConfigError as error:
        proof = {"detail": str(error)}
    data: dict[str, Any] = {
        "v1/view": view,
        "v1/audit": proof,
        "v1/logs": {"workers": (workers := printers(out)[:MOST_PRINTERS])},
        **{f"v1/logs/{worker}": {"text": _end_of(out, worker)} for worker in workers},
    }
    for event in view["events"]:
        position = event["position"]
        record = next((record for _, record in follow(log, position)), None)
        data[f"v1/events@{position}"] = {"records": [] if record is None else [record]}
    return _in_one_file(data)


def _end_of(out: Path, worker: str) -> str:
    data, piece, place = b"", b"\n", PrintedUntil()
    while piece:
        piece, place = printed_after(out, worker, place)
        data = (data + piece)[-PRINTED_BYTES:]
    return data.decode(errors="replace")


def _in_one_file(data: dict[str, Any]) -> str:
    styles = [FILES[name].read_text() for name in ("uPlot.min.css", "style.css")]
    joined = "\n".join(_joined(FILES[name].read_text()) for name in MODULES)
    modules = f'"use strict";\n(() => {{\n{joined}}})();\n'
    vendored = FILES["uPlot.iife.min.js"].read_text()
    policy = (
        f"default-src 'none'; script-src {_digest(vendored)} {_digest(modules)};"
        f" style-src {' '.join(map(_digest, styles))}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    held = json.dumps(data).replace("<", "\\u003c")  # no text of the run ends the element
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        + "".join(f"<style>{style}</style>\n" for style in styles)
        + f'<script type="application/json" id="data">{held}</script>\n'
        + f"<script>{vendored}</script>\n"
    )
    page = re.sub(r'<link rel="stylesheet".*?>\n|<script src.*?</script>\n', "", html("file"))
    before, _, after = page.partition('<script type="module" src="page/main.js"></script>\n')
    return before + head + after.replace("</body>", f"<script>{modules}</script>\n</body>")


def _joined(module: str) -> str:
    """Return a module as part of one script, in which every name of ours is known."""
    return re.sub(r"^import .*\n", "", module, flags=re.MULTILINE).replace("\nexport ", "\n")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
