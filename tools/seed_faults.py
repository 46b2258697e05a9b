"""Take the rules of the protocol and of allocation out of the source, one at a time; who notices?

    python tools/seed_faults.py               # all of them, a table at the end
    python tools/seed_faults.py R7 allocation # some rules
    python tools/seed_faults.py R7 --suite tests/conformance
    python tools/seed_faults.py --list

Each fault is a piece of text and what replaces it, applied to a copy of ``src``; tests run against
the copy, those that notice most first.  A piece that is not found exactly once is an error: the
code has moved on, and the fault must follow it.  A fault that no test notices has SURVIVED: write
that test.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.faults import FAULTS, Fault  # noqa: E402 - runs as a script

PACKAGE = Path("src") / "pliant"

SUITES = {
    "core/allocation/": ("tests/core/allocation",),
    "agent/": ("tests/agent",),
    "": (
        *("tests/core/membership/test_member.py", "tests/core/membership/test_resolve.py"),
        *("tests/conformance", "tests/core/test_explorer.py"),
        *("tests/core/job/test_controller.py", "tests/core"),
    ),
}
"""Tests of a fault, by the beginning of its path; what notices most comes first."""

TIMEOUT_S = 120.0
SURVIVED = "SURVIVED"
ENDLESS = "TIMED OUT"


def main() -> int:
    """Run, print the table, and return how many were not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rules", nargs="*", help="only these rules, such as R7 (default: all)")
    parser.add_argument("--suite", nargs="*", help="tests to run (default: by the fault's path)")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    parser.add_argument("--limit", type=float, default=TIMEOUT_S, help="seconds for one fault")
    arguments = parser.parse_args()
    faults = [f for f in FAULTS if not arguments.rules or f.rule in arguments.rules]
    if arguments.list:
        print("\n".join(f"{fault.rule:10} {fault.what}" for fault in faults))
        return 0
    drifted = [problem for fault in faults if (problem := drift(fault))]
    if drifted:
        print("\n".join(drifted), file=sys.stderr)
        return 1
    unnoticed = 0
    for fault in faults:
        began = time.monotonic()
        suite = arguments.suite or suite_of(fault)
        noticed_by = run_suite(fault, suite, timeout_s=arguments.limit)
        unnoticed += noticed_by in (SURVIVED, ENDLESS)
        took_s = time.monotonic() - began
        print(f"| {fault.rule} | {fault.what} | {noticed_by} | {took_s:.0f} s |", flush=True)
    print(f"\n{len(faults) - unnoticed} of {len(faults)} seeded faults noticed")
    return min(unnoticed, 100)


def drift(fault: Fault) -> str:
    """Return why a fault can no longer be applied, or nothing."""
    text = (ROOT / PACKAGE / fault.path).read_text()
    if (count := text.count(fault.old)) != 1:
        return f"{fault.rule} {fault.what}: found {count} times in {fault.path}"
    try:
        ast.parse(text.replace(fault.old, fault.new))
    except SyntaxError as error:  # a suite that cannot import it has noticed nothing
        return f"{fault.rule} {fault.what}: {error}"
    return ""


def suite_of(fault: Fault) -> tuple[str, ...]:
    """Return the tests that are run against a fault if nobody has asked for others."""
    return next(suite for start, suite in SUITES.items() if fault.path.startswith(start))


def run_suite(fault: Fault, suite: list[str] | tuple[str, ...], *, timeout_s: float) -> str:
    """Return the first test that failed, SURVIVED, or ENDLESS."""
    with tempfile.TemporaryDirectory(prefix="pliant-fault-") as scratch:
        source = Path(scratch) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        path = Path(scratch) / PACKAGE / fault.path
        path.write_text(path.read_text().replace(fault.old, fault.new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", *suite]
        command += ["-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not soak"]
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",  # a test may print anything
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ENDLESS
    if done.returncode == 0:
        return SURVIVED
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return found.group(1) if found else done.stdout[-300:]


if __name__ == "__main__":
    sys.exit(main())
