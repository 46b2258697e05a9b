"""Saving: which boundaries of a run are kept, and a run that goes on from one.

Owns the session's side of its checkpoints: what makes a snapshot, and how a checkpoint becomes
this replica's state.  Must not know storage, intervals or threads (``Durability``), nor how members
agree (``Membership``).

All members hold the same bits at a boundary, and each hands over its share of one snapshot.  What
makes one is the same on all of them at the same boundary:

    the step's metadata said so          the leader proposed it: an interval is over
    a steps() call is over, or the job   a stop or an end loses nothing that was committed
    the generation holds                 too few members are left, and may be the last
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pliant.core.errors import ConfigError
from pliant.core.membership.member import Member
from pliant.core.values import CheckpointInfo
from pliant.engine import probe
from pliant.engine.local_tensors import TensorPart, local_of, part_of
from pliant.engine.reduce.buckets import dense_stride
from pliant.engine.sharding.stages import Stages
from pliant.engine.state.durable import (
    STAGED_VERSION,
    CheckpointChannel,
    CheckpointDamaged,
    CheckpointReader,
    Describer,
    Durability,
    Facts,
    Snapshot,
    StagedDescriber,
)
from pliant.engine.state.tagged_codec import DTYPES, DocumentError, TensorRef, decode
from pliant.engine.state.training_state import State
from pliant.engine.state.transfer import TensorSpec

CLOSE_S = 3600.0
"""How long the end of a job waits for its last checkpoint, in seconds; a slow storage that gets on
is better than none."""


class Saver:
    """See the module's text; without a ``durability`` it does nothing."""

    def __init__(
        self,
        state: State,
        durability: Durability | None,
        dataset: Callable[[], bytes] = lambda: b"",
        *,
        worker: int = 0,
        num_workers: int = 1,
        coordinates: Mapping[str, int] | None = None,
        stages: Stages | None = None,
    ) -> None:
        """Of a session.

        Args:
            state: what is kept.
            durability: who keeps it.
            dataset: returns its words, which a run that goes on compares with its own.
            worker: which of its replica this is, and
            num_workers: of how many; each writes a share.
            coordinates: of this worker among those of its replica that have the same model.
            stages: of a model that its workers have in parts.
        """
        self._state = state
        self._durability = durability
        self._worker, self._num_workers = worker, num_workers
        self._coordinates = coordinates or {}
        self._stages = stages or Stages()
        self._describer = Describer(state, self._coordinates)
        if self._stages.is_several:
            self._describer = StagedDescriber(state, self._coordinates, self._stages)
        self._dataset = dataset
        self._saved: tuple[int, int] | None = None
        self.found: Sequence[CheckpointInfo] = ()
        """What the run can go on from, newest first."""

    def open(self, facts: Facts, channel: CheckpointChannel) -> None:
        """Take the place of the checkpoints and see what is there.

        Raises:
            ConfigError: another job holds it, or it cannot be used, or the state cannot be kept.
        """
        if self._durability is not None:
            for _, parameter in self._state.sharded_parameters():
                part_of(parameter, self._coordinates)
            self.found = self._durability.open(facts, channel)

    @property
    def mark(self) -> str:
        """What tells the place of the checkpoints from those of other nodes; empty: not known."""
        return "" if self._durability is None else self._durability.mark

    def find_anew(self) -> Sequence[CheckpointInfo]:
        """Return what the run can go on from by now; what was there before, if nobody can tell."""
        if self._durability is not None:
            self.found = self._durability.find_anew()
        return self.found

    def is_due(self, member: Member, asked_after: int) -> bool:
        """Whether the leader is to propose the boundary after the step being voted for.

        ``asked_after``: how many steps a checkpoint that is wanted now has more than.
        """
        kept = self._durability
        return kept is not None and kept.is_due(member.committed + 1, asked_after)

    def save(self, member: Member, place: tuple[int, int], *, is_needed: bool) -> None:
        """Keep the state of this boundary, unless that is done or on its way.

        Args:
            member: between two steps.
            place: rank and number of the members, all of whose workers call this.
            is_needed: tried again if the storage refuses; the one before must be settled.
        """
        if self._durability is None:
            return
        is_new = self._saved != (member.lineage, member.committed)
        if not self._stages.any_has(is_new):
            return
        probe.at("save", member.committed)
        document, tensors = self._describer.describe(
            committed=member.committed, calls=member.calls, dataset=self._dataset().decode()
        )
        taken = is_new and self._durability.begin(
            Snapshot(
                committed=member.committed,
                lineage=member.lineage,
                generation=member.current,
                calls=member.calls,
                rank=place[0] * self._num_workers + self._worker,
                size=place[1] * self._num_workers,
                document=document,
                tensors=tensors,
                parts=self._describer.parts,
                num_workers=self._num_workers,
                objects=self._describer.objects(),
                aliases=self._describer.aliases(),
            ),
            is_needed=is_needed,
        )
        if taken:
            self._saved = (member.lineage, member.committed)

    def restore(self, name: str, committed: int) -> bytes:
        """Take a checkpoint's state; the objects of the session may be half written if it raises.

        Returns the words of the dataset that it was made with; empty: it has none.

        Raises:
            CheckpointDamaged: it cannot be read, or is not what was written.
            ConfigError: it is of another model.
        """
        if self._durability is None:
            raise AssertionError("nothing was found without a place to find it in")
        reader = self._durability.reader(name)
        kept = restore(
            self._state,
            reader,
            committed=committed,
            coordinates=self._coordinates,
            stage=self._stages.coordinates,
        )
        return kept.encode()

    @property
    def is_settled(self) -> bool:
        """Whether this replica has done its part of all that was handed over."""
        return self._durability is None or self._durability.is_settled

    @property
    def may_be_left(self) -> bool:
        """Whether who leaves need not wait for what was handed over."""
        return self._durability is None or self._durability.may_be_left

    @property
    def unsaved(self) -> str:
        """Why the state of the last boundary is not durable; empty if it is, or need not be."""
        return "" if self._durability is None else self._durability.unsaved

    def lose(self) -> None:
        """A member is gone: forget what is being written, for it may have had a share of it."""
        if self._durability is not None:
            self._saved = None  # whether its leader came to publish it is not known
            self._durability.lose()

    def close(self, *, is_leaving: bool, is_over: bool) -> None:
        """End; who leaves first does its part of what is being written."""
        if self._durability is not None:
            self._durability.close(wait_s=CLOSE_S if is_leaving else 0.0, is_over=is_over)


