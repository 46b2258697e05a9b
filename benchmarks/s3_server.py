"""The S3 server of ``benchmarks.checkpoint``: ``python -m benchmarks.s3_server -p PORT``.

Owns one change to moto's server: an answer to a ranged GET reads that range.  As shipped it reads
the whole object and cuts the range out: a checkpoint of 3.6 GB in ranges of 64 MiB would be 200 GB
of reads, and 3.6 GB of memory for each that is under way, on all sides of the benchmark.
"""

from __future__ import annotations

import flask
from moto.s3.models import FakeKey
from moto.server import main as serve


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


def main() -> None:
    """Serve until killed."""
    whole: property = vars(FakeKey)["value"]

    def value(key: FakeKey) -> bytes | Ranged:
        is_ranged = flask.has_request_context() and "range" in flask.request.headers
        if is_ranged and flask.request.method == "GET":
            return Ranged(key)
        data: bytes = whole.__get__(key)
        return data

    type.__setattr__(FakeKey, "value", property(value, whole.fset))
    serve()


if __name__ == "__main__":
    main()
