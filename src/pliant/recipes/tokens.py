"""Tokens of a recipe's data: made once, kept in a directory, mapped into every worker.

Owns the tokenizer, what of a chat is an answer, and the files.  Knows nothing of samples.

    CACHE/KEY/tokens.npy    of all documents, one after the other
              starts.npy    where each begins, and the end of the last
              targets.npy   which tokens are learned; not there: all
              about.json    digests of the three; written last

``KEY`` is a digest of the data file, the tokenizer and all fields that matter.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from pliant.core.errors import ConfigError
from pliant.machine.locks import lock
from pliant.recipes.rows import Row, indexed_tokens, is_indexed, rows
from pliant.spec.recipe import BYTES, Recipe

CHAT = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
PREFERENCES = ("chosen", "rejected")

Document = tuple[list[int], list[bool] | None]
"""Tokens, and which of them are learned; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """All documents of one file."""

    tokens: np.ndarray
    """Of shape ``(T,)``."""

    starts: np.ndarray
    """Of shape ``(N + 1,)`` for N documents."""

    targets: np.ndarray | None
    """Of shape ``(T,)``; None: every token is learned."""

    digest: str

    def __len__(self) -> int:
        return len(self.starts) - 1


def tokenizer_of(recipe: Recipe) -> Any:
    """Return the tokenizer: that of a directory, or one token per byte.

    Raises:
        ConfigError: there is none.
    """
    place = recipe.model.tokenizer or recipe.model.weights or BYTES
    if place == BYTES:
        return _bytes_tokenizer()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.tokenizer {place} holds no tokenizer: {error}") from None


def _bytes_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE(vocab={x: n for n, x in enumerate(letters)}, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    kind: Any = PreTrainedTokenizerFast
    made = kind(
        tokenizer_object=bare,
        eos_token="</s>",  # noqa: S106
        pad_token="<pad>",  # noqa: S106
        additional_special_tokens=list(ROLES),
    )
    made.chat_template = CHAT
    return made


def tokens_of(recipe: Recipe, path: str, tokenizer: Any, *, is_first: bool) -> Tokens:
    """Return the tokens of a data file; ``is_first`` makes them, or proves those that are there.

    Raises:
        ConfigError: the file cannot be read, or a row lacks what the task needs.
    """
    source = Path(path)
    if is_indexed(source):
        if recipe.task != "pretrain":
            raise ConfigError(f"{path} holds tokens, and task {recipe.task} needs chats")
        found, starts = indexed_tokens(source)
        digest = xxhash.xxh3_128_hexdigest(starts.tobytes())
        return Tokens(tokens=found, starts=starts, targets=None, digest=digest)
    place = Path(recipe.data.cache) / _key(recipe, source, tokenizer)
    if is_first:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"tokens cannot be kept in data.cache {place.parent} ({error.strerror}); name a "
                "directory that can be written, in a pod one of a mounted volume"
            ) from None
        with (place.parent / "lock").open("w") as file:
            lock(file.fileno())  # of other jobs
            if not _is_whole(place):
                _make(place, _documents(recipe, source, tokenizer))
    return _load(place)


def _key(recipe: Recipe, source: Path, tokenizer: Any) -> str:
    if not source.is_file():
        raise ConfigError(f"the data file {source} does not exist")
    digest = xxhash.xxh3_128()
    with source.open("rb") as read:
        while piece := read.read(1 << 24):
            digest.update(piece)
    said = [recipe.task, recipe.data.field, tokenizer.backend_tokenizer.to_str()]
    digest.update(json.dumps([*said, tokenizer.chat_template or ""]).encode())
    return f"{source.stem}-{digest.hexdigest()}"


def _is_whole(place: Path) -> bool:
    try:
        about = json.loads((place / "about.json").read_text())
        return all(_digest(place / name) == digest for name, digest in about.items())
    except (OSError, ValueError):
        return False


def _digest(path: Path) -> str:
    return xxhash.xxh3_128_hexdigest(path.read_bytes())


def _make(place: Path, documents: Iterable[Document]) -> None:
    """Write the files; they appear together."""
    tokens: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    is_masked = False
    for ids, learned in documents:
        tokens.append(np.asarray(ids, np.int32))
        targets.append(np.ones(len(ids), bool) if learned is None else np.asarray(learned, bool))
        is_masked |= learned is not None
    if not tokens:
        raise ConfigError(f"{place.name.rpartition('-')[0]} holds no row")
    made = place.with_name(f".{place.name}")
    shutil.rmtree(made, ignore_errors=True)  # of one that was killed
    made.mkdir()
    np.save(made / "tokens.npy", np.concatenate(tokens))
    np.save(made / "starts.npy", np.cumsum([0, *map(len, tokens)], dtype=np.int64))
    if is_masked:
        np.save(made / "targets.npy", np.concatenate(targets))
    digests = {path.name: _digest(path) for path in sorted(made.iterdir())}
    (made / "about.json").write_text(json.dumps(digests))
    shutil.rmtree(place, ignore_errors=True)
    made.rename(place)


