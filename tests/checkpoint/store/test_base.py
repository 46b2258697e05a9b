"""Every storage keeps the same promises: a directory, memory, and S3 over HTTP."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.checkpoint.conftest import BUCKET, s3_client
from tests.checkpoint.proxy import proxy
from tests.checkpoint.reading import newest
from tests.checkpoint.states import contents, differing, save
from tests.machine.nfs import lock_as_on_nfs

from pliant.checkpoint import catalogue
from pliant.checkpoint.dcp.read import load, open_checkpoint
from pliant.checkpoint.failures import MissingError, StorageError, Trouble
from pliant.checkpoint.store.base import Storage, StorageEntry, StorageOptions
from pliant.checkpoint.store.objects import PART_BYTES
from pliant.checkpoint.store.open import open_storage
from pliant.core.errors import ConfigError

pytestmark = pytest.mark.timeout(60)


def put(storage: Storage, path: str, *parts: bytes) -> None:
    sink = storage.sink(path)
    for part in parts:
        sink.write(part)
    sink.close()


def test_what_was_written_is_read_whole_and_in_part(storage: Storage) -> None:
    put(storage, "a/large", b"x" * (2 * PART_BYTES + 5), b"", b"end")
    storage.write("a/small", b"one")
    storage.write("a/small", b"two")

    assert storage.read("a/small") == b"two"
    assert bytes(storage.read_range("a/large", 2 * PART_BYTES + 4, 100)) == b"xend"
    assert bytes(storage.read_range("a/large", 2 * PART_BYTES + 4, 2)) == b"xe"
    assert bytes(storage.read_range("a/large", 1 << 40, 2)) == b""
    assert storage.entries() == [StorageEntry("a", 0, is_directory=True)]
    assert storage.entries("a") == [
        StorageEntry("large", 2 * PART_BYTES + 8),
        StorageEntry("small", 3),
    ]


def test_what_is_not_there_is_missing_and_can_be_removed(storage: Storage) -> None:
    assert storage.entries() == []
    assert storage.entries("a/b") == []
    with pytest.raises(MissingError, match=r"a/b cannot be read: it does not exist"):
        storage.read("a/b")
    with pytest.raises(MissingError, match=r"a/b cannot be read: it does not exist"):
        storage.read_range("a/b", 1, 2)
    storage.remove("a/b")
    storage.write("a/b", b"x")
    storage.write("a/c/d", b"x")
    storage.remove("a")
    storage.remove("a")
    assert storage.entries() == []


def test_a_file_is_created_once_and_exchanged_only_if_it_is_as_expected(storage: Storage) -> None:
    assert storage.exchange("a", b"1", expected=b"0") is False
    assert storage.create("a", b"1") is True
    assert storage.create("a", b"2") is False
    assert storage.exchange("a", b"2", expected=b"0") is False
    assert storage.exchange("a", b"2", expected=b"1") is True
    assert storage.read("a") == b"2"
    assert [entry.name for entry in storage.entries()] == ["a"]


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("kind", ["directory", "nfs", "s3"])
def test_of_several_at_one_moment_one_wins(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    exchanged: bool,
) -> None:
    if kind == "nfs":
        monkeypatch.setattr(fcntl, "flock", lock_as_on_nfs)
    storage: Storage = (
        request.getfixturevalue("s3")() if kind == "s3" else open_storage(str(tmp_path))
    )
    if exchanged:
        storage.write("a", b"before")
    start = threading.Barrier(4)
    won: list[int] = []

    def candidate(number: int) -> None:
        start.wait(10)
        data = str(number).encode()
        if exchanged:
            is_first = storage.exchange("a", data, expected=b"before")
        else:
            is_first = storage.create("a", data)
        if is_first:
            won.append(number)

    threads = [threading.Thread(target=candidate, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert len(won) == 1
    assert storage.read("a") == str(won[0]).encode()


def test_a_checkpoint_lives_on_any_storage(storage: Storage) -> None:
    state = contents(rows=30_000)

    name = save(storage, state=state, num_shares=3).name

    assert differing(load(open_checkpoint(storage, name)), state) == []
    assert newest(storage).damage is None
    save(storage, 600)
    assert catalogue.prune(storage, keep=1) == [name]
    assert catalogue.sweep(storage) != []
    assert catalogue.verify(storage, "step-00000600-l1").is_sound


def test_an_upload_that_is_given_up_leaves_no_parts(
    s3: Callable[..., Storage], s3_endpoint: str
) -> None:
    storage = s3()
    sink = storage.sink("large")
    sink.write(b"x" * (3 * PART_BYTES))

    sink.abandon()

    assert storage.entries() == []
    client = s3_client(s3_endpoint)
    assert client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []) == []
    client.close()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ServerSideEncryption": "AES256"}, ("AES256", None)),
        ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "key-1"}, ("aws:kms", "key-1")),
    ],
)
def test_everything_on_s3_is_encrypted_if_asked_for(
    s3_endpoint: str,
    s3: Callable[..., Storage],
    options: dict[str, str],
    expected: tuple[str, str | None],
) -> None:
    storage = s3(s3_additional_kwargs=options)
    put(storage, "large", b"x" * (2 * PART_BYTES))
    storage.write("small", b"x")
    storage.create("lease", b"x")
    storage.exchange("lease", b"y", expected=b"x")

    client = s3_client(s3_endpoint)
    prefix = storage.place().partition(f"{BUCKET}/")[2]
    for name in ("large", "small", "lease"):
        head = client.head_object(Bucket=BUCKET, Key=f"{prefix}/{name}")
        assert (head["ServerSideEncryption"], head.get("SSEKMSKeyId")) == expected
    client.close()


@pytest.mark.parametrize(
    ("url", "options", "sentence"),
    [
        ("", {}, "'' names no place to keep checkpoints"),
        ("s3://", {}, "'s3://' names no place to keep checkpoints"),
        ("nfs9://x", {}, "nfs9://x cannot be opened: Protocol not known: nfs9"),
        ("gs://x/y", {}, "gs:// needs another package: pip install gcsfs"),
        ("/x", {"timeout_s": 0}, "timeout_s=0 must be more than 0"),
    ],
)
def test_a_place_that_cannot_be_is_refused(
    url: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        open_storage(url, StorageOptions(**options))  # type: ignore[arg-type]

    assert str(caught.value).startswith(sentence)


def test_a_connection_that_is_reset_in_the_middle_is_tried_again(
    s3: Callable[..., Storage], s3_endpoint: str
) -> None:
    state = contents(rows=250_000)  # two parts of an upload
    with proxy(s3_endpoint) as between:
        storage = s3(endpoint=between.endpoint)
        between.cut(after=18_000_000, times=2)

        name = save(storage, state=state, num_shares=1).name

        assert between.num_cuts >= 1
        assert differing(load(open_checkpoint(storage, name)), state) == []


def test_a_connection_that_is_always_reset_is_an_error_that_can_be_retried(
    s3: Callable[..., Storage], s3_endpoint: str
) -> None:
    with proxy(s3_endpoint) as between:
        storage = s3(endpoint=between.endpoint)
        save(storage, 500)
        between.cut(after=1, times=1000)

        with pytest.raises(StorageError, match=r": the storage cannot be reached") as e:
            save(storage, 600)

        assert (e.value.kind, e.value.retry_after_s) == (Trouble.UNREACHABLE, 5.0)
    assert [one.committed for one in catalogue.listed(s3())] == [500]


def test_a_slow_storage_is_waited_for_and_a_dead_one_is_not(
    s3: Callable[..., Storage], s3_endpoint: str
) -> None:
    with proxy(s3_endpoint) as between:
        storage = s3(endpoint=between.endpoint, timeout_s=5.0)
        between.bytes_per_s = 1_000_000

        save(storage, 500, state=contents(rows=20_000))

        between.is_hung = True
        dead = s3(endpoint=between.endpoint, timeout_s=0.5)
        with pytest.raises(StorageError, match=r"did not answer in time|cannot be reached"):
            dead.write("x", b"y")


def test_a_permission_lost_in_the_middle_is_said_so_and_not_retried(
    s3: Callable[..., Storage], s3_endpoint: str
) -> None:
    with proxy(s3_endpoint) as between:
        storage = s3(endpoint=between.endpoint)
        save(storage, 500)
        between.is_denied = True

        with pytest.raises(StorageError, match=r": permission is denied \(Access Denied\)") as e:
            save(storage, 600)

        assert e.value.kind is Trouble.PERMISSION
        between.is_denied = False
        save(storage, 600)
    assert [one.committed for one in catalogue.listed(s3())] == [600, 500]


def test_an_endpoint_that_is_not_there_is_said_so(s3: Callable[..., Storage]) -> None:
    storage = s3(endpoint="http://127.0.0.1:1", timeout_s=10.0)

    with pytest.raises(StorageError, match="cannot be read: the storage cannot be reached"):
        storage.read("x")


def test_a_bucket_that_is_not_there_is_said_so(s3_endpoint: str) -> None:
    from tests.checkpoint.conftest import s3_options

    storage = open_storage("s3://nowhere/x", StorageOptions(fsspec=s3_options(s3_endpoint)))

    with pytest.raises(
        StorageError, match=r"s3://nowhere/x/a cannot be written: it does not exist"
    ):
        storage.write("a", b"x")
