"""The audit passes exactly when every sample counted once, and says what is wrong otherwise."""

from __future__ import annotations

import json
import resource
import tracemalloc
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.core.step import order
from pliant.observe import audit as audit_module
from pliant.observe import parts
from pliant.observe.audit import Audit, audit_ledgers, audit_run, committed_in
from pliant.observe.audit_plan import AuditPlan, plan_of
from pliant.observe.history import Carried
from pliant.observe.ledgers import LedgerFile, ledgers_in
from pliant.observe.log import EventLog
from pliant.observe.reading import only


def audit_of(
    ledgers: Mapping[str, Iterable[dict[str, Any]]], plan: AuditPlan | None, *, first_step: int = 0
) -> Audit:
    """Audit the lines of all replicas; the result does not depend on their order."""
    with TemporaryDirectory() as directory:
        given = [a_ledger(Path(directory), *one) for one in ledgers.items()]
        return audit_ledgers(given, plan, committed_in(given), first_step=first_step)


def a_ledger(directory: Path, replica: str, lines: Iterable[dict[str, Any]]) -> LedgerFile:
    path = directory / f"{replica}.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return LedgerFile(replica, path, path.stat().st_size)


Line = dict[str, Any]

PLAN = AuditPlan(seed=1, num_samples=37, num_slots=4, global_batch=8, micro_batch=2)


def spare(replica: str = "r1", plan: AuditPlan = PLAN) -> Line:
    identity = {
        "seed": plan.seed,
        "num_slots": plan.num_slots,
        "global_batch_size": plan.global_batch,
        "micro_batch_size": plan.micro_batch,
        "dataset_samples": plan.num_samples,
        "shuffle": plan.shuffle,
        "drop_last": plan.drop_last,
        "torch": "2.13.0",
    }
    pairs = [[name, str(value)] for name, value in identity.items()]
    return {"v": 1, "kind": "spare", "replica": replica, "identity": pairs}


def ids(plan: AuditPlan, step: int, slot: int) -> list[int]:
    epoch = step // plan.steps_per_epoch
    key = order.key(plan.seed, epoch)
    positions = plan.slot_positions(step, slot)
    if not plan.shuffle:
        return list(positions)
    return [order.permute(at, size=plan.num_samples, key=key) for at in positions]


def slot_lines(
    step: int,
    *,
    generation: int = 1,
    lineage: int = 1,
    slots: range | None = None,
    plan: AuditPlan = PLAN,
) -> list[Line]:
    return [
        {
            "lineage": lineage,
            "step": step,
            "generation": generation,
            "slot": slot,
            "ids": ids(plan, step, slot),
        }
        for slot in (range(plan.num_slots) if slots is None else slots)
    ]


def commit_line(
    step: int, *, generation: int = 1, lineage: int = 1, digest: str | None = None
) -> Line:
    return {
        "lineage": lineage,
        "step": step,
        "generation": generation,
        "commit": True,
        "digest": f"d{step}" if digest is None else digest,
    }


def done(step: int, *, generation: int = 1, lineage: int = 1, plan: AuditPlan = PLAN) -> list[Line]:
    return [
        *slot_lines(step, generation=generation, lineage=lineage, plan=plan),
        commit_line(step, generation=generation, lineage=lineage),
    ]


def steps(*numbers: int, **where: Any) -> list[Line]:
    return [line for number in numbers for line in done(number, **where)]


def audited(*lines: Line, **others: list[Line]) -> Audit:
    return audit_of({"r1": list(lines), **others}, PLAN)


def test_a_run_of_one_replica_passes() -> None:
    audit = audited(*steps(*range(12)))

    assert audit.problems == []
    assert audit.exactly_once
    assert (audit.committed_steps, audit.epochs) == (12, 3)
    assert audit.committed_samples == 37 + 37 + 2 * 8


def test_two_replicas_share_the_slots() -> None:
    halves = [[*slot_lines(0, slots=part), commit_line(0)] for part in (range(2), range(2, 4))]

    assert audited(*halves[0], r2=halves[1]).exactly_once