def _load(place: Path) -> Tokens:
    try:
        about = json.loads((place / "about.json").read_text())
        found = {name: np.load(place / name, mmap_mode="r") for name in about}
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokens in {place} cannot be read: {error}") from None
    return Tokens(
        tokens=found["tokens.npy"],
        starts=found["starts.npy"],
        targets=found.get("targets.npy"),
        digest=xxhash.xxh3_128_hexdigest(json.dumps(about).encode()),
    )


# --- documents


def _documents(recipe: Recipe, source: Path, tokenizer: Any) -> Iterator[Document]:
    for number, row in enumerate(rows(source), 1):
        try:
            yield from _DOCUMENTS[recipe.task](recipe, row, tokenizer)
        except (KeyError, TypeError) as error:
            what = f"has no field {error}" if isinstance(error, KeyError) else f"is none: {error}"
            raise ConfigError(
                f"{source} row {number} {what}, as task {recipe.task} needs"
            ) from None
        except ConfigError as error:
            raise ConfigError(f"{source} row {number}: {error}") from None


def _text(recipe: Recipe, row: Row, tokenizer: Any) -> Iterator[Document]:
    text = row[recipe.data.field]
    if not isinstance(text, str):
        raise ConfigError(f"the field {recipe.data.field} is no text")
    yield [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id], None


def _chat(recipe: Recipe, row: Row, tokenizer: Any) -> Iterator[Document]:
    if "messages" in row:
        yield _answers(row["messages"], tokenizer)
    else:
        yield _completion(row["prompt"], row["completion"], tokenizer)


def _pair(recipe: Recipe, row: Row, tokenizer: Any) -> Iterator[Document]:
    """Yield two documents: what is preferred, and what is not."""
    chosen, rejected = (row[name] for name in PREFERENCES)
    prompt = row.get("prompt")
    if isinstance(chosen, str) and isinstance(rejected, str):
        yield _completion(row["prompt"], chosen, tokenizer)
        yield _completion(row["prompt"], rejected, tokenizer)
        return
    before = prompt if isinstance(prompt, list) else []
    if not before and chosen[:-1] != rejected[:-1]:
        raise ConfigError("chosen and rejected differ before their last message")
    for one in (chosen, rejected):
        yield _answers([*before, *one], tokenizer, is_last_alone=True)


_DOCUMENTS = {"pretrain": _text, "sft": _chat, "dpo": _pair}


def _completion(prompt: str, completion: str, tokenizer: Any) -> Document:
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    after = [*tokenizer(completion, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return [*before, *after], [False] * len(before) + [True] * len(after)


def _answers(messages: Sequence[Row], tokenizer: Any, *, is_last_alone: bool = False) -> Document:
    """Return a chat in the tokenizer's form; learned is what the assistant says.

    What an answer is, is seen from the template: what it adds to the messages before and to the
    call for an answer.
    """
    if tokenizer.chat_template is None:
        raise ConfigError("the tokenizer has no chat template; train on prompt and completion")

    def form(upto: int, *, calls: bool = False) -> str:
        found = tokenizer.apply_chat_template(
            list(messages[:upto]), tokenize=False, add_generation_prompt=calls
        )
        return str(found)

    if any(one.get("content") is None and not one.get("tool_calls") for one in messages):
        raise ConfigError("a message has no content")
    whole, answers = form(len(messages)), []
    for number, message in enumerate(messages):
        is_last = number == len(messages) - 1
        if message["role"] != "assistant" or (is_last_alone and not is_last):
            continue
        before, after = form(number, calls=True), form(number + 1)
        if not (after.startswith(before) and whole.startswith(after)):
            raise ConfigError(
                "the chat template writes a message otherwise when more follow, so that an answer "
                "cannot be told from the rest"
            )
        answers.append((len(before), len(after)))
    if not answers:
        raise ConfigError("no message has the role assistant; nothing is to be learned")
    found = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    places = found["offset_mapping"]
    learned = [any(low <= a and b <= high and a < b for low, high in answers) for a, b in places]
    return found["input_ids"], learned
