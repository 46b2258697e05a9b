"""Comparison: what a replica says of its state, so that the others can see whether theirs is equal.

Owns what is told when (a digest per aspect with every vote, and names for the sentence once one of
them differs) and what follows: without verification the script is to blame, and the run ends; with
it (``verifyEvery``) memory or a device is, and whoever differs from more than half of the others
leaves.  Must not know how replicas meet, nor how one that left is replaced.

    aspect      taken                      how much
    arguments   at the boundary            what session calls were given since the one before: all
    settings    at the vote                hyper-parameters, counts of schedulers, what a sampler
                                           draws for the step: all, every step
    modes       at the boundary            ``training``, ``requires_grad``: all, every step
    flags       at the vote                the same
    tensors     before the step's forward  small buffers every step; of the rest ``PART_BYTES``
    objects     at the boundary            everything else: every ``OBJECTS_EVERY`` steps

The boundary is where joiners and checkpoints get the state: after the tail, before code that only
prepares the next step.  Where it matters most (a checkpoint, the end of a call of ``steps()``, a
transfer) the whole state is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
import xxhash

from pliant.core.agreement import minority
from pliant.core.errors import StateCorruptError, UsageError
from pliant.engine.device import here
from pliant.engine.device.base import Part
from pliant.engine.evaluation import EvaluationTeam
from pliant.engine.local_tensors import is_sharded
from pliant.engine.state import naming
from pliant.engine.state.buffers import LARGE_NUMEL
from pliant.engine.state.naming import Named
from pliant.engine.state.training_state import State, TensorPath

PART_BYTES = 4 * 1024 * 1024
"""Of the state's tensors, compared in one step: about a millisecond for two looks."""

OBJECTS_EVERY = 16
"""Steps between two looks at what only the script's own code can give: that may take long."""

ASPECTS = ("arguments", "settings", "modes", "flags", "tensors", "objects")
"""In the order in which a difference is looked for: a cause before what follows from it."""

UNKNOWN = 0
"""Digest of an aspect that this replica has nothing to say of."""


_WHO = ""
"""Under which name a replica says who it is, beside those of its state."""


