"""Shares: how the members of a generation write one checkpoint together.

Owns the order of writes that makes a checkpoint exist all at once: data and digests, then the
share's record, and after all shares the index and, last, the manifest.  Must not know who the
members are, when they save, or what the items mean.

    every member    write_share     its data file, fsynced, then its record
    a member        give_up_share   it cannot write it, whatever it tries
    the leader      present         whose records are there; why_given_up: which will not come
    the leader      publish         .metadata, then the manifest: from now on it exists

A crash in between leaves a directory without a manifest, which is rubbish.  Writing again, by the
same or a newer generation, is always allowed.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import IO, Any, cast

import torch

from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.index import Contents, dump_index
from pliant.checkpoint.dcp.layout import Piece
from pliant.checkpoint.dcp.manifest import (
    Chunk,
    FileRecord,
    Hasher,
    Item,
    Manifest,
    Share,
    digest_of,
    dump,
    load_share,
)
from pliant.checkpoint.dcp.read import read_manifest
from pliant.checkpoint.failures import DamagedError, MissingError, StoppedError
from pliant.checkpoint.store.base import Data, Sink, Storage, sizes_in
from pliant.core.errors import PermanentError

_CERTAIN_BYTES = 4096
"""All else in an archive comes in pieces shorter than this."""


class NotAllowedError(PermanentError):
    """The publisher may not publish any more; nothing was."""


def write_share(
    storage: Storage,
    name: str,
    contents: Contents,
    *,
    rank: int,
    num_shares: int,
    generation: int,
    run: str = "",
    stop: Callable[[], bool] | None = None,
) -> Share:
    """Write this member's part of a whole state; on return it is durable.

    ``rank`` is this member's position among those who write.  ``run`` tells runs apart, as one
    after another may number their generations alike.  ``stop`` is asked between pieces, on this
    thread.  If it fails, what was written is rubbish: write again later.

    Raises:
        StoppedError: ``stop`` said so.
    """
    pieces = contents.pieces(rank=rank, num_shares=num_shares)
    objects = sorted(contents.objects.items()) if rank == 0 else []

    def go_on() -> None:
        if stop is not None and stop():
            raise StoppedError(f"the write of {name} was stopped")

    file = layout.data_file(rank, generation)
    storage.remove(f"{name}/{layout.share_file(rank, generation)}")
    sink = storage.sink(f"{name}/{file}")
    try:
        written = _Written(sink, file)
        found = [_object_item(key, value, written, go_on) for key, value in objects]
        found += _tensor_items(contents, pieces, written, go_on)
        sink.close()
    except BaseException:
        sink.abandon()
        raise
    share = Share(
        checkpoint=name,
        plan=_plan(contents),
        rank=rank,
        num_shares=num_shares,
        generation=generation,
        run=run,
        file=FileRecord(name=file, num_bytes=written.num_bytes),
        items=tuple(found),
    )
    storage.write(f"{name}/{layout.share_file(rank, generation)}", dump(share))
    return share


def present(storage: Storage, name: str, *, generation: int) -> frozenset[int]:
    """Return the ranks whose shares of this generation are whole and durable."""
    parsed = (layout.parse_share_file(entry.name) for entry in storage.entries(name))
    return frozenset(found[0] for found in parsed if found is not None and found[1] == generation)


def give_up_share(
    storage: Storage, name: str, *, rank: int, generation: int, run: str, reason: str
) -> None:
    """Say in place of a share that it will not come, and why: the leader waits for it."""
    said = json.dumps({"run": run, "reason": reason}).encode()
    storage.write(f"{name}/{layout.unwritten_file(rank, generation)}", said)


def why_given_up(storage: Storage, name: str, *, rank: int, generation: int, run: str) -> str:
    """Return why a share will not come; empty: it may."""
    try:
        said = json.loads(storage.read(f"{name}/{layout.unwritten_file(rank, generation)}"))
        return str(said["reason"]) if said["run"] == run else ""
    except (MissingError, ValueError, KeyError, TypeError):
        return ""


def publish(
    storage: Storage,
    name: str,
    *,
    generation: int,
    num_shares: int,
    job: str,
    run: str = "",
    identity: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    aliases: Mapping[str, str] | None = None,
    allowed: Callable[[], bool] | None = None,
) -> Manifest:
    """Make the checkpoint exist of the shares of a generation and run; on return it is durable.

    Publishing one that exists changes nothing, unless files of it are gone.

    Args:
        storage, name, generation, num_shares, job, run: as for the shares.
        identity: what must agree for a run to go on with the same bits.
        facts: anything else worth knowing; plain JSON values.
        aliases: further names of tensors (tied weights), each with the name it was written under.
        allowed: asked last of all, before the manifest; e.g. ``lease.ensure``.

    Raises:
        MissingError: a share is not there.
        NotAllowedError: ``allowed`` said no.
    """
    parsed = layout.parse_name(name)
    if parsed is None:
        raise ValueError(f"{name!r} is no name of a checkpoint")
    there = _published(storage, name)
    if there is not None:
        return there
    shares = _shares(storage, name, generation, num_shares, run)
    items = _with_aliases(_merged(storage.place(name), shares), aliases or {})
    manifest = Manifest(
        name=name,
        job=job,
        lineage=parsed.lineage,
        generation=generation,
        committed=parsed.committed,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        identity=identity or {},
        versions={
            "pliant": version("pliant"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        facts=facts or {},
        files=(*(share.file for share in shares), _write_index(storage, name, items)),
        items=items,
    )
    if allowed is not None and not allowed():
        raise NotAllowedError(f"{storage.place(name)} is not published: another job holds its root")
    storage.write(f"{name}/{layout.MANIFEST}", dump(manifest))
    return manifest


def discard(storage: Storage, name: str) -> None:
    """Remove a checkpoint, published or not; a crash in between leaves rubbish, never a part."""
    storage.remove(f"{name}/{layout.MANIFEST}")
    storage.remove(name)


def _plan(contents: Contents) -> str:
    """Return a digest of what the division depends on: equal on members that divide alike."""
    tensors = [(n, str(t.dtype), contents.shape_of(n)) for n, t in sorted(contents.tensors.items())]
    return digest_of(repr((tensors, sorted(contents.objects))).encode())


class _Written:
    """Counts and hashes what goes to a sink.

    Never raises into ``torch.save``, which would bury the cause under its own complaint about an
    archive cut short: what went wrong is kept, and raised at the end of the archive.
    """

    def __init__(self, sink: Sink, file: str) -> None:
        self._sink = sink
        self._file = file
        self._hasher = Hasher()
        self._start = 0
        self._error: BaseException | None = None
        self._longest = (0, 0)  # bytes, offset
        self._small = bytearray()  # an archive has some forty short pieces
        self.num_bytes = 0

    def write(self, data: Data, /) -> int:
        if len(data) < _CERTAIN_BYTES:
            self._small += data
        else:
            self._pass_on(self._small)
            self._small = bytearray()
            self._pass_on(data)
            self._longest = max(self._longest, (len(data), self.num_bytes))
        self.num_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: the sink is made durable as a whole."""

    def chunk(self, piece: Piece | None = None, num_bytes: int = 0) -> Chunk:
        """Return what was written since the last call; raise what went wrong in it.

        Of an archive only the tensor's memory is written in so long a piece.
        """
        self._pass_on(self._small)
        self._small = bytearray()
        if self._error is not None:
            raise self._error
        longest, at = self._longest
        is_memory = num_bytes >= _CERTAIN_BYTES and longest == num_bytes
        found = Chunk(
            file=self._file,
            offset=self._start,
            length=self.num_bytes - self._start,
            digest=self._hasher.hexdigest(),
            offsets=piece.offsets if piece else (),
            sizes=piece.sizes if piece else (),
            memory=at - self._start if is_memory else None,
        )
        self._start, self._hasher, self._longest = self.num_bytes, Hasher(), (0, 0)
        return found

    def _pass_on(self, data: Data) -> None:
        if self._error is not None or not len(data):
            return
        try:
            self._hasher.update(data)
            self._sink.write(data)
        except BaseException as error:  # raised by ``chunk``
            self._error = error


