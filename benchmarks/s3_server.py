"""The S3 server of ``benchmarks.checkpoint``: ``python -m benchmarks.s3_server -p PORT``.

Owns what lets moto's server keep objects of gigabytes, on all sides of the benchmark:

- an answer to a ranged GET reads that range.  As shipped it reads the whole object and cuts the
  range out: a checkpoint of 3.6 GB in ranges of 64 MiB would be 200 GB of reads;
- an object that was uploaded in parts gets no checksum of its own, which nobody asked for, and goes
  to its file at once.  As shipped that takes 15 GB of memory for an object of 3.6 GB.
"""

from __future__ import annotations

import flask
from moto.s3 import models
from moto.s3.models import FakeKey
from moto.server import main as serve

LARGE_BYTES = 64 << 20


class Ranged:
    """An object's bytes, of which slices are read."""

    def __init__(self, key: FakeKey) -> None:
        self._key = key

    def __len__(self) -> int:
        return int(self._key.contentsize)

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(len(self))
        buffer = self._key._value_buffer  # noqa: SLF001  moto has no other way to a part of it
        with self._key.lock:
            buffer.seek(begin)
            data: bytes = buffer.read(end - begin)
        return data


class Unchecked(models.MultipartChecksumBuilder):
    """A checksum of the parts of an object that is not computed."""

    def addPart(self, part: bytes) -> None:  # noqa: N802  moto's name
        """Do nothing."""

    def build(self) -> None:
        """Return none."""


def main() -> None:
    """Serve until killed."""
    whole: property = vars(FakeKey)["value"]

    def value(key: FakeKey) -> bytes | Ranged:
        is_ranged = flask.has_request_context() and "range" in flask.request.headers
        if is_ranged and flask.request.method == "GET":
            return Ranged(key)
        data: bytes = whole.__get__(key)
        return data

    def keep(key: FakeKey, data: bytes) -> None:
        if len(data) > LARGE_BYTES:
            key._value_buffer.rollover()  # noqa: SLF001
        whole.__set__(key, data)

    for owner, name, ours in (
        (FakeKey, "value", property(value, keep)),
        (models, "MultipartChecksumBuilder", Unchecked),
    ):
        setattr(owner, name, ours)
    serve()


if __name__ == "__main__":
    main()