class StateComparison:
    """Of one session; see the module's text."""

    def __init__(
        self,
        state: State,
        settings: Callable[[], dict[str, Any]],
        draws: Callable[[int], str] = lambda step: "",
        *,
        is_kept: bool = False,
    ) -> None:
        """Of a state.

        Args:
            state: the state.
            settings: of the optimizers and schedulers, as a part of it.
            draws: says what a sampler draws for a step; empty without one.
            is_kept: in checkpoints, which have one of what every worker of a replica has.
        """
        self._is_kept = is_kept
        self._state = state
        self._draws = draws
        self._settings = settings
        self._step = -1
        self._first_step: int | None = None
        """That was begun here, since the state is from elsewhere if it is."""
        named_parameters = state.model.named_parameters()
        self._sharded = frozenset(name for name, one in named_parameters if is_sharded(one))
        self._is_received = False
        self.total = 0
        """How far this call of ``steps()`` goes."""
        self._fed: dict[str, Any] = {}
        """What ``feed`` was given in this tail."""
        self._arguments: dict[str, Any] = {}
        self._modes: dict[str, Any] | None = None
        self._objects: Named = {}
        self._looked_at: dict[TensorPath, Part] = {}
        """What is compared of which tensor in this step."""
        self._words: Callable[[], list[int]] = list
        """The words of these, as they were when it began."""
        self._words_now: Callable[[], list[int]] | None = None
        """Of these, the parameters' words when the step's last backward had ended."""
        self._weights: list[str] = []
        """Those parameters of which some is compared in this step."""

    def pass_boundary(self, committed: int) -> None:
        """Look at what only the boundary shows; before anything is sent or received there."""
        is_known = not self._is_received  # else it may be of the middle of the others' step
        self._is_received = False
        self._arguments = {"total": self.total, "fed": self._fed} if is_known else {}
        self._fed = {}
        self._modes = self._state.flags() if is_known else None
        is_turn = is_known and committed % OBJECTS_EVERY == 0
        self._objects = naming.named(self._state.objects()) if is_turn else {}

    def feed(self, values: Mapping[str, float]) -> None:
        """Take note of what the script gives to ``feed`` in this tail."""
        for name, value in values.items():
            self._fed[name] = [*self._fed.get(name, ()), float(value)]

    def receive(self) -> None:
        """Take note that the state is from elsewhere."""
        self._is_received = True
        self._modes, self._objects = None, {}
        self._step, self._first_step = -1, None

    def begin(self, step: int) -> None:
        """Look at what the step starts from; a second attempt starts from the same."""
        if self._step == step:
            return
        self._step = step
        self._first_step = step if self._first_step is None else self._first_step
        self._looked_at, self._weights, self._words_now = {}, [], None
        whole: list[tuple[TensorPath, torch.Tensor, int]] = []
        sharded: list[tuple[TensorPath, torch.Tensor, int]] = []
        for path, tensor in self._state.tensors():
            if path[0] == "buffers" and tensor.numel() <= LARGE_NUMEL:
                self._looked_at[path] = (tensor, 0, tensor.nbytes)
            else:
                turned = sharded if self._sharded and self._is_sharded(path) else whole
                turned.append((path, tensor, tensor.nbytes))
        self._take_turn(whole)  # by itself: its turns are the same on all workers of a replica
        self._take_turn(sharded)
        self._words = here.device.words(list(self._looked_at.values()))

    @property
    def _part(self) -> dict[TensorPath, tuple[int, int, int]]:
        """First and last byte of what is compared of a tensor in this step, and the digest."""
        return {
            path: (first, last, word)
            for (path, (_, first, last)), word in zip(
                self._looked_at.items(), self._words(), strict=True
            )
        }

    def _take_turn(self, turned: Sequence[tuple[TensorPath, torch.Tensor, int]]) -> None:
        """Look at this step's part of these tensors."""
        turns = -(-sum(size for *_, size in turned) // PART_BYTES) or 1
        start = self._step % turns * PART_BYTES
        for path, tensor, size in turned:
            if start <= -PART_BYTES:
                return
            if start < size and size:
                first, last = max(0, start), min(size, start + PART_BYTES)
                self._looked_at[path] = (tensor, first, last)
                if path[0] == "parameters":
                    self._weights.append(path[1])
            start -= size

    def look_again(self) -> Callable[[], list[int]]:
        """Look at the parameters once more; every backward of the step has ended."""
        looked_at = [self._looked_at["parameters", name] for name in self._weights]
        self._words_now = here.device.words(looked_at)
        return self._words_now

    def digests(self) -> tuple[int, ...]:
        """Return the digest of each aspect, to be said with a vote.

        Raises:
            UsageError: the script has changed a parameter since the step began.
        """
        self._check_parameters()
        values = self._values().values()
        return tuple(UNKNOWN if value is None else _digest(value) for value in values)

    def _values(self) -> dict[str, Mapping[Any, Any] | None]:
        """Return what each aspect consists of, in their order; None: nothing is known."""
        draws = self._draws(self._step)
        return {
            "arguments": self._arguments or None,
            "settings": self._settings() | ({"draws": draws} if draws else {}),
            "modes": self._modes,
            "flags": self._state.flags(),
            "tensors": self._part,
            "objects": self._objects or None,
        }

    def alike(self, digests: Sequence[int]) -> tuple[int, ...]:
        """Return, of these, the digests of what every worker of a replica has, sharded or not.

        Of the first step here they are of all parameters, and of what optimizers have of them.
        """
        arguments, settings, modes, flags, _, objects = digests
        part = {path: found for path, found in self._part.items() if not self._is_sharded(path)}
        if self._step == self._first_step:
            tensors = [
                (path, (tensor, 0, tensor.nbytes))
                for path, tensor in self._state.tensors()
                if path[0] != "buffers" and not self._is_sharded(path)
            ]
            words = here.device.words([one for _, one in tensors])()
            part |= {
                path: (0, last, w) for (path, (*_, last)), w in zip(tensors, words, strict=True)
            }
        if self._sharded and not self._is_kept:  # the script's objects may have a worker's parts
            objects = UNKNOWN
        return arguments, settings, modes, flags, _digest(part), objects

    def _is_sharded(self, path: TensorPath) -> bool:
        match path:
            case ("parameters", name) | ("optimizers", _, "state", name, _):
                return name in self._sharded
            case _:
                return False

    def named(self, aspect: int) -> Named:
        """Name what an aspect consists of."""
        match ASPECTS[aspect]:
            case "tensors":
                return dict(naming.told(path, digest) for path, (*_, digest) in self._part.items())
            case "objects":
                return self._objects
            case name:
                return naming.named(self._values()[name] or {})

    def whole(self) -> Named:
        """Name everything, between two steps."""
        state = self._state
        paths, all_of = zip(*((path, (t, 0, t.nbytes)) for path, t in state.tensors()), strict=True)
        tensors = dict(map(naming.told, paths, here.device.words(all_of)()))
        settings, flags = naming.named(self._settings()), naming.named(state.flags())
        first = naming.named(self._arguments) | settings
        return first | flags | tensors | naming.named(state.objects())

    def _check_parameters(self) -> None:
        """See what neither a version nor an address tells: ``weight.data.mul_(2)``."""
        now, self._words_now = self._words_now or self.look_again(), None
        before = dict(zip(self._looked_at, self._words(), strict=True))
        for name, word in zip(self._weights, now(), strict=True):
            if before["parameters", name] != word:
                raise UsageError(
                    f"the values of {name!r} changed inside the loop over a step; change them "
                    "before that loop, or after it"
                )


def _digest(value: Mapping[Any, Any]) -> int:
    text = repr(value)
    if "tensor(" in text:  # which is rounded there
        text = repr(naming.named(value))
    return (xxhash.xxh3_64_intdigest(text.encode()) >> 1) or 1


def compare_whole(
    comparison: StateComparison,
    team: EvaluationTeam,
    own: str,
    committed: int,
    *,
    is_verified: bool,
) -> str:
    """Compare the whole state at a boundary; all members of the team must call.

    Returns what is wrong with others, who leave by themselves; empty if all is alike.

    Raises:
        UsageError: the state differs, and there is nobody to part with.
        StateCorruptError: the state of this replica is wrong.
    """
    names = team.gather_names(comparison.whole())
    said = team.exchange(f"state/{committed}", naming.pack({_WHO: naming.summary(names)}))
    if said is None or len(set(said)) == 1:
        return ""
    told = team.exchange(f"state/{committed}/names", naming.pack({**names, _WHO: own}))
    if told is None and is_verified:
        return ""  # they meet anew, and whoever is still wrong is seen at the next look
    found = [naming.unpack(part) for part in told or ()]
    replicas = [one.pop(_WHO) for one in found]
    what = naming.difference(found, replicas) or "the state differs between replicas"
    if not is_verified:
        raise UsageError(naming.sentence(committed, what))
    return part_with_the_wrong(said, replicas, own, f"at step {committed} {what}")


def part_with_the_wrong(
    digests: Sequence[Hashable], replicas: Sequence[str], own: str, what: str
) -> str:
    """Return ``what`` on replicas whose digest is that of more than half.

    Raises:
        UsageError: no digest is.
        StateCorruptError: that of this replica is not.
    """
    wrong = minority(digests)
    if wrong is None:
        raise UsageError(
            f"{what}, and no more than half of the replicas are alike: nobody can say which are "
            "right, so the run ends before a checkpoint holds it; pliant resume goes on from the "
            "one before"
        )
    if replicas.index(own) in wrong:
        raise StateCorruptError(what)
    return what