def write_piece(box: torch.Tensor, out: Any) -> None:
    """Write one piece of a tensor as an archive of exactly that piece, as ``torch.save`` does.

    The archive of a view would hold the whole storage behind it, so a new storage is laid over the
    piece's memory, which costs no copy of it.  A piece that does not lie in one run, or on another
    device, is copied first.
    """
    box = box.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if box.numel() == 0:
        torch.save(torch.empty(box.shape, dtype=box.dtype, device="cpu"), out)
        return
    memory = box.reshape(-1).view(torch.uint8).numpy()
    if not memory.flags.writeable:
        memory = memory.copy()
    torch.save(torch.frombuffer(memory.data, dtype=box.dtype).reshape(box.shape), out)


def _object_item(key: str, value: Any, written: _Written, go_on: Callable[[], None]) -> Item:
    go_on()
    torch.save(value, cast(IO[bytes], written))  # it needs only write and flush
    return Item(name=key, path=layout.path_of(key), kind="object", chunks=(written.chunk(),))


def _tensor_items(
    contents: Contents, pieces: Sequence[Piece], written: _Written, go_on: Callable[[], None]
) -> list[Item]:
    tensors = contents.tensors
    chunks: dict[str, list[Chunk]] = {}
    for piece in pieces:
        go_on()
        write_piece(contents.memory_of(piece), written)
        num_bytes = math.prod(piece.sizes) * tensors[piece.name].element_size()
        chunks.setdefault(piece.name, []).append(written.chunk(piece, num_bytes))
    return [
        Item(
            name=key,
            path=layout.path_of(key),
            kind="tensor",
            dtype=str(tensors[key].dtype).removeprefix("torch."),
            shape=contents.shape_of(key),
            chunks=tuple(found),
        )
        for key, found in chunks.items()
    ]


