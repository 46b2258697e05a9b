"""What the models of all kinds of files share: how they are written, and how they refuse.

Owns camel case outside, strictness, and names.  Knows nothing of any one kind.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from pliant.core.text import MOST_S

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

NAME_RULE = "must be lower-case letters, digits and dashes, at most 63 of them"

Seconds = Annotated[float, Field(ge=0, le=MOST_S)]
SomeSeconds = Annotated[float, Field(gt=0, le=MOST_S)]


class Model(BaseModel):
    """Camel case outside, snake case inside; strict, so that ``"4"`` is not a number."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=False,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )


def impossible(sentence: str) -> PydanticCustomError:
    """Refuse a spec with a whole sentence, shown as it is."""
    return PydanticCustomError("impossible", "{sentence}", {"sentence": sentence})


def refuse_twice(what: str, names: list[str]) -> None:
    """Refuse a name that is given to two things of one kind."""
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise impossible(f"{what} {twice} is given twice")


def check_name(field: str) -> AfterValidator:
    """Refuse a name in this field that could not name a file."""

    def checked(name: str) -> str:
        if not NAME.fullmatch(name):
            raise impossible(f"{field} {name!r} {NAME_RULE}")
        return name

    return AfterValidator(checked)
