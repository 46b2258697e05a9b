"""Stateful: what a script gives to be kept with its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pliant.core.errors import ConfigError


class Stateful(Protocol):
    """What ``extra_state`` takes."""

    def state_dict(self) -> Any:
        """Return the state; plain values and tensors."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take the state that another replica's ``state_dict`` gave."""


def extra_parts(extra_state: Stateful | Mapping[str, Stateful] | None) -> dict[str, Stateful]:
    """Return the user's ``extra_state`` as named parts.

    Raises:
        ConfigError: a part has no ``state_dict`` or no ``load_state_dict``.
    """
    if extra_state is None:
        return {}
    is_many = isinstance(extra_state, Mapping) and not hasattr(extra_state, "state_dict")
    parts: dict[str, Any] = dict(extra_state) if is_many else {"": extra_state}  # type: ignore[arg-type]
    for name, part in parts.items():
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(part, method, None)):
                what = f"extra_state[{name!r}]" if is_many else "extra_state"
                raise ConfigError(f"{what} is a {type(part).__name__} and has no {method}()")
    return parts
