"""What ``--detach`` starts: a process that goes on with what its parent has resolved.

Owns the way back from the parent's document to a command.  Resolves nothing again.

    pliant run --detach --> document over stdin --> python -m pliant.cli.detached job NAME
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pliant.cli import pool_commands
from pliant.cli.main import exit_code_of


def run(kind: str, document: dict[str, Any]) -> int:
    """Run a job, or a pool, to its end; return its exit code."""
    if kind == "pool":
        return pool_commands.serve(document)
    from pliant.cli import start  # a pool needs nothing of it

    return start.attached(start.Start.of(document, os.environ), as_json=False)


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: run(sys.argv[1], json.load(sys.stdin))))
