"""Chunks of another state, or of another place in it, are told from those that are due."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.engine.state import transfer
from pliant.engine.state.transfer import Stamp

STAMP = Stamp(generation=3, step=7, lineage=1)


@pytest.mark.parametrize(
    "other",
    [
        (replace(STAMP, generation=4), 11, 0),
        (replace(STAMP, step=8), 11, 0),
        (replace(STAMP, lineage=2), 11, 0),
        (STAMP, 12, 0),
        (STAMP, 11, 1),
    ],
    ids=["generation", "step", "lineage", "manifest", "index"],
)
def test_the_digest_of_a_chunk_covers_which_one_of_which_state_it_is(
    other: tuple[Stamp, int, int],
) -> None:
    """The same bytes of another chunk, or of the state in another history, are another chunk."""
    assert transfer._seed(*other) != transfer._seed(STAMP, 11, 0)
