"""Catalogue: what is in a checkpoint root, what of it is sound, and what may go.

Owns listing, verifying, pruning and sweeping.  Must not know what the items mean, nor decide when
any of this happens.

Only the holder of the root's lease may prune or sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from pliant.checkpoint.dcp import layout, read
from pliant.checkpoint.dcp.layout import CheckpointName
from pliant.checkpoint.dcp.manifest import FileRecord, digest_of
from pliant.checkpoint.dcp.read import StoredCheckpoint
from pliant.checkpoint.dcp.shares import discard
from pliant.checkpoint.failures import DamagedError, MissingError
from pliant.checkpoint.store.base import Storage, sizes_in
from pliant.core.errors import ConfigError
from pliant.machine.files import is_leftover

Milestones = int | Sequence[int] | None
"""Checkpoints kept for ever: every so many steps, or those of certain committed counts."""

FRESH_S = 600.0
"""Younger leftovers may be what a living process of any host is about to rename, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """One published checkpoint, as far as its manifest and a listing tell."""

    name: str
    committed: int
    lineage: int
    num_bytes: int = 0
    created: str = ""
    job: str = ""
    generation: int = 0
    damage: str | None = None
    """What is wrong with the manifest or the sizes of files; ``None`` is no proof of soundness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a full reading of a checkpoint found."""

    name: str
    num_bytes: int = 0
    num_items: int = 0
    has_digests: bool = False
    damage: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        """Whether every byte is what was written."""
        return not self.damage


def listed(storage: Storage) -> list[CheckpointSummary]:
    """Return every published checkpoint, newest first: the highest (lineage, committed).

    Reads manifests and listings only.  One that has a manifest and is visibly damaged is in it, and
    says so.
    """
    return [found for name in _names(storage) if (found := _summary(storage, name)) is not None]


def verify(storage: Storage, name: str = "", *, trust: bool = False) -> Verification:
    """Read every byte of a checkpoint and say what is damaged, item by item.

    A foreign checkpoint has no digests: every entry must load and fit the index.  MissingError
    means that there is no checkpoint.
    """
    try:
        checkpoint = read.open_checkpoint(storage, name, trust=trust)
    except DamagedError as error:
        return Verification(name=name, damage=(str(error),))
    damage = list(_file_damage(checkpoint))
    gone = {line.file for line in damage if line.is_gone}
    sentences = [line.sentence for line in damage]
    entries = ((item, chunk) for item in checkpoint.items.values() for chunk in item.chunks)
    pairs = [(item, chunk) for item, chunk in entries if chunk.file not in gone]
    taken: dict[tuple[str, int], int] = {}  # tied weights lie in one place
    for item, chunk, data in read.stream(checkpoint, pairs):
        taken[chunk.file, chunk.offset] = len(data)
        try:
            if checkpoint.manifest is None:
                read.decode(checkpoint, item, chunk, data, trust=trust)
            else:
                read.check(checkpoint, item, chunk, data)
        except DamagedError as error:
            sentences.append(str(error))
    return Verification(
        name=name,
        num_bytes=sum(taken.values()),
        num_items=len(checkpoint.items),
        has_digests=checkpoint.manifest is not None,
        damage=tuple(sentences),
    )


