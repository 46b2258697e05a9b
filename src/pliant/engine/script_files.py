"""Script files: which of the loaded files are the user's own, and what is known of them.

Owns what "the script" means where a process runs a hundred files: its main file and what that
imports from beside it, not installed packages, not the standard library, not pliant; and what text
of them is run.  Everybody edits a script while it trains, and a replica that starts later must run
what the others run: the first replica keeps copies in the directory of the run, and each loads its
own files from them.  Must not know why somebody asks.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import NamedTuple

from pliant.machine.files import PRIVATE, make_once, make_private_directory

_PACKAGE = f"{Path(__file__).parents[1]}/"
_STANDARD = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_OF_A_HOST = frozenset({"__main__", "__mp_main__", "sitecustomize", "usercustomize"})

_MAX_BYTES = 4 << 20
"""Of a file that is looked into; a longer one was not written by a person."""


_taken: list[str] = []
"""What is the user's own wherever it lies."""

_texts: dict[str, bytes] = {}
"""What files held as they were loaded, where that is known: they may have been edited since."""


_load = SourceFileLoader.get_code


class Place(NamedTuple):
    """A line of a file of the user's."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{shown(self.path)}, line {self.line}"


def at(place: Place | None) -> str:
    """Return what stands of a place behind a sentence; nothing if it is not known."""
    return "" if place is None else f" ({place})"


def shown(path: str) -> str:
    """Return a path as people know it: as they typed it, or from where they are."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if path == main and sys.argv and sys.argv[0] and path not in _taken:
        return sys.argv[0]
    try:
        here = Path.cwd()
    except OSError:
        return path
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def take_as_own(paths: Iterable[str]) -> None:
    """Count files and directories as the user's: a module of theirs is run by its name, and it may
    be installed.
    """
    _taken.extend(paths)


def is_own(path: str) -> bool:
    """Whether a file was written by who runs it, as far as its place tells."""
    if any(path == one or path.startswith(f"{one}/") for one in _taken):
        return True
    return (
        path.startswith("/")
        and not path.startswith((_PACKAGE, *_STANDARD))
        and not any(part in _INSTALLED for part in Path(path).parts)
    )


def place_of_error(trace: TracebackType | None) -> Place | None:
    """Return the user's line that an exception came through last."""
    found = None
    while trace is not None:
        if is_own(trace.tb_frame.f_code.co_filename):
            found = Place(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return found


def place_of_call(frame: FrameType | None) -> Place | None:
    """Return the user's line that a running frame was reached from last."""
    for each in callers(frame):
        if is_own(each.f_code.co_filename):
            return Place(each.f_code.co_filename, each.f_lineno)
    return None


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, and those that it was called from."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def own_modules() -> dict[str, str]:
    """Return what tells the script, by its file, and each module that it has imported from others
    of its name.

    What a package makes while it runs, as torch does, is not among them.
    """
    main = _source_of(sys.modules.get("__main__"))
    found = {Path(main).name: _digest(main)} if main in _texts else {}
    for name, module in sys.modules.copy().items():
        path = _source_of(module)
        package = _source_of(sys.modules.get(name.partition(".")[0]))
        if name not in _OF_A_HOST and path and (not package or is_own(package)) and is_own(path):
            found[name] = _digest(path)
    return found


def _digest(path: str) -> str:
    return hashlib.sha256(text_of(Path(path))).hexdigest()[:12]


def _source_of(module: ModuleType | None) -> str:
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") else ""


def text_of(path: Path) -> bytes:
    """Return what a file held as it was loaded, else what it holds; nothing if none can tell."""
    text = _texts.get(str(path))
    return text_on_disk(path) if text is None else text


def text_on_disk(path: Path) -> bytes:
    """Return what a file holds now; nothing if that cannot be known."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return b""


def keep_texts(directory: Path) -> None:
    """From now on load each of the script's files as the first replica that keeps them here did."""

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        path = loader.get_filename(name)
        if not is_own(path):
            return _load(loader, name)
        with suppress(OSError):
            text = read_kept(path, directory)
            if text != text_on_disk(Path(path)):
                return loader.source_to_code(text, path)  # and no .pyc, which is for the new text
        return _load(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def read_kept(path: str, directory: Path | None) -> bytes:
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
            _texts[path] = text
            return text
    text = kept.read_bytes()
    _texts[path] = text
    if text != text_on_disk(Path(path)):
        lines = text.decode("utf-8", "replace").splitlines(keepends=True)
        linecache.cache[path] = (len(text), None, lines, path)  # for tracebacks and torch.jit
    return text
