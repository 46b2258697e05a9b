"""Differences: what a script keeps beside the state, and in what two replicas differ there.

A tail that changes it (a curriculum, ``Dropout.p``, an annealed global) changes it on those who run
that tail; a joiner begins with what the script made, and so does a run that goes on.  Owns what
replicas compare of the dataset, the modules, the script's variables and the environment; what of
these changes by itself (caches, what a forward sets); and when a difference is told: of the dataset
at once, else at the first step here, if the script has not set the value by then.  Must not know
who compares with whom, nor what a value means: whether results differ cannot be said, so nothing is
refused.

Not seen: what a dataset's globals and closures keep, objects in the session's own modules.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pliant.core.text import in_words
from pliant.engine.fingerprint import MAX_LISTED, SHARED, WORDED, Look, Words, kind_of
from pliant.engine.guard import environment_reads
from pliant.engine.guard.base import unlike
from pliant.engine.guard.script_variables import ScriptVariables, words_of_modules

LEARNED_FROM = 2
"""First steps of this process in which is seen what a forward changes; later ever more rarely."""

MAX_NAMED = 3
"""Values that one sentence names."""

_FORM = 2
"""Of the words: who has those of another form compares nothing."""

_TOO_MANY = ""
"""Under this name: not every attribute was looked at."""


@dataclass(frozen=True, slots=True)
class _Holder:
    """What has values that differ."""

    name: str
    condition: str
    instead: str
    """What a script may do."""

    def told(self, mine: Words, theirs: Words, names: Sequence[str], where: str) -> str:
        """Say what the first of these names are here, and what they are there."""
        said = [
            f"{name!r} is {mine.get(name, 'missing')} here and {theirs.get(name, 'missing')} "
            f"{where}"
            for name in names
        ]
        return (
            f"the {self.name}'s {in_words(said, MAX_NAMED)}: if {self.condition}, this run depends "
            f"on who joined when; {self.instead}"
        )


_DATASET = _Holder(
    "dataset",
    "samples depend on it",
    "what a tail changes in a dataset reaches a joiner through extra_state= (and only with "
    "num_workers=0), or is computed in the loop from step.index",
)
_MODEL = _Holder(
    "model",
    "a forward depends on it",
    "what a tail changes in a module reaches a joiner in a buffer or by get_extra_state, or is set "
    "in the loop from step.index",
)
_SCRIPT = _Holder(
    "script",
    "what it trains or writes depends on it",
    "what a tail changes reaches a joiner in extra_state= (objects with state_dict and "
    "load_state_dict), or is computed in the loop from step.index",
)


class DatasetAttributes:
    """Of one replica's dataset."""

    def __init__(self, dataset: object, *, is_copied: bool) -> None:
        """``is_copied``: loader processes fetch, from the dataset as it is when they start."""
        self._dataset = dataset
        self._is_copied = is_copied
        self.volatile: set[str] = set()
        """What changes by being fetched from; that is never compared."""
        self._at_start: Words = {}
        self.counts: list[str] = []
        """Numbers that change by being fetched from."""

    @contextmanager
    def fetching(self) -> Iterator[None]:
        """Learn what changes by being fetched from."""
        before = words_of_dataset(self._dataset)
        yield
        after = words_of_dataset(self._dataset)
        names = different(before, after)
        self.volatile.update(names)
        self.counts = [name for name in names if are_numbers(before.get(name), after.get(name))]

    def open(self) -> None:
        """Take the dataset as it is: loader processes have just started."""
        self._at_start = words_of_dataset(self._dataset) if self._is_copied else {}

    def words(self) -> Words:
        """Return a word for each attribute of what is fetched from."""
        return self._at_start if self._is_copied else words_of_dataset(self._dataset)

    def pack(self) -> bytes:
        """Return what another replica compares with its own."""
        return _pack(self.words(), self.volatile)

    def unlike(self, others: Sequence[bytes], where: str = "on the replicas that train") -> str:
        """Say which attributes are others where the run is; empty: none."""
        mine = self.words()
        for theirs, volatile in map(_unpack, others):
            names = [n for n in different(mine, theirs) if n not in self.volatile | volatile]
            if names:
                return _DATASET.told(mine, theirs, names, where)
        return ""

    def unseen(self) -> str:
        """Say which attributes changed since the loader processes started; empty: none."""
        if not self._is_copied:
            return ""
        now = words_of_dataset(self._dataset)
        names = different(self._at_start, now)
        shared = [n for n in names if now.get(n, "").startswith(SHARED) and n not in self.volatile]
        if shared:
            return (
                f"the dataset's {_listed(shared)} in shared memory changed while loader processes "
                "fetch ahead: if samples depend on it, they depend on how far ahead each replica's "
                f"are; {_DATASET.instead}"
            )
        if not names:
            return ""
        return (
            f"the dataset's {_listed(names)} changed after the loader processes had started, which "
            f"do not see it; {_DATASET.instead}"
        )


