"""Users as people type them: for whom a team or a class of a shared pool is.

Owns the option, and what leaving it out means.  Knows nothing of who may use what.
"""

from __future__ import annotations

from typing import Annotated

import typer

EVERYBODY = "*"
"""No user is called so."""

ForUsers = Annotated[
    list[str] | None,
    typer.Option(
        "--user",
        metavar="USER",
        help="For this user only.  Repeatable; '*': for everybody.  [default: as before]",
    ),
]


def users_of(typed: list[str] | None) -> dict[str, list[str] | None]:
    """Return what a request says of the users; nothing: they stay."""
    if not typed:
        return {}
    return {"users": None if EVERYBODY in typed else typed}
