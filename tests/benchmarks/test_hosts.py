"""What of the steps of a job counts: those that nobody had made before."""

from __future__ import annotations

from benchmarks import hosts


def test_steps_that_are_made_again_are_no_progress() -> None:
    made = [(1.0, 10, 4), (2.0, 11, 4), (7.0, 10, 4), (8.0, 11, 4), (9.0, 12, 4)]

    found = hosts.progress(made)

    assert [(one.step, one.at) for one in found] == [(10, 1.0), (11, 2.0), (12, 9.0)]
    assert hosts.longest_gap_s(found, since=2.5) == 7.0
    assert hosts.longest_gap_s(found, since=20.0) == 0.0
