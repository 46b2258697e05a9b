"""Durable: what a session's state looks like outside of its processes, and who keeps it there.

Owns the names that tensors have in a checkpoint, the document that holds everything else, and the
seam to whoever writes and reads them (``pliant.checkpoint``).  Must not know storage, files or
intervals, nor how it comes back (``restored``).

    model.<fqn>                 parameters and persistent buffers, named as by ``state_dict()``
    buffers.<fqn>               buffers that are not persistent
    optim.state.<fqn>.<key>     optimizer states, as torch.distributed.checkpoint names them
    extra.<path>                tensors of ``extra_state``
    other.<path>                tensors of anything else
    pliant.document             the rest: counters, hyper-parameters, schedulers, scaler, flags
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from pliant.core.errors import PliantError
from pliant.core.values import (
    NO_INCARNATION,
    CheckpointInfo,
    FromCheckpoint,
    Generation,
    Incarnation,
    Lineage,
)
from pliant.engine.device import host
from pliant.engine.local_tensors import TensorPart, is_sharded, part_of
from pliant.engine.sharding.stages import Stages
from pliant.engine.state.tagged_codec import DTYPES, LARGE, WORDS, Memory, encode
from pliant.engine.state.training_state import State
from pliant.engine.state.transfer import TensorSpec

VERSION = 1
STAGED_VERSION = 2
"""Of the document, and of one that has those of several stages; a higher number is refused."""


class CheckpointDamaged(PliantError):  # noqa: N818  an event of a run, not a mistake
    """A checkpoint cannot be used as it lies there; the message names it and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What does not change during one life of a session."""

    job: str
    holder: str
    """Who may write: the same for all replicas of a job, and for the job when it is resumed."""

    pid: int
    """Process without which the holder is dead."""

    identity: tuple[tuple[str, str], ...]
    """What must be equal for exact results, by name."""

    command: tuple[str, ...] = ()
    """The script and its arguments; empty: there is none, as in a notebook."""

    settings: tuple[tuple[str, str], ...] = ()
    """What the script gave its schedulers, by name."""

    from_checkpoint: FromCheckpoint = FromCheckpoint.AUTO

    out: str = ""
    """Directory of the run; empty: there is none."""

    life: Incarnation = NO_INCARNATION
    """Of its coordinator."""

    is_follower: bool = False
    """Whether another worker of this replica takes the place, and says what is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state at a step boundary; its tensors are the run's own until ``begin`` returns."""

    committed: int
    lineage: Lineage
    generation: Generation
    """Whose members share the writing."""

    calls: int
    """Finished ``steps()`` calls: one that resumes passes through them."""

    rank: int
    size: int
    """Which share of the state this worker writes, and of how many."""

    document: bytes
    tensors: Mapping[str, torch.Tensor]
    """By name, in the same order on all members; what lies here of them."""

    parts: Mapping[str, TensorPart] = field(default_factory=dict)
    """Of those that the workers of a replica have in parts: which this is."""

    num_workers: int = 1
    """Of each replica: its workers have ranks that follow each other, and share the writing."""

    objects: Mapping[str, Any]
    """What others than pliant read: plain values by name."""

    aliases: Mapping[str, str]
    """Further names of tensors that the model holds more than once (tied weights)."""


class CheckpointChannel(Protocol):
    """What whoever writes checkpoints asks and tells; from any thread."""

    @property
    def is_register_gone(self) -> bool:
        """Whether leave to publish counts only while the lease is still this run's."""

    def may_publish(self, name: str, *, committed: int, lineage: Lineage) -> bool:
        """Ask whether this lineage is still the job's; blocks until there is an answer."""

    def saved(
        self,
        name: str,
        *,
        committed: int,
        lineage: Lineage,
        calls: int,
        seconds: float,
        place: str,
        digest: str,
    ) -> None:
        """Tell that a checkpoint is durable, where, its digest, and the time since its snapshot."""

    def failed(self, reason: str, *, committed: int, retry_s: float | None) -> None:
        """Tell that none could be written.

        ``retry_s`` is None if the job is to end for it, 0 if it is not tried again.
        """

    def resumed(self, sentence: str) -> None:
        """Say from which checkpoint the run goes on."""

    def explained(self, reason: str) -> None:
        """Say how often there will be a checkpoint, and why."""

    def noted(self, text: str, *, lasting: bool = False) -> None:
        """Pass on one sentence for people; ``lasting``: again at the end, results may be wrong."""


class CheckpointReader(Protocol):
    """One checkpoint that is open for reading."""

    def document(self) -> bytes:
        """Return the document.

        Raises:
            CheckpointDamaged: it cannot be read or is not what was written.
        """

    def read(self, into: Mapping[str, torch.Tensor], parts: Mapping[str, TensorPart]) -> None:
        """Fill these tensors, each proved by its digest, whatever their strides.

        Those in ``parts`` are parts of what was kept, however it was divided then.

        Raises:
            CheckpointDamaged: one is missing, of another shape, or not what was written; any of
                the tensors may be half filled.
        """


