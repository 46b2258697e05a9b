"""Texts: the script and its own modules, as they were when the first replica here loaded them.

Everybody edits a script while it trains; a replica that starts later must run what the others run.
Owns the copies in the directory of the run, and that this process loads its own files from them.
Must not know what a script does.
"""

from __future__ import annotations

import hashlib
import linecache
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from pliant.engine.worker import script_files
from pliant.machine.files import PRIVATE, make_once, make_private_directory

_load = SourceFileLoader.get_code


def keep(directory: Path) -> None:
    """From now on load each of the script's files as the first replica that keeps them here did."""

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        path = loader.get_filename(name)
        if not script_files.is_own(path):
            return _load(loader, name)
        with suppress(OSError):
            text = read(path, directory)
            if text != script_files.text_on_disk(Path(path)):
                return loader.source_to_code(text, path)  # and no .pyc, which is for the new text
        return _load(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def read(path: str, directory: Path | None) -> bytes:
    """Return what to run for a file, once it is kept; None: nothing is.

    Raises:
        OSError: it cannot be read, and was not kept.
    """
    if directory is None:
        return Path(path).read_bytes()
    name = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    kept = directory / f"{name}-{Path(path).name}"
    if not kept.exists():
        text = Path(path).read_bytes()
        try:
            make_private_directory(directory)
            make_once(kept, text, mode=PRIVATE)
        except OSError:  # the disk is full: as if nothing were kept
            script_files.take_text(path, text)
            return text
    text = kept.read_bytes()
    script_files.take_text(path, text)
    if text != script_files.text_on_disk(Path(path)):
        lines = text.decode("utf-8", "replace").splitlines(keepends=True)
        linecache.cache[path] = (len(text), None, lines, path)  # for tracebacks and torch.jit
    return text
