"""The nouns: in which order members stand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.values import ReplicaId, Seat, arranged, host_of


@given(homes=st.lists(st.sampled_from(["10.0.0.1", "[fd77::1]", "c"]), min_size=1, max_size=12))
def test_members_of_one_host_stand_beside_each_other_and_nobody_passes_another_of_his(
    homes: list[str],
) -> None:
    seats = [
        Seat(replica=ReplicaId(f"r{number}"), endpoint=f"{home}:{number}")
        for number, home in enumerate(homes, start=1)
    ]

    found = arranged(seats)

    assert sorted(found, key=seats.index) == seats
    assert found[0] == seats[0]
    order = [host_of(seat.endpoint) for seat in found]
    assert [h for h, before in zip(order, [None, *order], strict=False) if h != before] == list(
        dict.fromkeys(homes)
    )
    for home in homes:
        here = [seat for seat in found if host_of(seat.endpoint) == home]
        assert here == sorted(here, key=seats.index)
