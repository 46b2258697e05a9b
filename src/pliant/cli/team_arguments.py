"""A team of a pool as people type it: its quota, what it may borrow, and from whom it may take.

Owns these options, and that what is not typed stays as it was.  Knows nothing of who gets what.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pliant.core.errors import ConfigError

ALL = "*"
"""No class is called so."""

Team = Annotated[str, typer.Argument(metavar="TEAM", help="A new one, or one that is there.")]
Quota = Annotated[
    int | None, typer.Option("--quota", metavar="N", help="Devices that are its own.")
]
NoQuota = Annotated[bool, typer.Option("--no-quota", help="It has none, and may use all devices.")]
BorrowLimit = Annotated[
    int | None,
    typer.Option("--borrow-limit", metavar="N", help="Idle devices beyond its quota."),
]
NoBorrowLimit = Annotated[
    bool, typer.Option("--no-borrow-limit", help="It may use all that are idle.")
]
Reclaim = Annotated[
    str | None,
    typer.Option(
        "--reclaim",
        metavar="LowerPriority|SameTeam|Never",
        help="Whom its claims may take devices from.",
    ),
]
ByClass = Annotated[
    list[str] | None,
    typer.Option(
        "--by", metavar="CLASS", help="Only claims of this class may.  Repeatable; '*': all may."
    ),
]


def rules_of(
    *,
    quota: int | None,
    no_quota: bool,
    borrow_limit: int | None,
    no_borrow_limit: bool,
    reclaim: str | None,
    by: list[str] | None,
) -> dict[str, Any]:
    """Return what a request says of what a team may use; what is not in it stays.

    Raises:
        ConfigError: the options contradict each other.
    """
    said = _number("quota", quota, "--quota", is_none=no_quota)
    said |= _number("borrowLimit", borrow_limit, "--borrow-limit", is_none=no_borrow_limit)
    if borrow_limit is not None and quota is None:
        raise ConfigError(f"--borrow-limit {borrow_limit} counts from a quota; give --quota, too")
    rule: dict[str, Any] = {"from": reclaim} if reclaim else {}
    rule |= {"by": None if ALL in by else by} if by else {}
    return {**said, "reclaim": rule} if rule else said


def _number(field: str, number: int | None, flag: str, *, is_none: bool) -> dict[str, Any]:
    if is_none and number is not None:
        raise ConfigError(f"{flag} {number} and --no-{flag[2:]}: leave out one of them")
    return {field: number} if is_none or number is not None else {}
