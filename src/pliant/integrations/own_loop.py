"""For scripts of torchrun with a loop of their own: data that each count once, and checkpoints.

Owns which process gets which samples, and when a checkpoint counts.  Knows nothing of who starts
the processes: torchrun's environment and process group are all it reads.

    PATH/step-00000120/   what torch.distributed.checkpoint wrote, ``others.pt``, and last the
                          ``digests.json`` of all that
    PATH/.step-00000120   one that is not complete; the next save removes it
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from pliant.core.errors import ConfigError
from pliant.core.text import in_words
from pliant.engine.state.tagged_codec import decode, encode
from pliant.engine.state.training_state import Stateful
from pliant.machine.files import sync_directory

DIGESTS, OTHERS = "digests.json", "others.pt"
NAME = re.compile(r"step-\d{8,}")
OPTIM = "optim.state."
ALONE = "torch.distributed is disabled"
"""What torch warns of where a script runs by itself."""


class ElasticDataLoader:
    """Batches of a map-style dataset for one of several processes, in an order that none changes.

    ``for batch in loader`` yields this process's share of each global batch until the epoch ends;
    the next such loop is the next epoch.  ``state_dict`` holds for any number of processes: what
    it is loaded into goes on with the global batch behind the one that was yielded last.

    Args:
        dataset: the same in every process.
        global_batch_size: samples of a step over all processes; at least as many as those.
        shuffle: give every epoch its own order, a function of ``seed`` and the epoch.
        drop_last: leave out the short batch at the end of an epoch.
        others: what a DataLoader takes besides: ``num_workers``, ``collate_fn``, ``pin_memory``...

    Raises:
        ConfigError: there are more processes than samples in a global batch, or none of those.
    """

    def __init__(
        self,
        dataset: Any,
        global_batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        **others: Any,
    ) -> None:
        for name, value in (("global_batch_size", global_batch_size), ("seed", seed)):
            if not _is_count(value):
                raise ConfigError(f"{name}={value!r} of ElasticDataLoader must be a whole number")
        if taken := sorted(others.keys() & {"batch_size", "sampler", "batch_sampler"}):
            raise ConfigError(
                f"{in_words(taken)} of ElasticDataLoader: it divides a global batch itself; give "
                "global_batch_size, shuffle and seed"
            )
        if not hasattr(dataset, "__len__"):
            raise ConfigError(
                "the dataset of an ElasticDataLoader needs a length; an IterableDataset has no "
                "samples by number, of which each could count once"
            )
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if global_batch_size < self.world_size:
            raise ConfigError(
                f"global_batch_size={global_batch_size} is less than the {self.world_size} "
                "processes; each needs a sample"
            )
        self._dataset, self._others = dataset, others
        self._shuffle, self._drop_last = shuffle, drop_last
        self._is_looping = False
        self._fixed: dict[str, Any] = {
            "samples": len(dataset),
            "global_batch_size": global_batch_size,
        }
        self._fixed |= {"seed": seed, "shuffle": shuffle, "drop_last": drop_last}
        if not len(self):
            raise ConfigError(
                f"{len(dataset)} samples make no global batch of {global_batch_size}, so an epoch "
                "would train nothing; give more, or a smaller batch"
            )
        self._drawn: tuple[int, torch.Tensor] | None = None
        """The order of an epoch."""

        self.epoch = self.step = 0
        """Of the batch that comes next."""

        self.scale = 1.0
        """What the mean loss of the batch yielded last is to be multiplied by: then the mean of the
        gradients over processes, as DDP and FSDP take it, is that over the global batch.  0 where
        an epoch ends with fewer samples than processes: that batch repeats a sample."""

    def __len__(self) -> int:
        """Return the global batches of an epoch."""
        samples, size = int(self._fixed["samples"]), int(self._fixed["global_batch_size"])
        return samples // size if self._drop_last else -(-samples // size)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of an epoch."""
        if self._is_looping:
            raise ConfigError(
                "a loop over this ElasticDataLoader has not ended, and another begins: both would "
                "count the same samples; look at the data with a DataLoader"
            )
        steps = range(self.step, len(self))
        shares: Any = (self._share(step)[0] for step in steps)
        loader: Any = DataLoader(self._dataset, batch_sampler=shares, **self._others)
        self._is_looping = True
        try:
            for step, batch in zip(steps, loader, strict=True):
                self.scale, self.step = self._share(step)[1], step + 1
                yield batch
        finally:
            self._is_looping = False
        self.epoch, self.step = self.epoch + 1, 0

    def _share(self, step: int) -> tuple[list[int], float]:
        """Return which samples of a global batch are this process's, and their scale."""
        size = self._fixed["global_batch_size"]
        batch = self._order()[step * size : (step + 1) * size].tolist()
        low, high = (len(batch) * rank // self.world_size for rank in (self.rank, self.rank + 1))
        mine = batch[low:high]
        return mine or batch[:1], len(mine) * self.world_size / len(batch)

    def _order(self) -> torch.Tensor:
        """Return the samples of this epoch in their order."""
        samples = self._fixed["samples"]
        if not self._shuffle:
            return torch.arange(samples)
        if self._drawn is None or self._drawn[0] != self.epoch:
            generator = torch.Generator().manual_seed(self._fixed["seed"] * 1_000_003 + self.epoch)
            self._drawn = self.epoch, torch.randperm(samples, generator=generator)
        return self._drawn[1]

    def state_dict(self) -> dict[str, Any]:
        """Return where it is; the same in every process."""
        ended = self.step == len(self)
        place = (self.epoch + 1, 0) if ended else (self.epoch, self.step)
        return {**self._fixed, "epoch": place[0], "step": place[1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            ConfigError: it is of another dataset, batch size, order or seed; or within a loop.
        """
        if self._is_looping:
            raise ConfigError("load a place in the data before the loop over it, not within")
        for name, value in self._fixed.items():
            if state[name] != value:
                raise ConfigError(
                    f"the saved place in the data has {name} {state[name]}, and now it is {value}; "
                    "an epoch goes on only where all of them are the same"
                )
        self.epoch, self.step = state["epoch"], state["step"]


def save_checkpoint(
    path: str | os.PathLike[str],
    step: int,
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    keep: int = 3,
    **others: Stateful,
) -> None:
    """Save a step with ``torch.distributed.checkpoint``, by all processes together.

    It counts once every byte is on the disk and its digest is known; until then the one before
    does.  ``others``, as ``loader=loader``, are what has ``state_dict`` and ``load_state_dict``;
    they are alike in all processes, and the first one's are kept.

    Raises:
        ConfigError: it could not be written, or a later step is there, of another run; in every
            process.
    """
    if keep < 1:
        raise ConfigError(f"keep={keep} checkpoints must be at least 1")
    if not _is_count(step):
        raise ConfigError(f"the step of a checkpoint must be a whole number of steps, not {step!r}")
    root, name = Path(path), f"step-{step:08d}"
    made = root / f".{name}"

    def begin() -> None:
        for left in root.glob(".step-*"):
            shutil.rmtree(left)
        root.mkdir(parents=True, exist_ok=True)
        if (newest := max(_steps(root), default=0)) > step:
            raise ConfigError(
                f"{root} holds step {newest}, so step {step} would never be the newest: go on from "
                "there with load_checkpoint, or name another directory"
            )

    _by_first(begin, f"{root} cannot be written to")
    document, tensors = _written(others)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=ALONE)
        save(_state(model, optimizer), checkpoint_id=str(made), no_dist=not _many())

    def end() -> None:
        torch.save({"document": document, "tensors": tensors}, made / OTHERS)
        digests = {file.name: _digest(file) for file in sorted(made.iterdir())}
        (made / DIGESTS).write_text(json.dumps(digests))
        for file in made.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        sync_directory(made)
        shutil.rmtree(root / name, ignore_errors=True)
        made.rename(root / name)
        sync_directory(root)
        for old in sorted(_steps(root), reverse=True)[keep:]:
            shutil.rmtree(root / f"step-{old:08d}")

    _by_first(end, f"{root / name} could not be written")


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    **others: Stateful,
) -> int | None:
    """Load the newest checkpoint that is intact, and return its step; None: there is none.

    Any number of processes may have written it.  One that is damaged is named, renamed to
    ``damaged-...`` and passed over.  A model alone, to evaluate it, may be all that is loaded.

    Raises:
        ConfigError: there are checkpoints, and none is intact; it is of another model or
            optimizer, or was saved with other things than are to be loaded.
    """
    root = Path(path)
    found = _by_first(lambda: _newest(root), f"{root} cannot be read")
    if found is None:
        return None
    place = root / f"step-{found:08d}"
    kept = torch.load(place / OTHERS, map_location="cpu", weights_only=True)
    states = decode(kept["document"], kept["tensors"])
    if (optimizer is not None or others) and states.keys() != others.keys():
        raise ConfigError(
            f"{place} was saved with {_names(states)}, and is loaded with {_names(others)}; give "
            "load_checkpoint the same"
        )
    try:
        _load(place, model, optimizer)
    except ConfigError:
        raise
    except (Exception, CheckpointException) as error:
        first = str(error).strip().splitlines()
        raise ConfigError(
            f"{place} does not fit the model and the optimizer: {first[-1] if first else error!r}"
        ) from error
    for name, other in others.items():
        other.load_state_dict(states[name])
    return int(found)


def _load(place: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    state = _state(model, optimizer)
    saved = set(FileSystemReader(place).read_metadata().state_dict_metadata)
    weights = {name.removeprefix("model.") for name in saved if name.startswith("model.")}
    if differing := weights ^ state["model"].keys():
        raise ConfigError(
            f"{place} is of another model: {min(differing)} is only in "
            f"{'the checkpoint' if min(differing) in weights else 'the model'}"
        )
    unused: dict[str, Any] = {}
    if optimizer is not None:
        unused = _without_state(state["optim"]["state"], saved)
        known = tuple(f"{OPTIM}{name}." for name in state["optim"]["state"])
        if strange := [one for one in saved if one.startswith(OPTIM) and not one.startswith(known)]:
            raise ConfigError(f"{place} is of another optimizer: it has {min(strange)}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=ALONE)
        load(state, checkpoint_id=str(place), no_dist=not _many())
    if optimizer is None:
        set_model_state_dict(model, state["model"])
        return
    state["optim"]["state"] |= unused
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )
    for group, named in zip(optimizer.param_groups, state["optim"]["param_groups"], strict=True):
        for parameter, name in zip(group["params"], named["params"], strict=True):
            if name in unused:
                optimizer.state.pop(parameter, None)


def _without_state(states: dict[str, Any], saved: set[str]) -> dict[str, Any]:
    """Take out, and return, what torch has made for parameters that had no gradient yet."""
    names = [n for n in states if not any(one.startswith(f"{OPTIM}{n}.") for one in saved)]
    return {name: states.pop(name) for name in names}


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    if optimizer is None:
        return {"model": get_model_state_dict(model)}
    weights, states = get_state_dict(model, optimizer)
    return {"model": weights, "optim": states}


def _written(others: dict[str, Stateful]) -> tuple[bytes, list[torch.Tensor]]:
    """Return what a checkpoint holds beside model and optimizer, whatever keys it has."""
    states = {name: other.state_dict() for name, other in others.items()}
    document, tensors = encode(states, name="others")
    if any(isinstance(one, DTensor) for one in tensors):
        raise ConfigError(
            f"a state of {_names(others)} is sharded over processes, and only that of model and "
            "optimizer is put together; give full_tensor() of it"
        )
    return document, [one.detach().cpu() for one in tensors]


def _names(of: Any) -> str:
    return in_words(sorted(of)) if of else "nothing besides"


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _steps(root: Path) -> list[int]:
    """Return the steps that a directory holds; other directories are none."""
    names = (one.name for one in root.glob("step-*"))
    return [int(name[5:]) for name in names if NAME.fullmatch(name)]


def _newest(root: Path) -> int | None:
    """Return the newest step whose bytes are those that were written."""
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root} is a file; name the directory that save_checkpoint was given")
    if (root / DIGESTS).exists():
        raise ConfigError(f"{root} is one checkpoint; name the directory that holds it")
    places = (root, *(root.glob("[!.]*") if not _steps(root) else ()))
    if any((place / ".metadata").exists() for place in places):
        raise ConfigError(
            f"{root} holds what torch.distributed.checkpoint has saved, and save_checkpoint has "
            "not; load it as it was saved"
        )
    steps = sorted(_steps(root), reverse=True)
    for step in steps:
        place = root / f"step-{step:08d}"
        try:
            digests = json.loads((place / DIGESTS).read_text())
            wrong = [file for file in digests if _digest(place / file) != digests[file]]
        except (OSError, ValueError) as error:
            wrong = [str(error)]
        if not wrong:
            for newer in steps[: steps.index(step)]:
                (root / f"step-{newer:08d}").rename(root / f"damaged-{newer:08d}")
            return step
        sys.stderr.write(f"pliant: {place} is damaged ({wrong[0]}); the one before is taken\n")
    if steps:
        raise ConfigError(f"every checkpoint in {root} is damaged")
    if root.exists():
        sys.stderr.write(f"pliant: {root} holds no checkpoint; this is a beginning\n")
    return None


def _digest(path: Path) -> str:
    found = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            found.update(piece)
    return found.hexdigest()


def _many() -> bool:
    return dist.is_available() and dist.is_initialized()


def _by_first(act: Callable[[], Any], what: str) -> Any:
    """Have the first process do something; return its result, or raise its error, in all."""
    told: list[Any] = [None, None]
    if not _many() or dist.get_rank() == 0:
        try:
            told[0] = act()
        except ConfigError as error:
            told[1] = str(error)
        except OSError as error:
            told[1] = f"{what}: {error}"
    if _many():
        dist.broadcast_object_list(told)
    if told[1] is not None:
        raise ConfigError(told[1])
    return told[0]
