"""Samples: each token is in one of them, and what is learned of it is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.errors import ConfigError
from pliant.recipes.rows import indexed_tokens, is_indexed, rows
from pliant.recipes.samples import (
    IGNORED,
    Alone,
    Packed,
    Pairs,
    Samples,
    Wrapped,
    check_cut,
    check_learned,
    collate,
    collate_pairs,
    digest_of,
)
from pliant.recipes.tokens import Tokens

sizes = st.lists(st.integers(1, 20), min_size=1, max_size=30)


def tokens(lengths: list[int], targets: list[bool] | None = None) -> Tokens:
    """Return documents in which every token is another."""
    return Tokens(
        tokens=np.arange(sum(lengths), dtype=np.int32),
        starts=np.cumsum([0, *lengths]),
        targets=None if targets is None else np.array(targets),
        digest="",
    )


@given(lengths=sizes, length=st.integers(2, 12), seed=st.integers(0, 5))
def test_each_token_is_in_exactly_one_sample(lengths: list[int], length: int, seed: int) -> None:
    data = tokens(lengths)
    kinds: list[Samples] = [Wrapped(data, length, seed), Packed(data, length)]
    for samples in kinds:
        found = [samples[index] for index in range(len(samples))]
        assert sorted(t for one in found for t in one["tokens"].tolist()) == [*range(sum(lengths))]
        assert all(len(one["tokens"]) <= length for one in found)
        for one in found:  # within a document tokens follow each other, and places do
            for name in set(one["documents"].tolist()):
                mine = one["documents"] == name
                first = int(one["tokens"][mine][0])
                assert one["tokens"][mine].tolist() == [*range(first, first + int(mine.sum()))]
                assert one["positions"][mine].tolist() == [*range(int(mine.sum()))]
                assert int(one["labels"][mine][0]) == IGNORED


@given(lengths=sizes, length=st.integers(2, 12))
def test_best_fit_leaves_no_two_bins_that_fit_into_one(lengths: list[int], length: int) -> None:
    samples = Packed(tokens(lengths), length)
    used = sorted(len(samples[index]["tokens"]) for index in range(len(samples)))

    assert len(used) < 2 or used[0] + used[1] > length


def test_what_is_not_an_answer_is_not_learned() -> None:
    data = tokens([3, 2], [False, True, True, False, True])

    found = collate([Alone(data, 10)[0], Alone(data, 10)[1]])

    assert found["labels"].tolist() == [[IGNORED, 1, 2], [IGNORED, 4, IGNORED]]
    assert found["documents"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_an_answer_that_is_cut_off_whole_is_refused() -> None:
    data = tokens([3, 4], [False, True, True, False, False, False, True])

    assert check_cut(data, 4) == 0
    with pytest.raises(ConfigError, match="of 1 of 2 documents nothing is learned within"):
        check_cut(data, 3)
    assert check_cut(tokens([3, 4], [False, True, True] + [True] * 4), 3) == 1


def test_data_of_which_nothing_is_learned_are_refused() -> None:
    for lengths, targets in (([1, 2], None), ([1, 1, 2], [True, True, False, True])):
        check_learned("a.jsonl", tokens(lengths, targets))
    for lengths, targets in (([1, 1], None), ([2, 1], [True, False, True])):
        with pytest.raises(ConfigError, match=r"a\.jsonl has nothing to learn"):
            check_learned("a.jsonl", tokens(lengths, targets))


def test_pairs_are_side_by_side() -> None:
    pairs = Pairs(tokens([2, 3, 1, 1]), 10)

    found = collate_pairs([pairs[0], pairs[1]])

    assert len(pairs) == 2
    assert found["tokens"].tolist() == [[0, 1, 0], [5, 0, 0], [2, 3, 4], [6, 0, 0]]


def test_the_digest_tells_packings_apart() -> None:
    data = tokens([5, 3, 7])

    assert len({digest_of(one) for one in (Wrapped(data, 4, 0), Wrapped(data, 4, 1))}) == 2
    assert digest_of(Packed(data, 4)) == digest_of(Packed(data, 4))


def test_rows_that_are_none_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n[1]\n')

    with pytest.raises(ConfigError, match=r"a.jsonl line 3 is no JSON object"):
        list(rows(path))
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"a.jsonl line 1 is no JSON: "):
        list(rows(path))
    path.write_bytes(b'{"text": "a"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(ConfigError, match=r"a.jsonl line 2 is no UTF-8: "):
        list(rows(path))
    with pytest.raises(ConfigError, match=r"the data file .* does not exist"):
        list(rows(tmp_path / "b.jsonl"))
    with pytest.raises(ConfigError, match="has none of the forms"):
        list(rows(Path(__file__)))


def test_a_table_has_rows(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    table = pa.table({"text": ["a", "b"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    feather.write_feather(table, str(tmp_path / "a.feather"))
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as stream:
        stream.write_table(table)

    for name in ("a.parquet", "a.feather", "a.arrow"):
        assert [row["text"] for row in rows(tmp_path / name)] == ["a", "b"]


def write_indexed(prefix: Path, documents: list[list[int]]) -> None:
    """Write what Megatron's builder writes of 16-bit tokens, one sequence a document."""
    lengths = np.array([len(one) for one in documents], np.int32)
    flat = np.concatenate([np.array(one, np.uint16) for one in documents])
    prefix.with_name(f"{prefix.name}.bin").write_bytes(flat.tobytes())
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * 2
    head = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8])
    head += len(documents).to_bytes(8, "little") + (len(documents) + 1).to_bytes(8, "little")
    ends = np.arange(len(documents) + 1, dtype=np.int64)
    index = head + lengths.tobytes() + pointers.astype(np.int64).tobytes() + ends.tobytes()
    prefix.with_name(f"{prefix.name}.idx").write_bytes(index)


def test_an_indexed_dataset_is_read_as_it_is(tmp_path: Path) -> None:
    prefix = tmp_path / "corpus.text"
    write_indexed(prefix, [[5, 6, 7], [8], [9, 60_000]])

    found, starts = indexed_tokens(prefix)

    assert is_indexed(prefix)
    assert found.tolist() == [5, 6, 7, 8, 9, 60_000]
    assert starts.tolist() == [0, 3, 4, 6]
    prefix.with_name("corpus.text.bin").write_bytes(b"\x00" * 4)
    with pytest.raises(ConfigError, match="has 2 tokens, the index another number"):
        indexed_tokens(prefix)
