"""A row of the page of what is refused, and what shows that it is.

Owns its form; the rows are in ``refusals`` and the ``refusals_*`` beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Script = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A row of the page."""

    sentence: str
    """The whole sentence, as the example gives it; " ... " stands for more of the same."""
    when: str
    instead: str
    script: Script | None = None
    """What is refused; None where ``proof`` names a test."""
    command: str = ""
    """What is typed after ``pliant``, beside a ``train.py`` and the job file ``JOB``."""
    before: Script | None = None
    """What lies there then, and what runs."""
    replaced: tuple[str, str] = ("", "")
    """What is changed in the job file."""
    proof: str = ""
    feature: tuple[str, str] | None = None
    """Group and name under which the page of features has it too."""