def test_lines_of_an_attempt_that_nobody_committed_count_for_nothing() -> None:
    abandoned = slot_lines(1, generation=1, slots=range(2))

    audit = audited(*steps(0), *abandoned, *steps(1, generation=2))

    assert audit.exactly_once
    assert audit.uncommitted == 2


def test_equal_duplicates_are_accepted_and_counted() -> None:
    audit = audited(*steps(0), r2=slot_lines(0, slots=range(1)))

    assert (audit.exactly_once, audit.duplicates) == (True, 1)


def test_samples_without_a_backward_are_counted_where_they_were_committed() -> None:
    def half(slots: range, generation: int) -> list[Line]:
        lines = slot_lines(1, generation=generation, slots=slots)
        return [{**line, "unused": True} for line in lines]

    abandoned = half(range(4), 1)
    counted = [*slot_lines(1, generation=2, slots=range(2)), *half(range(2, 4), 2)]

    audit = audited(*steps(0), *abandoned, *counted, commit_line(1, generation=2))

    assert (audit.exactly_once, audit.unused_samples) == (True, 4)


def test_a_commit_made_by_two_generations_with_one_result_is_accepted() -> None:
    both = [*steps(0), *steps(1), *slot_lines(1, generation=2), commit_line(1, generation=2)]

    assert audited(*both).exactly_once


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "the ledger has no committed step"),
        (
            [*steps(0), *slot_lines(1, slots=range(3)), commit_line(1)],
            "step 1 was committed in generation 1, but nobody recorded its micro-batch 3",
        ),
        (
            [*steps(0), *slot_lines(1, generation=1), commit_line(1, generation=2)],
            "step 1 was committed in generation 2, but nobody recorded its micro-batch 0",
        ),
        ([*steps(0, 2)], "step 1 was never committed although a later one was"),
        (
            [*steps(0), commit_line(0, digest="other")],
            "step 0 was committed with two results in generation 1",
        ),
        (
            [*steps(0), *slot_lines(0, generation=2), commit_line(0, generation=2, digest="x")],
            "step 0 was committed with different results in generations 1, 2",
        ),
        (
            [*steps(0), {**slot_lines(0)[2], "ids": [0, 1]}],
            "micro-batch 2 of step 0 was computed twice in generation 1, with different samples",
        ),
        (
            [
                {**slot_lines(0)[0], "ids": [5, 5]},
                *slot_lines(0, slots=range(1, 4)),
                commit_line(0),
            ],
            "micro-batch 0 of step 0 had other samples than the seed's",
        ),
        (
            [*steps(0), {**slot_lines(0)[0], "slot": 9}],
            "step 0 has a micro-batch 9, but a step has 4",
        ),
        (
            [*steps(0), commit_line(0, lineage=-1)],
            "the ledger of r1 has a line without meaning:"
            " ValueError('lineage -1, step 0, generation 1')",
        ),
        (
            [*steps(0), commit_line(-4)],
            "the ledger of r1 has a line without meaning:"
            " ValueError('lineage 1, step -4, generation 1')",
        ),
        (
            [*steps(0), {"lineage": 1, "step": 0}],
            "the ledger of r1 has a line without meaning: KeyError('generation')",
        ),
    ],
)
def test_each_fault_is_named(lines: list[Line], problem: str) -> None:
    audit = audited(*lines)

    assert problem in audit.problems
    assert not audit.exactly_once


def test_a_later_lineage_supersedes_from_its_first_step_on() -> None:
    first = [*steps(0, 1), *slot_lines(2), commit_line(2, digest="old"), *steps(3)]

    audit = audited(*first, *steps(2, 3, 4, lineage=2, generation=7))

    assert audit.problems == []
    assert audit.committed_steps == 5


def test_the_plan_is_what_the_replicas_reported() -> None:
    assert plan_of([spare("r1"), spare("r2")]) == (PLAN, "")


