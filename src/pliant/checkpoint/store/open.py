"""Opening a storage by its directory or URL.

Owns the choice: a directory, where durable means fsync of file and directory, or an object store.
"""

from __future__ import annotations

from pliant.checkpoint.store.base import Storage, StorageOptions
from pliant.checkpoint.store.directory import LocalStorage
from pliant.core.errors import ConfigError


def open_storage(url: str, options: StorageOptions | None = None) -> Storage:
    """Return the storage at a directory or URL; nothing is touched yet.

    Raises:
        ConfigError: no such scheme, its package is not installed.
    """
    options = options or StorageOptions()
    scheme, _, rest = url.partition("://") if "://" in url else ("file", "", url)
    if (not rest.strip("/") and scheme != "file") or not rest:
        raise ConfigError(f"{url!r} names no place to keep checkpoints")
    if scheme == "file":
        return LocalStorage(rest)
    from pliant.checkpoint.store.objects import open_objects  # fsspec takes 0.1 s to import

    return open_objects(url, scheme, options)
