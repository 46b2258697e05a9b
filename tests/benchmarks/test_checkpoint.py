"""A turn of saves is what its ranks handed in, the slowest of them for times."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.checkpoint_course import Course, Saved
from benchmarks.checkpoint_figures import figures_of, turn_of
from benchmarks.turns import Player, Turns


def whole(laps: Sequence[tuple[float, bool]], stall_s: float, copy_s: float) -> Mapping[str, Any]:
    saves = [{"committed": c, "stall_s": stall_s, "copy_s": copy_s} for c in (3, 6)]
    return {"laps": laps, "saves": saves, "extra_bytes": int(1e6 * stall_s)}


STILL = [{"wall_s": 2.0, "cpu_s": 0.5}, {"wall_s": 1.0, "cpu_s": 0.25}]
WHOLE = [
    whole([(1.0, False), (1.0, False), (1.0, False), (1.5, True), (1.25, False)], 3.0, 2.5),
    whole([(1.0, False), (1.0, False), (1.0, False), (1.75, False), (1.0, False)], 4.0, 2.0),
]


def test_the_slowest_rank_counts_for_time_and_all_ranks_for_cpu_time() -> None:
    turn = turn_of(STILL, WHOLE)

    assert (turn.still_s, turn.moving_s, turn.cpu_s) == (2.0, None, 0.75)
    assert turn.stalls_s == (4.0, 4.0)
    assert turn.beyond_s == (2.0, 2.0)


def test_steps_that_began_while_any_rank_wrote_are_compared_with_the_quiet_ones() -> None:
    turn = turn_of(STILL, WHOLE)

    assert turn.step_s == 1.0
    assert (turn.slower_s, turn.slower_steps) == (0.75, 1)


def test_a_side_that_knows_when_its_saves_were_durable_is_believed() -> None:
    turn = turn_of(STILL, WHOLE, durable_s={3: 0.5, 6: 0.75})

    assert (turn.still_s, turn.moving_s) == (0.5, 0.75)


def test_figures_name_the_claims_and_compare_block_by_block() -> None:
    turn = turn_of(STILL, WHOLE)

    rows = {
        figure.name: figure
        for figure in figures_of(
            "10M W=2 local",
            {"pliant": [turn], "dcp.save": [turn]},
            {"pliant": [1.0], "dcp.save": [4.0]},
            claim_bytes=122e6,
        )
    }

    assert rows["10M W=2 local: pliant: stall beyond the copy, of a step"].raw == (200.0, 200.0)
    assert rows["10M W=2 local: pliant: extra memory of a replica"].target == "<= 122"
    assert rows["10M W=2 local: pliant over dcp.save: restore"].raw == (0.25,)


class Instantly:
    """Saves that take no time."""

    is_settled = True

    def restore(self) -> float:
        return 0.5

    def tidy(self) -> None:
        pass


def test_a_turn_holds_two_saves_and_rests_after_the_first_and_at_its_end(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "turns")

    def work() -> None:
        player = Player(tmp_path / "turns", "side")
        course = Course(player=player, saving=Instantly(), every=2)
        for committed in range(6):
            if committed and committed % 2 == 0:
                course.saved(Saved(committed=committed, stall_s=0.0))
            with contextlib.suppress(SystemExit):  # the driver is gone
                course.boundary(committed)
        player.close()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    turns.admit("side", 1, timeout_s=10)

    (still,) = turns.call("side", "go")
    (turn,) = turns.call("side", "go")
    (restored,) = turns.call("side", "restore")
    turns.close()
    worker.join(10)

    assert set(still) == {"wall_s", "cpu_s"}
    assert [save["committed"] for save in turn["saves"]] == [2, 4]
    assert len(turn["laps"]) == 4
    assert restored == {"restore_s": 0.5}
    assert not (tmp_path / "turns").exists()


def test_a_worker_that_does_not_come_is_noticed(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "turns")
    player = Player(tmp_path / "turns", "side")

    with pytest.raises(TimeoutError):
        turns.admit("side", 2, timeout_s=0.05)

    turns.close()
    player.close()
