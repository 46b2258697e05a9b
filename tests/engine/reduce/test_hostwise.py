"""Who carries which shard of a bucket for its host."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pliant.engine.reduce.hostwise import carriers


@given(homes=st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_every_shard_has_one_carrier_on_each_host_and_its_owner_on_its_own(
    homes: list[int],
) -> None:
    hosts = [[r for r, home in enumerate(homes) if home == one] for one in dict.fromkeys(homes)]

    found = carriers(hosts)

    for host, carrying in zip(hosts, found, strict=True):
        assert all(carrier in host for carrier in carrying)
        assert all(carrying[rank] == rank for rank in host)
        counts = [carrying.count(rank) for rank in host]
        assert max(counts) - min(counts) <= 1