def test_replicas_with_different_plans_are_a_problem() -> None:
    other = AuditPlan(seed=2, num_samples=37, num_slots=4, global_batch=8, micro_batch=2)

    assert plan_of([spare("r1"), spare("r2", other)]) == (
        None,
        "the replicas r1 and r2 had different plans",
    )


def test_the_plan_of_a_refused_joiner_does_not_count() -> None:
    other = AuditPlan(seed=2, num_samples=37, num_slots=4, global_batch=8, micro_batch=2)
    refused = {"v": 1, "kind": "refused", "replica": "r2", "joiner": True}

    assert plan_of([spare("r1"), spare("r2", other), refused]) == (PLAN, "")


def test_the_plan_of_a_dismissed_joiner_does_not_count_if_it_is_another() -> None:
    other = AuditPlan(seed=2, num_samples=38, num_slots=4, global_batch=8, micro_batch=2)
    dismissed = {"v": 1, "kind": "dismiss", "to": ["r2"]}

    assert plan_of([spare("r1"), spare("r2", other), dismissed]) == (PLAN, "")
    assert plan_of([spare("r2"), dismissed]) == (PLAN, "")


def test_what_was_not_logged_of_a_plan_is_said_again_to_another_coordinator() -> None:
    again = {"v": 1, "kind": "registered", "replica": "r1", "spare": spare("r1")}

    assert plan_of([again]) == (PLAN, "")
    assert plan_of([{**again, "spare": None}]) == (None, "")


def test_the_plan_of_one_that_has_ended_and_never_trained_does_not_count_if_it_is_another() -> None:
    """Its coordinator was killed between dismissing it and the line that says so."""
    other = AuditPlan(seed=2, num_samples=38, num_slots=4, global_batch=8, micro_batch=2)
    exited = {"v": 1, "kind": "exited", "replica": "r2"}
    trained = {"v": 1, "kind": "switched", "replica": "r2"}

    assert plan_of([spare("r1"), spare("r2", other), exited]) == (PLAN, "")
    assert plan_of([spare("r1"), spare("r2", other), trained, exited])[0] is None
    assert plan_of([spare("r2"), exited]) == (PLAN, "")


def test_without_a_plan_nothing_is_proved() -> None:
    audit = audit_of({"r1": steps(0)}, None)

    assert audit.problems == [
        "no replica reported its plan, so the order of samples cannot be checked"
    ]


def test_a_long_list_of_problems_is_cut() -> None:
    audit = audited(*[commit_line(step) for step in range(100)])

    assert len(audit.problems) == 21
    assert audit.problems[-1] == "and more of the same"


def test_dropped_samples_are_not_missed_if_that_was_the_plan() -> None:
    plan = AuditPlan(
        seed=3, num_samples=37, num_slots=4, global_batch=8, micro_batch=2, drop_last=True
    )

    audit = audit_of({"r1": steps(*range(8), plan=plan)}, plan)

    assert audit.problems == []
    assert audit.committed_samples == 64


def test_a_torn_last_line_is_no_problem(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger" / "r1.jsonl"
    ledger.parent.mkdir()
    lines = steps(0, 1)
    (tmp_path / "events.jsonl").write_text(json.dumps(spare()) + "\n")
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"lineage": 1, "st')

    audit = audit_run(tmp_path)

    assert (audit.problems, audit.torn) == ([], 1)


def test_a_run_that_goes_on_while_it_is_read_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps(spare()) + "\n")
    ledgers = {tmp_path / "ledger" / "r1.jsonl": range(2), tmp_path / "ledger" / "r2.jsonl": (2, 3)}
    (tmp_path / "ledger").mkdir()

    def train(step: int) -> None:
        lines = slot_lines(step)
        for path, owned in ledgers.items():
            with path.open("a") as file:
                for line in (*(lines[slot] for slot in owned), commit_line(step)):
                    file.write(json.dumps(line) + "\n")

    def look_and_train(directory: Path) -> list[LedgerFile]:
        found = ledgers_in(directory)
        train(1)
        return found

    train(0)
    monkeypatch.setattr(audit_module, "ledgers_in", look_and_train)

    audit = audit_run(tmp_path)

    assert (audit.problems, audit.committed_steps, audit.uncommitted) == ([], 1, 4)


