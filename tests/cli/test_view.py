"""People are told each thing once, in order, and only the output they asked for."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from tests.observe.story import Story, eventful
from tests.observe.whole_log import explained_of

from pliant.cli.screens import audit_text, decisions_table, job_panel, stalled_line
from pliant.cli.view import LiveView, PlainView, view_for
from pliant.observe.audit import Audit
from pliant.observe.goodput import goodput_of
from pliant.observe.status import board_of


def plain(show: str | None = None) -> tuple[PlainView, io.StringIO]:
    text = io.StringIO()
    return PlainView(Console(file=text, width=200), show=show), text


def told(story: Story) -> list[str]:
    view, text = plain()
    for record in story.records:
        view.record(record)
    return [line.partition("  ")[2] for line in text.getvalue().splitlines()]


def test_a_plain_view_has_a_line_per_event_and_of_progress_now_and_then() -> None:
    lines = told(eventful().planned(100))

    assert lines[:4] == [
        "r1 is starting on here",
        "r2 is starting on here",
        "r1 is ready to join",
        "r2 is ready to join",
    ]
    steps = [line.split()[1] for line in lines if line.startswith("step ")]
    assert steps == ["1/100", "26/100"]
    assert sum(" joined at step " in line for line in lines) == 2
    assert sum(" drained at step " in line for line in lines) == 1
    assert sum(" lost at step " in line for line in lines) == 1


def test_without_a_terminal_progress_is_told_by_time_and_at_the_end() -> None:
    story = Story().started().planned(500).start("r1").spare("r1").switch("r1")
    story.steps(400, step_s=0.02)  # 8 s
    assert [line.split()[1] for line in told(story)[-1:]] == ["1/500"]

    story.steps(3, step_s=15.0)
    story.steps(1, step_s=0.1)
    story.write("job_ended", exit_code=0, reason="finished")

    *_, before, last = told(story)
    steps = [line.split()[1] for line in told(story) if line.startswith("step ")]
    assert steps == ["1/500", "401/500", "402/500", "403/500", "404/500"]
    assert before.startswith("step 404/500")
    assert last == "the job ends with exit code 0: finished"


def test_a_resize_without_a_price_is_told_at_the_end() -> None:
    story = eventful().exited("r5", "signal", "SIGKILL").reform("r1", "r3")
    assert sum(" lost at step " in line for line in told(story)) == 1

    story.write("end_job", exit_code=0, reason="finished")

    assert sum(" lost at step " in line for line in told(story)) == 2


def test_a_resumed_run_does_not_tell_its_changes_again() -> None:
    before = eventful()
    view, text = plain()
    view.go_on(board_of(before.records))

    num_before = len(before.records)
    for record in (
        before.start("r9").spare("r9").switch("r1", "r3", "r5", "r9").steps(8).records[num_before:]
    ):
        view.record(record)

    changes = [line for line in text.getvalue().splitlines() if " at step " in line]
    assert len(changes) == 1, changes
    assert "r9 joined" in changes[0]


def test_a_resize_that_was_soon_replaced_is_told_with_the_next_one() -> None:
    story = Story().started().start("r1", "r2").spare("r1", "r2").switch("r1", "r2").steps(5)
    story.start("r3", "r4").spare("r3", "r4").switch("r1", "r2", "r3").steps(1)
    story.switch("r1", "r2", "r3", "r4").steps(4)

    lines = told(story)

    joined = [line.partition(" (")[0] for line in lines if " joined at step " in line]
    assert joined == [
        "r3 joined at step 5, generation 2, now 3 replicas",
        "r4 joined at step 6, generation 3, now 4 replicas",
    ]


def test_a_request_that_was_refused_is_told_with_its_reason_and_nothing_else() -> None:
    story = Story().started()
    why = "its script keeps no checkpoints to go on from; pliant stop ends it"
    story.write("declined", reason=why, request={"kind": "suspend_requested", "reason": ""})
    story.write(
        "declined",
        reason="r9 is not drained: no",
        request={"kind": "drain_requested", "replica": "r9"},
    )
    story.write("declined", reason="no", request={"kind": "scaled", "target": 9})
    story.write("declined", reason="of another version")

    assert told(story) == [
        f"refused to suspend: {why}",
        "refused to drain r9: no",
        "refused to scale to 9: no",
        "refused to do so: of another version",
    ]
    assert board_of(story.records).state == "starting"


def test_the_first_ctrl_c_says_what_a_second_one_does() -> None:
    story = Story().started()
    story.write("interrupted")
    story.write("stop_requested", at_once=False)

    assert told(story) == [
        "Ctrl-C again ends the job at once, and saves nothing more",
        "stopping at the next step boundary",
    ]


def test_a_note_that_every_replica_makes_is_told_once() -> None:
    story = Story()
    story.write("note", replica="r1", text="12 MB")
    story.write("note", replica="r2", text="12 MB")
    story.write("note", text="prepare generation 2")

    assert told(story) == ["r1: 12 MB"]


def test_a_traceback_is_told_once_and_not_beside_the_output_that_has_it() -> None:
    view, text = plain(show="none")
    for replica in ("r1", "r2"):
        view.record({"kind": "traceback", "replica": replica, "text": "ValueError: boom\n"})
    assert text.getvalue() == "r1 raised:\nValueError: boom\n"

    view, text = plain(show="all")
    view.record({"kind": "traceback", "replica": "r1", "text": "ValueError: boom\n"})
    assert text.getvalue() == ""


def test_a_traceback_that_another_replica_has_printed_is_not_printed_again() -> None:
    view, text = plain(show="all")
    trace = ["Traceback (most recent call last):", "ValueError: boom"]
    view.record({"kind": "traceback", "replica": "r1", "text": "\n".join(trace)})
    for replica in ("r1", "r2", "r3"):
        for line in (*trace, f"{replica} has more to say"):
            view.output(replica, line)
    view.output("r2", trace[0])
    view.output("r2", "KeyError: another")

    assert text.getvalue().splitlines() == [
        *(f"r1 | {line}" for line in trace),
        *(f"{replica} | {replica} has more to say" for replica in ("r1", "r2", "r3")),
        f"r2 | {trace[0]}",
        "r2 | KeyError: another",
    ]


def refused(*, reason: str) -> list[str]:
    """Return what is shown of a job that ends like this; a replica was refused."""
    view, text = plain(show="all")
    with view:
        for line in ("hello", "UsageError: the batch is empty (train.py, line 3)"):
            view.output("r1", line)
        view.output("r2", "ConfigError: my own")
        view.output("r2", "and more")
        view.record({"kind": "end_job", "exit_code": 2, "reason": reason})
    return text.getvalue().splitlines()


def test_a_refusal_that_the_job_ends_with_is_left_to_its_last_sentence() -> None:
    others = ["r1 | hello", "r2 | ConfigError: my own", "r2 | and more"]

    assert refused(reason="the batch is empty (train.py, line 3)") == others


def test_a_refusal_that_the_job_does_not_end_with_is_shown() -> None:
    shown = refused(reason="something else")

    assert shown[-1] == "r1 | UsageError: the batch is empty (train.py, line 3)"


def test_a_traceback_of_the_scripts_own_keeps_its_last_line() -> None:
    view, text = plain()
    trace = ["Traceback (most recent call last):", "    read(file)", "ConfigError: no field x"]

    for line in trace:
        view.output("r1", line)

    assert text.getvalue().splitlines() == trace


def test_replicas_that_failed_alike_are_told_once_with_their_number() -> None:
    story = Story()
    for number in (1, 2, 3):
        name = f"r{number}"
        text = f"Traceback (most recent call last):\n  File x, line 5\nKeyError: <at 0x{number}f>\n"
        story.write("traceback", replica=name, text=text)
        story.write("exited", replica=name, exited_kind="script", detail=f"KeyError: <0x{number}>")
    story.write("traceback", replica="r4", text="ValueError: other\n")
    story.write("exited", replica="r4", exited_kind="script", detail="ValueError: other")
    story.write("end_job", exit_code=1, reason="the script fails")

    assert told(story) == [
        "r1 raised KeyError: <0x1>",
        "r4 raised ValueError: other",
        "3 replicas failed alike: r1, r2, r3",
    ]


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("SIGKILL", "r1 was ended by SIGKILL"),
        (
            "SIGKILL, as the kernel was out of memory",
            "r1 was ended by SIGKILL, as the kernel was out of memory",
        ),
        ("signal 34", "r1 was ended by signal 34"),
        ("", "r1 was ended by a signal"),
        (
            "host b is lost: it was silent for 5 s",
            "r1 was ended: host b is lost: it was silent for 5 s",
        ),
    ],
)
def test_an_end_is_told_with_its_signal_or_its_reason(detail: str, said: str) -> None:
    story = Story()
    story.write("exited", replica="r1", exited_kind="signal", detail=detail)

    assert told(story) == [said]


def test_what_an_agent_says_again_is_told_once() -> None:
    """It tells of an exit each time that it is asked; a service manager starts it every 10 s."""
    story = Story()
    for _ in range(3):
        story.write("exited", replica="r1", exited_kind="signal", detail="SIGKILL")
        story.write("node_refused", node="b", reason="node b has torch 2.14, and node a has 2.15")

    assert told(story) == [
        "r1 was ended by SIGKILL",
        "node b is not taken: node b has torch 2.14, and node a has 2.15",
    ]


def test_a_traceback_that_was_printed_is_not_told_of_another() -> None:
    view, text = plain(show="r1")
    trace = ["Traceback (most recent call last):", "  File x, line 5", "OSError: [Errno 5] 0x7f"]
    for line in (*trace, "after it"):
        view.output("r1", line)

    view.record({"kind": "traceback", "replica": "r2", "text": "\n".join(trace)})
    view.record({"kind": "traceback", "replica": "r1", "text": "\n".join(trace)})
    view.record({"kind": "traceback", "replica": "r3", "text": "KeyError: 1"})

    said = text.getvalue().splitlines()
    assert said == [*trace, "after it", "r3 raised:", "KeyError: 1"]


@pytest.mark.parametrize(
    ("idle_s", "step_s", "said"),
    [
        (62.0, 0.2, "no step for 1:02 min (usually 0.2 s)"),
        (12.0, None, "no step for 12 s"),
        (9.0, 0.2, None),
        (62.0, 30.0, None),
        (None, 0.2, None),
    ],
)
def test_a_job_that_stands_still_says_so(
    idle_s: float | None, step_s: float | None, said: str | None
) -> None:
    assert stalled_line({"idle_s": idle_s, "median_step_s": step_s}) == said


def test_it_says_for_whom_the_others_wait() -> None:
    status = {"idle_s": 62.0, "median_step_s": 0.2, "waits_for": ["r2"]}

    said = stalled_line(status)

    assert said == "no step for 1:02 min (usually 0.2 s); the others wait for r2"


def test_a_failure_is_left_to_the_last_sentence_on_stderr() -> None:
    story = Story()
    for kind in ("end_job", "job_ended"):
        story.write(kind, exit_code=1, reason="the script failed")

    assert told(story) == []


@pytest.mark.parametrize(
    ("show", "shown"),
    [
        (None, "hello of r1\n"),
        ("all", "r1 | hello of r1\nr2 | hello of r2\n"),
        ("none", ""),
        ("r2", "hello of r2\n"),
    ],
)
def test_output_is_that_of_one_replica_all_or_none(show: str | None, shown: str) -> None:
    view, text = plain(show)
    for record in Story().start("r1", "r2").records:
        view.take_record(record)

    view.output("r1", "hello of r1")
    view.output("r2", "hello of r2")

    assert text.getvalue() == shown


def test_output_is_that_of_the_replica_that_leads_not_of_the_oldest() -> None:
    view, text = plain()
    story = Story().started().start("r1", "r2", "r3").spare("r1", "r2", "r3")
    story.switch("r1").switch("r1", "r3").switch("r1", "r3", "r2").exited("r1", "signal", "SIGKILL")
    for record in story.reform("r3", "r2").records:
        view.take_record(record)

    for name in ("r2", "r3"):
        view.output(name, f"hello of {name}")
    view.take_record(story.switch("r2").records[-2])
    for name in ("r3", "r2"):
        view.output(name, f"bye of {name}")  # r3 leaves, and may be in its last tail

    assert text.getvalue().splitlines() == ["hello of r3", "bye of r3", "bye of r2"]


@pytest.mark.parametrize(
    ("show", "shown"),
    [
        (None, ["hello of r1.0"]),
        ("all", ["r1.0 | hello of r1.0", "r1.1 | hello of r1.1", "r2.1 | hello of r2.1"]),
        ("r1", ["r1.0 | hello of r1.0", "r1.1 | hello of r1.1"]),
        ("r2.1", ["hello of r2.1"]),
        ("none", []),
    ],
)
def test_output_of_several_workers_is_that_of_the_first_or_says_whose_it_is(
    show: str | None, shown: list[str]
) -> None:
    view, text = plain(show)
    for record in Story().start("r1", "r2").records:
        view.take_record(record)

    for name in ("r1.0", "r1.1", "r2.1"):
        view.output(name, f"hello of {name}")

    assert text.getvalue().splitlines() == shown


def test_it_is_told_which_worker_of_a_replica_has_ended_and_what_it_raised() -> None:
    story = Story().start("r1")
    story.write("traceback", replica="r1", worker=1, text="ValueError: broken\n")
    story.write("exited", replica="r1", worker=1, exited_kind="signal", detail="SIGKILL")
    story.write("exited", replica="r2", worker=None, exited_kind="signal", detail="SIGKILL")

    view, text = plain()
    for record in story.records:
        view.record(record)

    said = text.getvalue().splitlines()
    assert said[1:3] == ["r1.1 raised:", "ValueError: broken"]
    assert [line.partition("  ")[2] for line in said[3:]] == [
        "r1.1 was ended by SIGKILL",
        "r2 was ended by SIGKILL",
    ]


def test_output_is_never_taken_for_markup() -> None:
    view, text = plain("all")

    view.output("r1", "[bold]loss[/] [x")

    assert text.getvalue() == "r1 | [bold]loss[/] [x\n"


def test_without_a_terminal_the_view_is_plain() -> None:
    file: Any = io.StringIO()

    assert isinstance(view_for(Console(file=file), show=None), PlainView)
    assert isinstance(view_for(Console(file=file, force_terminal=True), show=None), LiveView)


def test_the_live_view_draws_replicas_figures_and_events() -> None:
    text = io.StringIO()
    view = LiveView(
        Console(file=text, force_terminal=True, width=110, color_system=None), show=None
    )
    with view:
        for record in eventful().planned(100).records:
            view.record(record)
        view.record({"kind": "metrics", "step": 48, "values": {"loss": 1.0, "lr": 0.001}})

    last = text.getvalue()[text.getvalue().rindex("╭") :]
    assert "step 49/100" in last
    assert "lr 0.001" in last
    assert "r1 training   r3 training   r5 training" in last
    assert "x r2 loss" in last
    assert "ended by SIGKILL" in last


def test_what_stopping_means_stays_above_the_live_panel() -> None:
    text = io.StringIO()
    view = LiveView(Console(file=text, force_terminal=True, width=200), show=None)
    with view:
        view.record({"kind": "stop_requested", "at": 1.0})
        for replica in ("r1", "r2", "r3"):
            view.record({"kind": "exited", "exited_kind": "finished", "replica": replica})

    last = text.getvalue().rindex("╭")
    assert "stopping at the next step boundary" in text.getvalue()[:last]
    assert "r3 finished" in text.getvalue()[last:]


def test_where_a_job_stands_in_its_pool_is_told_when_it_changes() -> None:
    place = {"pool": "p", "admission": "waiting", "devices": [], "offered": 0, "wanted": 4}
    place |= {"reason": "2 of 8 are free", "is_suspended": False, "silence": ""}
    story = Story()
    story.write("pool", **place)
    story.write("pool", **{**place, "wanted": 5})  # a change, but none of the sentence
    story.write("pool", **{**place, "admission": "running", "devices": [1, 2], "offered": 2})
    story.write("pool", **{**place, "devices": [1, 2], "silence": "no pool named p is running"})
    story.write("pool", **{**place, "admission": "suspending", "reason": "q needs 2"})
    story.write("pool", **{**place, "is_suspended": True, "reason": "q has 2"})

    assert told(story) == [
        "waiting for pool p: 2 of 8 are free",
        "pool p offers 2 devices of 4 wanted: 2 of 8 are free",
        "no pool named p is running; the job keeps devices 1, 2",
        "pool p needs every device of the job: q needs 2",
        "waiting for pool p again: q has 2",
    ]


def test_replicas_of_several_hosts_are_shown_with_their_host() -> None:
    status = board_of(eventful().planned(100).records).as_json() | {"events": []}
    view, text = plain()
    view.console.print(job_panel(status))
    assert " on a" not in text.getvalue()

    first, *others = status["replicas"]
    gpu = {"device_name": "cuda:GPU-8f3a1b2c-5d2e-11ee"}
    status["replicas"] = [
        first | gpu | {"hosts": ["a"]},
        *(one | {"hosts": ["b"]} for one in others),
    ]
    view.console.print(job_panel(status))

    assert "r1 training cuda:GPU-8f3a1b2c on a   r3 training on b" in text.getvalue()


def test_a_replica_on_several_hosts_is_shown_with_all_of_them() -> None:
    status = board_of(eventful().planned(100).records).as_json() | {"events": []}
    view, text = plain()

    first, second, *_ = status["replicas"]
    status["replicas"] = [first | {"hosts": ["a", "b"]}, second | {"hosts": ["c", "d", "e"]}]
    view.console.print(job_panel(status))

    assert "r1 training on a and b   r3 training on c, d and e" in text.getvalue()


def test_a_job_without_agents_says_for_what_it_waits() -> None:
    view, text = plain()
    view.record({"kind": "job_started", "job": "gpt"})
    view.console.print(job_panel(view.board.as_json()))

    assert "waiting for an agent to join" in text.getvalue()


def test_a_job_that_waits_for_its_pool_shows_what_it_holds_and_why_it_waits() -> None:
    view, text = plain()
    view.record({"kind": "job_started", "job": "gpt"})
    place = {"pool": "p", "admission": "waiting", "devices": [], "offered": 0, "wanted": 4}
    place |= {"reason": "2 of 8 are free", "silence": "", "priority": "high", "team": "a"}
    view.record({"kind": "pool", **place})

    status = view.board.as_json()
    view.console.print(job_panel(status))

    assert status["state"] == "waiting"
    assert "devices none   priority high, team a" in text.getvalue()
    assert "waiting for pool p: 2 of 8 are free" in text.getvalue()


def test_what_would_change_decisions_is_said_once_of_those_alike() -> None:
    story = Story().decided(2, "begin", would_change="room")
    story.decided(3, "grow", would_change="time alone").decided(
        3, "stay", would_change="time alone"
    )
    view, text = plain()

    view.console.print(decisions_table(explained_of(story.records).decisions))

    said = [line.strip() for line in text.getvalue().splitlines()]
    assert [line for line in said if line.startswith("changes with ")] == [
        "changes with room",
        "changes with time alone",
    ]
    assert said[-1] == "changes with time alone"


def test_a_reason_is_cut_off_where_the_height_must_stay_and_nowhere_else() -> None:
    status = board_of(eventful().records).as_json()
    status["events"][-1]["reason"] = "a long reason " * 20 + "with an end"
    text = io.StringIO()
    console = Console(file=text, width=100)

    console.print(job_panel(status))
    assert "with an end" not in text.getvalue()
    console.print(job_panel(status, wrap=True))
    assert "with an end" in text.getvalue()


@pytest.mark.parametrize(("lost", "said"), [(0, False), (2, True)])
def test_a_narrow_terminal_leaves_a_reason_its_room(lost: int, said: bool) -> None:
    status = board_of(eventful().records).as_json()
    status["events"][-1] |= {"reason": "kill requested: ended by SIGKILL", "steps_lost": lost}
    text = io.StringIO()

    Console(file=text, width=60).print(job_panel(status, wrap=True))

    assert "requested" in text.getvalue()
    assert ("2 steps" in text.getvalue()) is said


def test_a_restore_of_many_replicas_leaves_a_reason_its_room() -> None:
    status = board_of(eventful().records).as_json()
    replicas, why = [f"r{n}" for n in range(1, 9)], "step-00000061-l1"
    status["events"][-1] |= {"kind": "restore", "replicas": replicas, "reason": why}
    text = io.StringIO()

    Console(file=text, width=80).print(job_panel(status, wrap=True))

    assert why in text.getvalue()


def test_a_job_that_is_over_wants_no_replicas() -> None:
    view, text = plain()
    over = board_of(eventful().records).as_json() | {"state": "killed", "replicas": []}

    view.console.print(job_panel(over))

    assert "replicas 0" not in text.getvalue()


def test_an_audit_says_whether_samples_or_draws_were_counted() -> None:
    spent = goodput_of([])
    plain = audit_text(Audit(committed_samples=3), spent, "out").plain
    drawn = audit_text(Audit(committed_samples=3, sampler="Weighted\x1b"), spent, "out").plain

    assert plain.startswith("every sample counted exactly once\n0 committed steps, 3 samples,")
    assert drawn.splitlines()[0] == "every draw counted exactly once"
    assert "not covered: what the script carries from one micro-batch to the next" in plain
    assert "gave the order: it may draw a sample several times" in drawn
    assert "3 draws," in drawn
    assert "\x1b" not in drawn


def test_the_headline_of_an_audit_counts_samples_without_a_backward() -> None:
    spent = goodput_of([])
    passed = Audit(committed_samples=640, unused_samples=16)
    failed = Audit(committed_samples=640, unused_samples=1, problems=["a problem"])

    first, one = (
        audit_text(found, spent, "out").plain.splitlines()[0] for found in (passed, failed)
    )

    why = "in no gradient (no step.backward, or one of weight 0)"
    assert first == f"every sample handed out exactly once, 16 samples {why}"
    assert one == f"1 problem found, 1 sample {why}"


@pytest.mark.parametrize(("workers", "said"), [(None, False), (1, False), (4, True)])
def test_the_panel_says_how_many_workers_a_replica_has_if_it_has_several(
    workers: int | None, said: bool
) -> None:
    status = board_of(eventful().planned().records).as_json() | {"workers_per_replica": workers}
    view, text = plain()

    view.console.print(job_panel(status))

    assert (", of 4 workers each" in text.getvalue()) is said
    assert ("workers" in text.getvalue()) is said