@runtime_checkable
class Durability(Protocol):
    """Who keeps a session's checkpoints; on the main thread, which waits only where it says so."""

    def open(self, facts: Facts, channel: CheckpointChannel) -> tuple[CheckpointInfo, ...]:
        """Take the place of the checkpoints; return those to go on from, newest first.

        One without a name stands for a history that begins at step 0, above what lies there.

        Raises:
            ConfigError: another job holds it or wrote what is there, or it cannot be used.
        """

    @property
    def mark(self) -> str:
        """What tells the place from others of its name on other nodes, once it is open; empty: it
        is not known.
        """

    def find_anew(self) -> tuple[CheckpointInfo, ...]:
        """Return those that are there by now; what was seen last, if the place cannot be read."""

    def reader(self, name: str) -> CheckpointReader:
        """Open one that was found."""

    def is_due(self, committed: int, asked_after: int) -> bool:
        """Whether the boundary after so many steps is to be saved; asked of the leader.

        ``asked_after``: someone wants one of more steps than this; -1: nobody does.
        """

    def begin(self, snapshot: Snapshot, *, is_needed: bool) -> bool:
        """Copy this replica's share and write it in the background.

        It replaces one that this replica has not brought to an end: whoever led that has given it
        up.  Where storage does not let go of it within a second, or a few if ``is_needed``, it does
        nothing and returns False.
        """

    @property
    def is_settled(self) -> bool:
        """Whether this replica's part of all that was begun is done; the leader publishes, too."""

    @property
    def may_be_left(self) -> bool:
        """Whether who leaves need not wait for what was begun: it is durable, and older ones are
        being removed, or was given up.
        """

    @property
    def unsaved(self) -> str:
        """Why the last save that was tried failed; empty if it did not."""

    def lose(self) -> None:
        """A member is gone: forget what is being written, for it may have had a share of it."""

    def close(self, *, wait_s: float, is_over: bool) -> None:
        """End; wait so long at most for what is being written.

        ``is_over``: the run is, not only this replica's part in it.
        """


# --- out --------------------------------------------------------------------------------


class Describer:
    """Describes a state, again and again; training waits for it."""

    def __init__(self, state: State, coordinates: Mapping[str, int] | None = None) -> None:
        """``coordinates``: of this worker in the mesh of its replica."""
        self._state = state
        self._coordinates = coordinates or {}
        self.parts: Mapping[str, TensorPart] = {}
        """Of what was described last: which part of a tensor lies here, if not the whole."""
        self._memory = Memory()
        self._places = _Places()
        self._key: Any = None
        """What the two below follow from."""
        self._names: tuple[str, ...] = ()
        self._looks = ""

    def describe(
        self, *, committed: int, calls: int, dataset: str = ""
    ) -> tuple[bytes, dict[str, torch.Tensor]]:
        """Return the document and the tensors by name, in a fixed order; copies no tensor.

        ``dataset``: in words, see ``engine.guard.differences``.
        """
        captured = self._state.capture_to_keep()
        document, tensors = encode(captured, memory=self._memory)
        self._note_looks(document, tensors, self._state.sharded_by_view(captured))
        position = json.dumps(
            {"version": VERSION, "committed": committed, "calls": calls, "dataset": dataset}
        )
        state = json.dumps(document.decode())
        text = f'{position[:-1]}, "tensors": {self._looks}, "state": {state}}}'
        return text.encode(), dict(zip(self._names, tensors, strict=True))

    def aliases(self) -> Mapping[str, str]:
        """Return further names of tensors that the model holds more than once."""
        return self._state.spelled().aliases

    def objects(self) -> dict[str, Any]:
        """Return what others than pliant read: plain values by name."""
        return self._state.parameter_groups()

    def _note_looks(
        self, document: bytes, tensors: list[torch.Tensor], sharded: Mapping[int, torch.Tensor]
    ) -> None:
        """Name the tensors, and say what they look like, unless that is as before."""
        persistent = self._state.spelled().persistent
        looks = [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors]
        if (document, persistent, looks) == self._key:
            return
        names = _names(self._places.of(self._memory.form), len(tensors), persistent)
        if self._key is None or names != self._names or looks != self._key[2]:
            wholes = [sharded.get(id(tensor), tensor) for tensor in tensors]
            specs = zip(names, map(_spec_of, wholes), strict=True)
            self._looks = json.dumps(
                [[name, WORDS[s.dtype], s.shape, s.stride] for name, s in specs]
            )
            parts = zip(names, (part_of(one, self._coordinates) for one in wholes), strict=True)
            self.parts = {name: part for name, part in parts if part is not None}
        self._key, self._names = (document, persistent, looks), names


def _spec_of(whole: torch.Tensor) -> TensorSpec:
    if not is_sharded(whole):
        return TensorSpec.of(whole)
    return TensorSpec(dtype=whole.dtype, shape=tuple(whole.shape), stride=tuple(whole.stride()))


