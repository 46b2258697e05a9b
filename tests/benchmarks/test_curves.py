"""The picture of what a resize does to training, and the runs that it is of."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import curves

COMMITS = [(0, 1, 5.0), (1, 1, 4.0), (2, 2, 3.0), (3, 2, 2.5)]


def records() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for generation, members in ((1, ["r1"]), (2, ["r1", "r2"])):
        order = {"generation": generation, "members": members}
        at = 10.0 * generation
        found.append({"kind": "switch", "at": at, "mono": at, "order": order})
        for step, of, loss in COMMITS:
            if of == generation:
                more = {"step": step, "loss": loss, "samples": curves.BATCH}
                mono = at + step
                found.append({"kind": "commit", "at": mono, "mono": mono, "generation": of, **more})
    return found


def test_a_course_has_the_size_of_each_step_and_the_speed_between_steps_of_one_size() -> None:
    found = curves.course(records(), [(2, "grow")])

    assert found.losses == [5.0, 4.0, 3.0, 2.5]
    assert found.sizes == [1, 1, 2, 2]
    assert found.speeds == {1: [12.0], 2: [12.0]}


def test_both_losses_are_drawn_over_each_other() -> None:
    course = curves.course(records(), [(2, "grow")])

    drawn = ElementTree.fromstring(curves.picture(course, course))

    lines = [one.get("points") for one in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    assert lines[0] == lines[1]
    words = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "grow" in words
    assert "12" in words


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_a_run_through_resizes_is_the_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture.svg"
    monkeypatch.setattr(sys, "argv", ["curves", "--steps", "140", "--out", str(picture)])

    code = curves.main()

    said = capsys.readouterr().out
    assert code == 0, said
    assert "the 140 losses and the weights are the same, bit for bit" in said
    ElementTree.parse(picture)