@settings(max_examples=60, deadline=None)
@given(
    num_samples=st.integers(4, 60),
    num_slots=st.integers(1, 6),
    micro_batch=st.integers(1, 3),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_any_honest_ledger_passes_and_any_one_changed_sample_fails(
    num_samples: int,
    num_slots: int,
    micro_batch: int,
    shuffle: bool,
    drop_last: bool,
    seed: int,
    data: st.DataObject,
) -> None:
    batch = num_slots * micro_batch
    plan = AuditPlan(
        seed=seed,
        num_samples=max(num_samples, batch),
        num_slots=num_slots,
        global_batch=batch,
        micro_batch=micro_batch,
        shuffle=shuffle,
        drop_last=drop_last,
    )
    lines = steps(*range(data.draw(st.integers(1, 12))), plan=plan)
    shuffled = data.draw(st.permutations(lines))
    split = data.draw(st.integers(0, len(lines)))
    ledgers = {"r1": shuffled[:split], "r2": shuffled[split:]}
    assert audit_of(ledgers, plan).problems == []

    victims = [line for line in lines if line.get("ids")]
    victim = data.draw(st.sampled_from(victims))
    changed = [*victim["ids"]]
    changed[0] = (changed[0] + 1) % plan.num_samples
    corrupted = [{**line, "ids": changed} if line is victim else line for line in lines]

    assert changed == victim["ids"] or not audit_of({"r1": corrupted}, plan).exactly_once


DRAWN = AuditPlan(
    seed=1,
    num_samples=9,
    num_slots=4,
    global_batch=8,
    micro_batch=2,
    sampler="WeightedRandomSampler",
    num_draws=21,
    first_draws=order.digest([4, 4, 0] * 7),
)
"""An epoch of two whole steps and one of five draws, of three samples out of nine."""


def drawn(step: int, *, draws: str | None = None, generation: int = 1) -> list[Line]:
    epoch = [4, 4, 0] * 7 if step < 3 else [8, 1, 1] * 7
    own = [epoch[position] for position in DRAWN.positions(step)]
    place = {"lineage": 1, "step": step, "generation": generation}
    slots = [
        {**place, "slot": slot, "ids": own[slot * 2 : slot * 2 + 2]}
        for slot in range(4)
        if own[slot * 2 : slot * 2 + 2]
    ]
    said = order.digest(own) if draws is None else draws
    return [*slots, {**place, "commit": True, "digest": f"d{step}", "draws": said}]


def drawn_audit(*lines: list[Line], **others: list[Line]) -> Audit:
    return audit_of({"r1": [line for part in lines for line in part], **others}, DRAWN)


def test_with_a_sampler_each_draw_counts_once() -> None:
    audit = drawn_audit(*map(drawn, range(5)))

    assert audit.problems == []
    assert (audit.sampler, audit.committed_samples) == ("WeightedRandomSampler", 21 + 16)


def test_the_plan_of_a_sampler_is_read_from_the_identity() -> None:
    line = spare(plan=DRAWN)
    line["identity"] += [
        ["sampler", DRAWN.sampler],
        ["num_draws", str(DRAWN.num_draws)],
        ["first_draws", DRAWN.first_draws],
    ]

    assert plan_of([line]) == (DRAWN, "")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            [*drawn(0)[:3], {**drawn(0)[3], "ids": [4, 8]}, drawn(0)[-1]],
            "step 0 used other samples than the sampler drew for it",
        ),
        (
            [*drawn(0)[:3], {**drawn(0)[3], "ids": [4]}, drawn(0)[-1]],
            "micro-batch 3 of step 0: 1 draws, not 2",
        ),
        (
            [*drawn(0)[:3], {**drawn(0)[3], "ids": [4, 1 << 80]}, drawn(0)[-1]],
            "epoch 0 used samples that the data set does not have",
        ),
        (
            [*drawn(0), drawn(0, draws="other")[-1]],
            "the samplers of the replicas drew different samples for step 0",
        ),
        ([*drawn(0)[:3], drawn(0)[-1]], "but nobody recorded its micro-batch 3"),
        ([*drawn(0)[:-1], drawn(0, draws="")[-1]], "step 0 used other samples than the sampler"),
        ([*drawn(0), *drawn(2)], "step 1 was never committed"),
    ],
)
def test_draws_that_were_lost_or_changed_are_found(lines: list[Line], problem: str) -> None:
    problems = drawn_audit(lines).problems

    assert any(problem in sentence for sentence in problems), problems