_Place = tuple[tuple[str, ...], int]


class _Places:
    """Finds the tensors in a parsed document; parts that are those of the last one, at once."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, list[_Place]]] = {}
        self._now: dict[int, tuple[Any, list[_Place]]] = {}

    def of(self, form: Any) -> list[_Place]:
        """Return path and index of every tensor in a document."""
        self._now = {}
        found = self._find(form)
        self._before = self._now
        return found

    def _find(self, form: Any) -> list[_Place]:
        if not isinstance(form, list) or not form:
            return []
        if (known := self._before.get(id(form))) is not None and known[0] is form:
            self._now[id(form)] = known
            return known[1]
        tag, *rest = form
        if tag == "tensor":
            return [((), rest[0])]
        if tag in ("dict", "odict", "counter", "defaultdict"):
            pairs = [(_word(pair[0]), pair[1]) for pair in rest if isinstance(pair, list)]
        else:
            pairs = [(str(number), item) for number, item in enumerate(rest)]
        found = [((word, *path), n) for word, item in pairs for path, n in self._find(item)]
        if len(rest) >= LARGE:
            self._now[id(form)] = (form, found)
        return found


def _word(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key, separators=(",", ":"))


def _names(places: Iterable[_Place], count: int, persistent: frozenset[str]) -> tuple[str, ...]:
    """Name each tensor by the first place at which the state holds it."""
    names = [""] * count
    used: set[str] = set()
    for path, index in places:
        if not names[index]:
            name = _name(path, persistent)
            while name in used:  # two places that spell alike
                name += "'"
            used.add(name)
            names[index] = name
    return tuple(names)


def _name(path: tuple[str, ...], persistent: frozenset[str]) -> str:
    match path:
        case ("parameters", name):
            return f"model.{name}"
        case ("buffers", name):
            return f"model.{name}" if name in persistent else f"buffers.{name}"
        case ("optimizers", _, "state", *rest):
            return ".".join(("optim", "state", *rest))
        case ("extra", *rest):
            return ".".join(("extra", *(word for word in rest if word)))
        case _:
            return ".".join(("other", *path))


_OF_THE_MODEL = ("model.", "optim.")
"""How names begin of which ``workers.check_stages`` has made sure that no two stages have one."""


class StagedDescriber(Describer):
    """Describes the state of all stages; every worker of a replica must call."""

    def __init__(self, state: State, coordinates: Mapping[str, int], stages: Stages) -> None:
        """``coordinates``: of this worker among those that have the same stage."""
        super().__init__(state, coordinates)
        self._stages = stages
        self._is_first = not any(coordinates.values())
        self._aliases: Mapping[str, str] = {}

    def describe(
        self, *, committed: int, calls: int, dataset: str = ""
    ) -> tuple[bytes, dict[str, torch.Tensor]]:
        """Return the documents of all stages, and the tensors of all: of others nothing of them."""
        text, own = super().describe(committed=committed, calls=calls, dataset=dataset)
        document = json.loads(text)
        names = {name: self._name(name) for name in own}
        document["tensors"] = [[names[name], *look] for name, *look in document["tensors"]]
        said = {"document": document, "aliases": dict(super().aliases())}
        everybodys = [json.loads(one) for one in self._stages.gather_texts(json.dumps(said))]
        self._aliases = {a: n for one in everybodys for a, n in one["aliases"].items()}
        tensors, parts = {}, {}
        (stage,) = self._stages.coordinates
        for number, one in enumerate(everybodys):
            for name, word, shape, _ in one["document"]["tensors"]:
                tensors[name] = torch.empty(0, dtype=DTYPES[word], device=host.LOCATION)
                parts[name] = _part(shape, is_here=number == stage, is_first=False)
        for name, tensor in own.items():
            whole = _part(tensor.shape, is_here=True, is_first=self._is_first)
            tensors[names[name]] = tensor
            parts[names[name]] = self.parts.get(name, whole)
        self.parts = parts
        together = {
            "version": STAGED_VERSION,
            "committed": committed,
            "calls": calls,
            "stages": [one["document"] for one in everybodys],
        }
        return json.dumps(together).encode(), tensors

    def aliases(self) -> Mapping[str, str]:
        """Return further names of tensors, of all stages."""
        return self._aliases

    def objects(self) -> dict[str, Any]:
        """Return nothing: parameter groups are each stage's own."""
        return {}

    def _name(self, name: str) -> str:
        (stage,) = self._stages.coordinates
        return name if name.startswith(_OF_THE_MODEL) else f"stages.{stage}.{name}"


def _part(shape: Any, *, is_here: bool, is_first: bool) -> TensorPart:
    """Return all of a tensor, or nothing of it."""
    whole = tuple(shape)
    sizes = whole if is_here else (0,) * len(whole)
    return TensorPart(shape=whole, begins=(0,) * len(whole), sizes=sizes, is_first=is_first)
