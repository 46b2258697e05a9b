"""The end of what ``pliant replay`` prints: the sum of a log, and whether it is as it was.

Owns the exit code.  Knows nothing of how a run or a pool is replayed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pliant.cli.printing import print_json, say
from pliant.core.exits import EXIT_FAILED, EXIT_OK
from pliant.simulate.pool_telling import PoolAccount
from pliant.simulate.replay_telling import Account


def print_account(
    log: Path, shown: list[dict[str, Any]], account: Account | PoolAccount, *, as_json: bool
) -> int:
    """Print the sum of a replay, as JSON with the turns before it; return the exit code."""
    if as_json:
        print_json({"log": str(log), "turns": shown, **account.as_json()})
    else:
        say(account.sentence)
    return EXIT_OK if account.inputs and account.difference is None else EXIT_FAILED