def test_an_epoch_that_all_replicas_drew_otherwise_than_at_the_start_is_found() -> None:
    other = AuditPlan(
        **{name: getattr(DRAWN, name) for name in AuditPlan.__slots__} | {"first_draws": "other"}
    )
    lines = [line for step in range(3) for line in drawn(step)]

    problems = audit_of({"r1": lines}, other).problems

    assert problems == ["epoch 0 used other samples than the sampler drew when the run began"]


def test_a_sample_that_comes_twice_in_an_epoch_is_found() -> None:
    lines = steps(*range(3))
    lines[6]["ids"] = lines[0]["ids"]

    assert "epoch 0 used 2 sample(s) twice" in audited(*lines).problems


def test_an_order_that_is_no_permutation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AuditPlan, "sample", lambda plan, epoch, position: position // 2)
    lines = steps(*range(PLAN.steps_per_epoch))
    for line in lines:
        if "slot" in line:
            line["ids"] = [at // 2 for at in PLAN.slot_positions(line["step"], line["slot"])]

    assert audited(*lines).problems[0] == "the order of epoch 0 is no permutation of the samples"


@pytest.mark.parametrize("most", [1 << 53, 10**30])
@pytest.mark.parametrize(
    "names",
    [["num_slots"], ["micro_batch"], ["num_samples", "global_batch", "micro_batch", "num_slots"]],
)
def test_a_damaged_plan_takes_no_longer_than_what_there_is(names: list[str], most: int) -> None:
    """A command that audits, and a coordinator that condenses, went on for ever."""
    sizes: dict[str, Any] = dict.fromkeys(names, most)
    plan, _ = plan_of([spare(plan=replace(PLAN, **sizes))])

    audit = audit_of({"r1": steps(0, 1)}, plan)

    is_as_good = names == ["num_slots"] and plan is not None  # what no step has is missed in none
    assert audit.exactly_once == is_as_good


def test_a_data_set_may_have_more_samples_than_a_memory_has_bytes() -> None:
    """An audit took two bytes for each of its samples, and 3 us."""
    plan = replace(PLAN, num_samples=10**15)

    audit = audit_of({"r1": steps(*range(9), plan=plan)}, plan)

    assert (audit.problems, audit.committed_samples, audit.epochs) == ([], 72, 1)


def test_what_a_restore_undid_is_counted_and_counts_for_nothing_else() -> None:
    first = [line for step in range(6) for line in done(step)]
    second = [line for step in range(4, 8) for line in done(step, generation=2, lineage=2)]

    audit = audit_of({"r1": first, "r2": second}, PLAN)

    assert audit.exactly_once, audit.problems
    assert (audit.committed_steps, audit.superseded) == (8, 2)


def test_a_run_may_begin_at_the_step_of_a_checkpoint_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    lines = [line for step in range(3, 9) for line in done(step, generation=1, lineage=2)]
    (tmp_path / "ledger" / "r1.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    restore = {"checkpoint": "step-3", "committed": 3, "lineage": 2}
    order = {"generation": 1, "members": [], "restore": restore}
    events = [spare(), {"v": 1, "kind": "switch", "order": order}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))

    audit = audit_run(tmp_path)

    assert audit.exactly_once, audit.problems
    assert (audit.first_step, audit.committed_steps) == (3, 6)


def write_run(out: Path, ledgers: dict[str, list[Line]], events: list[Line]) -> None:
    (out / "ledger").mkdir()
    for replica, lines in ledgers.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (out / "ledger" / f"{replica}.jsonl").write_text(text)
    (out / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_files_are_merged_though_their_replicas_came_and_went(tmp_path: Path) -> None:
    early = [line for step in range(4) for line in (*slot_lines(step), commit_line(step))]
    late = [line for step in range(4, 9) for line in done(step, generation=2)]
    again = [line for step in range(6, 12) for line in done(step, generation=3, lineage=2)]
    write_run(tmp_path, {"r9": early, "r2": late, "r10": again}, [spare()])

    audit = audit_run(tmp_path)

    assert audit.exactly_once, audit.problems
    assert (audit.committed_steps, audit.superseded) == (12, 3)
    assert audit == audit_of({"r9": early, "r2": late, "r10": again}, PLAN)


def entered(generation: int, *members: str) -> Line:
    seats = [{"replica": name} for name in members]
    return {"v": 1, "kind": "switch", "order": {"generation": generation, "members": seats}}


def halves(step: int, generation: int = 1) -> tuple[list[Line], list[Line]]:
    """Return what each of two replicas records of a step."""
    commit = commit_line(step, generation=generation)
    parts = (range(2), range(2, 4))
    first, second = ([*slot_lines(step, generation=generation, slots=s), commit] for s in parts)
    return first, second


EXITED = {"v": 1, "kind": "exited", "replica": "r2", "exited_kind": "finished"}


@pytest.mark.parametrize("has_exited", [False, True])
def test_records_that_went_with_a_host_are_not_covered_and_are_no_problem(
    tmp_path: Path, *, has_exited: bool
) -> None:
    """A host that was reaped has sent all: then a record that is missing is a fault."""
    both = [halves(step) for step in range(3)]
    mine = [line for first, _ in both for line in first] + steps(3, 4, generation=2)
    theirs = both[0][1] + both[1][1][:1]  # killed while it recorded step 1, with step 2 to send
    events = [spare(), entered(1, "r1", "r2"), entered(2, "r1"), *([EXITED] if has_exited else [])]
    write_run(tmp_path, {"r1": mine, "r2": theirs}, events)

    audit = audit_run(tmp_path)

    assert not audit.exactly_once
    assert audit.committed_steps == 5
    if has_exited:
        assert (len(audit.problems), audit.uncovered) == (4, [])  # three slots, and the epoch
    else:
        said = "records of steps 1 to 2 are missing: r2 went with the host before it had sent them"
        assert (audit.problems, audit.uncovered, audit.uncovered_steps) == ([], [said], 2)


def test_a_wrong_sample_is_a_problem_in_a_step_that_is_not_covered(tmp_path: Path) -> None:
    mine = halves(0)[0]
    mine[0]["ids"] = mine[1]["ids"]
    write_run(tmp_path, {"r1": mine}, [spare(), entered(1, "r1", "r2")])

    audit = audit_run(tmp_path)

    wrong = "micro-batch 0 of step 0 had other samples than the seed's"
    assert audit.problems == [wrong, "epoch 0 used 2 sample(s) twice"]
    assert audit.uncovered_steps == 1


def test_what_only_a_coordinator_before_had_is_not_covered(tmp_path: Path) -> None:
    """Nothing is left of steps 0 and 1, and half of step 2; of step 4 all must be here."""
    began = {"v": 1, "kind": "core_began", "register": {"generation": 2}}
    mine = [*halves(2)[0], *steps(3, generation=2), *halves(4, generation=3)[0]]
    write_run(tmp_path, {"r1": mine}, [began, spare(), entered(3, "r1")])

    audit = audit_run(tmp_path)

    assert audit.problems == [
        "step 4 was committed in generation 3, but nobody recorded its micro-batch 2"
    ]
    assert audit.uncovered == [
        "records of steps 0 to 2 are missing: a coordinator before this one had them, and its files"
        " are not here"
    ]
    assert audit.uncovered_steps == 3


def test_a_ledger_out_of_order_is_audited_as_well(tmp_path: Path) -> None:
    lines = steps(*range(6))
    write_run(tmp_path, {"r1": lines[10:] + lines[:10]}, [spare()])

    assert audit_run(tmp_path) == audit_of({"r1": lines}, PLAN)


def test_more_replicas_than_descriptors_can_be_audited(tmp_path: Path) -> None:
    ledgers = {f"r{step}": done(step) for step in range(80)}
    write_run(tmp_path, ledgers, [spare()])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, hard)
    )
    try:
        audit = audit_run(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (audit.exactly_once, audit.committed_steps) == (True, 80)


def test_memory_does_not_grow_with_the_ledgers(tmp_path: Path) -> None:
    """It was about 12 times their size."""
    write_run(tmp_path, {"r1": steps(*range(1500))}, [spare()])
    size = (tmp_path / "ledger" / "r1.jsonl").stat().st_size

    audit_run(tmp_path)  # imports what it needs
    tracemalloc.start()
    audit = audit_run(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert audit.exactly_once
    assert peak < size / 2


def test_memory_does_not_grow_with_the_draws_of_an_epoch(tmp_path: Path) -> None:
    """A coordinator audits whole epochs while it serves the job."""
    plan = replace(DRAWN, num_samples=1 << 30, num_draws=1 << 20, micro_batch=16, global_batch=64)
    lines = []
    for step in range(800):
        place = {"lineage": 1, "step": step, "generation": 1}
        own = [(step * 64 + at) * 9973 for at in range(64)]
        lines += [{**place, "slot": at, "ids": own[at * 16 : at * 16 + 16]} for at in range(4)]
        lines.append({**place, "commit": True, "digest": "d", "draws": order.digest(own)})
    line = spare(plan=plan)
    line["identity"] += [
        [name, str(getattr(plan, name))] for name in ("sampler", "num_draws", "first_draws")
    ]
    write_run(tmp_path, {"r1": lines}, [line])
    size = (tmp_path / "ledger" / "r1.jsonl").stat().st_size

    audit_run(tmp_path)  # imports what it needs
    tracemalloc.start()
    audit = audit_run(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (audit.exactly_once, audit.committed_samples) == (True, 800 * 64)
    assert peak < size / 2


def test_a_cut_log_proves_what_it_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans, the first step and how it was started lie in parts that are gone."""
    monkeypatch.setattr(parts, "KEPT_PARTS", 1)
    other = AuditPlan(seed=2, num_samples=37, num_slots=4, global_batch=8, micro_batch=2)
    write_run(tmp_path, {"r1": steps(*range(3, 9))}, [])
    log, carried = EventLog(tmp_path / "events.jsonl", job="j"), Carried()
    log.carried = carried.records
    log.subscribe(carried.add)
    order = {"generation": 1, "members": [], "restore": {"committed": 3}}
    log.write("job_started", command=["train.py"])
    log.write("spare", replica="r0", identity=spare(plan=other)["identity"])
    log.write("spare", replica="r1", identity=spare()["identity"])
    log.write("refused", replica="r0", joiner=True)
    log.write("switch", order=order)
    log.write("switched", replica="r1", generation=1)
    for _ in range(5):
        assert log.cut()
        log.write("note", text="nothing")
    log.close()
    assert parts.closed(log.path) == [4]

    audit = audit_run(tmp_path)

    assert audit.exactly_once, audit.problems
    assert (audit.first_step, audit.committed_steps) == (3, 6)
    assert [r["command"] for r in only(log.path, "job_started")] == [["train.py"]]

    first = parts.closed_path(log.path, 4)
    first.write_text("".join(first.read_text().splitlines(keepends=True)[1:]))
    assert "the beginning of the event log is gone" in "".join(audit_run(tmp_path).problems)
