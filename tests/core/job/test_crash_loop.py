"""What a failure costs where the script is started again by its own replica."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.commands import EndJob, Prepare
from pliant.core.events import (
    Broken,
    Event,
    ExitKind,
    NodeJoined,
    Prepared,
    Scaled,
    Spare,
    Switched,
)
from pliant.core.job import controller
from pliant.core.job.crash_loop import recent_losses
from pliant.core.job.state import Job, JobSettings
from pliant.core.policy.fields import Policy
from pliant.core.values import Generation, NodeId, ReplicaId

R1 = ReplicaId("r1")
SETTINGS = JobSettings(
    is_restarting=True,
    restart_budget=1,
    policy=Policy(min_replicas=1, max_replicas=3, start_replicas=1),
)


class Play:
    """A job in restart mode, and what it has commanded."""

    def __init__(self) -> None:
        self.job, _ = controller.begin(now_s=0.0, settings=SETTINGS)
        self.commands: list[object] = []
        self.hear(NodeJoined(node=NodeId("n1"), devices=3))
        self.hear(spare(R1))
        self.formed(1, R1)

    def hear(self, event: Event, now_s: float = 1.0) -> Job:
        self.job, made = controller.step(self.job, event, now_s=now_s, settings=SETTINGS)
        self.commands += made.commands
        return self.job

    def formed(self, generation: int, *names: ReplicaId, now_s: float = 1.0) -> None:
        number = Generation(generation)
        for name in names:
            self.hear(Prepared(replica=name, generation=number), now_s)
        for name in names:
            self.hear(Switched(replica=name, generation=number, step=0), now_s)

    def fails(self, generation: int, now_s: float, *, failure: ExitKind | None) -> None:
        broken = Broken(replica=R1, generation=Generation(generation), reason="rank 0 failed")
        self.hear(replace(broken, failure=failure), now_s)

    def orders(self) -> list[tuple[ReplicaId, ...]]:
        return [one.order.replicas for one in self.commands if isinstance(one, Prepare)]


def spare(name: ReplicaId) -> Spare:
    return Spare(replica=name, calls=0, num_slots=9, layout="", endpoint=f"h:{name[1:]}")


def test_a_failure_is_charged_once_for_each_generation() -> None:
    play = Play()
    play.fails(1, 2.0, failure=ExitKind.SCRIPT)
    play.fails(1, 2.0, failure=ExitKind.SCRIPT)

    (loss,) = play.job.budget.losses
    assert (loss.kind, loss.sentence) == (ExitKind.SCRIPT, "rank 0 failed")


def test_what_follows_from_another_failure_costs_nothing() -> None:
    play = Play()
    play.fails(1, 2.0, failure=None)

    assert play.job.budget.losses == ()


def test_the_job_ends_at_once_where_the_budget_is_spent_within_the_window() -> None:
    play = Play()
    play.fails(1, 2.0, failure=ExitKind.SIGNAL)
    play.hear(Switched(replica=R1, generation=Generation(2), step=0), 3.0)
    play.fails(2, 4.0, failure=ExitKind.SIGNAL)

    (end,) = [one for one in play.commands if isinstance(one, EndJob)]
    assert end.exit_code == 1
    assert end.reason == "the script has failed 2 times within 600 s; last: rank 0 failed"


@pytest.mark.parametrize("is_restarting", [True, False])
def test_a_failure_is_forgotten_with_time_where_nobody_counts_steps(is_restarting: bool) -> None:
    play = Play()
    play.fails(1, 2.0, failure=ExitKind.SIGNAL)
    settings = replace(SETTINGS, is_restarting=is_restarting)

    assert len(recent_losses(play.job, settings, 500.0)) == 1
    assert len(recent_losses(play.job, settings, 700.0)) == (0 if is_restarting else 1)


def test_newcomers_join_together_where_each_change_starts_all_again() -> None:
    play = Play()
    play.hear(Scaled(target=3), 2.0)
    play.hear(spare(ReplicaId("r2")), 3.0)
    assert play.orders()[1:] == [], "r3 is near"

    play.hear(spare(ReplicaId("r3")), 4.0)
    assert play.orders()[1:] == [("r1", "r2", "r3")]


def test_a_newcomer_that_does_not_come_is_not_waited_for_long() -> None:
    play = Play()
    play.hear(Scaled(target=3), 2.0)
    play.hear(spare(ReplicaId("r2")), 2.0 + SETTINGS.start_wait_s)

    assert play.orders()[1:] == [("r1", "r2")]
