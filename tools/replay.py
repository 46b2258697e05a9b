"""Play a recorded run or pool once more, decision by decision, through the same core.

    python -m tools.replay runs/train-gpt
    python -m tools.replay --json ~/.local/state/pliant/pools/default

Exit code 1: something is decided otherwise now, or nothing of the log can be replayed; 2: no log.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tools.replay_log import entries, is_pool_log, log_at
from tools.replay_telling import Account, json_of, lines_of
from tools.replay_turns import Turn, replayed

from pliant.core.errors import EXIT_FAILED, EXIT_OK, ConfigError


def replay(path: Path, *, as_json: bool = False) -> int:
    """Print each decision; return the exit code.

    Raises:
        ConfigError: there is no log.
    """
    log = log_at(path)
    account = Account(is_pool_log(log))
    shown: list[dict[str, Any]] = []
    start_at: float | None = None
    for step in replayed(entries(log)):
        account.add(step)
        start_at = step.place.at if start_at is None else start_at
        if isinstance(step, Turn) and step.is_quiet and step.difference is None:
            continue
        if as_json:
            shown.append(json_of(step))
            continue
        for line in lines_of(step, start_at):
            print(line)
    if as_json:
        print(json.dumps({"log": str(log), "turns": shown, **account.as_json()}, indent=2))
    else:
        print(account.sentence)
    return EXIT_OK if account.inputs and account.difference is None else EXIT_FAILED


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print every decision as JSON")
    parser.add_argument("log", type=Path, help="the log of a run or a pool, or its directory")
    found = parser.parse_args(arguments)
    try:
        return replay(found.log, as_json=found.json)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
