"""Manifest: what a checkpoint consists of, byte for byte.

Owns the two JSON documents of a checkpoint: a share's record of what it wrote, and the manifest
made of all of them.  Must not know storage or torch.

Digests are XXH3-128, against accidents: flipped bits, torn and short files, two writers.  It runs
at memory speed, ten times as fast as BLAKE2b, on the cores that train meanwhile; and whoever could
forge the data could forge the manifest beside it, so a cryptographic hash would promise more than
it keeps.  Each document carries the digest of itself.

``created`` and ``versions`` inform people; nothing is decided by them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

import xxhash
from pydantic import TypeAdapter, ValidationError

from pliant.checkpoint.dcp.layout import Path, fill
from pliant.checkpoint.failures import DamagedError

FORMAT = 1
"""Raised when a reader of the older number would misread."""

Hasher = xxhash.xxh3_128


def digest_of(data: bytes | memoryview) -> str:
    """Return the digest of some bytes."""
    return Hasher(data).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One box of a tensor, or one object, as a ``torch.save`` archive within a file."""

    file: str
    offset: int
    length: int
    digest: str | None = None
    """Of these bytes in the file; foreign checkpoints have none."""
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    memory: int | None = None
    """Where in the archive the tensor's bytes lie, in logical order: they need no unpacking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One tensor or object."""

    name: str
    path: Path
    """Where it lies in the nested state dict of plain PyTorch."""
    kind: Literal["tensor", "object"]
    dtype: str = ""
    """As ``float32``; empty for an object."""
    shape: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...]
    alias_of: str | None = None
    """The item whose bytes these are: another name of a tied weight."""

    def is_whole(self) -> bool:
        """Return whether the chunks hold every element exactly once."""
        if self.kind == "object":
            return len(self.chunks) == 1
        return fill(self.shape, ((chunk.offsets, chunk.sizes) for chunk in self.chunks))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file of a checkpoint."""

    name: str
    num_bytes: int
    digest: str | None = None
    """Of the whole file, where no chunk covers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one member wrote."""

    format: int = FORMAT
    checkpoint: str
    rank: int
    num_shares: int
    generation: int
    run: str = ""
    """Tells runs apart that used the same place and numbers one after another."""
    plan: str
    """Digest of the names, types and shapes that were divided."""
    file: FileRecord
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One checkpoint."""

    format: int = FORMAT
    name: str
    job: str
    lineage: int
    generation: int
    committed: int
    created: str
    """ISO 8601, by the publisher's clock."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What must agree for the run to go on with the same bits."""
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[FileRecord, ...]
    items: tuple[Item, ...]

    @property
    def num_bytes(self) -> int:
        """What it takes on storage, the manifest itself apart."""
        return sum(file.num_bytes for file in self.files)


_T = TypeVar("_T")

_SHARE: TypeAdapter[Share] = TypeAdapter(Share)
_MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def dump(document: Share | Manifest) -> bytes:
    """Return a document as JSON that carries its own digest."""
    body = _body(document)
    return f'{{"digest":"{digest_of(body.encode())}","body":{body}}}\n'.encode()


def own_digest(document: Share | Manifest) -> str:
    """Return the digest that a document carries of itself."""
    return digest_of(_body(document).encode())


def _body(document: Share | Manifest) -> str:
    return json.dumps(asdict(document), separators=(",", ":"), allow_nan=False)


def load_share(data: bytes, place: str) -> Share:
    """Read a share's record."""
    return _load(data, place, _SHARE)


def load_manifest(data: bytes, place: str) -> Manifest:
    """Read a manifest; one of a later format counts as damaged."""
    manifest = _load(data, place, _MANIFEST)
    broken = next((item.name for item in manifest.items if not item.is_whole()), None)
    if broken is not None:
        raise DamagedError(f"{place} is damaged: {broken} is not whole in it")
    return manifest


def _load(data: bytes, place: str, adapter: TypeAdapter[_T]) -> _T:
    head, separator, rest = data.partition(b'","body":')
    if (
        not separator
        or not head.startswith(b'{"digest":"')
        or not rest.endswith(b"}\n")
        or head.removeprefix(b'{"digest":"').decode(errors="replace") != digest_of(rest[:-2])
    ):
        raise DamagedError(f"{place} is damaged: its digest does not match")
    try:
        values = json.loads(rest[:-2])
        if values["format"] > FORMAT:
            raise DamagedError(
                f"{place} is of format {values['format']}; this version reads up to {FORMAT}"
            )
        return adapter.validate_python(values)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise DamagedError(f"{place} is damaged: {' '.join(str(error).split())[:200]}") from error
