"""Options: what becomes of each option of a framework, in one table per framework.

Owns the three answers and how a table is read.  An option that a table does not have is one of a
version that nobody has looked at: it is refused as soon as it is set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pliant.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Answer:
    """What becomes of an option."""

    kind: str
    """``taken``, ``no consequence`` or ``refused``."""
    says: str = ""
    """How it is taken, why it has no consequence, or what to do instead."""
    fine: tuple[object, ...] = (None, False, "", 0)
    """Values that are not refused, besides the default."""


Table = Mapping[str, Answer]


def taken(names: str, says: str = "") -> Iterator[tuple[str, Answer]]:
    """Give these names, divided by spaces, as taken."""
    return ((name, Answer("taken", says)) for name in names.split())


def idle(names: str, says: str) -> Iterator[tuple[str, Answer]]:
    """Give these names as those of options without consequence."""
    return ((name, Answer("no consequence", says)) for name in names.split())


def refused(names: str, says: str, *fine: object) -> Iterator[tuple[str, Answer]]:
    """Give these names as refused; ``fine`` are values that are not."""
    answer = Answer("refused", says, (*Answer("").fine, *fine))
    return ((name, answer) for name in names.split())


def check(whose: str, values: Mapping[str, Any], defaults: Mapping[str, Any], table: Table) -> None:
    """Refuse what a run cannot do.

    Args:
        whose: the name of what has these options, for a sentence.
        values: by option, as they were set.
        defaults: by option; those that have none are never refused.
        table: the answers.

    Raises:
        ConfigError: an option is refused, or is set and unknown.
    """
    for name, value in values.items():
        answer = table.get(name)
        is_default = name not in defaults or _is_same(value, defaults[name])
        if answer is None and not is_default:
            raise ConfigError(
                f"{whose} has {name}={value!r}, an option of a version that pliant does not know; "
                "leave it at its default, or use a version that `pliant docs trainers` names"
            )
        if answer is None or answer.kind != "refused" or is_default:
            continue
        if not any(_is_same(value, one) for one in answer.fine):
            raise ConfigError(
                f"{whose} has {name}={value!r}, which an elastic run cannot do: {answer.says}"
            )


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other
