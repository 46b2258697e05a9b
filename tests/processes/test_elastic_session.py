"""Whatever happens to its replicas, a run ends as the run that nobody touched.

Real processes under a real agent; the reference is the same model trained alone in this process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine import models
from tests.processes.elastic import (
    also_in_two_workers,
    drain,
    kill,
    reference,
    run,
    run_until_over,
    scale,
    wait_for_members,
)
from tests.processes.launching import RunningJob

import pliant
from pliant.observe.audit import audit_run
from pliant.observe.condensing import condense

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def nothing(job: RunningJob) -> None:
    """Let the faults of the plan happen."""


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("gpt", None),
        ("cnn", {"num_workers": 2, "default_device": "meta"}),  # pliant's own tensors name theirs
        ("moe", None),
        pytest.param("frozen", {"options": {}}, marks=pytest.mark.soak),
        pytest.param("judged", {}, marks=pytest.mark.soak),
    ],
)
def test_join_drain_and_kill_leave_no_trace(tmp_path: Path, model: str, more: Any) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(3)
        assert "pliant-window" in Path(f"/proc/{job.pid_of('r1')}/maps").read_text()
        drain(job, "r1")
        wait_for_members(job, "r2")
        scale(job, 2)
        wait_for_members(job, "r2", "r3")
        kill(job, "r2")
        wait_for_members(job, "r3", "r4")

    options = None
    if more is None:  # these change nothing at a certain step
        outcome = run_until_over(tmp_path, model, play, replicas=2)
    else:
        options = more.get("options")
        outcome = run(tmp_path, model, 90, play, replicas=2, pace=0.03, **more)

    outcome.check(reference(model, outcome.steps, options=options))
    entered = {(one["replica"], one["generation"]): one for one in outcome.kinds("switched")}
    given = {name for (name, _), one in entered.items() if one["received_bytes"]}
    assert given == {"r2", "r3", "r4"}, "r1 began with the state, and the others were given it"
    assert all(one["received_s"] > 0 for one in entered.values() if one["received_bytes"])
    assert [r["exited_kind"] for r in outcome.kinds("exited")] == [
        "left",
        "signal",
        "finished",
        "finished",
    ]


def test_who_has_done_the_last_step_waits_for_no_replacement(tmp_path: Path) -> None:
    """r2 dies behind it, and who is started in its place never comes: the budget is spent then."""
    outcome = run(
        tmp_path,
        "moe",
        10,
        nothing,
        replicas=2,
        least=2,
        restarts=1,
        faults="r2@tail:9=SIGKILL,r1@tail:9=hang:2,r3@build=SIGSTOP",
    )

    outcome.check(reference("moe", 10))


@also_in_two_workers
@pytest.mark.parametrize("stages", ["extra_state", "behind its back"])
def test_a_dataset_that_a_tail_changes_reaches_a_joiner_or_is_told(
    tmp_path: Path, stages: str, workers: int
) -> None:
    outcome = run_until_over(
        tmp_path,
        "moe",
        lambda job: wait_for_members(job, "r1", "r3"),
        replicas=2,
        workers=workers,
        pace=0.03,
        faults="r2@tail:9=SIGKILL",
        options={"stages": stages},
    )

    texts = [
        (r["replica"], r["text"]) for r in outcome.kinds("note") if "dataset's 'stage'" in r["text"]
    ]
    if stages == "extra_state":
        outcome.check(reference("moe", outcome.steps, options={"stages": stages}))
        assert texts == []
    else:
        assert {replica for replica, _ in texts} == {"r3"}
        assert len(texts) == workers
        assert all(text.startswith("the dataset's 'stage' is 0 here and ") for _, text in texts)


@pytest.mark.parametrize(
    ("slots", "replicas", "micro_batch_size"),
    [
        (7, 3, 2),
        pytest.param(24, 3, 1, marks=pytest.mark.soak),
        (5, 4, 2),
        pytest.param(1, 1, 8, marks=pytest.mark.soak),
    ],
)
def test_any_number_of_replicas_gives_the_same_bits(
    tmp_path: Path, slots: int, replicas: int, micro_batch_size: int
) -> None:
    sizes: Any = {
        "global_batch_size": slots * micro_batch_size,
        "micro_batch_size": micro_batch_size,
    }

    outcome = run(tmp_path, "gpt", 6, nothing, replicas=replicas, **sizes)

    outcome.check(reference("gpt", 6, **sizes))
    assert len(outcome.digests) == replicas


def test_ledgers_that_are_condensed_while_replicas_come_and_go_prove_the_whole_run(
    tmp_path: Path,
) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(8)
        assert not condense(job.out, kept_steps=3), "each is written to"
        kill(job, "r2")
        wait_for_members(job, "r1", "r3")
        job.wait_for_steps(len(job.records("commit")) + 6)
        assert condense(job.out, kept_steps=3)

    outcome = run_until_over(tmp_path, "gpt", play, replicas=2, pace=0.03)

    outcome.check(reference("gpt", outcome.steps))
    assert sorted(path.stem for path in outcome.job.out.glob("ledger/*")) == ["r1", "r3"]
    audit = audit_run(outcome.job.out)
    assert audit.committed_steps == outcome.steps
    assert audit.condensed_steps > 8


def test_a_stopped_process_is_ended_and_replaced(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        "cnn",
        14,
        nothing,
        replicas=2,
        num_workers=1,
        faults="r2@micro_batch:5=SIGSTOP",
        settings={"heartbeat_s": 3.0},
    )

    outcome.check(reference("cnn", 14))


@pytest.mark.parametrize(
    ("point", "how"),
    [
        ("tail", "hang"),
        ("micro_batch", "lock"),
        pytest.param("tail", "lock", marks=pytest.mark.soak),
        pytest.param("micro_batch", "hang", marks=pytest.mark.soak),
    ],
)
def test_a_script_that_hangs_while_its_heartbeats_go_on_is_named_ended_and_replaced(
    tmp_path: Path, how: str, point: str
) -> None:
    """Also where it keeps the interpreter lock, and its agent speaks for it."""

    def look(job: RunningJob) -> None:
        with job.client() as client:
            job.wait_for(
                lambda: client.get("/v1/status").json()["waits_for"] == ["r2"], "it is named"
            )

    outcome = run(
        tmp_path,
        "gpt",
        12,
        look,
        replicas=3,
        faults=f"r2@{point}:5={how}:600",
        settings={"hang_s": 4.0},
    )

    outcome.check(reference("gpt", 12))
    # Its replacement may come too late, and is ended with the job.
    (ended,) = [one for one in outcome.kinds("end_replica") if one["replica"] != "r4"]
    assert ended["replica"] == "r2"
    assert "session.busy" in ended["reason"]


def test_a_pause_below_the_deadline_costs_nobody_a_place(tmp_path: Path) -> None:
    outcome = run(tmp_path, "moe", 12, nothing, replicas=2, faults="r2@reduced:5=hang:2")

    outcome.check(reference("moe", 12))
    assert [r["exited_kind"] for r in outcome.kinds("exited")] == ["finished", "finished"]


def test_a_joiner_with_another_model_is_refused_and_nobody_notices(tmp_path: Path) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        kill(job, "r2")
        job.wait_for(lambda: job.records("dismiss"), "r3 is dismissed")
        scale(job, 2)  # the next would differ as well, so it is started when somebody says so
        wait_for_members(job, "r1", "r4")

    outcome = run_until_over(tmp_path, "gpt", play, replicas=2, arguments=("--misfit", "r3"))

    outcome.check(reference("gpt", outcome.steps))
    (dismissed,) = outcome.kinds("dismiss")
    assert dismissed["reason"] == (
        "its model has token.weight float32 [256, 48] where the run has "
        "token.weight float32 [256, 32]"
    )


def test_a_stop_ends_all_replicas_after_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(job: RunningJob) -> None:
        job.wait_for_steps(5)
        with job.client() as client:
            client.post("/v1/stop").raise_for_status()

    kept = ("--checkpoint", tmp_path / "kept")
    outcome = run(tmp_path, "moe", 100_000, play, replicas=2, expected_code=3, arguments=kept)

    assert outcome.digests == []  # what stands behind the loop is for a run that is done
    (committed,) = {line["committed"] for line in outcome.kinds("finished")}
    monkeypatch.setenv("PLIANT_FROM_CHECKPOINT", "anyway")
    again = pliant.Checkpoint(tmp_path / "kept")
    assert reference("moe", committed, checkpoint=again) == reference("moe", committed)


@also_in_two_workers
def test_a_joiner_compiles_before_it_joins(tmp_path: Path, workers: int) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        kill(job, "r2")
        wait_for_members(job, "r1", "r3")

    outcome = run_until_over(tmp_path, "compiled", play, replicas=2, pace=0.01, workers=workers)

    assert {line["digest"] for line in outcome.digests} == {reference("compiled", outcome.steps)}


@also_in_two_workers
def test_a_break_on_all_replicas_ends_the_job(tmp_path: Path, workers: int) -> None:
    words = ("--break-at", "all", "5")
    outcome = run(tmp_path, "moe", 12, nothing, replicas=2, workers=workers, arguments=words)

    case = models.build("moe")
    assert {line["digest"] for line in outcome.digests} == {models.train(case, 6)}


def test_a_break_on_one_replica_is_refused(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        "moe",
        12,
        nothing,
        replicas=2,
        expected_code=2,
        arguments=("--break-at", "r1", "5"),
    )

    assert "one replica left the loop over session.steps() early" in outcome.job.said() + str(
        outcome.kinds("usage")
    )


@also_in_two_workers
def test_a_script_that_fails_on_one_replica_costs_the_others_nothing(
    tmp_path: Path, workers: int
) -> None:
    words = ("--fail-at", "r1", "5")
    outcome = run(tmp_path, "moe", 14, nothing, replicas=2, workers=workers, arguments=words)

    outcome.check(reference("moe", 14))
    assert outcome.kinds("traceback")[0]["text"].rstrip().endswith("the script failed")


@also_in_two_workers
def test_an_announced_evaluation_may_take_longer_than_every_deadline(
    tmp_path: Path, workers: int
) -> None:
    outcome = run(
        tmp_path,
        "judged",
        8,
        nothing,
        replicas=2,
        workers=workers,
        options={"slow_s": 0.8},
        settings={"hang_s": 2.0, "step_s": 2.0},
    )

    outcome.check(reference("judged", 8))
    assert [r["exited_kind"] for r in outcome.kinds("exited")] == ["finished", "finished"]


@also_in_two_workers
def test_what_a_script_does_on_one_replica_only_is_found_out(tmp_path: Path, workers: int) -> None:
    outcome = run(
        tmp_path,
        "moe",
        14,
        nothing,
        replicas=2,
        workers=workers,
        expected_code=2,
        arguments=("--spoil", "r1"),
    )

    assert "differs between replicas" in outcome.job.said() + str(outcome.kinds("usage"))


@also_in_two_workers
def test_weights_saved_at_the_end_are_written_whoever_dies_there(
    tmp_path: Path, workers: int
) -> None:
    saved = tmp_path / "weights.pt"
    arguments = ("--save", saved, "--die-before-save", "r1")
    outcome = run(tmp_path, "moe", 14, nothing, replicas=3, workers=workers, arguments=arguments)

    outcome.check(reference("moe", 14))
    case = models.build("moe")
    models.train(case, 14)
    weights = torch.load(saved, weights_only=True)
    assert all(torch.equal(weights[name], t) for name, t in case.model.state_dict().items())


@also_in_two_workers
def test_fast_reduction_gives_every_replica_the_same_weights(tmp_path: Path, workers: int) -> None:
    words = ("--reduction", "fast")
    outcome = run(tmp_path, "gpt", 8, nothing, replicas=3, workers=workers, arguments=words)

    assert len({line["digest"] for line in outcome.digests}) == 1
    assert len(outcome.digests) == 3 * workers


@also_in_two_workers
def test_a_state_that_cannot_be_sent_ends_the_job_within_its_budget(
    tmp_path: Path, workers: int
) -> None:
    outcome = run(
        tmp_path,
        "gpt",
        8,
        nothing,
        replicas=2,
        least=2,
        restarts=2,
        workers=workers,
        arguments=("--unsent",),
        expected_code=1,
    )

    (end,) = outcome.kinds("end_job")
    assert "the restart budget of 2 is spent and fewer than minReplicas=2 are left" in end["reason"]
    assert "was refused: the state cannot be sent: no memory to send from" in end["reason"]
