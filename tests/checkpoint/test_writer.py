"""A writer brings snapshots to storage, and knows what it cannot know."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from pliant.checkpoint.catalogue import listed
from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.layout import MANIFEST, name_of, unwritten_file
from pliant.checkpoint.dcp.shares import give_up_share
from pliant.checkpoint.failures import StorageError, Trouble
from pliant.checkpoint.lease import JobLease
from pliant.checkpoint.publisher import CheckpointPublisher, SaveOptions
from pliant.checkpoint.store.base import Sink
from pliant.checkpoint.store.directory import LocalStorage
from pliant.checkpoint.writer import LEFT, NEEDED_TRIES, NOT_LET_GO, Copier, Writer
from pliant.core.durability import parse_interval
from pliant.core.values import Generation, Lineage
from pliant.engine.state.durable import Snapshot

LIMIT_S = 20.0


@dataclass
class Told:
    """A channel that allows everything and remembers what it was told."""

    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    retries: list[float | None] = field(default_factory=list)

    is_register_gone = False

    def may_publish(self, name: str, *, committed: int, lineage: Lineage) -> bool:
        del name, committed, lineage
        return True

    def saved(self, name: str, **_: object) -> None:
        pass

    def failed(self, reason: str, *, committed: int, retry_s: float | None) -> None:
        del committed
        self.failures.append(reason)
        self.retries.append(retry_s)

    def resumed(self, sentence: str) -> None:
        pass

    def explained(self, reason: str) -> None:
        pass

    def noted(self, text: str, *, lasting: bool = False) -> None:
        self.notes.append(text)


class Bewildered(JobLease):
    """Fails as no storage says that it may."""

    @property
    def beat_every_s(self) -> float:
        return 0.01

    def beat(self) -> None:
        raise KeyError("a library's own mistake")


@contextmanager
def writer(
    path: Path,
    channel: Told,
    kind: type[JobLease] = JobLease,
    *,
    storage: LocalStorage | None = None,
) -> Iterator[Writer]:
    storage = storage or LocalStorage(str(path))
    options = SaveOptions(
        interval=parse_interval("500steps"), keep=3, milestones=None, max_unprotected_s=None
    )
    lease = kind(storage, "gpt", pid=os.getpid())
    publisher = CheckpointPublisher(
        storage=storage,
        options=options,
        job="gpt",
        identity={},
        channel=channel,
        lease=lease,
    )
    made = Writer(publisher)
    try:
        yield made
    finally:
        made.close(wait_s=LIMIT_S)


def snapshot(committed: int, *, rank: int, size: int) -> Snapshot:
    return Snapshot(
        committed=committed,
        lineage=Lineage(1),
        generation=Generation(3),
        calls=0,
        rank=rank,
        size=size,
        document=b"{}",
        tensors={"model.a": torch.arange(4.0), "model.b": torch.arange(6.0)},
        objects={},
        aliases={},
    )


def comes_true(what: Callable[[], bool]) -> bool:
    look = threading.Event()
    for _ in range(int(LIMIT_S / 0.02)):
        if what():
            return True
        look.wait(0.02)
    return False


def settled(made: Writer) -> bool:
    return comes_true(lambda: made.is_settled)


@pytest.mark.parametrize(("rank", "size", "is_due"), [(0, 1, False), (1, 2, True)])
def test_who_comes_to_lead_saves_unless_it_knows_that_the_last_was_published(
    tmp_path: Path, rank: int, size: int, is_due: bool
) -> None:
    with writer(tmp_path, Told()) as made:
        made.begin(snapshot(500, rank=rank, size=size), is_needed=False)
        assert settled(made)

        assert made.is_due(501, -1) is is_due


def test_a_mistake_outside_of_a_save_does_not_end_all_saving(tmp_path: Path) -> None:
    channel = Told()
    with writer(tmp_path, channel, Bewildered) as made:
        threading.Event().wait(0.1)
        made.begin(snapshot(500, rank=0, size=1), is_needed=True)
        assert settled(made)

    assert [one.damage for one in listed(LocalStorage(str(tmp_path)))] == [None]
    assert "the lease could not be seen to: KeyError" in channel.notes[0]


def test_the_next_save_has_all_shares_though_one_was_still_waiting_to_try_the_last(
    tmp_path: Path,
) -> None:
    place, channel = tmp_path / "kept", Told()
    place.touch()  # a file where the directory is to be
    with writer(place, channel) as leader, writer(place, channel) as follower:
        for rank, made in enumerate((leader, follower)):
            made.begin(snapshot(500, rank=rank, size=2), is_needed=False)
        assert comes_true(lambda: len(channel.failures) == 2)
        place.unlink()

        for rank, made in enumerate((leader, follower)):
            assert made.begin(snapshot(501, rank=rank, size=2), is_needed=False)
        assert settled(leader)

    assert [one.committed for one in listed(LocalStorage(str(place)))] == [501]


def test_the_last_try_of_a_save_that_is_needed_promises_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.checkpoint.writer.NEEDED_WAIT_S", 0.01)
    place, channel = tmp_path / "kept", Told()
    place.touch()
    with writer(place, channel) as made:
        made.begin(snapshot(500, rank=0, size=1), is_needed=True)
        assert settled(made)

    assert channel.retries == [0.01] * (NEEDED_TRIES - 1) + [0.0]


def test_a_share_that_is_tried_again_is_tried_while_its_leader_waits_and_holds_up_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.checkpoint.writer.NEEDED_WAIT_S", 0.05)
    place, channel = tmp_path / "kept", Told()
    place.touch()
    with writer(place, channel) as follower:
        follower.begin(snapshot(500, rank=1, size=2), is_needed=False)
        assert settled(follower)
        assert follower.begin(snapshot(501, rank=1, size=2), is_needed=True)
        assert settled(follower)

    assert channel.retries[-NEEDED_TRIES:] == [0.05] * (NEEDED_TRIES - 1) + [0.0]
    assert set(channel.retries[:-NEEDED_TRIES]) == {0.05}


def test_a_save_that_is_needed_and_lacks_a_share_promises_no_other_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.checkpoint.publisher.SHARES_S", 0.0)
    channel = Told()
    with writer(tmp_path, channel) as leader:
        leader.begin(snapshot(500, rank=0, size=2), is_needed=True)
        assert settled(leader)

    assert channel.failures == ["the share of rank 1 of 2 did not come in time"]
    assert channel.retries == [0.0]


class FullForShares(LocalStorage):
    """Has room for small files."""

    def sink(self, path: str) -> Sink:
        raise StorageError(path, Trouble.FULL, "No space left on device", doing="written")


def test_a_share_that_cannot_be_written_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.checkpoint.writer.NEEDED_WAIT_S", 0.05)
    monkeypatch.setattr("pliant.checkpoint.publisher.SHARES_S", 1000 * LIMIT_S)
    channel, others = Told(), Told()
    with (
        writer(tmp_path, channel) as leader,
        writer(tmp_path, others, storage=FullForShares(str(tmp_path))) as follower,
    ):
        leader.begin(snapshot(500, rank=0, size=3), is_needed=True)
        follower.begin(snapshot(500, rank=1, size=3), is_needed=True)
        assert comes_true(lambda: bool(channel.failures))

    assert channel.failures == [f"rank 1 of 3 could not write its share: {others.failures[-1]}"]
    assert channel.retries == [0.0]
    assert "No space left on device" in others.failures[-1]


def test_what_another_run_gave_up_is_of_no_account(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    give_up_share(
        storage, name_of(500, 1), rank=1, generation=3, run="another", reason="it was full"
    )
    (tmp_path / name_of(500, 1) / unwritten_file(2, 3)).write_text("{")
    with writer(tmp_path, Told()) as leader, writer(tmp_path, Told()) as one:
        leader.begin(snapshot(500, rank=0, size=2), is_needed=True)
        one.begin(snapshot(500, rank=1, size=2), is_needed=True)
        assert settled(leader)

    assert [one.committed for one in listed(storage)] == [500]


def test_a_save_whose_shares_came_late_is_waited_for_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.checkpoint.publisher.LATE_S", 0.0)
    asked, answered = threading.Event(), threading.Event()

    def may_publish(*_: object, **__: object) -> bool:
        asked.set()
        return answered.wait(LIMIT_S)

    channel = Told()
    monkeypatch.setattr(channel, "may_publish", may_publish)
    with writer(tmp_path, channel) as leader, writer(tmp_path, Told()) as follower:
        leader.begin(snapshot(500, rank=0, size=2), is_needed=False)
        assert settled(leader)
        follower.begin(snapshot(500, rank=1, size=2), is_needed=False)
        assert asked.wait(LIMIT_S)

        assert not leader.is_settled
        answered.set()
        assert settled(leader)

    assert [one.committed for one in listed(LocalStorage(str(tmp_path)))] == [500]


def test_who_leaves_does_not_wait_for_the_removal_of_older_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.checkpoint.writer.CLOSE_S", 0.05)
    hangs, returns, channel = threading.Event(), threading.Event(), Told()
    remove = LocalStorage.remove

    def hang(storage: LocalStorage, path: str) -> None:
        if path.endswith(MANIFEST):
            hangs.set()
            returns.wait(LIMIT_S)
        remove(storage, path)

    monkeypatch.setattr(LocalStorage, "remove", hang)
    with writer(tmp_path, channel) as made:
        for committed in (500, 1000, 1500, 2000):  # keep=3
            assert made.begin(snapshot(committed, rank=0, size=1), is_needed=True)
            assert comes_true(lambda: made.is_settled or hangs.is_set())

        assert comes_true(lambda: made.may_be_left)
        assert not made.is_settled
        assert not made.close(wait_s=0.05)
        returns.set()

    assert channel.notes == [LEFT]
    assert max(one.committed for one in listed(LocalStorage(str(tmp_path)))) == 2000


def test_an_operation_that_hangs_does_not_keep_the_training_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.checkpoint.writer.CLOSE_S", 0.05)
    hangs, returns, channel = threading.Event(), threading.Event(), Told()

    def hang(*_: object) -> None:
        hangs.set()
        returns.wait(LIMIT_S)

    monkeypatch.setattr(LocalStorage, "sink", hang)
    try:
        with writer(tmp_path, channel) as made:
            assert made.begin(snapshot(500, rank=0, size=1), is_needed=True)
            assert hangs.wait(LIMIT_S)

            assert not made.begin(snapshot(501, rank=0, size=1), is_needed=True)
            assert not made.is_settled
            assert (channel.failures, channel.retries) == ([NOT_LET_GO], [0.0])
            returns.set()
            made.lose()
    finally:
        returns.set()


def copied(copier: Copier, tensors: dict[str, torch.Tensor], rank: int = 0, of: int = 1) -> Any:
    held = copier.copy(Contents(tensors=tensors), rank=rank, num_shares=of).held
    return {piece.name: tensor for piece, tensor in held.items()}


def test_what_the_training_does_later_does_not_change_a_snapshot() -> None:
    weights = torch.arange(6.0).reshape(2, 3).t()

    held = copied(Copier(), {"w": weights})
    weights += 1

    assert held["w"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_the_next_snapshot_takes_the_same_memory_and_the_new_values() -> None:
    copier, weights = Copier(), torch.zeros(3)
    first = copied(copier, {"w": weights})["w"]
    weights += 1

    second = copied(copier, {"w": weights})["w"]

    assert second.data_ptr() == first.data_ptr()
    assert second.tolist() == [1.0, 1.0, 1.0]


def test_every_tensor_is_held_once_whatever_the_number_of_members_becomes() -> None:
    copier = Copier()
    tensors = {name: torch.full((4,), float(index)) for index, name in enumerate("abcde")}
    copied(copier, tensors, rank=0, of=1)

    shares = [copied(copier, tensors, rank=rank, of=2) for rank in range(2)]

    assert sorted([*shares[0], *shares[1]]) == list("abcde")
    assert copier.num_bytes == sum(tensor.nbytes for tensor in shares[1].values())


def test_tensors_that_come_or_change_after_the_first_snapshot_are_held() -> None:
    copier = Copier()
    copied(copier, {"w": torch.zeros(3)})

    grown = copied(copier, {"w": torch.ones(5), "m": torch.ones(2)})
    retyped = copied(copier, {"w": torch.ones(5, dtype=torch.float64), "m": torch.ones(2)})

    assert (grown["w"].tolist(), grown["m"].tolist()) == ([1.0] * 5, [1.0] * 2)
    assert retyped["w"].dtype == torch.float64


def test_tensors_are_described_without_their_memory() -> None:
    whole = Contents(tensors={"w": torch.zeros(2, 3)}, objects={"o": 1})

    contents = Copier().copy(whole, rank=0, num_shares=1)

    assert contents.tensors["w"].device.type == "meta"
    assert (contents.tensors["w"].shape, contents.objects) == ((2, 3), {"o": 1})
