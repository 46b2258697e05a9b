"""The file ``lease.json`` of a checkpoint root, and how it changes hands.

Owns that of several candidates one wins: the file is created or exchanged in one act where the
storage can do that.  As some stores only claim to, a candidate looks again after a pause unless the
root is a directory.  Must not know who may take a lease (``rules``) nor what is written beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

from pydantic import TypeAdapter, ValidationError

from pliant.checkpoint.dcp.layout import LEASE
from pliant.checkpoint.failures import MissingError, StorageError
from pliant.checkpoint.lease.rules import LeaseRecord
from pliant.checkpoint.store.base import Storage

SETTLE_S = 1.0
"""Pause before looking again on a store that may let two win."""

_RECORD: TypeAdapter[LeaseRecord] = TypeAdapter(LeaseRecord)


def read_lease(storage: Storage) -> LeaseRecord | None:
    """Return who holds a root; ``None`` if nobody does, or nothing legible says so."""
    return read_document(storage)[1]


def read_document(storage: Storage) -> tuple[bytes | None, LeaseRecord | None]:
    """Return the file as it lies there, and what it says."""
    try:
        data = storage.read(LEASE)
    except MissingError:
        return None, None
    try:
        return data, _RECORD.validate_json(data)
    except ValidationError:
        return data, None  # whoever wrote that does not beat


def is_held_by(storage: Storage, holder: str) -> bool:
    """Whether the root is held by this very acquisition."""
    found = read_lease(storage)
    return found is not None and found.holder == holder


def put_lease(
    storage: Storage,
    record: LeaseRecord,
    *,
    instead_of: bytes | None,
    wait: Callable[[float], object],
) -> bool:
    """Put a candidate's record in place of what it saw; return whether it holds the root."""
    document = dump_lease(record)
    try:
        if instead_of is None:
            won = storage.create(LEASE, document)
        else:
            won = storage.exchange(LEASE, document, expected=instead_of)
    except StorageError:
        if not is_held_by(storage, record.holder):  # it may have happened, and the answer been lost
            raise
        won = True
    if won and not storage.has_one_winner:
        wait(SETTLE_S)
        return is_held_by(storage, record.holder)
    return won


def renew_lease(storage: Storage, held: LeaseRecord, fresh: LeaseRecord) -> LeaseRecord | None:
    """Replace a holder's own record; return what it is now, None if somebody else's is there."""
    if storage.exchange(LEASE, dump_lease(fresh), expected=dump_lease(held)):
        return fresh
    found = read_lease(storage)  # an exchange whose answer was lost had happened
    return found if found is not None and found.holder == held.holder else None


def dump_lease(record: LeaseRecord) -> bytes:
    """Return the file that says what a record does."""
    return json.dumps(asdict(record)).encode()
