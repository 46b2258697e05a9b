"""What the models of all kinds of files share: how they are written, and how they refuse.

Owns camel case outside, strictness, and names; and the way from the fields of a model to those of
a value of the core, and back.  Knows nothing of any one kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

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


def core_fields(model: Model) -> dict[str, Any]:
    """Return the values of a model by the core's names of its fields."""
    return {_core_name(name): getattr(model, name) for name in type(model).model_fields}


def document(
    kind: type[Model], value_of: Callable[[str], Any], *, is_whole: bool = False
) -> dict[str, Any]:
    """Return the fields of a model as a file has them; unless whole, those that have not their
    default.

    ``value_of`` returns a value by the core's name of its field.
    """
    found = {}
    for name, field in kind.model_fields.items():
        value = value_of(_core_name(name))
        if is_whole or value != field.default:
            found[str(field.alias)] = value
    return found


def _core_name(name: str) -> str:
    outer = name.removesuffix("_in_seconds")
    return name if outer == name else f"{outer}_s"
