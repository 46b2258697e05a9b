"""Up to which step all members of a run have told what they computed, while it goes on.

Owns who has to be waited for.  On a host that does not see the directory of the run a ledger is
told once a second: a commit that another member has recorded may then lack slots for a moment.
Knows nothing of what ledgers must say.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pliant.observe.ledgers import BEFORE_ALL, END, Key, Ledger, key_of
from pliant.observe.reading import only


def told_until(ledgers: Sequence[Ledger], log: Path) -> Key:
    """Return the step from which on a member of the newest generation has not told all yet."""
    members = _members(log)
    newest: dict[str, Key] = {}
    for ledger in ledgers:
        for line in ledger.commits():
            key = key_of(line, BEFORE_ALL)
            newest[ledger.replica] = max(newest.get(ledger.replica, BEFORE_ALL), key)
    lineage = max(newest.values(), default=BEFORE_ALL)[0]
    told = [
        max(newest.get(member, BEFORE_ALL), (lineage, entered - 1))
        for member, entered in members.items()
    ]
    if not told:
        return END
    lineage, step = min(told)
    return lineage, step + 1


def _members(log: Path) -> dict[str, int]:
    """Return who has entered the newest generation that all members have entered, and where."""
    number, awaited, entered = 0, set[str](), dict[str, int]()
    complete: dict[str, int] = {}
    for record in only(log, "switch", "reform", "switched"):
        with suppress(KeyError, TypeError, ValueError):
            if record["kind"] != "switched":
                order = record["order"]
                if int(order["generation"]) > number:
                    number = int(order["generation"])
                    awaited = {str(seat["replica"]) for seat in order["members"]}
                    entered = {}
            elif record["generation"] == number:
                entered[str(record["replica"])] = int(record["step"])
        if awaited and awaited <= entered.keys():
            complete, awaited = {name: entered[name] for name in awaited}, set()
    return complete
