"""What every implementation of Communicator does: the right results, in order, or one clear end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from tests.engine.comm.circle import (
    BOUND_S,
    WAYS,
    Circle,
    Running,
    circle,
    passing_on,
    wait_until,
)
from tests.engine.comm.scripts import check, pattern, play, raw, script

from pliant.engine.comm.communicator import Communicator, GroupBroken, LeftAlone, SingleCommunicator

pytestmark = pytest.mark.timeout(60)

every_way = pytest.mark.parametrize("way", sorted(WAYS))

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
]


# Results


@every_way
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_everybody_gets_the_shard_that_is_meant_for_it(size: int, way: str) -> None:
    def numel(sender: int, receiver: int) -> int:
        return (0, 1, 70_001, 13, 300_000)[(sender + 2 * receiver) % 5]

    def exchange(comm: Communicator) -> list[bytes]:
        me = comm.rank
        sources = [pattern(numel(me, rank), me, rank) for rank in range(size)]
        targets = [torch.zeros(numel(rank, me), dtype=torch.uint8) for rank in range(size)]
        comm.all_to_all(sources, targets)
        return [raw(target) for target in targets]

    with circle(size, way) as members:
        found = members.run(exchange)

    for me in range(size):
        for rank in range(size):
            if rank != me:
                assert found[me][rank] == raw(pattern(numel(rank, me), rank, me))


@every_way
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_kind_arrive_as_they_were(way: str, dtype: torch.dtype) -> None:
    def exchange(comm: Communicator) -> bytes:
        theirs = torch.zeros(3, 7, dtype=torch.uint8).to(dtype)
        comm.swap(pattern(21, comm.rank, dtype=dtype).view(3, 7), theirs)
        return raw(theirs)

    with circle(2, way) as members:
        found = members.run(exchange)

    assert found == [raw(pattern(21, rank, dtype=dtype)) for rank in (1, 0)]


@every_way
@pytest.mark.parametrize(
    "nbytes", [1, 23, 24, 16_383, 16_384, 16_385, 524_288, 524_289, 30_000_001]
)
def test_pieces_of_every_size_arrive_in_both_directions_at_once(way: str, nbytes: int) -> None:
    def exchange(comm: Communicator) -> bool:
        theirs = torch.zeros(nbytes, dtype=torch.uint8)
        comm.swap(pattern(nbytes, comm.rank), theirs)
        return torch.equal(theirs, pattern(nbytes, 1 - comm.rank))

    with circle(2, way) as members:
        assert members.run(exchange) == [True, True]


@every_way
def test_what_lies_beside_a_target_is_not_touched(way: str) -> None:
    def exchange(comm: Communicator) -> list[int]:
        memory = torch.full((300,), 7, dtype=torch.uint8)
        comm.swap(torch.ones(100, dtype=torch.uint8), memory[100:200])
        return [int(memory[:100].sum()), int(memory[100:200].sum()), int(memory[200:].sum())]

    with circle(2, way) as members:
        assert members.run(exchange) == [[700, 100, 700]] * 2


@every_way
def test_a_parameter_that_needs_gradients_and_a_scalar_can_be_sent(way: str) -> None:
    def exchange(comm: Communicator) -> list[float]:
        weight = torch.nn.Parameter(torch.full((2, 2), 1.0 + comm.rank))
        comm.broadcast(weight, 1)
        scalar = torch.tensor(5.0 + comm.rank)
        comm.broadcast(scalar, 0)
        return [*weight.flatten().tolist(), scalar.item()]

    with circle(3, way) as members:
        assert members.run(exchange) == [[2.0, 2.0, 2.0, 2.0, 5.0]] * 3


@every_way
def test_a_piece_that_nobody_awaits_yet_waits_with_all_behind_it(way: str) -> None:
    """Also where it is much more than the sockets hold."""
    late = threading.Event()

    def give(comm: Communicator) -> Any:
        if comm.rank == 0:
            pieces = [pattern(n, n) for n in (5, 9_000_000, 7)]
            transfer = comm.post(sends=[(1, piece) for piece in pieces])
            comm.wait(transfer)
            return comm.share("name", b"0")
        late.wait(BOUND_S)
        targets = [torch.zeros(n, dtype=torch.uint8) for n in (5, 9_000_000, 7)]
        for target in targets:
            comm.wait(comm.post(receives=[(0, target)]))
        assert all(torch.equal(target, pattern(len(target), len(target))) for target in targets)
        return comm.share("name", b"1")

    with circle(2, way) as members:
        running = members.start(give)
        time.sleep(0.1)
        late.set()

        assert [each.result() for each in running] == [[b"0", b"1"]] * 2


@every_way
def test_a_stream_of_pieces_posted_in_advance_arrives_in_order(way: str) -> None:
    sizes = [(number * 7919) % 90_001 for number in range(50)]

    def stream(comm: Communicator) -> bool:
        if comm.rank < 2:
            comm.wait(*[comm.post(sends=[(2, pattern(n, n, comm.rank))]) for n in sizes])
            return True
        posted = []
        for n in sizes:
            for sender in (0, 1):
                target = torch.zeros(n, dtype=torch.uint8)
                transfer = comm.post(receives=[(sender, target)])
                posted.append((transfer, target, pattern(n, n, sender)))
        for transfer, target, expected in reversed(posted):
            comm.wait(transfer)
            assert torch.equal(target, expected)
        return True

    with circle(3, way) as members:
        assert members.run(stream) == [True] * 3


@every_way
def test_transfers_may_be_waited_for_in_another_order_than_posted(way: str) -> None:
    def exchange(comm: Communicator) -> bool:
        other = 1 - comm.rank
        targets = [torch.zeros(200_000, dtype=torch.uint8) for _ in range(4)]
        transfers = [
            comm.post(
                sends=[(other, pattern(200_000, comm.rank, number))], receives=[(other, target)]
            )
            for number, target in enumerate(targets)
        ]
        for number in (2, 0, 3, 1):
            comm.wait(transfers[number])
            assert torch.equal(targets[number], pattern(200_000, other, number))
        comm.wait(*transfers)  # of no effect
        return True

    with circle(2, way) as members:
        assert members.run(exchange) == [True, True]


@every_way
def test_some_members_meet_without_the_others(way: str) -> None:
    def exchange(comm: Communicator) -> str:
        if comm.rank != 1:
            comm.meet([0, 2])
        comm.meet([comm.rank])
        comm.meet()
        return "met"

    with circle(3, way) as members:
        assert members.run(exchange) == ["met"] * 3


@every_way
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_collectives_do_what_they_say(size: int, way: str) -> None:
    def everything(comm: Communicator) -> list[Any]:
        comm.meet()
        rows = comm.rows(torch.tensor([comm.rank, 1]))
        told = []
        for root in range(size):
            value = torch.tensor([100.0 * comm.rank])
            comm.broadcast(value, root)
            told.append(value.item())
        shards = [torch.zeros(rank, dtype=torch.int64) for rank in range(size)]
        shards[comm.rank].fill_(comm.rank)
        comm.all_gather(shards)
        return [
            rows.tolist(),
            told,
            [shard.tolist() for shard in shards],
        ]

    with circle(size, way) as members:
        found = members.run(everything)

    assert (
        found
        == [
            [
                [[rank, 1] for rank in range(size)],
                [100.0 * root for root in range(size)],
                [[rank] * rank for rank in range(size)],
            ]
        ]
        * size
    )


# Notes


@every_way
def test_notes_of_every_size_are_shared_in_rank_order(way: str) -> None:
    def share(comm: Communicator) -> list[list[int]]:
        return [
            [len(note) for note in comm.share(f"of {nbytes}", bytes(nbytes + comm.rank))]
            for nbytes in (0, 1, 20_000, 3_000_000)
        ]

    with circle(3, way) as members:
        expected = [[nbytes + rank for rank in range(3)] for nbytes in (0, 1, 20_000, 3_000_000)]
        assert members.run(share) == [expected] * 3


@every_way
def test_the_same_name_may_be_used_again(way: str) -> None:
    def share(comm: Communicator) -> list[list[bytes]]:
        found = []
        for number in range(30):
            if (comm.rank + number) % 3 == 0:
                time.sleep(0.002)
            found.append(comm.share("again", b"%d of %d" % (number, comm.rank)))
        return found

    with circle(3, way) as members:
        expected = [[b"%d of %d" % (number, rank) for rank in range(3)] for number in range(30)]
        assert members.run(share) == [expected] * 3


@every_way
def test_who_gives_something_else_is_waited_for_and_its_note_is_kept(way: str) -> None:
    """It gave up what the others still do; they are told, and the note is asked for later."""

    def share(comm: Communicator) -> Any:
        if comm.rank == 0:
            return comm.share("of now", b"zero")
        return comm.share("of then", b"one")

    with circle(2, way) as members:
        running = members.start(share)
        time.sleep(0.1)
        assert not any(each.ends_within(0) for each in running)

        members.abandon("told to")

        ends = [each.result() for each in running]
        assert [type(end) for end in ends] == [GroupBroken] * 2


@every_way
def test_a_note_that_comes_early_is_kept_while_pieces_are_moved(way: str) -> None:
    """With three, one may have had all notes of a name while another still waits."""

    def share(comm: Communicator) -> Any:
        if comm.rank == 2:
            time.sleep(0.05)
        first = comm.share("first", b"a%d" % comm.rank)
        comm.meet()
        second = comm.share("second", b"b%d" % comm.rank)
        return first + second

    with circle(3, way) as members:
        expected = [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
        assert members.run(share) == [expected] * 3


@every_way
def test_who_is_left_alone_with_its_note_is_told(way: str) -> None:
    def go_on(comm: Communicator) -> Any:
        if comm.rank == 1:
            comm.post(sends=[(0, torch.ones(1))])
            return comm.wait(comm.post(receives=[(0, torch.zeros(1))]))
        return comm.share("news", b"x")

    with circle(2, way) as members:
        ends = members.run(passing_on(go_on))

    assert type(ends[0]) is LeftAlone
    assert ends[0].reason == "rank 1 has gone on without news"
    assert isinstance(ends[1], GroupBroken)


@every_way
def test_abandon_tells_its_reason_to_who_would_be_left_alone(way: str) -> None:
    with circle(2, way) as members:
        comm, other = members.members
        comm.post(receives=[(1, torch.zeros(1))])
        sharing = Running(lambda: comm.share("news", b"x"))
        time.sleep(0.05)
        comm.abandon("told to")

        assert type(sharing.result()) is GroupBroken
        other.abandon("the end")


# Random sequences


def check_script(way: str, seed: int) -> None:
    size = 1 + seed % 5
    steps = script(seed, size)
    got: list[dict[int, Any]] = [{} for _ in range(size)]
    with circle(size, way) as members:
        assert (
            members.run(lambda comm: play(comm, steps, seed, got[comm.rank]), 30.0) == [None] * size
        )

    assert [len(each) for each in got] == [len(steps)] * size
    check(steps, got, f"seed {seed}")


@every_way
@pytest.mark.parametrize("seed", range(10))
def test_a_random_sequence_of_calls_gives_what_a_model_gives(way: str, seed: int) -> None:
    check_script(way, seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@every_way
def test_many_random_sequences_of_calls_give_what_a_model_gives(way: str) -> None:
    for seed in range(1000, 1400):
        check_script(way, seed)


# Members out of step


@every_way
@pytest.mark.parametrize(("sent", "awaited"), [(10, 11), (900_000, 900_001), (5_000_000, 8)])
def test_pieces_of_other_sizes_break_it_for_both_with_a_sentence(
    way: str, sent: int, awaited: int
) -> None:
    def exchange(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.wait(comm.post(sends=[(1, torch.zeros(sent, dtype=torch.uint8))]))
            comm.meet()
        else:
            comm.wait(comm.post(receives=[(0, torch.zeros(awaited, dtype=torch.uint8))]))

    with circle(2, way) as members:
        ends = members.run(passing_on(exchange))

    assert f"a piece of {sent} bytes where one of {awaited} is due" in ends[1].reason
    assert "rank 1 has ended" in ends[0].reason


@every_way
def test_a_member_that_does_nothing_is_waited_for_no_longer_than_agreed(way: str) -> None:
    def exchange(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.meet()

    with circle(2, way, collective_s=0.3) as members:
        end = members.run(exchange)[0]

    assert end.reason == "no answer within 0.3 s"


@every_way
def test_a_share_that_nobody_answers_is_waited_for_no_longer_than_agreed(way: str) -> None:
    with circle(2, way, collective_s=0.3) as members:
        (end, _) = members.run(lambda comm: comm.share("x", b"") if comm.rank == 0 else None)

    assert end.reason == "no answer within 0.3 s"


@every_way
def test_who_only_sends_hears_of_an_abandon_before_the_other_has_closed(way: str) -> None:
    """All buffers between them are full, so no byte of its can be refused."""
    with circle(2, way) as members:
        sender, receiver = members.members
        posted = sender.post(sends=[(1, torch.zeros(60_000_000, dtype=torch.uint8))])
        sending = Running(lambda: sender.wait(posted))
        time.sleep(0.2)

        receiver.abandon("told to")

        assert isinstance(sending.result(), GroupBroken)


@every_way
def test_who_only_sends_hears_of_an_abandon_behind_what_it_does_not_take(way: str) -> None:
    """All buffers in both directions are full: no orderly end comes through."""
    with circle(2, way) as members:
        sender, other = members.members
        other.post(sends=[(0, torch.zeros(60_000_000, dtype=torch.uint8))])
        posted = sender.post(sends=[(1, torch.zeros(60_000_000, dtype=torch.uint8))])
        sending = Running(lambda: sender.wait(posted))
        time.sleep(0.2)

        other.abandon("told to")

        assert isinstance(sending.result(), GroupBroken)


@every_way
def test_who_waits_for_another_one_hears_of_an_abandon(way: str) -> None:
    """The one that it waits for may be stopped, and the one that abandons has given all."""
    with circle(3, way) as members:
        first, second, _ = members.members
        waiting = Running(lambda: second.wait(second.post(receives=[(2, torch.zeros(9))])))
        time.sleep(0.1)

        first.abandon("told to")

        assert isinstance(waiting.result(), GroupBroken)


@every_way
def test_who_waits_for_another_one_goes_on_when_one_has_left_in_order(way: str) -> None:
    """What it still sends to the one that has left is answered with a reset."""
    with circle(3, way) as members:
        first, second, third = members.members
        target = torch.zeros(9)
        second.post(sends=[(0, torch.ones(1000))])
        time.sleep(0.1)
        first.close()  # with something that it has not read
        waiting = Running(lambda: second.wait(second.post(receives=[(2, target)])))
        before = time.process_time()
        time.sleep(1.0)
        third.post(sends=[(1, torch.ones(9))])

        assert waiting.result() is None
        assert target.sum() == 9
        assert time.process_time() - before < 0.2


@every_way
def test_what_had_arrived_before_an_abandon_counts(way: str) -> None:
    with circle(2, way) as members:
        giver, taker = members.members
        target = torch.zeros(1000, dtype=torch.uint8)
        giver.wait(giver.post(sends=[(1, pattern(1000, 1))]))
        transfer = taker.post(receives=[(0, target)])
        time.sleep(0.1)

        giver.abandon("told to")

        taker.wait(transfer)
        assert torch.equal(target, pattern(1000, 1))


# Closing


@every_way
def test_what_was_sent_still_arrives_after_closing(way: str) -> None:
    closed = threading.Event()

    def leave(comm: Communicator) -> Any:
        if comm.rank == 0:
            comm.wait(comm.post(sends=[(1, pattern(1_000_000, 1))]))
            comm.close()
            closed.set()
            return True
        target = torch.zeros(1_000_000, dtype=torch.uint8)
        comm.wait(comm.post(receives=[(0, target)]))
        return torch.equal(target, pattern(1_000_000, 1))

    with circle(2, way) as members:
        assert members.run(leave) == [True, True]


@every_way
def test_closing_twice_and_abandoning_a_closed_one_do_nothing(way: str) -> None:
    with circle(2, way) as members:
        members.run(lambda comm: comm.meet())
        for comm in members.members:
            comm.close()
            comm.close()
            comm.abandon("late")


@every_way
def test_a_closed_circle_leaves_no_descriptor_and_no_thread(way: str) -> None:
    process = psutil.Process()
    with circle(4, way) as members:
        members.run(lambda comm: comm.meet())
    before = process.num_fds(), threading.active_count()

    for number in range(5):
        with circle(4, way) as members:
            members.run(lambda comm: comm.meet())
            if number % 2:
                members.abandon("told to")

    wait_until(lambda: process.num_fds() <= before[0])
    assert threading.active_count() <= before[1]


# Abandoning


def big_swap(comm: Communicator) -> None:
    mine, theirs = (torch.zeros(40_000_000, dtype=torch.uint8) for _ in range(2))
    while True:
        comm.swap(mine, theirs)


def await_a_piece(comm: Communicator) -> None:
    comm.wait(comm.post(receives=[(comm.others[0], torch.zeros(9))]))


def send_to_who_takes_nothing(comm: Communicator) -> None:
    comm.wait(comm.post(sends=[(comm.others[0], torch.zeros(20_000_000))]))


def await_a_note(comm: Communicator) -> None:
    comm.share("never" if comm.rank == 0 else "ever", b"x")


WAITS: list[Callable[[Communicator], None]] = [
    big_swap,
    await_a_piece,
    send_to_who_takes_nothing,
    await_a_note,
]


@every_way
@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
@pytest.mark.parametrize("who", [0, 1])
def test_abandon_ends_every_wait_with_its_reason(
    way: str, wait: Callable[[Communicator], None], who: int
) -> None:
    with circle(2, way) as members:
        running = members.start(passing_on(wait))
        time.sleep(0.1)

        abandoned_at = time.monotonic()
        members.members[who].abandon("the first")
        took_s = time.monotonic() - abandoned_at
        members.members[who].abandon("the second")
        end = running[who].result()
        members.members[1 - who].abandon("the other")  # may wait for what it cannot see

        assert isinstance(running[1 - who].result(), GroupBroken)
        assert end.reason == "the first"
        assert took_s < 2.0
        with pytest.raises(GroupBroken, match="the first"):
            members.members[who].post()
        with pytest.raises(GroupBroken, match="the first"):
            members.members[who].share("x", b"")


@every_way
@pytest.mark.parametrize("wait", [big_swap, await_a_piece, await_a_note])
def test_the_others_hear_of_an_abandon_by_themselves(
    way: str, wait: Callable[[Communicator], None]
) -> None:
    with circle(3, way) as members:
        running = members.start(
            passing_on(wait) if wait is not big_swap else passing_on(endless_gather)
        )
        time.sleep(0.1)

        members.members[1].abandon("told to")

        ends = [each.result() for each in running]
        assert [type(end) for end in ends] == [GroupBroken] * 3


def endless_gather(comm: Communicator) -> None:
    shards = [torch.zeros(3_000_000, dtype=torch.uint8) for _ in range(comm.size)]
    while True:
        comm.all_gather(shards)


@every_way
@pytest.mark.parametrize("trial", range(6))
def test_after_an_abandon_buffers_are_neither_written_nor_read(way: str, trial: int) -> None:
    """The other member goes on sending, and takes all that it gets."""
    size = 25_000_000
    mine = [torch.full((size,), 1, dtype=torch.uint8) for _ in range(2)]
    theirs = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]

    def swap(comm: Communicator) -> None:
        comm.swap(mine[comm.rank], theirs[comm.rank])

    with circle(2, way) as members:
        running = members.start(swap)
        wait_until(lambda: bool(theirs[0][trial * 3_000_000]))

        members.members[0].abandon("told to")
        found = theirs[0].clone()
        mine[0].fill_(2)  # the memory is used for something else

        assert isinstance(running[0].result(), GroupBroken) or bool(found.all())
        running[1].result()
        time.sleep(0.05)
        assert torch.equal(theirs[0], found)
        assert not bool((theirs[1] == 2).any())


@every_way
def test_many_threads_may_abandon_at_once_and_one_reason_counts(way: str) -> None:
    for _ in range(10):
        with circle(3, way) as members:
            running = members.start(endless_gather)
            gate = threading.Barrier(8)

            def act(number: int, members: Circle = members, gate: Any = gate) -> str | None:
                gate.wait(BOUND_S)
                comm = members.members[number % 3]
                comm.abandon(f"reason {number}")
                return comm.end.reason

            abandoning = [Running(lambda number=number: act(number)) for number in range(8)]  # type: ignore[misc]
            reasons = [each.result() for each in abandoning]
            ends = [each.result() for each in running]

        for rank in range(3):
            own = {reasons[number] for number in range(8) if number % 3 == rank}
            assert len(own) == 1
            assert ends[rank].reason in own or "has ended" in ends[rank].reason


@every_way
def test_abandon_together_with_close_ends_both(way: str) -> None:
    for _ in range(20):
        with circle(2, way) as members:
            members.run(lambda comm: comm.meet())
            acts = [
                act
                for comm in members.members
                for act in (lambda comm=comm: comm.abandon("x"), comm.close)
            ]
            for each in [Running(act) for act in acts]:
                each.result()


def test_a_member_alone_has_all_of_it_at_once() -> None:
    comm = SingleCommunicator(3)

    assert comm.share("x", b"mine") == [b"mine"]
    comm.meet()
    comm.abandon("told to")
    with pytest.raises(GroupBroken, match="told to"):
        comm.meet()


@every_way
def test_a_piece_without_elements_is_not_taken_for_another(way: str) -> None:
    def out_of_step(comm: Communicator) -> str:
        target = torch.zeros(4, dtype=torch.uint8)
        try:
            if comm.rank == 0:
                comm.wait(comm.post(sends=[(1, torch.empty(0, dtype=torch.uint8))]))
                comm.wait(comm.post(sends=[(1, pattern(4, 1))]))
                comm.meet()
            else:
                comm.wait(comm.post(receives=[(0, target)]))
        except GroupBroken as broken:
            comm.abandon(broken.reason)
            return broken.reason
        return "taken"

    with circle(2, way) as members:
        assert "out of step" in members.run(out_of_step)[1]
