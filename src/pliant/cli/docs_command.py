"""``pliant docs``: the pages that sentences of pliant name, where pliant is installed.

Owns where they lie: beside the package in a wheel, in ``docs`` of a checkout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.printing import say
from pliant.core.errors import ConfigError

_HERE = Path(__file__).resolve()
PLACES = (_HERE.parents[1] / "docs", _HERE.parents[3] / "docs")


def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="PAGE", help="Its name, e.g. bring-your-script.")
    ] = None,
) -> int:
    """Show a page of the documentation; without a name, list them."""
    place = next(filter(Path.is_dir, PLACES), PLACES[0])
    pages = {path.stem: path for path in sorted(place.rglob("*.md"))}
    if page is None:
        return say("\n".join((*pages, f"files: {place}")))
    if (found := pages.get(Path(page).stem)) is None:
        raise ConfigError(f"there is no page {page!r}; all are in pliant docs")
    return say(found.read_text())
