"""What the model at the start says of each answer of preferences, computed once and kept.

Owns the file, and that it is of this model and these data.  In place of a frozen model, which is
as large as the one that learns.  Knows nothing of how rewards come from it.

    CACHE/reference-KEY.npy   (N,), float32: of each of N answers its log-probability
    CACHE/reference-KEY.txt   the digest of that file; written first

``KEY`` is a digest of the weights, the tokens and all fields that matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

import pliant
from pliant.core.errors import ConfigError
from pliant.recipes.models import build
from pliant.recipes.samples import Pairs, collate
from pliant.recipes.tasks import Task, scores
from pliant.spec.recipe import Recipe


def is_stored(recipe: Recipe) -> bool:
    """Whether the policy is compared with stored values."""
    return recipe.preference is not None and recipe.preference.reference == "stored"


def remember(recipe: Recipe, pairs: Pairs, path: str, tokenizer: Any, workers: int) -> None:
    """Give each answer of ``pairs``, which are of the data file ``path``, its log-probability.

    Draws from the generators in one process of the job: seed them anew.

    Raises:
        ConfigError: several workers share the model, or what was stored is gone or damaged.
    """
    if workers > 1:
        raise ConfigError(
            "preference.reference stored computes with a whole model, and workersPerReplica "
            f"{workers} share it; give preference.reference model"
        )
    place = Path(recipe.data.cache) / f"reference-{_key(recipe, pairs)}.npy"
    with pliant.once(f"reference {path}") as is_first:
        if is_first and _read(place) is None:
            _write(place, _computed(recipe, pairs, tokenizer))
    found = _read(place)
    if found is None:
        raise ConfigError(
            f"the log-probabilities in {place} are gone or damaged since the run began; delete "
            "the file and start a new run"
        )
    pairs.reference = found


def _key(recipe: Recipe, pairs: Pairs) -> str:
    """Return a digest of what the values depend on."""
    entry, digest = recipe.model, xxhash.xxh3_128(pairs.digest.encode())
    begins: list[object] = [entry.family, entry.size, recipe.training.seed]
    if entry.weights is not None:
        files = [p for p in Path(entry.weights).glob("*") if p.suffix in (".json", ".safetensors")]
        begins = [path.name for path in sorted(files)]
        for path in sorted(files):
            with path.open("rb") as read:
                while piece := read.read(1 << 24):
                    digest.update(piece)
    digest.update(json.dumps([*begins, entry.precision, recipe.data.sequence_length]).encode())
    return digest.hexdigest()


def _read(place: Path) -> np.ndarray | None:
    try:
        said = xxhash.xxh3_128_hexdigest(place.read_bytes())
        if place.with_suffix(".txt").read_text() != said:
            return None
        found: np.ndarray = np.load(place)
    except OSError:
        return None
    return found


def _write(place: Path, values: np.ndarray) -> None:
    made = place.with_name(f".{place.name}")
    np.save(made, values)
    place.with_suffix(".txt").write_text(xxhash.xxh3_128_hexdigest(made.read_bytes()))
    made.rename(place)


def _computed(recipe: Recipe, pairs: Pairs, tokenizer: Any) -> np.ndarray:
    """Run the model at the start on each answer by itself."""
    torch.set_num_threads(1)  # as a session has it: the bits are those of any host
    pliant.seed(recipe.training.seed)
    plain = recipe.model_copy(update={"lora": None})
    model = build(plain, tokenizer, 1).requires_grad_(False).eval()
    task, found = Task(plain, None), []
    with torch.no_grad():
        for answer in pairs.answers():
            batch = {name: one.to(pliant.device()) for name, one in collate([answer]).items()}
            found.append(float(scores(task.forward(model, batch), batch["labels"]).sum()))
    return np.asarray(found, np.float32)