class Differences:
    """Of one replica; see the module's text."""

    def __init__(
        self,
        dataset: DatasetAttributes,
        model: torch.nn.Module,
        noted: Callable[[str], None],
        variables: ScriptVariables,
        steps_per_epoch: int = 1,
    ) -> None:
        """``noted`` is told what differs."""
        self.dataset = dataset
        self._variables = variables
        self._model = model
        self._noted = noted
        self._steps_per_epoch = steps_per_epoch
        self._volatile: set[str] = set()
        self._num_learned = 0
        self._before: Words | None = None
        self._drawn_before: Words = {}
        self._counting: Counter[str] = Counter()
        """How often a forward has changed a number, in the first steps."""
        self._has_told = self._has_said_unseen = False
        self._unlike: list[tuple[_Holder, Words, Words, str]] = []
        """Mine and theirs, and where those are; until the first step."""

    # --- with others ------------------------------------------------------------------------

    def pack(self) -> bytes:
        """Return what another replica compares with its own."""
        model = _pack(words_of_modules(self._model), self._volatile)
        return b"\n".join((self.dataset.pack(), model, _pack(self._variables.words())))

    def pack_for_joiners(self) -> bytes:
        """Return what a replica that joins compares: also of the environment, which is no state."""
        return b"\n".join((self.pack(), json.dumps(environment_reads.asked()).encode()))

    def compare(self, others: Sequence[bytes], where: str = "on the replicas that train") -> None:
        """Say what of the dataset differs from these, and remember what of the rest does."""
        parts = [one.split(b"\n") for one in others]
        if said := self.dataset.unlike([dataset for dataset, *_ in parts], where):
            self._noted(said)
        mine = (_MODEL, words_of_modules(self._model)), (_SCRIPT, self._variables.words())
        for _, *packed in parts:  # an old run has fewer
            for (holder, words), one in zip(mine, packed, strict=False):
                theirs, volatile = _unpack(one)
                self._volatile |= volatile
                self._unlike.append((holder, words, theirs, where))
        self._tell_environment([json.loads(each[3] or b"{}") for each in parts if len(each) > 3])

    def _tell_environment(self, others: Sequence[Words]) -> None:
        """Say which variables that scripts ask for are others here; what they are is not said."""
        mine = environment_reads.asked()
        names = sorted({name for theirs in others for name in unlike(mine, theirs)})
        if names:
            self._noted(
                f"{in_words(names, MAX_NAMED)} in the environment, which the script reads, "
                f"{'is' if len(names) == 1 else 'are'} not what the replicas that train have: if "
                "what it trains depends on it, their gradients do not fit together; set it alike "
                "on every host"
            )

    # --- in the course of steps -------------------------------------------------------------

    def on_session(self) -> None:
        """Take the dataset as it is."""
        self.dataset.open()

    def on_head(self, step: int | None) -> None:
        """Now and then, until there is something to say: what loader processes do not see."""
        if step is None or self._has_said_unseen:
            return
        is_time = step & (step - 1) == 0 or step % self._steps_per_epoch == 0
        if is_time and (said := self.dataset.unseen()):
            self._has_said_unseen = True
            self._noted(said)

    def on_step(self, step: int) -> None:
        """A step is computed from here on; say what still differs."""
        found, self._unlike = self._unlike, []
        is_time = self._num_learned < LEARNED_FROM or step & (step - 1) == 0
        if not is_time and not found:
            self._before = None
            return
        now = self._before = words_of_modules(self._model)
        self._drawn_before = self._variables.generators()
        if found:
            self._tell_first(_SCRIPT, found, self._variables.words())
            self._tell_first(_MODEL, found, now)

    def _tell_first(
        self, holder: _Holder, found: Sequence[tuple[_Holder, Words, Words, str]], now: Words
    ) -> None:
        """Say what is another where the run is, and was not set here since."""
        volatile = self._volatile if holder is _MODEL else set()
        for whose, mine, theirs, where in found:
            changed = [n for n in unlike(mine, theirs) if n not in volatile]
            names = [n for n in changed if mine[n] == now.get(n)]
            if whose is holder and names:
                self._noted(holder.told(mine, theirs, names, where))
                return

    def on_computed(self) -> None:
        """All of a step has been computed here: what has changed since its begin, a forward did."""
        before, self._before = self._before, None
        if before is None:
            return
        now = words_of_modules(self._model)
        names = different(before, now)
        self._volatile.update(names)
        self._num_learned += 1
        self._counting.update(n for n in names if are_numbers(before.get(n), now.get(n)))
        if not self._has_told and self._num_learned >= LEARNED_FROM:
            self._tell_what_slots_leave()

    def _tell_what_slots_leave(self) -> None:
        """Say what a micro-batch here leaves to the next one here: elsewhere it is another one."""
        now = self._variables.generators()
        drawn = unlike(self._drawn_before, now)
        if drawn:
            self._noted(
                f"{drawn[0]!r}, a generator of the script's own, is drawn from while a step is "
                "computed: each replica draws other numbers for other micro-batches, so this run "
                "depends on who computes what; draw from the global generators of torch, numpy or "
                "random, which are seeded for each sample and micro-batch"
            )
        counts = sorted(
            name
            for name, times in self._counting.items()
            if times >= LEARNED_FROM and not name.rpartition(".")[2].startswith("_")
        )
        if counts:
            self._noted(
                f"a forward changes the model's {counts[0]!r} in each step: if it computes by it, "
                "this run depends on how many micro-batches each replica computes; count in a "
                "buffer (buffers={...: 'sum'}), or set it in the loop from step.index"
            )
        if self.dataset.counts:
            self._noted(
                f"the dataset's {self.dataset.counts[0]!r} changes whenever a sample is fetched: "
                "if samples depend on it, this run depends on who fetches what; draw from the "
                "global generators, or go by the index"
            )
        self._has_told = bool(drawn or counts or self.dataset.counts)