def prune(
    storage: Storage,
    *,
    keep: int,
    milestones: Milestones = None,
    known_sound: Collection[str] = (),
    dry_run: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Remove all but the newest ``keep`` checkpoints and the milestones; return the names removed.

    Never removes the newest that verifies, whatever else is asked for.  What is ``known_sound``
    need not be read again for that, such as the one just written.  Once ``stop`` says so no further
    one is removed.

    Raises:
        ConfigError: ``keep`` is less than 1, or ``milestones`` a number less than 1.
    """
    if keep < 1:
        raise ConfigError(f"keep={keep} must be at least 1")
    if isinstance(milestones, int) and milestones < 1:
        raise ConfigError(f"milestones={milestones} must be at least 1")
    there = listed(storage)
    whole = [one for one in there if one.damage is None]
    kept = {one.name for one in whole[:keep]}
    kept |= {one.name for one in whole if _is_milestone(one, milestones)}
    leaving = [one.name for one in there if one.name not in kept]
    if not leaving:
        return []
    names = (one.name for one in whole)
    sound = (name for name in names if name in known_sound or verify(storage, name).is_sound)
    anchor = next(sound, None)
    if anchor is None:
        return []  # nothing here verifies: what is damaged may be all there is to save from
    removed = [name for name in reversed(leaving) if name != anchor]
    if not dry_run:
        for name in takewhile(lambda _: not stop(), removed):
            discard(storage, name)
    return removed


def sweep(storage: Storage, *, sparing: Collection[str] = ()) -> list[str]:
    """Remove what no checkpoint needs: unpublished directories and leftovers; return their paths.

    ``sparing`` names the checkpoints that are being written.
    """
    removed = []
    for entry in storage.entries():
        if entry.is_directory and layout.parse_name(entry.name) and entry.name not in sparing:
            removed += _rubbish_in(storage, entry.name)
        elif is_leftover(entry.name) and not entry.is_directory and entry.age_s > FRESH_S:
            removed.append(entry.name)
    for path in removed:
        storage.remove(path)
    return removed


@dataclass(frozen=True, slots=True)
class _FileDamage:
    file: str
    sentence: str
    is_gone: bool = False


def _file_damage(checkpoint: StoredCheckpoint) -> Iterable[_FileDamage]:
    """Yield what a listing shows, and digests of files that are no share's."""
    there = sizes_in(checkpoint.storage, checkpoint.name)
    needed: dict[str, list[str]] = {}
    for item in checkpoint.items.values():
        for chunk in item.chunks:
            needed.setdefault(chunk.file, []).append(item.name)
    for file, names in sorted(needed.items()):
        if file not in there:
            what = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            place = checkpoint.storage.place(checkpoint.path(file))
            yield _FileDamage(file, f"{place} is missing, and with it {what}", is_gone=True)
    for record in checkpoint.manifest.files if checkpoint.manifest else ():
        place = checkpoint.storage.place(checkpoint.path(record.name))
        wrong = _wrong_size(place, there, record)
        if wrong is not None:
            if record.name in there or record.name not in needed:
                yield _FileDamage(record.name, wrong, is_gone=record.name not in there)
        elif record.digest is not None:
            data = checkpoint.storage.read(checkpoint.path(record.name))
            if digest_of(data) != record.digest:
                yield _FileDamage(record.name, f"{place} is damaged: its digest does not match")


def _wrong_size(place: str, there: Mapping[str, int], record: FileRecord) -> str | None:
    found = there.get(record.name)
    if found is None:
        return f"{place} is missing"
    if found != record.num_bytes:
        return f"{place} is damaged: it has {found} bytes instead of {record.num_bytes}"
    return None


def _names(storage: Storage) -> list[CheckpointName]:
    found = (layout.parse_name(entry.name) for entry in storage.entries() if entry.is_directory)
    return sorted((name for name in found if name is not None), reverse=True)


def _summary(storage: Storage, name: CheckpointName) -> CheckpointSummary | None:
    bare = CheckpointSummary(name=str(name), committed=name.committed, lineage=name.lineage)
    try:
        manifest = read.read_manifest(storage, str(name))
    except MissingError:
        return None
    except DamagedError as error:
        return replace(bare, damage=str(error))
    there = sizes_in(storage, str(name))
    sizes = (_wrong_size(storage.place(f"{name}/{f.name}"), there, f) for f in manifest.files)
    damage = next(filter(None, sizes), None)
    if damage is not None and not _is_published(storage, name):
        return None  # pruned meanwhile
    if (manifest.committed, manifest.lineage) != (name.committed, name.lineage):
        place = storage.place(f"{name}/{layout.MANIFEST}")
        damage = f"{place} is damaged: it is the manifest of {manifest.name}"
    return replace(
        bare,
        num_bytes=manifest.num_bytes,
        created=manifest.created,
        job=manifest.job,
        generation=manifest.generation,
        damage=damage,
    )


def _is_published(storage: Storage, name: CheckpointName) -> bool:
    return any(entry.name == layout.MANIFEST for entry in storage.entries(str(name)))


def _is_milestone(one: CheckpointSummary, milestones: Milestones) -> bool:
    if isinstance(milestones, int):
        return one.committed % milestones == 0
    return one.committed in (milestones or ())


def _rubbish_in(storage: Storage, name: str) -> list[str]:
    """Return what to remove of a checkpoint's directory: all of it if it was never published."""
    files = [entry.name for entry in storage.entries(name)]
    if layout.MANIFEST not in files:
        return [name]
    try:
        manifest = read.read_manifest(storage, name)
    except (MissingError, DamagedError):
        return []  # damaged: for a person to look at, or for prune
    needed = {layout.MANIFEST, *(record.name for record in manifest.files)}
    return [f"{name}/{file}" for file in files if file not in needed]
