"""What workers say counts in the history in which they say it."""

from __future__ import annotations

from pliant.core.events import NodeJoined, Saved
from pliant.core.job import controller
from pliant.core.job.state import Job, JobSettings
from pliant.core.values import Lineage, NodeId, ReplicaId

SETTINGS = JobSettings()


def after_saving(lineage: int) -> Job:
    """Return a job, in its first history, that hears of a checkpoint of this one."""
    job, _ = controller.begin(now_s=0.0, settings=SETTINGS)
    saved = Saved(
        replica=ReplicaId("r1"), lineage=Lineage(lineage), committed=4, checkpoint=f"4/{lineage}"
    )
    for event in (NodeJoined(node=NodeId("n1"), devices=1), saved):
        job, _ = controller.step(job, event, now_s=0.0, settings=SETTINGS)
    return job


def test_a_checkpoint_of_this_history_counts() -> None:
    assert [found.name for found in after_saving(1).saved] == ["4/1"]


def test_what_another_history_has_saved_does_not_count() -> None:
    job = after_saving(0)

    assert (job.saved, job.has_checkpoints) == ((), False)
