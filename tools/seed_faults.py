"""Take the rules of DESIGN 5 and of allocation out of the core, one at a time; who notices?

    python tools/seed_faults.py             # all of them, a table at the end
    python tools/seed_faults.py R7 R15      # some rules; Pool: those of docs/allocation.md
    python tools/seed_faults.py Usage Metrics  # what is told of a pool
    python tools/seed_faults.py Simulation
    python tools/seed_faults.py Joint JointHosts  # hosts that become one node
    python tools/seed_faults.py P8 --suite tests/core/policy tests/conformance
    python tools/seed_faults.py --shard 1/4  # every fourth of them, to be run in parts
    python tools/seed_faults.py --all-but seeded.log  # those of which that output tells nothing
    python tools/seed_faults.py --list

Each fault is a piece of text and what replaces it, applied to a copy of ``src``; the core suite
runs against the copy.  A piece that is not found exactly once is an error: the code has moved on,
and the fault must follow it.  A fault that no test notices has SURVIVED: write that test, or say
in the fault why it is equivalent.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.allocation_faults import ALLOCATION_FAULTS, ALLOCATION_SUITE  # noqa: E402 - a script
from tools.faults import FAULTS, Fault  # noqa: E402 - runs as a script
from tools.joint_faults import JOINT_FAULTS  # noqa: E402
from tools.policy_faults import POLICY_FAULTS  # noqa: E402
from tools.pool_faults import POOL_FAULTS  # noqa: E402
from tools.protocol_faults import PROTOCOL_FAULTS  # noqa: E402
from tools.restart_faults import RESTART_FAULTS  # noqa: E402
from tools.shell_faults import SHELL_FAULTS  # noqa: E402
from tools.simulate_faults import SIMULATE_FAULTS  # noqa: E402
from tools.speed_faults import SPEED_FAULTS  # noqa: E402

PACKAGE = Path("src") / "pliant"
SUITE = [
    *("tests/core/membership/test_member.py", "tests/core/membership/test_resolve.py"),
    *("tests/conformance", "tests/core/test_explorer.py"),
    *("tests/core/job/test_controller.py", "tests/core"),
]
"""What notices most comes first: each fault costs only what it takes to notice it."""

TABLES = (
    *(FAULTS, RESTART_FAULTS, PROTOCOL_FAULTS, SHELL_FAULTS),
    *(POLICY_FAULTS, ALLOCATION_FAULTS, POOL_FAULTS, SIMULATE_FAULTS, SPEED_FAULTS),
    JOINT_FAULTS,
)

TIMEOUT_S = 120.0
"""A fault may make the suite loop for ever; that counts as noticed if it ends without the fault."""

SURVIVED = "SURVIVED"
ENDLESS = "the suite does not end"

SOUND_S = 900.0
"""Longest that the suite may take without a fault."""


@dataclass(frozen=True)
class Verdict:
    """What the suite said about one fault."""

    fault: Fault
    noticed_by: str
    seconds: float

    @property
    def survived(self) -> bool:
        """Whether no test noticed, as far as can be told."""
        return self.noticed_by.startswith(SURVIVED) and not self.fault.equivalent


def main() -> int:
    """Run, print the table, and return how many survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rules", nargs="*", help="only these rules, such as R7 (default: all)")
    parser.add_argument("--suite", nargs="*", default=SUITE, help="tests to run (default: core)")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    parser.add_argument("--jobs", type=int, default=1, help="suites to run at a time")
    parser.add_argument("--limit", type=float, default=TIMEOUT_S, help="seconds for one suite")
    parser.add_argument("--shard", type=shard, default=(1, 1), help="part of how many, such as 1/4")
    parser.add_argument(
        "--all-but", type=told_in, default=frozenset(), help="output of a run that was cut off"
    )
    parser.add_argument(
        "--equivalent", action="store_true", help="run those, too, that no test can notice"
    )
    arguments = parser.parse_args()
    known = [fault for table in TABLES for fault in table]
    faults = [f for f in known if not arguments.rules or f.rule in arguments.rules]
    faults = [f for f in faults if (f"| {f.rule}", f.what) not in arguments.all_but]
    part, parts = arguments.shard
    faults = faults[part - 1 :: parts]
    if arguments.list:
        print("\n".join(f"{fault.rule:5} {fault.what}" for fault in faults))
        return 0
    drifted = [problem for fault in faults if (problem := drift(fault))]
    if drifted:
        print("\n".join(drifted), file=sys.stderr)
        return 1
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as runners:
        suites = (suite_of(fault, arguments.suite) for fault in faults)
        needed = list(dict.fromkeys(path for suite in suites for path in suite))
        without = runners.submit(run_suite, None, needed, timeout_s=SOUND_S)
        judging = partial(
            judge,
            suite=arguments.suite,
            timeout_s=arguments.limit,
            is_thorough=arguments.equivalent,
        )
        verdicts = [_shown(verdict) for verdict in runners.map(judging, faults)]
        if (sound := without.result()) != SURVIVED:
            print(f"the suite fails without any fault: {sound}", file=sys.stderr)
            return 1
    survivors = sum(verdict.survived for verdict in verdicts)
    equivalent = sum(bool(verdict.fault.equivalent) for verdict in verdicts)
    noticed = len(verdicts) - survivors - equivalent
    print(f"\n{noticed} of {len(verdicts)} seeded faults noticed, {equivalent} equivalent")
    return min(survivors, 100)


