"""``pliant replay``: a recorded run or pool once more, decision by decision, through the same core.

Owns argv of the command and the order of what is printed.  Knows nothing of how either is replayed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pliant.cli.arguments import Json
from pliant.cli.help import argument
from pliant.cli.terminal import print_json, say
from pliant.core.errors import EXIT_FAILED, EXIT_OK
from pliant.simulate.replay import Turn, replayed
from pliant.simulate.replay_log import entries, is_pool_log, log_at
from pliant.simulate.replay_telling import Account, json_of, lines_of

Log = Annotated[Path, argument("LOG|DIR", "The event log of a run or a pool, or its directory.")]


def replay(path: Log, as_json: Json = False) -> int:
    """Play a recorded run or pool once more; exit code 1 if anything is decided otherwise now."""
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
            say(line)
    if as_json:
        print_json({"log": str(log), "turns": shown, **account.as_json()})
    else:
        say(account.sentence)
    return EXIT_OK if account.inputs and account.difference is None else EXIT_FAILED
