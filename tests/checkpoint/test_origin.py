"""Another job, or other arguments, are another run; who they are is said as people typed it."""

from __future__ import annotations

from dataclasses import asdict, replace

from pliant.checkpoint.origin import Origin, caution, difference, origin_of
from pliant.engine.state.durable import Facts

ALONE = Origin(run="a", job="", script="train.py", script_digest="1", arguments=("--lr", "0.1"))
JOB = replace(ALONE, run="b", job="gpt")


def test_the_same_script_with_the_same_arguments_is_the_same_run_alone_and_as_a_job() -> None:
    assert difference(ALONE, JOB) is None
    assert difference(JOB, replace(ALONE, script_digest="2")) is None
    assert difference(JOB, replace(JOB, script="renamed.py")) is None


def test_another_job_with_the_same_arguments_is_another_run() -> None:
    assert difference(replace(JOB, job="other"), JOB) == (
        "this is another job: job other (train.py --lr 0.1)"
    )


def test_a_script_is_the_same_as_a_file_and_as_a_module() -> None:
    def script(path: str) -> str:
        facts = Facts(job="", holder="", pid=1, identity=(), command=(path, "--lr"))
        found = Origin.of(facts, run="a", place="kept")
        assert found is not None
        return found.script

    assert script("train.py") == script("/a/package/train.py") == "train.py"
    assert script("/a/package/__main__.py") == "package/__main__.py"


def test_the_order_of_arguments_is_told() -> None:
    swapped = replace(JOB, arguments=("0.1", "--lr"))
    assert caution(swapped, JOB) == "; its arguments are now 0.1 --lr"


def test_a_manifest_gives_back_what_was_put_into_it() -> None:
    assert origin_of({"origin": asdict(JOB)}) == JOB
    assert origin_of({"calls": 1}) is None
    assert origin_of({"origin": {"run": 1}}) is None


def test_other_arguments_go_on_and_are_told_with_a_schedule_that_ends_elsewhere() -> None:
    t_max = "schedule 0: T_max"
    before = replace(JOB, arguments=("--steps", "9"), settings={t_max: "9"})
    longer = replace(before, arguments=("--steps", "90"), settings={t_max: "90"})

    assert difference(longer, before) is None
    assert caution(longer, before) == (
        "; its arguments are now --steps 90; schedule 0: T_max is 90 in the script now, and was 9: "
        "the checkpoint's values count, so that learning rates may end elsewhere than the script "
        "says"
    )
