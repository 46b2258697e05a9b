"""Rows of text: what a recipe's data files hold, read one by one.

Owns the formats; knows nothing of tokens, but for files that hold tokens already.

    .jsonl               an object per line
    .parquet, .arrow     a table
    PREFIX.bin and .idx  tokens of Megatron's indexed datasets
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pliant.core.errors import ConfigError

Row = dict[str, Any]

_MAGIC = b"MMIDIDX\x00\x00"
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""By the code that an index file has of its tokens' type."""


def rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file.

    Raises:
        ConfigError: it is not there, or not in this form; names the line.
    """
    if not path.is_file():
        raise ConfigError(f"the data file {path} does not exist")
    if path.suffix in (".parquet", ".arrow", ".feather"):
        yield from _table_rows(path)
    elif path.suffix in (".jsonl", ".json", ".ndjson"):
        yield from _json_rows(path)
    else:
        raise ConfigError(f"{path} has none of the forms .jsonl, .parquet and .arrow")


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise ConfigError(f"{path} line {number} is no UTF-8: {error}") from None
            except ValueError as error:
                raise ConfigError(f"{path} line {number} is no JSON: {error}") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{path} line {number} is no JSON object")
            yield row


def _table_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow as pa
        from pyarrow import dataset
    except ImportError:
        raise ConfigError(f"{path} needs pyarrow: pip install pyarrow") from None
    form = "parquet" if path.suffix == ".parquet" else "ipc"
    try:
        for batch in dataset.dataset(str(path), format=form).to_batches():
            yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        if form == "parquet":
            raise ConfigError(f"{path} cannot be read: {error}") from None
        with pa.memory_map(str(path)) as source:  # as the datasets library writes it
            for batch in pa.ipc.open_stream(source):
                yield from batch.to_pylist()


def is_indexed(prefix: Path) -> bool:
    """Whether a path is the prefix of an indexed dataset."""
    return prefix.with_name(f"{prefix.name}.idx").is_file()


def indexed_tokens(prefix: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of an indexed dataset, mapped, and where each sequence begins and ends.

    Returns:
        The tokens, of shape ``(T,)``; the starts of the S sequences and the end, ``(S + 1,)``.

    Raises:
        ConfigError: it is damaged, or of another version.
    """
    index = prefix.with_name(f"{prefix.name}.idx").read_bytes()
    if index[:9] != _MAGIC or int.from_bytes(index[9:17], "little") != 1:
        raise ConfigError(f"{prefix}.idx is no index of an indexed dataset of version 1")
    dtype = _DTYPES.get(index[17])
    if dtype is None:
        raise ConfigError(f"{prefix}.idx: tokens of type {index[17]} are no whole numbers")
    count = int.from_bytes(index[18:26], "little")
    begins = 34  # behind the number of documents
    lengths = np.frombuffer(index, "<i4", count, begins)
    pointers = np.frombuffer(index, "<i8", count, begins + 4 * count)
    tokens = np.memmap(prefix.with_name(f"{prefix.name}.bin"), dtype, "r")
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if ends[-1] != len(tokens) or not np.array_equal(pointers, ends[:-1] * tokens.itemsize):
        raise ConfigError(f"{prefix}.bin has {len(tokens)} tokens, the index another number")
    return tokens, ends