def restore(
    state: State,
    reader: CheckpointReader,
    *,
    committed: int,
    coordinates: Mapping[str, int] | None = None,
    stage: tuple[int, ...] = (),
) -> str:
    """Put the checkpoint of a step into a session's objects; they may be half written if it raises.

    ``stage``: of the model that this worker has; empty: all of it.

    Returns the words of the dataset that it was made with; empty: it has none.

    Raises:
        CheckpointDamaged: it cannot be read, or is not what was written.
        ConfigError: it was made by another model or other optimizers.
    """
    text = reader.document()
    try:
        form = json.loads(text)
        is_newer = form["version"] > STAGED_VERSION
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(error) from error
    if is_newer:
        raise ConfigError("the checkpoint was written by a newer pliant; install that version")
    try:
        if stage:
            form = form["stages"][stage[0]]
        kept = int(form["committed"])
        names, specs = [], []
        for name, word, shape, stride in form["tensors"]:
            names.append(name)
            specs.append(TensorSpec(dtype=DTYPES[word], shape=tuple(shape), stride=tuple(stride)))
        document = form["state"].encode()
        tree = decode(document)
    except (ValueError, KeyError, TypeError, AttributeError, DocumentError) as error:
        raise _unreadable(error) from error
    if kept != committed:
        raise CheckpointDamaged(f"it holds step {kept}, and should hold {committed}")
    _check_fits(state, tree, specs)
    parts = _parts_here(state, tree, specs, coordinates or {})
    for index, (part, stride) in parts.items():
        specs[index] = replace(specs[index], shape=part.sizes, stride=stride)
    targets = state.allocate(tree, specs)
    named = {names[index]: part for index, (part, _) in parts.items()}
    reader.read(dict(zip(names, targets, strict=True)), named)
    state.apply(decode(document, targets))
    dataset = form.get("dataset")
    return dataset if isinstance(dataset, str) else ""


def _parts_here(
    state: State, document: Any, specs: Sequence[TensorSpec], coordinates: Mapping[str, int]
) -> dict[int, tuple[TensorPart, tuple[int, ...]]]:
    """Return of which tensors this worker has a part, and the strides of that, by index."""
    found: dict[int, tuple[TensorPart, tuple[int, ...]]] = {}
    for name, parameter in state.sharded_parameters():
        part = part_of(parameter, coordinates)
        if part is None or name not in document["parameters"]:
            continue
        kept = [document["parameters"][name]]
        for optimizer in document["optimizers"]:
            kept += optimizer["state"].get(name, {}).values()
        for one in kept:
            if isinstance(one, TensorRef) and specs[one.index].shape == part.shape:
                found[one.index] = part, dense_stride(local_of(parameter))
    return found


def _unreadable(error: Exception) -> CheckpointDamaged:
    return CheckpointDamaged(f"its document cannot be read: {error}")


def _check_fits(state: State, document: Any, specs: Sequence[TensorSpec]) -> None:
    """Make sure that a state that was kept is one of this model, before anything is written.

    ``document`` has references in place of its tensors; ``specs`` are theirs.

    Raises:
        ConfigError: names the first tensor of the model that differs.
    """
    here = state.capture()
    whole = dict(state.sharded_parameters())
    for part in ("parameters", "buffers"):
        theirs, ours = document[part], {**here[part], **(whole if part == "parameters" else {})}
        for name, found in theirs.items():
            if name not in ours:
                raise ConfigError(
                    f"the checkpoint's model has {name!r}, which this script's has not"
                )
            if isinstance(found, TensorRef):
                kept = _words(specs[found.index])
                if kept != _words(ours[name]):
                    raise ConfigError(
                        f"{name!r} is {kept} in the checkpoint and {_words(ours[name])} in this"
                        " script's model"
                    )
        strange = sorted(ours.keys() - theirs.keys() - state.local_buffers)
        if strange:
            raise ConfigError(
                f"this script's model has {strange[0]!r}, which the checkpoint's has not"
            )
    _check_others(document, here)


def _check_others(document: Any, here: Mapping[str, Any]) -> None:
    """Make sure that there is a place for everything else, and something for every place."""
    for part in ("optimizers", "schedulers"):
        kept, ours = len(document[part]), len(here[part])
        if kept != ours:
            raise ConfigError(f"the checkpoint has {kept} {part}, and this script has {ours}")
    if (document["scaler"] is None) != (here["scaler"] is None):
        who = "this script" if document["scaler"] is None else "the checkpoint"
        raise ConfigError(f"only {who} has a scaler")
    for part in ("extra", "modules"):
        what = "extra_state" if part == "extra" else "a module with extra state"
        for name in sorted(document[part].keys() ^ here[part].keys()):
            who = "this script" if name in here[part] else "the checkpoint"
            raise ConfigError(f"only {who} has {what}" + f" named {name!r}" * bool(name))


def _words(tensor: TensorSpec | torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
