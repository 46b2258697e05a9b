"""Script attributes: what a script keeps beside the state, in words; in what two replicas differ.

A tail that changes one (``Dropout.p``, a temperature) changes it on those who run that tail; a
joiner begins with what the script made, and so does a run that goes on.  Owns the plain values of
modules, which of them a forward changes, and when a difference is told, also of the dataset's and
of the script's variables: at the first step here, if the script has not set the value by then.
Must not know who compares with whom.

Not seen: containers and objects in modules.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from pliant.core.counts import in_words
from pliant.engine.data.dataset_attributes import (
    MAX_NAMED,
    DatasetAttributes,
    Words,
    are_numbers,
    different,
    told,
    unpacked,
)
from pliant.engine.state import script_variables
from pliant.engine.state.kept_names import Names, functions_of, kept
from pliant.engine.state.script_variables import ScriptVariables, words_of_modules
from pliant.engine.worker import environment_reads
from pliant.engine.worker.script_files import own_files, text_of

LEARNED_FROM = 2
"""First steps of this process in which is seen what a forward changes; later ever more rarely."""

INSTEAD = (
    "what a tail changes in a module reaches a joiner in a buffer or by get_extra_state, or is set "
    "in the loop from step.index"
)


class ScriptAttributes:
    """Of one replica's dataset and model."""

    def __init__(
        self,
        dataset: DatasetAttributes,
        model: torch.nn.Module,
        noted: Callable[[str], None],
        variables: ScriptVariables,
    ) -> None:
        """``noted`` is told what differs."""
        self.dataset = dataset
        self._variables = variables
        self._model = model
        self._noted = noted
        self._volatile: set[str] = set()
        self._num_learned = 0
        self._before: Words | None = None
        self._drawn_before: Words = {}
        self._counting: Counter[str] = Counter()
        """How often a forward has changed a number, in the first steps."""
        self._changing: Counter[str] = Counter()
        """In how many micro-batches a variable of the script has changed."""
        self._variables_before: Words | None = None
        self._loop: Names | None = None
        self._has_told = False
        self._unlike: list[tuple[Words, Words, str]] = []
        """Mine and theirs, and where those are; until the first step."""
        self._unlike_variables: tuple[Words, list[Words], str] | None = None

    def pack(self) -> bytes:
        """Return what another replica compares with its own."""
        words = json.dumps([words_of_modules(self._model), sorted(self._volatile)])
        variables = script_variables.pack(self._variables.words())
        return b"\n".join((self.dataset.pack(), words.encode(), variables))

    def pack_for_joiners(self) -> bytes:
        """Return what a replica that joins compares: also of the environment, which is no state."""
        return b"\n".join((self.pack(), json.dumps(environment_reads.asked()).encode()))

    def compare(self, others: Sequence[bytes], where: str = "on the replicas that train") -> None:
        """Say what of the dataset differs from these, and remember what of the model does."""
        parts = [one.split(b"\n") for one in others]
        if said := self.dataset.unlike([dataset for dataset, *_ in parts], where):
            self._noted(said)
        mine = words_of_modules(self._model)
        for _, packed, *_ in (each for each in parts if len(each) > 1):  # old ones have none
            theirs, volatile = unpacked(packed)
            self._volatile.update(volatile)
            self._unlike.append((mine, theirs, where))
        self._tell_environment(
            [script_variables.unpack(each[3]) for each in parts if len(each) > 3]
        )
        variables = [script_variables.unpack(each[2]) for each in parts if len(each) > 2]
        self._unlike_variables = (self._variables.words(), variables, where) if variables else None

    def _tell_environment(self, others: Sequence[Words]) -> None:
        """Say which variables that scripts ask for are others here; what they are is not said."""
        mine = environment_reads.asked()
        names = sorted(
            {n for theirs in others for n in theirs.keys() & mine if theirs[n] != mine[n]}
        )
        if names:
            self._noted(
                f"{' and '.join(names[:MAX_NAMED])} in the environment, which the script reads, "
                f"{'is' if len(names) == 1 else 'are'} not what the replicas that train have: if "
                "what it trains depends on it, their gradients do not fit together; set it alike "
                "on every host"
            )

    def begin(self, step: int) -> None:
        """A step is computed from here on; say what still differs."""
        self._tell_variables()
        is_time = self._num_learned < LEARNED_FROM or step & (step - 1) == 0
        if not is_time and not self._unlike:
            self._before = None
            return
        now = self._before = words_of_modules(self._model)
        self._variables_before = None
        self._drawn_before = self._variables.generators()
        unlike, self._unlike = self._unlike, []
        for mine, theirs, where in unlike:
            known = mine.keys() & theirs.keys() - self._volatile
            names = sorted(n for n in known if mine[n] != theirs[n] and mine[n] == now.get(n))
            if names:
                self._noted(
                    f"the model's {told(mine, theirs, names, where)}: if a forward depends on it, "
                    f"this run depends on who joined when; {INSTEAD}"
                )
                return

    def look_between(self) -> None:
        """A micro-batch here begins, or the last has ended: what has the one before changed."""
        if self._before is None or self._num_learned >= LEARNED_FROM:
            return
        now, before = self._variables.words(), self._variables_before
        if self._loop is None:
            self._loop = self._variables.loop()
        if before is not None:
            self._changing.update(n for n in before.keys() & now.keys() if before[n] != now[n])
        self._variables_before = now

    def _tell_variables(self) -> None:
        """Say which variables of the script are others, and were not set since."""
        unlike, self._unlike_variables = self._unlike_variables, None
        if unlike is None:
            return
        (mine, others, where), now = unlike, self._variables.words()
        for theirs in others:
            known = [name for name, word in mine.items() if now.get(name) == word]
            names = sorted(name for name in known if theirs.get(name, mine[name]) != mine[name])
            if names:
                self._noted(
                    f"the script's {told(mine, theirs, names, where)}: if what it trains or writes "
                    f"depends on it, this run depends on who joined when; "
                    f"{script_variables.INSTEAD}"
                )
                return

    def end(self) -> None:
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
        drawn = [name for name, word in self._drawn_before.items() if now.get(name, word) != word]
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
        self._tell_kept(now)
        self._has_told = bool(drawn or counts or self.dataset.counts)

    def _tell_kept(self, generators: Words) -> None:
        """Say what the loop over micro-batches keeps from one for the next."""
        changed = {n for n, times in self._changing.items() if times >= LEARNED_FROM}
        changed -= generators.keys()
        loop, self._loop = self._loop, Names()
        self._changing.clear()
        if not changed or loop is None:
            return
        functions = [names for path in own_files() for names in functions_of(text_of(path))]
        used, added = kept(changed, loop, functions)
        if used:
            self._noted(
                f"the script keeps {listed_names(used)} from one micro-batch for the next, which "
                "another replica may compute: if what it trains depends on it, this run depends on "
                "who computes what; let each micro-batch read or draw what it needs, and try "
                "`pliant check`"
            )
        if added:
            self._noted(
                f"the script adds up {listed_names(added)} over the micro-batches of its own "
                "replica only: what it prints or writes of it is a share; step.loss is the mean "
                "over all of them"
            )


def listed_names(names: Sequence[str]) -> str:
    """Return the first of some names, in words."""
    return in_words([repr(name) for name in names[:MAX_NAMED]])
