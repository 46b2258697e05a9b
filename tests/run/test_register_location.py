"""Where a register lies: also on an object store, behind a network that breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.checkpoint.conftest import BUCKET, s3, s3_client, s3_endpoint  # noqa: F401 - fixtures
from tests.checkpoint.proxy import Proxy, proxy
from tests.coordinator.test_register import FIRST, SECOND

from pliant.checkpoint.store.objects import ObjectStorage
from pliant.coordinator.register import HeldRegister, StoredRegister
from pliant.core.errors import ConfigError, ConflictError
from pliant.core.values import Incarnation
from pliant.run.register_location import (
    CoordinatorSign,
    ObjectLocation,
    agents_url,
    open_location,
    places_of,
    read_sign,
    write_sign,
)

pytestmark = pytest.mark.timeout(60)

Open = Callable[..., ObjectLocation]


@pytest.fixture
def store(
    s3: object,  # noqa: F811 - it makes the bucket
    s3_endpoint: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Open:
    """Return what opens a place of a bucket, as a coordinator does, perhaps through a proxy."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(ObjectLocation, "write_again_s", (0.05,) * 100)
    place = f"s3://{BUCKET}/{tmp_path.name}/{id(tmp_path)}"

    def opened(endpoint: str = s3_endpoint) -> ObjectLocation:
        import fsspec

        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        home = open_location(place, tmp_path)
        assert isinstance(home, ObjectLocation)
        return home

    return opened


@pytest.fixture
def road(s3_endpoint: str) -> Iterator[Proxy]:  # noqa: F811
    with proxy(s3_endpoint) as lent:
        yield lent


def test_an_object_is_replaced_only_if_it_is_as_expected(store: Open) -> None:
    one, other = store(), store()

    assert one.read() is None
    assert one.exchange(b"1", expected=None)
    assert not other.exchange(b"2", expected=None)
    assert other.exchange(b"2", expected=b"1")
    assert not one.exchange(b"3", expected=b"1")
    assert one.read() == b"2"


