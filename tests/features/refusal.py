"""What is refused, as the tables of this folder have it.

Owns the form of a row; the tables are in ``refused_scripts``, ``refused_commands`` and
``refused_simulations``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Script = Callable[[], object]


class Listed(NamedTuple):
    """A script whose refusal the page of features has, too; None: another test has it."""

    script: Script | None
    group: str
    name: str
    instead: str


class Typed(NamedTuple):
    """What is typed after ``pliant``, beside a ``train.py`` and the job file ``JOB``."""

    command: str
    before: Script | None = None
    """What lies there then, and what runs."""
    replaced: tuple[str, str] = ("", "")
    """What is changed in the job file."""
