"""Names, and who writes which part of a tensor."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.layout import Piece, Spec, cut, divide, fill

SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)
SPECS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.builds(Spec, SHAPES, st.sampled_from([1, 2, 4, 8, 16])),
    max_size=6,
)


def elements(piece: Piece) -> list[tuple[int, ...]]:
    return list(
        product(*(range(o, o + s) for o, s in zip(piece.offsets, piece.sizes, strict=True)))
    )


@given(SHAPES, st.integers(1, 16), st.integers(1, 200))
def test_pieces_hold_every_element_once_and_lie_in_one_run(
    shape: tuple[int, ...], item_bytes: int, limit: int
) -> None:
    pieces = list(cut("x", Spec(shape, item_bytes), limit))

    found = Counter(element for piece in pieces for element in elements(piece))
    assert found == Counter(product(*map(range, shape)))
    order = [element for piece in pieces for element in elements(piece)]
    assert order == sorted(order)
    for piece in pieces:
        assert math.prod(piece.sizes) * item_bytes <= max(limit, item_bytes)


@given(SPECS, st.integers(1, 7))
def test_every_element_is_written_by_exactly_one_rank(specs: dict[str, Spec], ranks: int) -> None:
    shares = divide(specs, ranks)

    assert len(shares) == ranks
    for name, spec in specs.items():
        boxes = [(p.offsets, p.sizes) for share in shares for p in share if p.name == name]
        assert fill(spec.shape, boxes)


@given(st.lists(st.integers(1, 40_000_000), min_size=1, max_size=8), st.integers(1, 8))
def test_shares_differ_by_no_more_than_a_piece(sizes: list[int], ranks: int) -> None:
    specs = {str(index): Spec((size,), 4) for index, size in enumerate(sizes)}
    total = sum(spec.num_bytes for spec in specs.values())

    loads = [sum(math.prod(p.sizes) * 4 for p in share) for share in divide(specs, ranks)]

    assert sum(loads) == total
    piece = max(layout.FINE_PIECE_BYTES, total // (ranks * layout.PIECES_PER_RANK))
    assert max(loads) - min(loads) <= piece


@given(SPECS, st.integers(1, 5))
def test_the_order_in_which_tensors_are_listed_does_not_matter(
    specs: dict[str, Spec], ranks: int
) -> None:
    assert divide(dict(reversed(specs.items())), ranks) == divide(specs, ranks)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 9))
def test_workers_of_replicas_write_each_element_of_whole_tensors_and_of_parts_once(
    replicas: int, workers: int, rows: int
) -> None:
    """Each worker has some rows of ``p``, which every replica has, and all of ``w``."""
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for rank in range(replicas * workers):
        place = rank % workers
        mine = rows * (place + 1) // workers - rows * place // workers
        begins = (rows * place // workers, 0)
        specs = {"w": Spec((4, 2), 4), "p": Spec((mine, 3), 4, begins)}
        for piece in layout.share_of(
            specs, rank=rank, num_shares=replicas * workers, num_workers=workers
        ):
            seen.update((piece.name, element) for element in elements(piece))

    wanted = [*(("w", e) for e in product(range(4), range(2)))]
    wanted += [("p", e) for e in product(range(rows), range(3))]
    assert seen == Counter(wanted)


def test_a_large_tensor_is_cut_by_rows() -> None:
    shares = divide({"a": Spec((1000, 1000), 4)}, 4)

    assert [len(share) for share in shares] == [1, 1, 1, 1]
    assert shares[0] == [Piece("a", (0, 0), (262, 1000))]


@pytest.mark.parametrize(
    "boxes",
    [
        [],
        [((0, 0), (2, 2))],
        [((0, 0), (2, 3)), ((1, 0), (1, 3))],
        [((0, 0), (2, 2)), ((0, 1), (2, 1))],
        [((0, 0), (3, 3)), ((0, 0), (-1, 3))],
        [((0,), (6,))],
        [((0, 0), (2, 2)), ((0, 2), (3, 1))],
    ],
)
def test_boxes_with_gaps_or_overlaps_do_not_fill_a_tensor(
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    assert not fill((2, 3), boxes)


@given(st.integers(0, 10**12), st.integers(0, 10**6))
def test_a_name_says_which_state_it_is(committed: int, lineage: int) -> None:
    name = layout.name_of(committed, lineage)

    assert layout.parse_name(name) == layout.CheckpointName(lineage, committed)


@pytest.mark.parametrize(
    "name", ["step-500-l1", "step-00000500", "step-00000500-l01", "x", "step-00000500-l1.new", ""]
)
def test_other_names_are_no_checkpoints(name: str) -> None:
    assert layout.parse_name(name) is None


def test_the_newest_is_of_the_latest_lineage() -> None:
    names = [
        layout.CheckpointName(1, 900),
        layout.CheckpointName(2, 10),
        layout.CheckpointName(1, 20),
    ]

    assert str(max(names)) == "step-00000010-l2"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("model.a.b.weight", ("model", "a.b.weight")),
        ("optim.state.a.weight.exp_avg", ("optim", "state", "a.weight", "exp_avg")),
        ("optim.param_groups.1.lr", ("optim", "param_groups", 1, "lr")),
        ("optim.param_groups", ("optim", "param_groups")),
        ("extra.ema.x", ("extra", "ema.x")),
        ("pliant.document", ("pliant", "document")),
        ("alone", ("alone",)),
    ],
)
def test_items_lie_where_plain_torch_puts_them(name: str, path: tuple[str | int, ...]) -> None:
    assert layout.path_of(name) == path