def drift(fault: Fault) -> str:
    """Return why a fault can no longer be applied, or nothing."""
    text = (ROOT / PACKAGE / fault.room / fault.path).read_text()
    if (count := text.count(fault.old)) != 1:
        return f"{fault.rule} {fault.what}: found {count} times in {fault.path}"
    try:
        ast.parse(text.replace(fault.old, fault.new))
    except SyntaxError as error:  # a suite that cannot import it has noticed nothing
        return f"{fault.rule} {fault.what}: {error}"
    return ""


def shard(text: str) -> tuple[int, int]:
    """Read which part of how many is to be run."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part of a whole, such as 1/4")
    return int(part), int(parts)


def told_in(path: str) -> frozenset[tuple[str, ...]]:
    """Read of which faults the output of a run tells: the beginnings of its lines."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error.strerror}") from error
    return frozenset(tuple(line.split(" | ")[:2]) for line in lines)


def judge(
    fault: Fault, suite: list[str], *, timeout_s: float = TIMEOUT_S, is_thorough: bool = True
) -> Verdict:
    """Seed one fault and run its suite; one that does not end without the fault says nothing."""
    if fault.equivalent and not is_thorough:
        return Verdict(fault=fault, noticed_by="", seconds=0.0)
    began = time.monotonic()
    chosen = suite_of(fault, suite)
    noticed_by = run_suite(fault, chosen, timeout_s=timeout_s)
    if noticed_by == ENDLESS and run_suite(None, chosen, timeout_s=timeout_s) != SURVIVED:
        noticed_by = (
            f"{SURVIVED}, or not: without it the suite does not end in {timeout_s:g} s either"
        )
    return Verdict(fault=fault, noticed_by=noticed_by, seconds=time.monotonic() - began)


def suite_of(fault: Fault, asked: list[str]) -> list[str]:
    """Return the tests that are run against a fault if nobody has asked for others."""
    if asked is not SUITE:
        return asked
    if fault.suite:
        return list(fault.suite)
    return ALLOCATION_SUITE if fault in ALLOCATION_FAULTS else SUITE


def run_suite(fault: Fault | None, suite: list[str], *, timeout_s: float) -> str:
    """Return the first test that failed, or SURVIVED."""
    with tempfile.TemporaryDirectory(prefix="pliant-fault-") as scratch:
        source = Path(scratch) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if fault is not None:
            path = Path(scratch) / PACKAGE / fault.room / fault.path
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
    return found.group(1).removeprefix("tests/core/") if found else done.stdout[-300:]


def _shown(verdict: Verdict) -> Verdict:
    fault = verdict.fault
    noticed_by = verdict.noticed_by
    if fault.equivalent:
        noticed_by = f"equivalent: {fault.equivalent}"
    print(f"| {fault.rule} | {fault.what} | {noticed_by} | {verdict.seconds:.0f} s |")
    sys.stdout.flush()
    return verdict


if __name__ == "__main__":
    sys.exit(main())
