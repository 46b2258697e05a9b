"""What workers say counts in the history in which they say it; who may not join is told why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.commands import EndReplica, Prepare, Reform
from pliant.core.events import (
    Event,
    Exited,
    ExitKind,
    NodeJoined,
    Prepared,
    PublishAsked,
    Saved,
    Spare,
)
from pliant.core.job import controller
from pliant.core.job.crash_loop import charge, is_spent
from pliant.core.job.handlers import difference, has_more_samples, on_worker_event
from pliant.core.job.state import Job, JobSettings, ReplicaState
from pliant.core.job.transaction import Transaction, draft_of
from pliant.core.membership.transitions import Phase
from pliant.core.policy.fields import Policy
from pliant.core.values import Generation, Lineage, NodeId, ReplicaId

SETTINGS = JobSettings()
RUN = "weight float32 [1, 4]\nbias float32 [1]\nlayout a"


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
    assert [found.name for found in after_saving(1).checkpoints.saved] == ["4/1"]


def test_what_another_history_has_saved_does_not_count() -> None:
    job = after_saving(0)

    assert (job.checkpoints.saved, job.checkpoints.exist) == ((), False)


@pytest.mark.parametrize("phase", Phase)
def test_who_may_publish_what_is_lost_is_waited_for_however_late_it_asks(phase: Phase) -> None:
    asked = PublishAsked(replica=ReplicaId("r1"), lineage=Lineage(1), committed=4, checkpoint="4/1")
    job = after_saving(0)
    began_s = job.start.by_s
    membership = replace(job.membership, phase=phase)
    late_s = began_s + 100.0

    tx = Transaction(
        job=draft_of(replace(job, membership=membership)), now_s=late_s, settings=SETTINGS
    )
    on_worker_event(tx, asked)

    wait_s = late_s + SETTINGS.start_wait_s
    assert tx.job.start.by_s == (wait_s if phase is Phase.LOST else began_s)
    assert tx.job.checkpoints.publishers == {"r1"}


def spare(layout: str) -> Spare:
    return Spare(replica=ReplicaId("r1"), calls=0, num_slots=8, layout=layout, endpoint="r1:1")


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (RUN, None),
        ("weight float32 [1, 4]\nlayout b", "its model lacks bias float32 [1], which the run has"),
        (
            "weight float32 [1, 4]\nbias float32 [1]\nmore float32 [2]\nlayout b",
            "its model has more float32 [2], which the run has not",
        ),
        (
            "weight float32 [1, 5]\nbias float32 [1]\nlayout b",
            "its model has weight float32 [1, 5] where the run has weight float32 [1, 4]",
        ),
        ("layout b", "its model lacks weight float32 [1, 4], which the run has"),
        ("weight float32 [1, 4]", "its model has other parameters than the run's"),
    ],
)
def test_another_model_is_named_by_its_first_difference(layout: str, sentence: str | None) -> None:
    assert difference(spare(layout), spare(RUN)) == sentence


@pytest.mark.parametrize("name", ["kernels", "numerics"])
def test_a_host_that_rounds_differently_is_told_what_to_set(name: str) -> None:
    """Seen: the values alone, and nobody knows what a digest is."""
    mine, theirs = (replace(spare(RUN), identity=((name, word),)) for word in ("here", "there"))

    assert difference(mine, theirs) == (
        f"its {name} is here, the run has there: it rounds differently; give every host the same "
        "of MKL_*, ONEDNN_*, DNNL_*, OMP_* and ATEN_CPU_CAPABILITY; unlike processors may agree "
        "with ATEN_CPU_CAPABILITY=avx2, MKL_CBWR=COMPATIBLE and ONEDNN_MAX_CPU_ISA=AVX2 on all"
    )


def test_another_device_is_named_and_what_accepts_it() -> None:
    mine, theirs = (
        replace(spare(RUN), identity=(("device", word), ("device_blas", word)))
        for word in ("here", "there")
    )

    assert difference(mine, theirs) == (
        "its device is here, the run has there: it may round differently; give every replica the "
        'same device and libraries, or accept unlike ones with Session(reduction="fast")'
    )


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_replicas_on_another_kind_of_device_are_refused(reduction: str) -> None:
    mine, theirs = (
        replace(spare(layout), identity=(("device_type", kind), ("reduction", reduction)))
        for kind, layout in (("cpu", RUN), ("xpu", f"{RUN} of another device"))
    )

    assert difference(mine, theirs) == (
        "its device_type is cpu, the run has xpu; replicas need one kind"
    )


def test_fast_mode_accepts_unlike_devices() -> None:
    mine, theirs = (
        replace(spare(RUN), identity=(("device", word), ("reduction", "fast")))
        for word in ("here", "there")
    )

    assert difference(mine, theirs) is None


def test_a_sample_that_differs_is_named_and_one_that_only_one_side_has_is_not() -> None:
    mine, theirs, slow = (
        replace(spare(RUN), identity=words)
        for words in ((("sample 0", "a"), ("sample 9", "b")), (("sample 9", "c"),), ())
    )

    assert difference(mine, theirs) == (
        "its sample 9 of the dataset is another than the run's; give every host the same data and "
        "what reads them, and seed what makes data before the session"
    )
    assert difference(mine, slow) is None
    assert difference(slow, mine) is None


def test_how_far_a_call_goes_must_be_as_in_the_run() -> None:
    """Seen: a joiner that loaded a snapshot of its own ended the job as finished at step 203."""
    run, same, less, later = (
        replace(spare(RUN), identity=(("reduction", "fast"), (f"total of steps() {call}", total)))
        for call, total in ((0, "240"), (0, "240"), (0, "40"), (1, "40"))
    )

    assert difference(same, run) is None
    assert difference(later, run) is None
    assert difference(less, run) == (
        "its steps() goes to step 40, the run's to step 240: the number counts from the job's "
        "first step, on every replica alike. Load no snapshot of your own, for "
        "Session(checkpoint=...) keeps the run, and write a number that nothing changes meanwhile"
    )


def test_failures_before_the_first_step_have_a_budget_of_their_own() -> None:
    job, _ = controller.begin(now_s=0.0, settings=SETTINGS)
    tx = Transaction(job=draft_of(job), now_s=1.0, settings=SETTINGS)

    def lost(count: int) -> bool:
        for _ in range(count):
            charge(tx, ExitKind.SIGNAL, "r1 was killed")
        return is_spent(tx)

    assert not lost(SETTINGS.restart_budget)
    assert lost(1)
    tx.job = replace(tx.job, membership=replace(tx.job.membership, committed=3))
    assert not is_spent(tx)
    assert not lost(SETTINGS.restart_budget)
    assert lost(1)


def test_who_sees_more_samples_before_the_first_step_is_begun_with() -> None:
    """Seen: a replica that began to read half a file had the one refused that saw all of it."""

    def reads(name: str, count: str) -> Spare:
        words = (("dataset_samples", count), ("seed", "1"))
        return replace(spare(RUN), replica=ReplicaId(name), identity=words)

    settings = replace(SETTINGS, policy=Policy(max_replicas=2))
    job, _ = controller.begin(now_s=0.0, settings=settings)
    for event in (
        NodeJoined(node=NodeId("n1"), devices=2),
        reads("r1", "1000"),
        reads("r2", "20000"),
    ):
        job, ready = controller.step(job, event, now_s=1.0, settings=settings)

    assert job.start.reference == reads("r2", "20000")
    assert [one.replica for one in ready.commands if isinstance(one, EndReplica)] == ["r1"]
    assert (job.replicas[ReplicaId("r2")].state, job.budget.losses) == (ReplicaState.SPARE, ())
    less = difference(reads("r3", "1000"), reads("r2", "20000"))
    assert less is not None
    assert less.startswith("its dataset_samples is 1000, the run has 20000; if the script writes")
    assert not has_more_samples(reads("r3", "1000"), reads("r2", "20000"))


def test_who_differs_before_the_first_step_is_refused_once_and_the_others_begin() -> None:
    """Seen: one with another total spent the restart budget in five seconds, six starts."""

    def asks(name: str, total: str) -> Spare:
        words = (("total of steps() 0", total),)
        return replace(spare(RUN), replica=ReplicaId(name), identity=words)

    settings = replace(SETTINGS, policy=Policy(max_replicas=2))
    job, _ = controller.begin(now_s=0.0, settings=settings)
    for event in (
        NodeJoined(node=NodeId("n1"), devices=2),
        asks("r1", "200"),
        asks("r2", "70"),
    ):
        job, ready = controller.step(job, event, now_s=1.0, settings=settings)

    assert (job.budget.losses, set(job.nodes.held), list(job.replicas)) == (
        (),
        {"n1"},
        ["r1", "r2"],
    )
    assert any(isinstance(one, Reform | Prepare) for one in ready.commands)
    answers: list[Event] = [
        Prepared(replica=ReplicaId("r1"), generation=Generation(1)),
        Exited(replica=ReplicaId("r2"), kind=ExitKind.LEFT),
    ]
    for answer in answers:
        job, ready = controller.step(job, answer, now_s=2.0, settings=settings)
    assert (ready.commands, list(job.replicas)) == ((), ["r1"])
