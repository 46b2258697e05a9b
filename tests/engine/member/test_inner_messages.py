"""What workers of a replica tell each other arrives as it was said."""

from __future__ import annotations

import pytest

from pliant.core.membership.follower_answers import Failed, NotBuilt, Voted
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.values import (
    FIRST_LINEAGE,
    Generation,
    Lineage,
    Order,
    ReplicaId,
    Restore,
    Seat,
)
from pliant.engine.member.inner_messages import (
    BuildPlace,
    CallReturned,
    FollowerCame,
    HandOver,
    InnerMessage,
    LeaveNow,
    MemberStanding,
    pack_message,
    unpack_message,
)

ORDER = Order(
    generation=Generation(3),
    members=(Seat(replica=ReplicaId("r1"), endpoint="127.0.0.1:1"),),
    origin=ReplicaId("r1"),
    restore=Restore(checkpoint="c", committed=4, lineage=Lineage(2)),
)
STANDING = MemberStanding.of(Member(replica=ReplicaId("r1"), committed=4, leaving=True))


@pytest.mark.parametrize(
    "message",
    [
        FollowerCame(place=1, endpoint="127.0.0.1:1", traits=(("seed", "0"),)),
        BuildPlace(order=ORDER, secret="00"),
        HandOver(
            order=ORDER,
            resolution=Resolution(
                survivors=(0,),
                commits=(),
                committed=4,
                made_by=Generation(2),
                lineage=FIRST_LINEAGE,
                calls=1,
                joiners=(1,),
                restore=ORDER.restore,
            ),
            owes_tail=True,
            standing=STANDING,
        ),
        CallReturned(
            call="exchange",
            standing=STANDING,
            parts=(bytes(range(256)).decode("latin-1"), ""),
        ),
        CallReturned(call="exchange", standing=STANDING, parts=None),
        LeaveNow(),
        Voted(place=1, generation=Generation(3), step=4, stop=True, digests=((1 << 63) - 1, 0)),
        Failed(place=1, generation=Generation(3), reason="ä\n", is_refusal=True),
        NotBuilt(place=1, generation=Generation(3), reason="", unreached=(ReplicaId("r2"),)),
    ],
)
def test_a_message_is_read_as_it_was_written(message: InnerMessage) -> None:
    assert unpack_message(pack_message(message)) == message
