"""Take the rules of the protocol and of allocation out of the source, one at a time; who notices?

    python tools/seed_faults.py               # all of them, a table at the end
    python tools/seed_faults.py R7 allocation # some rules
    python tools/seed_faults.py --list

Each fault is a piece of text and what replaces it, in a copy of the checkout; the tests that import
the module run against the copy, as for a mutation (``tools/mutate.py``).  A piece that is not found
exactly once is an error: the code has moved on, and the fault must follow it.  A fault that no test
notices has SURVIVED: write that test.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.faults import FAULTS, Fault
from tools.mutate import (
    LIMIT_S,
    PACKAGE,
    ROOT,
    SURVIVED,
    TIER,
    TIMED_OUT,
    Copy,
    Imports,
)


def drift(fault: Fault) -> str:
    """Return why a fault can no longer be applied, or nothing."""
    text = (ROOT / PACKAGE / fault.path).read_text()
    if (count := text.count(fault.old)) != 1:
        return f"{fault.rule} {fault.what}: found {count} times in {fault.path}"
    try:
        ast.parse(text.replace(fault.old, fault.new))
    except SyntaxError as error:  # a test that cannot import it has noticed nothing
        return f"{fault.rule} {fault.what}: {error}"
    return ""


def main() -> int:
    """Run, print the table, and return how many were not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rules", nargs="*", help="only these rules, such as R7 (default: all)")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    parser.add_argument("--tier", default=TIER, help=f"pytest's marker expression ({TIER})")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one fault")
    arguments = parser.parse_args()
    if unknown := set(arguments.rules) - {fault.rule for fault in FAULTS}:
        parser.error(f"no fault is of {min(unknown)}; --list names them")
    faults = [f for f in FAULTS if not arguments.rules or f.rule in arguments.rules]
    if arguments.list:
        print("\n".join(f"{fault.rule:10} {fault.what}" for fault in faults))
        return 0
    if drifted := [problem for fault in faults if (problem := drift(fault))]:
        print("\n".join(drifted), file=sys.stderr)
        return 1
    unnoticed, imports = 0, Imports()
    with tempfile.TemporaryDirectory(prefix="pliant-fault-") as scratch:
        copy = Copy(Path(scratch), arguments.tier)
        for fault in faults:
            began, path = time.monotonic(), PACKAGE / fault.path
            text = (ROOT / path).read_text().replace(fault.old, fault.new).encode()
            noticed_by = copy.noticed(path, text, imports.tests_of(path), arguments.limit)
            unnoticed += noticed_by in (SURVIVED, TIMED_OUT)
            took_s = time.monotonic() - began
            print(f"| {fault.rule} | {fault.what} | {noticed_by} | {took_s:.0f} s |", flush=True)
    print(f"\n{len(faults) - unnoticed} of {len(faults)} seeded faults noticed")
    return min(unnoticed, 100)


if __name__ == "__main__":
    sys.exit(main())
