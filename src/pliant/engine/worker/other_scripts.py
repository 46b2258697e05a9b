"""Other scripts: what is started under pliant and was not written for it.

Owns how such a script is recognised as soon as it can be known, and the sentence that it gets: what
it does, and which lines to change.  Watches from the start of a script until it makes its session,
and only a script of which nothing says "pliant" is refused for what others may do on purpose (an
optimizer that warms up, a Trainer that evaluates).  Must not know how a worker ends.

    missing RANK ----------------------> uncaught: explained by script_errors
    init_process_group, spawn, Trainer,
    an optimizer's step ---------------> refused there, once; who catches that is ended
    no session in time ----------------> ended by the link's thread, wherever the script is
    none at the end -------------------> its last sentence
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from pliant.core.errors import ConfigError
from pliant.engine import script_files
from pliant.engine.script_files import Place
from pliant.engine.worker.customs import CUSTOMS, PAGE, PLAIN, TORCHRUN, TRAINERS, Custom

NO_SESSION = (
    "the script ended without opening a pliant.Session; train inside"
    " `with pliant.Session(...) as session:`"
)

_GROUPS = "torch.distributed.distributed_c10d"
_STEPS = "torch.optim.optimizer"
_SPAWN = "torch.multiprocessing"
_ARGUMENTS = ("backend", "init_method", "timeout", "world_size", "rank", "store")
"""Of ``init_process_group``, by their places."""


class ScriptWatch:
    """Watches one script from its start until it makes a session, or ends without one."""

    def __init__(
        self,
        *,
        limit_s: float,
        noted: Callable[[str], None],
        end: Callable[[str], None],
        environ: Mapping[str, str],
        allows_groups: bool,
    ) -> None:
        """Of one script.

        Args:
            limit_s: in which it is to make its session.
            noted: is told what people should know.
            end: ends the process with a sentence; it may be called from any thread.
            environ: the script's.
            allows_groups: whether it may make process groups, as its replica has several workers.
        """
        self._limit_s = limit_s
        self._noted = noted
        self._end = end
        self._environ = environ
        self._allows_groups = allows_groups
        self._since_s = time.monotonic()
        self._main = threading.get_ident()
        self._lock = threading.Lock()
        self._finder = ImportWatch(self._on_import, (*TRAINERS, _GROUPS, _STEPS, _SPAWN))
        self._step_hook: Any = None
        self._knows_pliant: bool | None = None
        self._first: tuple[Custom, str, Place | None] | None = None
        self._has_stepped = False
        self._is_refused = False
        self._is_open = False
        self.waits_for = ""
        """What another process does that the script waits for, for people; empty: nothing."""

    def open(self) -> None:
        """Begin to watch; what is loaded already is watched as what is loaded later."""
        self._is_open = True
        sys.meta_path.insert(0, self._finder)
        for name in self._finder.names & sys.modules.keys():
            self._on_import(sys.modules[name])

    def close(self) -> None:
        """Watch no more: the script makes its session.  A second call does nothing."""
        with self._lock:
            self._is_open = False
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        if self._step_hook is not None:
            self._step_hook.remove()
            self._step_hook = None

    def end_if_late(self) -> None:
        """End a script that has not made its session in time; any thread may call it, often."""
        with self._lock:
            if not self._is_open or time.monotonic() - self._since_s < self._limit_s:
                return
            self._is_open = False
        # A documented function in spite of its name: what else tells where another thread is?
        frame = sys._current_frames().get(self._main)  # noqa: SLF001
        place = script_files.place_of_call(frame)
        where = f" and is at {place}" if place is not None else ""
        late = f"the script has made no pliant.Session in {self._limit_s:g} s{where}"
        if self.waits_for:
            why = f": it waits for {self.waits_for}. If that needs longer"
            self._end(f"{late}{why}, say so: --session-timeout 2h")
            return
        suspicion = ""
        if self._first is not None:
            custom, finding, met_at = self._first
            suspicion = f" under `{custom.section}`, for {finding}{script_files.at(met_at)}"
        self._end(
            f"{late}. If it needs longer to get there, say so: --session-timeout 2h; if it trains "
            f"otherwise, {PAGE} shows what to change{suspicion}"
        )

    def last_sentence(self) -> str:
        """Say why a script may have ended without a session, as far as its files tell."""
        if self._first is not None:
            custom, finding, place = self._first
            return f"{NO_SESSION}; before, {finding}{script_files.at(place)}; {custom.pointer}"
        return f"{NO_SESSION}{script_files.unreached_session()}"

    # --- what a script does -------------------------------------------------------

    def _on_import(self, module: ModuleType) -> None:
        """Watch what a module offers, now that it is loaded."""
        match module.__name__:
            case n if n == _STEPS:
                register = getattr(module, "register_optimizer_step_pre_hook", None)
                if register is not None and self._step_hook is None:
                    self._step_hook = register(self._on_step)
            case n if n == _GROUPS and self._allows_groups:
                pass
            case n if n == _GROUPS:
                for holder in (module, sys.modules.get("torch.distributed")):
                    self._wrap(holder, "init_process_group", self._on_group, is_lasting=True)
            case n if n == _SPAWN:
                self._wrap(module, "spawn", self._on_spawn)
            case name:
                attribute, words, custom = TRAINERS[name]
                found = getattr(module, attribute, None)

                def met(*_: Any, **__: Any) -> None:
                    self._meet(custom, f"the script makes {words} outside of a pliant.Session")

                if isinstance(found, type):
                    self._wrap(found, "__init__", met)
                elif found is not None:
                    self._wrap(module, attribute, met)

    def _wrap(
        self, holder: Any, name: str, check: Callable[..., None], *, is_lasting: bool = False
    ) -> None:
        """Have a function checked, also while there is a session if the check ``is_lasting``."""
        original = getattr(holder, name, None)
        if not callable(original):
            return

        @functools.wraps(original)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if self._is_open or is_lasting:
                check(*args, **kwargs)
            return original(*args, **kwargs)

        setattr(holder, name, checked)

    def _on_group(self, *args: Any, **kwargs: Any) -> None:
        """A group of this process alone may be what a library wants; a larger one cannot be.

        Nor can one at a port of its own: the next replica of the host would meet it in use.
        """
        given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        port = None if given.get("store") is not None else self._fixed_port(given)
        if port is not None:
            words = f"the script calls torch.distributed.init_process_group at port {port}, which "
            self._meet(TORCHRUN, f"{words}one replica of a host alone can have", is_hopeless=True)
        if not self._is_open:
            return
        size = given.get("world_size", -1)
        is_given = any(given.get(name) is not None for name in ("store", "rank", "init_method"))
        is_hopeless = size not in (-1, 1) or not (is_given or "RANK" in self._environ)
        words = "the script calls torch.distributed.init_process_group, as under torchrun"
        self._meet(TORCHRUN, words, is_hopeless=is_hopeless)

    def _fixed_port(self, given: Mapping[str, Any]) -> str | None:
        """Return the port at which a group would meet, if that is always the same."""
        method = str(given.get("init_method") or "env://")
        if method.startswith("env://"):
            port = self._environ.get("MASTER_PORT", "") if "RANK" in self._environ else ""
        else:
            port = method.rpartition(":")[2] if method.startswith("tcp://") else ""
        return port if port.isdecimal() and int(port) else None

    def _on_spawn(self, fn: Any, *_: Any, **__: Any) -> None:
        """Processes that prepare data are the script's affair; those of a process group are not."""
        names = vars(sys.modules.get(getattr(fn, "__module__", ""), object))
        if any(_is_distributed(value) for value in list(names.values())):
            words = "the script starts processes of its own with torch.multiprocessing.spawn"
            self._meet(TORCHRUN, words)

    def _on_step(self, optimizer: Any, *_: Any) -> None:
        if not self._is_open or threading.get_ident() != self._main:
            return
        frame = sys._getframe(1)  # noqa: SLF001  # the way to one's callers
        packages = {
            str(each.f_globals.get("__name__")).partition(".")[0]
            for each in script_files.callers(frame)
        }
        groups = sys.modules.get("torch.distributed")
        is_grouped = (
            not self._allows_groups
            and groups is not None
            and groups.is_available()
            and groups.is_initialized()
        )
        custom = next(
            (one for one in CUSTOMS if packages.intersection(one.packages)),
            TORCHRUN if is_grouped else PLAIN,
        )
        finding = f"the script steps {type(optimizer).__name__} outside of a pliant.Session"
        self._meet(custom, finding)
        if not self._has_stepped:
            self._has_stepped = True
            where = script_files.at(script_files.place_of_call(frame))
            self._noted(
                f"{finding}, which it has not made yet{where}: "
                "each replica does so, also one that joins late, and the session knows nothing of "
                "it"
            )

    def _meet(self, custom: Custom, finding: str, *, is_hopeless: bool = False) -> None:
        """Refuse what no script with a session does; remember what one may do before it.

        Raises:
            ConfigError: it is refused, for the first time; who goes on regardless is ended.
        """
        if self._knows_pliant is None:
            self._knows_pliant = script_files.knows_pliant(sys._getframe(1))  # noqa: SLF001
        if is_hopeless or not self._knows_pliant:
            sentence = custom.sentence(finding)
            if self._is_refused:
                self._end(sentence)
            self._is_refused = True
            raise ConfigError(sentence)
        if self._first is None:
            self._first = custom, finding, script_files.place_of_call(sys._getframe(1))  # noqa: SLF001


def _is_distributed(value: object) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return str(name).startswith(("torch.distributed", "torch.nn.parallel.distributed"))


class ImportWatch(importlib.abc.MetaPathFinder):
    """Says when one of some modules has been loaded; finds none itself."""

    def __init__(self, loaded: Callable[[ModuleType], None], names: Sequence[str]) -> None:
        self._loaded = loaded
        self.names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the others find it, and hear of it once it is loaded."""
        if fullname not in self.names:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((one for one in specs if one is not None), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                loader.exec_module = run
                run(module)
                self._loaded(module)

            loader.exec_module = exec_module
        return spec
