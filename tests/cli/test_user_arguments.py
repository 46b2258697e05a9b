"""For whom a team or a class is."""

from __future__ import annotations

from pliant.cli.user_arguments import users_of


def test_who_is_not_named_leaves_it_as_it_was_and_everybody_is_a_star() -> None:
    assert users_of(None) == users_of([]) == {}
    assert users_of(["ada", "cy"]) == {"users": ["ada", "cy"]}
    assert users_of(["*"]) == {"users": None}
