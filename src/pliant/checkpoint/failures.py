"""What can go wrong with durable state.

* StorageError (TransientError)   the storage refused or did not answer; ``kind`` says why
  + MissingError                  what was to be read is not there
* DamagedError (PermanentError)   bytes are not what was written; names the checkpoint and the item
* UntrustedError (DamagedError)   reading it would need to run code that it names
* LeaseHeldError (ConfigError)    another job writes to this root
* StoppedError                    the caller asked for it: not a failure
"""

from __future__ import annotations

import errno
from enum import StrEnum

from pliant.core.errors import ConfigError, PermanentError, PliantError, TransientError

RETRY_AFTER_S = 5.0
"""First pause of whoever tries again; longer than a connection takes to come back."""


class Trouble(StrEnum):
    """Why a storage refused, in the words of its sentence."""

    FULL = "the storage is full"
    READ_ONLY = "the storage is read-only"
    PERMISSION = "permission is denied"
    MISSING = "it does not exist"
    UNREACHABLE = "the storage cannot be reached"
    SLOW = "the storage did not answer in time"
    OTHER = "the storage failed"


class StorageError(TransientError):
    """The storage refused or did not answer."""

    def __init__(self, place: str, kind: Trouble, cause: str = "", *, doing: str = "used") -> None:
        why = f" ({cause})" if cause else ""
        super().__init__(f"{place} cannot be {doing}: {kind}{why}", retry_after_s=RETRY_AFTER_S)
        self.place = place
        self.kind = kind


class MissingError(StorageError):
    """What was to be read is not there."""

    def __init__(self, place: str, *, doing: str = "read") -> None:
        super().__init__(place, Trouble.MISSING, doing=doing)


class DamagedError(PermanentError):
    """A checkpoint is not what was written; says where."""


class UntrustedError(DamagedError):
    """Reading a checkpoint would mean running what it names."""


class LeaseHeldError(ConfigError):
    """Another job, which lives, writes to this checkpoint root."""


class StoppedError(PliantError):
    """The caller asked for a read or write to stop."""


_KIND_OF = {
    errno.ENOSPC: Trouble.FULL,
    errno.EDQUOT: Trouble.FULL,
    errno.EFBIG: Trouble.FULL,
    errno.EROFS: Trouble.READ_ONLY,
    errno.EACCES: Trouble.PERMISSION,
    errno.EPERM: Trouble.PERMISSION,
    errno.ENOENT: Trouble.MISSING,
    errno.ETIMEDOUT: Trouble.SLOW,
    errno.EBUSY: Trouble.SLOW,
    errno.ESTALE: Trouble.UNREACHABLE,
    errno.ENODEV: Trouble.UNREACHABLE,
    errno.ENOTCONN: Trouble.UNREACHABLE,
}


def storage_error(error: Exception, place: str, doing: str) -> StorageError:
    """Return what an exception of a file system means."""
    kind = _kind_of(error)
    if kind is Trouble.MISSING and doing in ("read", "listed", "removed"):
        return MissingError(place, doing=doing)
    return StorageError(place, kind, _cause(error), doing=doing)


def _kind_of(error: Exception) -> Trouble:
    if isinstance(error, TimeoutError):
        return Trouble.SLOW
    if isinstance(error, FileNotFoundError):
        return Trouble.MISSING
    if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
        return Trouble.PERMISSION
    if isinstance(error, OSError) and error.errno in _KIND_OF:
        return _KIND_OF[error.errno]
    if isinstance(error, ConnectionError) or any(
        word in type(error).__name__ for word in ("Connection", "Connect", "HTTPClient", "Payload")
    ):
        return Trouble.UNREACHABLE
    if "Timeout" in type(error).__name__:
        return Trouble.SLOW
    return Trouble.OTHER


def _cause(error: Exception) -> str:
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join((said or type(error).__name__).split())[:300]
