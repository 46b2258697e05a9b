"""What all parts of the job spec have in common: how names are written, and how they are refused.

Knows nothing of any field.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


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
