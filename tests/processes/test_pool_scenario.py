"""The day of a shared pool, live: pre-training gives what is needed, exactly, and gets it back.

A pre-training job with a minimum of 2 holds every device.  An urgent job of 2 comes and goes, then
a claim of half the pool; then everything at once, until even the minimum is needed elsewhere and
the job is suspended.  Every job must end with the bits of its run alone.  The long one leaves
``story.md`` in its directory: who took what from whom, when and why, and what each change cost.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.pool.box import Box, Claim, Process, box, until
from tests.processes import elastic

from pliant.observe.audit import audit_run
from pliant.observe.log import Record
from pliant.observe.pool_history import moves_of
from pliant.observe.reading import read
from pliant.observe.timeline import timeline_of

pytestmark = [pytest.mark.processes]

LONG_S = 120.0
"""Longest wait for anything that starts processes, in seconds."""


@dataclass(frozen=True)
class Job:
    """One ``pliant run --pool`` that trains."""

    name: str
    model: str
    directory: Path
    process: Process

    @property
    def records(self) -> list[Record]:
        return list(read(self.directory / "out" / "events.jsonl").records)

    @property
    def size(self) -> int:
        """Replicas in the newest generation that committed a step, 0 before."""
        timeline = timeline_of(self.records)
        if not timeline.commits:
            return 0
        return len(timeline.members.get(timeline.commits[-1].generation, ()))

    def kinds(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]

    def ended(self) -> None:
        """Wait for its end; its result must be that of as many steps alone in one process."""
        until(lambda: self.process.code is not None, f"{self.name} has ended", LONG_S)
        assert self.process.code == 0, self.process.said()
        lines = (self.directory / "digests").read_text().splitlines()
        ends = [json.loads(line) for line in lines]
        steps = max(end["committed"] for end in ends)
        digests = {end["digest"] for end in ends if end["committed"] == steps}
        assert digests == {elastic.reference(self.model, steps)}, self.process.said()
        audit = audit_run(self.directory / "out")
        assert audit.exactly_once, audit.problems
        assert audit.committed_steps == steps


@dataclass(frozen=True)
class Day:
    """A box, its devices, and what happens on them."""

    here: Box
    devices: int

    def pretraining(self) -> Job:
        kept = ("--checkpoint", self.here.directory / "kept", "--every", "25steps")
        job = self.job("pretraining", "gpt", "--min", 2, "--priority", "low", words=kept)
        self.trains(job, self.devices)
        return job

    def tuning(self, name: str) -> Job:
        return self.job(name, "moe", "--min", 2, "--max", 2, "--priority", "urgent")

    def job(self, name: str, model: str, *options: object, words: tuple[object, ...] = ()) -> Job:
        """Start a job that trains until ``finish``."""
        directory = self.here.directory / name
        directory.mkdir()
        command: list[object] = [elastic.SCRIPT, "--model", model, "--steps", 100_000, *words]
        command += ["--digest-file", directory / "digests", "--until", directory / "enough"]
        command += ["--pace", 0.01]
        options = ("--pool=default", "--name", name, "--out", directory / "out", *options)
        started = self.here.start("run", *map(str, (*options, *command)))
        return Job(name, model, directory, started)

    def finish(self, job: Job) -> None:
        """Let a job end; the pool gives nothing to one that is over."""
        given = self.granted(job.name)
        (job.directory / "enough").touch()
        job.ended()
        until(lambda: job.name not in self.here.claims(), f"{job.name} is withdrawn")
        assert self.granted(job.name) == given

    def granted(self, name: str) -> list[Record]:
        return [record for record in self.here.records("grant") if record["name"] == name]

    def claim(self, name: str, devices: int, priority: str) -> Claim:
        """Claim devices; once they are given, the kernel must say that nobody else uses them."""
        claim = self.here.claim(devices, "--priority", priority, name=name)
        claim.until("given", LONG_S)
        assert len(claim.devices) == devices
        assert all(self.here.users(device) == {claim.pid} for device in claim.devices)
        return claim

    @staticmethod
    def end(*claims: Claim) -> None:
        for claim in claims:
            claim.send(signal.SIGINT)
        for claim in claims:
            assert claim.ended() == 3

    def trains(self, job: Job, replicas: int) -> None:
        """Wait until a job has committed a step at this size; the kernel counts its devices."""

        def is_so() -> bool:
            assert job.process.code is None, job.process.said()
            return job.size == replicas

        until(is_so, f"{job.name} trains with {replicas}", LONG_S)
        assert len(self.here.claims()[job.name]["devices"]) == replicas


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Box]:
    with box(tmp_path, has_torch=True) as lent:
        yield lent


@pytest.mark.timeout(400)
def test_an_urgent_claim_takes_what_it_needs_and_the_minimum_only_for_another(here: Box) -> None:
    day = Day(here, 4)
    here.start_pool("--devices", "4")
    pretraining = day.pretraining()
    urgent = day.claim("urgent", 2, "urgent")
    day.trains(pretraining, 2)
    ada = day.claim("ada", 2, "high")
    assert taken(day) == [("urgent", 2, 2), ("ada", 0, 2)]
    assert here.claims()["pretraining"]["devices"] == []
    day.end(urgent, ada)
    day.trains(pretraining, 4)
    day.finish(pretraining)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_eight_devices_serve_pretraining_an_urgent_job_inference_and_a_person(here: Box) -> None:
    day = Day(here, 8)
    here.start_pool("--devices", "8")
    pretraining = day.pretraining()

    # An urgent job of 2: exactly two replicas leave, six go on, and the two come back.
    tuning = day.tuning("tuning")
    day.trains(tuning, 2)
    day.trains(pretraining, 6)
    assert taken(day) == [("tuning", 6, 2)]
    day.finish(tuning)
    day.trains(pretraining, 8)

    # Four devices, whatever for: no fewer would do.
    inference = day.claim("inference", 4, "urgent")
    day.trains(pretraining, 4)
    assert taken(day)[1:] == [("inference", 4, 4)]
    day.end(inference)
    day.trains(pretraining, 8)
    assert {record["kind"] for record in pretraining.records}.isdisjoint({"reform", "restored"})
    assert sum(resize.steps_lost for resize in timeline_of(pretraining.records).resizes()) == 0
    assert len(pretraining.kinds("job_started")) == 1

    # Everything at once: the minimum is all that is left, and then a person needs that.
    tuning = day.tuning("tuning-again")
    inference = day.claim("inference-again", 4, "urgent")
    day.trains(tuning, 2)
    day.trains(pretraining, 2)
    ada = day.claim("ada", 2, "high")
    *shrinks, suspension = taken(day)[2:]
    assert {for_ for for_, _, _ in shrinks} == {"tuning-again", "inference-again"}
    assert (shrinks[-1][1], suspension[:2]) == (2, ("ada", 0))
    assert sum(devices for _, _, devices in (*shrinks, suspension)) == 8
    assert here.claims()["pretraining"]["devices"] == []
    assert here.used() == set(range(8))
    day.end(inference, ada)
    day.finish(tuning)
    day.trains(pretraining, 8)
    day.finish(pretraining)
    assert len(pretraining.kinds("job_started")) == 2
    until(lambda: here.claims() == {} and here.used() == set(), "nobody is left")
    (here.directory / "story.md").write_text(f"{told(here)}\n\n{changes(pretraining)}\n")


def taken(day: Day) -> list[tuple[str, int, int]]:
    """Return for whom, down to what size, and how many pre-training was made to give, in order."""
    found: list[tuple[str, int, int]] = []
    for record in here_records(day.here):
        if record.get("name") != "pretraining":
            continue
        if record["kind"] in ("shrink", "suspend"):
            found.append((record["for_"], record.get("to", 0), 0))
        elif record["kind"] == "grant":
            found.append(("", 0, 0))
        elif record["kind"] == "released":
            found[-1] = (*found[-1][:2], found[-1][2] + len(record["devices"]))
    return [one for one in found if one[0]]


def here_records(here: Box) -> list[Record]:
    return list(read(here.pools / "default" / "events.jsonl").records)


def told(here: Box) -> str:
    """Return who took what from whom, when and why, as a table."""
    moves = moves_of(here_records(here), last=200)
    began = moves[0].at
    rows = [
        f"| {move.at - began:5.1f} | {move.claim} | {move.what} | {move.for_} | {move.reason} |"
        for move in moves
    ]
    return "\n".join(["| s | who | what | for | why |", "|---:|---|---|---|---|", *rows])


def changes(job: Job) -> str:
    """Return what each change of its size cost the job, as a table."""
    records = job.records
    resizes, began = timeline_of(records).resizes(), records[0]["at"]
    rows = [
        f"| {resize.at - began:5.1f} | {resize.kind} | {' '.join(resize.replicas)} "
        f"| {resize.num_replicas} | {resize.step} | {resize.pause_s or 0:.2f} | {resize.reason} |"
        for resize in resizes
    ]
    head = [
        "| s | change | replicas | now | step | pause, s | why |",
        "|---:|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])