def test_of_two_coordinators_that_start_at_once_one_has_the_register(store: Open) -> None:
    homes = [store(), store()]
    outcomes: list[str] = []
    gate = threading.Barrier(2)

    def start(home: ObjectLocation) -> None:
        gate.wait(20)
        try:
            StoredRegister(home).write(FIRST, expected=None)
            outcomes.append("written")
        except ConflictError:
            outcomes.append("conflict")

    threads = [threading.Thread(target=start, args=(home,)) for home in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(outcomes) == ["conflict", "written"]


def test_a_coordinator_that_was_cut_off_from_the_store_loses_to_who_took_over(
    store: Open, road: Proxy
) -> None:
    """Its write, tried again and again, comes through at last, and changes nothing."""

    async def play() -> None:
        home = store(road.endpoint)
        old = HeldRegister(StoredRegister(home))
        await old.read()
        await old.write(FIRST)
        home._storage.timeout_s, road.is_hung = 0.5, True
        writing = asyncio.create_task(old.write(SECOND))
        await asyncio.sleep(1.5)
        assert not writing.done()
        new = HeldRegister(StoredRegister(store()))
        assert await new.read() == FIRST
        taken = replace(FIRST, incarnation=Incarnation(2))
        await new.write(taken)
        road.is_hung = False

        with pytest.raises(ConflictError, match="incarnation 2"):
            await asyncio.wait_for(writing, 30)
        await new.confirm()
        with pytest.raises(ConflictError, match="incarnation 2"):
            await old.confirm()

    asyncio.run(play())


def test_a_write_whose_connection_was_reset_is_made_again(store: Open, road: Proxy) -> None:
    held = HeldRegister(StoredRegister(store(road.endpoint)))

    async def play() -> None:
        await held.write(FIRST)
        road.cut(after=1, times=3)
        await held.write(SECOND)
        await held.confirm()

    asyncio.run(play())

    assert StoredRegister(store()).read() == SECOND


def test_a_write_whose_answer_was_lost_is_seen_to_have_happened(
    store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has taken it, is asked the same again, and refuses: its own bytes lie there."""
    home = store()
    files, lost = home._storage._files, list[str]()
    real = files.pipe_file

    def answer_lost_once_each(path: str, data: bytes, **condition: str) -> None:
        real(path, data, **condition)
        if len(lost) < 2:
            lost.append(path)
            raise ConnectionResetError(104, "Connection reset by peer")

    async def play() -> None:
        held = HeldRegister(StoredRegister(home))
        await held.read()
        monkeypatch.setattr(files, "pipe_file", answer_lost_once_each)
        await held.write(FIRST)
        await held.write(SECOND)
        await held.confirm()

    asyncio.run(play())

    assert len(lost) == 2
    assert StoredRegister(store()).read() == SECOND


def test_the_name_of_the_job_lies_beside_the_register(store: Open, tmp_path: Path) -> None:
    """Whichever host coordinates, the job is the same to its checkpoints."""
    outs = [tmp_path / name for name in ("a", "b")]
    for out in outs:
        out.mkdir()
        store().settle("gpt", out)

    assert (outs[0] / "holder").read_text() == (outs[1] / "holder").read_text()


def test_a_shared_directory_gives_the_same_name_to_each_directory_of_the_run(
    tmp_path: Path,
) -> None:
    shared, outs = tmp_path / "register", [tmp_path / name for name in ("a", "b")]
    for out in outs:
        out.mkdir()
        open_location(str(shared), out).settle("gpt", out)

    assert (outs[0] / "holder").read_text() == (outs[1] / "holder").read_text()


def test_a_store_that_takes_every_write_is_refused(
    store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some do that speak S3 and know no conditions."""
    real = ObjectStorage.write

    def conditions_are_ignored(self: ObjectStorage, path: str) -> bool:
        real(self, path, b"2")
        return False

    monkeypatch.setattr(ObjectStorage, "heeds_conditions", conditions_are_ignored)

    with pytest.raises(ConfigError, match="takes writes whatever their condition"):
        store()


def test_the_place_of_another_job_is_refused(store: Open, tmp_path: Path) -> None:
    """Else each would end the other's coordinators, and take its checkpoints for its own."""
    outs = [tmp_path / name for name in ("a", "b")]
    for out in outs:
        out.mkdir()
    homes = [(store(), store()), [open_location(str(tmp_path / "r"), out) for out in outs]]
    for first, other in homes:
        first.settle("gpt", outs[0])

        with pytest.raises(ConfigError, match="is that of job gpt; give job gpt-2 a place of its"):
            other.settle("gpt-2", outs[1])
        assert not (outs[1] / "holder").exists()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=r"^--register .*file cannot be written: File exists$"):
        open_location(str(tmp_path / "file"), tmp_path).settle("gpt", tmp_path)


def test_a_bucket_that_is_not_there_is_refused(store: Open, tmp_path: Path) -> None:
    store()

    with pytest.raises(ConfigError, match=r"^--register s3://nobodys/probe-\w+ cannot be written"):
        open_location("s3://nobodys", tmp_path)
    with pytest.raises(ConfigError, match="--register s3:// names no bucket"):
        open_location("s3://", tmp_path)


def test_another_kind_of_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a directory that the hosts share, or on s3:"):
        open_location("gs://bucket/job", tmp_path)


def sign(url: str) -> CoordinatorSign:
    return CoordinatorSign(url=url, incarnation=1)


@pytest.mark.parametrize(
    ("join", "urls"),
    [
        ("gpu1:7000", ("ws://gpu1:7000/v1/agents",)),
        (
            "gpu1:7000, [fd00::2]:7001",
            ("ws://gpu1:7000/v1/agents", "ws://[fd00::2]:7001/v1/agents"),
        ),
        ("https://gpu1/job/,gpu2:1", ("wss://gpu1/job/v1/agents", "ws://gpu2:1/v1/agents")),
    ],
)
def test_a_list_names_places(join: str, urls: tuple[str, ...]) -> None:
    assert places_of(join)() == urls


@pytest.mark.parametrize("join", ["", "gpu1:7000,", ",gpu1:7000", "gpu1:7000,,gpu2:7000"])
def test_an_empty_place_is_refused(join: str) -> None:
    with pytest.raises(ConfigError, match="names an empty place; leave out the comma"):
        places_of(join)


def test_a_place_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="names gpu1:7000 twice; name each place once"):
        places_of("gpu1:7000, gpu2:7000,gpu1:7000")


def test_a_url_of_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no place of a coordinator"):
        agents_url("ftp://gpu1")


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.json"
    places = places_of(f"@{path}")
    write_sign(path, sign("http://gpu1:7000"))
    assert places() == ("ws://gpu1:7000/v1/agents",)

    write_sign(path, sign("http://gpu2:7000"))

    assert places() == ("ws://gpu2:7000/v1/agents",)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_not_there_or_not_of_a_coordinator_is_looked_at_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "coordinator.json"
    with pytest.raises(FileNotFoundError):
        places_of(f"@{path}")()
    path.write_text('{"url": 7}')
    with pytest.raises(OSError, match="no coordinator has written that"):
        read_sign(path)