class _DatasetLook(Look):
    """Datasets and transforms are entered, also those in a short list."""

    def enters(self, value: object) -> bool:
        if isinstance(value, WORDED) or hasattr(value, "__qualname__"):
            return False
        room = type(value).__module__.partition(".")[0]
        return hasattr(value, "__dict__") and room not in sys.stdlib_module_names

    def enters_list(self, value: object) -> bool:
        if not isinstance(value, list | tuple) or len(value) > MAX_LISTED:
            return False
        return any(map(self.enters, value))

    def unknown(self, value: Any) -> str:
        is_cut = isinstance(value, WORDED)
        kind = getattr(value, "__qualname__", type(value).__qualname__)
        return kind_of(value) if is_cut else f"a {kind}"


def words_of_dataset(dataset: object) -> Words:
    """Return a word for each attribute: its value if that is short, else a digest of it."""
    look = _DatasetLook()
    look.enter(dataset, "", look.depth)
    return look.found if look.left > 0 else look.found | {_TOO_MANY: ""}


def different(mine: Words, theirs: Words) -> list[str]:
    """Return the names that differ; where not all was looked at, only what both have."""
    missing = set() if _TOO_MANY in mine | theirs else mine.keys() ^ theirs.keys()
    return sorted({*unlike(mine, theirs), *missing})


def are_numbers(*words: str | None) -> bool:
    """Whether these are numbers, and not True or False."""
    try:
        return all(math.isfinite(float(word or "")) for word in words)
    except ValueError:
        return False


def _pack(words: Words, volatile: set[str] | frozenset[str] = frozenset()) -> bytes:
    return json.dumps([words, sorted(volatile), _FORM]).encode()


def _unpack(packed: bytes) -> tuple[Words, set[str]]:
    """Return what ``_pack`` made; nothing of what another version made."""
    try:
        words, volatile, form = json.loads(packed)
    except (ValueError, TypeError):
        form = None
    return (words, set(volatile)) if form == _FORM else ({_TOO_MANY: ""}, set())


def _listed(names: Sequence[str]) -> str:
    return in_words([*map(repr, names)], MAX_NAMED)