def _published(storage: Storage, name: str) -> Manifest | None:
    """Return the manifest of a checkpoint that exists, with all its files."""
    try:
        manifest = read_manifest(storage, name)
    except (MissingError, DamagedError):
        return None
    sizes = sizes_in(storage, name)
    is_whole = all(sizes.get(record.name) == record.num_bytes for record in manifest.files)
    return manifest if is_whole else None


def _shares(storage: Storage, name: str, generation: int, num_shares: int, run: str) -> list[Share]:
    shares = []
    for rank in range(num_shares):
        path = f"{name}/{layout.share_file(rank, generation)}"
        place = storage.place(path)
        share = load_share(storage.read(path), place)
        told = (share.checkpoint, share.rank, share.generation, share.num_shares, share.run)
        if told != (name, rank, generation, num_shares, run):
            raise DamagedError(f"{place} is damaged: it is the record of another share")
        shares.append(share)
    there = sizes_in(storage, name)
    for file in (share.file for share in shares):
        if there.get(file.name) != file.num_bytes:
            raise DamagedError(
                f"{storage.place(f'{name}/{file.name}')} is damaged: "
                f"{there.get(file.name, 0)} of {file.num_bytes} bytes are there"
            )
    return shares


def _merged(place: str, shares: Sequence[Share]) -> tuple[Item, ...]:
    if len({share.plan for share in shares}) > 1:
        raise DamagedError(f"{place} is damaged: its shares are parts of different states")
    merged: dict[str, Item] = {}
    for share in shares:
        for item in share.items:
            had = merged.get(item.name)
            if had is None:
                merged[item.name] = item
            elif (had.kind, had.dtype, had.shape) == (item.kind, item.dtype, item.shape):
                merged[item.name] = replace(had, chunks=(*had.chunks, *item.chunks))
            else:
                raise DamagedError(f"{place} is damaged: its shares disagree about {item.name}")
    for item in merged.values():
        if not item.is_whole():
            raise DamagedError(f"{place} is damaged: its shares do not hold the whole {item.name}")
    return tuple(
        replace(item, chunks=tuple(sorted(item.chunks, key=lambda chunk: chunk.offsets)))
        for _, item in sorted(merged.items())
    )


def _write_index(storage: Storage, name: str, items: tuple[Item, ...]) -> FileRecord:
    index = dump_index(items)
    storage.write(f"{name}/{layout.METADATA}", index)
    return FileRecord(name=layout.METADATA, num_bytes=len(index), digest=digest_of(index))


def _with_aliases(items: tuple[Item, ...], aliases: Mapping[str, str]) -> tuple[Item, ...]:
    named = {item.name: item for item in items}
    for alias, original in aliases.items():
        if original not in named:
            raise ValueError(f"{alias!r} is to be another name of {original!r}, which is not there")
    more = [
        replace(named[original], name=alias, path=layout.path_of(alias), alias_of=original)
        for alias, original in sorted(aliases.items())
        if alias not in named
    ]
    return (*items, *more)
