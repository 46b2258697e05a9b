"""A checkpoint root on an object store, through fsspec: ``s3://``, ``gs://``, ``memory://``.

Owns what makes a remote store behave: a deadline on every operation, bounded retries with back-off
when a connection is lost, uploads in parts that overlap with the writing, and writes that only one
of several can win where the store offers that.  Must not know what the bytes are.

Waits: an operation runs on a thread of its own that is abandoned at its deadline; it ends by the
time-outs given to the client, and nothing waits for it, at exit neither.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from functools import partial
from typing import Any, TypeVar

import fsspec

from pliant.checkpoint.failures import MissingError, StorageError, Trouble, storage_error
from pliant.checkpoint.store.base import Data, Sink, StorageEntry, StorageOptions
from pliant.core.errors import ConfigError
from pliant.machine.event_loop import begin_aside

PART_BYTES = 16 << 20
"""One part of an upload; two are in memory.  S3 takes 10,000 parts: a share of up to 160 GB."""

ATTEMPTS = 3
"""Tries of an operation whose connection was lost."""

FIRST_PAUSE_S = 0.2
"""Pause after the first try; each is twice as long as the one before."""

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}

_T = TypeVar("_T")


def open_objects(url: str, scheme: str, options: StorageOptions) -> ObjectStorage:
    """Return the storage at a URL.

    Raises:
        ConfigError: no such scheme, its package is not installed, or an option does not fit.
    """
    given = dict(options.fsspec)
    if scheme in ("s3", "s3a"):
        given = _s3_options(given, options)
    try:
        files, root = fsspec.core.url_to_fs(url, **given)
    except ImportError as error:
        package = _PACKAGES.get(scheme, str(error))
        raise ConfigError(f"{scheme}:// needs another package: pip install {package}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{url} cannot be opened: {error}") from error
    return ObjectStorage(files, root, url.rstrip("/"), scheme=scheme, timeout_s=options.timeout_s)


def _s3_options(given: dict[str, Any], options: StorageOptions) -> dict[str, Any]:
    """Return what s3fs gets: time-outs, and no stale listings."""
    config = {
        "connect_timeout": min(10.0, options.timeout_s),
        "read_timeout": options.timeout_s,
        "retries": {"max_attempts": 1, "mode": "standard"},  # ours do, and can be counted
        **given.pop("config_kwargs", {}),
    }
    return {"use_listings_cache": False, **given, "config_kwargs": config}


class ObjectStorage:
    """One prefix of an object store."""

    def __init__(self, files: Any, root: str, url: str, *, scheme: str, timeout_s: float) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._url = url
        self._is_s3 = scheme in ("s3", "s3a")
        self.timeout_s = timeout_s

    @property
    def has_one_winner(self) -> bool:
        """S3 and GCS have conditional writes; some stores that speak S3 ignore the condition."""
        return False

    def place(self, path: str = "") -> str:
        """Return the URL."""
        return f"{self._url}/{path}" if path else self._url

    def read(self, path: str) -> bytes:
        """Return a whole object."""
        data: bytes = self._try(path, "read", partial(self._files.cat_file, self._full(path)))
        return data

    def read_range(self, path: str, offset: int, length: int) -> Data:
        """Return up to ``length`` bytes."""
        if length == 0:
            return b""
        ranged = partial(self._files.cat_file, self._full(path), start=offset, end=offset + length)
        try:
            data: bytes = self._try(path, "read", ranged)
        except StorageError as error:
            if "range" in str(error).lower() and error.kind is Trouble.OTHER:
                return b""  # HTTP 416: it ends before
            raise
        return data

    def write(self, path: str, data: bytes) -> None:
        """Put an object: a store shows all of it or what was there before."""
        self._try(path, "written", partial(self._files.pipe_file, self._full(path), data))

    def create(self, path: str, data: bytes) -> bool:
        """Put an object where there is none, if the store can tell; else look first."""
        full = self._full(path)
        with contextlib.suppress(MissingError):
            self._try(path, "read", partial(self._files.info, full))
            return False
        try:
            self._try(path, "written", partial(self._files.pipe_file, full, data, mode="create"))
        except StorageError as error:
            if _lost_the_race(error):
                return False
            if not isinstance(error.__cause__, TypeError | NotImplementedError | ValueError):
                raise
            self.write(path, data)
        return True

    def exchange(self, path: str, data: bytes, *, expected: bytes) -> bool:
        """Replace an object that is as expected; one of several wins where the store can tell."""
        full = self._full(path)
        condition = {}
        try:
            if self._is_s3:
                tag = self._try(path, "read", partial(self._files.info, full))["ETag"]
                condition = {"IfMatch": tag}
            if self.read(path) != expected:
                return False
            self._try(path, "written", partial(self._files.pipe_file, full, data, **condition))
        except MissingError:
            return False
        except StorageError as error:
            if _lost_the_race(error):
                return False
            raise
        return True

    def heeds_conditions(self, path: str) -> bool:
        """Whether this store refuses to replace what is there if a condition says so."""
        full = self._full(path)
        for condition in ({"mode": "create"}, {"IfMatch": '"' + 32 * "0" + '"'}):
            written = partial(self._files.pipe_file, full, b"2", **condition)
            try:
                self._try(path, "written", written)
            except StorageError as error:
                if _lost_the_race(error):
                    continue
                raise
            return False
        return True

    def sink(self, path: str) -> Sink:
        """Begin an upload; the object appears when it is closed."""
        opened = partial(self._files.open, self._full(path), "wb", block_size=PART_BYTES)
        return _Upload(self, path, self._try(path, "written", opened))

    def entries(self, path: str = "") -> list[StorageEntry]:
        """Return what is directly below a prefix, by name."""
        full = self._full(path)
        fresh = {"refresh": True} if self._is_s3 else {}
        listing = partial(self._files.ls, full, detail=True, **fresh)
        try:
            found = self._try(path, "listed", listing)
        except MissingError:
            return []
        entries = {
            entry.name: entry
            for info in found
            if (entry := _entry(info)).name and info["name"].rstrip("/") != full
        }
        return [entries[name] for name in sorted(entries)]

    def remove(self, path: str) -> None:
        """Remove an object or all below a prefix."""
        full = self._full(path)

        def removal() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm(full, recursive=True)

        self._try(path, "removed", removal)

    def within(self, path: str, doing: str, operation: Callable[[], _T]) -> _T:
        """Run an operation once, until its deadline."""
        return self.answer(begin_aside(operation), path, doing)

    def answer(self, pending: futures.Future[_T], path: str, doing: str) -> _T:
        """Wait for an operation, until its deadline."""
        place, limit_s = self.place(path), self.timeout_s
        if not futures.wait([pending], limit_s).done:
            raise StorageError(place, Trouble.SLOW, f"after {limit_s:g} s", doing=doing)
        if isinstance(error := pending.exception(), Exception):
            raise storage_error(error, place, doing) from error
        return pending.result()

    def _try(self, path: str, doing: str, operation: Callable[[], _T]) -> _T:
        """Run an operation, again if its connection was lost."""
        pause_s = FIRST_PAUSE_S
        for _ in range(ATTEMPTS - 1):
            try:
                return self.within(path, doing, operation)
            except StorageError as error:
                if error.kind is not Trouble.UNREACHABLE:
                    raise
            threading.Event().wait(pause_s)
            pause_s *= 2
        return self.within(path, doing, operation)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


class _Upload:
    """One object being written: a part is sent while the next one fills."""

    def __init__(self, storage: ObjectStorage, path: str, file: Any) -> None:
        self._storage = storage
        self._path = path
        self._file = file
        self._part = io.BytesIO()
        self._sent: futures.Future[Any] | None = None

    def write(self, data: Data, /) -> int:
        """Add bytes; may wait for the part before the last."""
        view = memoryview(data).cast("B")
        taken = 0
        while taken < len(view):
            room = PART_BYTES - self._part.tell()
            taken += self._part.write(view[taken : taken + room])
            if self._part.tell() == PART_BYTES:
                self._send()
        return len(view)

    def close(self) -> None:
        """Finish the upload: the object is there."""
        self._send()
        self._wait()
        self._storage.within(self._path, "written", self._file.close)
        self._file = None

    def abandon(self) -> None:
        """Tell the store to forget the parts."""
        file, self._file = self._file, None
        if file is not None and hasattr(file, "discard"):
            with contextlib.suppress(StorageError):
                self._wait()
            with contextlib.suppress(StorageError):
                self._storage.within(self._path, "removed", file.discard)
            with contextlib.suppress(AttributeError):  # a file in memory
                file.closed = True  # or its destructor would upload the rest

    def _send(self) -> None:
        self._wait()
        data, self._part = self._part.getvalue(), io.BytesIO()
        if data:
            self._sent = begin_aside(partial(self._file.write, data))

    def _wait(self) -> None:
        pending, self._sent = self._sent, None
        if pending is not None:
            self._storage.answer(pending, self._path, "written")


def _entry(info: Mapping[str, Any]) -> StorageEntry:
    is_directory = info["type"] == "directory"
    name = info["name"].rstrip("/").rpartition("/")[2]
    return StorageEntry(name, 0 if is_directory else int(info["size"] or 0), is_directory)


def _lost_the_race(error: StorageError) -> bool:
    said = str(error)
    words = ("PreconditionFailed", "pre-condition", "ConditionalRequestConflict")
    return isinstance(error.__cause__, FileExistsError) or any(word in said for word in words)
