"""Plain state: values that a script keeps beside its model, as attributes, and that travel with it.

Owns how they are told and taken.  Must not know who asks, nor where they go.
"""

from __future__ import annotations

from typing import Any, Self


class PlainState:
    """Values of a script that belong to the run: ``best = pliant.State(loss=math.inf, bad=0)``.

    Given to a session as ``extra_state``, it reaches replicas that join and is in checkpoints.
    Change its attributes in the tail of a step, on every replica alike.
    """

    def __init__(self, **values: Any) -> None:
        """Keep these: numbers, texts, tensors, and lists and dicts of such."""
        vars(self).update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this pliant.State has no {name!r}")

    @classmethod
    def over(cls, values: dict[str, Any]) -> Self:
        """Return one whose values are those of a dict, which stays the script's."""
        made = cls()
        object.__setattr__(made, "__dict__", values)
        return made

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def state_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take these values in place of all there are."""
        vars(self).clear()
        vars(self).update(state)


State = PlainState
"""Its public name; in the engine that is another's."""
