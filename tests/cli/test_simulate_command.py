"""``pliant simulate`` reads files, prints tables and refuses in one sentence."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from examples.simulations import generate

from pliant.cli.main import code_of

CLUSTER = """\
apiVersion: pliant.dev/v1alpha1
kind: Cluster
spec:
  nodes:
    - {name: all, count: 2, devices: 4, pricePerDeviceHour: 2}
"""
JOBS = "name,arrival_s,work_s,devices,min,max,slots\npre,0,3600,8,2,8,64\ntune,600,600,4,,,\n"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(CLUSTER)
    Path("jobs.csv").write_text(JOBS)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert code_of(["simulate", "cluster.yaml", *words]) == 0
    return capsys.readouterr().out


def test_ways_stand_beside_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    table = said(capsys, "jobs.csv", "--way", "in-place,static")

    head, *rows = [line.split("  ") for line in table.splitlines() if line.strip()]
    assert [word.strip() for word in head if word.strip()] == ["in-place", "static"]
    assert any("queue time, mean" in "  ".join(row) for row in rows)


def test_the_same_words_print_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mix.csv").write_text(generate.csv_of(generate.mix(jobs=60, days=1, seed=4)))
    words = ("mix.csv", "--way", "in-place,restart:60", "--json", "--jobs", "out")

    first = said(capsys, *words)
    jobs = Path("out/in-place.csv").read_bytes()

    assert said(capsys, *words) == first
    assert Path("out/in-place.csv").read_bytes() == jobs
    assert [one["jobs"] for one in json.loads(first)["simulations"]] == [60, 60]


def test_a_trace_lies_beside_the_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("site")
    folder.mkdir()
    text = CLUSTER.replace("devices: 4", "devices: 1, capacity: spot.csv")
    (folder / "cluster.yaml").write_text(text)
    (folder / "spot.csv").write_text("0,add,a\n0,add,b\n300000,remove,b\n")
    Path("few.csv").write_text("arrival_s,work_s,devices,min,max\n0,1000,1,1,2\n")

    assert code_of(["simulate", "site/cluster.yaml", "few.csv", "--way", "in-place", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["simulations"]
    assert one["resizes"] == 1


def test_the_policy_is_that_of_every_elastic_job(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("jobs.csv", "--way", "in-place", "--json")
    at_once = json.loads(said(capsys, *words))["simulations"][0]
    policy = ("--policy", "scaleUpSnoozeTimeInSeconds=0", "--policy", "maxScaleEventsPerHour=1")

    held = json.loads(said(capsys, *words, *policy))["simulations"][0]

    assert held["resizes"] <= at_once["resizes"]


def test_what_could_not_be_written_is_refused_before_anything_is_simulated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pliant.simulate import simulation

    monkeypatch.delattr(simulation.Simulation, "run")

    assert code_of(["simulate", "cluster.yaml", "jobs.csv", "--jobs", "jobs.csv/out"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pliant: jobs.csv/out cannot be used: ")


def test_no_name_of_a_way_is_cut_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"restart:{number}:{number}" for number in range(100_000, 100_005)]

    table = said(capsys, "jobs.csv", "--way", ",".join(names))

    letters = "".join(table.partition("\u2500")[0].split())
    assert sorted(letters) == sorted("".join(names))


def test_no_figure_is_cut_in_two_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    for columns in ("200", "60"):
        monkeypatch.setenv("COLUMNS", columns)
        table = said(capsys, "jobs.csv", "--way", "in-place,restart,preempt,static")
        figures.append([word for word in table.split() if word.strip("0123456789") in (".", ".%")])

    assert figures[0]
    assert figures[0] == figures[1]


def test_an_interrupt_leaves_the_report_up_to_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pliant.simulate import simulation

    monkeypatch.setattr(simulation, "LOOKS", 10)
    whole = simulation.Simulation.run

    def interrupted(self: simulation.Simulation, **hooks: Any) -> None:
        hooks["on_progress"] = lambda share: signal.raise_signal(signal.SIGINT)
        whole(self, **hooks)

    monkeypatch.setattr(simulation.Simulation, "run", interrupted)
    command = ["simulate", "cluster.yaml", "many.csv", "--json"]
    lines = [f"{n},60" for n in range(500)]
    Path("many.csv").write_text("\n".join(["arrival_s,work_s", *lines]))

    assert code_of(command) == 130
    printed = capsys.readouterr()
    values = json.loads(printed.out)
    assert not values["is_whole"]
    assert len(values["simulations"]) == 1
    assert 0 < values["simulations"][0]["jobs"] < 500
    assert "this is the report up to there" in printed.err
