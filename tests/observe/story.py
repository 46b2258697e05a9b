"""Event logs made by hand, as a coordinator would write them; for tests of what derives from them.

A ``Story`` has one clock.  Every method writes the records of one happening and moves the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pliant.observe.log import Record


@dataclass
class Story:
    now: float = 100.0
    records: list[Record] = field(default_factory=list)
    members: tuple[str, ...] = ()
    generation: int = 0
    committed: int = 0

    def write(self, kind: str, /, **values: Any) -> Record:
        record: Record = {
            "v": 1,
            "at": 1.7e9 + self.now,
            "mono": self.now,
            "job": "gpt",
            "kind": kind,
        }
        record.update(values)
        self.records.append(record)
        return record

    def started(self, **values: Any) -> Story:
        bounds = {"min_replicas": 1, "max_replicas": 4, "start_replicas": 2}
        self.write("job_started", **{"out": "runs/gpt", "pid": 7, "url": "http://h", **bounds})
        return self

    def planned(self, total_steps: int = 100, num_slots: int = 8) -> Story:
        self.write("plan", replica="r1", total_steps=total_steps, num_slots=num_slots)
        return self

    def decided(self, target: int, reason: str, **more: Any) -> Story:
        self.write("decision", target_replicas=target, reason=reason, **more)
        return self

    def start(self, *replicas: str, after_s: float = 0.0) -> Story:
        self.now += after_s
        for replica in replicas:
            self.write("start_replica", replica=replica, node="here")
            self.write("worker", replica=replica, node="here", pid=1000 + int(replica[1:]))
        return self

    def spare(self, *replicas: str, after_s: float = 1.0) -> Story:
        self.now += after_s
        for replica in replicas:
            self.write("spare", replica=replica, calls=0, num_slots=8)
        return self

    def steps(self, count: int, step_s: float = 0.5, samples: int = 16) -> Story:
        for _ in range(count):
            self.now += step_s
            self.commit(samples=samples, step_s=step_s)
        return self

    def commit(self, samples: int = 16, step_s: float = 0.5, **values: Any) -> Story:
        self.write(
            "commit",
            **{
                "step": self.committed,
                "generation": self.generation,
                "loss": 5.0 - 0.01 * self.committed,
                "samples": samples,
                "step_s": step_s,
                "by": self.members[0],
                **values,
            },
        )
        self.committed += 1
        return self

    def prepare(self, *members: str) -> Story:
        self.write("prepare", to=list(members), order=self.order(self.generation + 1, members))
        return self

    def switch(self, *members: str, pause_s: float = 0.0) -> Story:
        order = self.order(self.generation + 1, members)
        self.write("switch", to=list(members), order=order)
        return self.enter(*members, pause_s=pause_s)

    def restore(self, *members: str, checkpoint: str, committed: int, lineage: int = 2) -> Story:
        """Everybody is new; the run goes on from a checkpoint."""
        self.committed = committed
        order = self.order(self.generation + 1, members)
        order["restore"] = {"checkpoint": checkpoint, "committed": committed, "lineage": lineage}
        self.write("switch", to=list(members), order=order)
        return self.enter(*members)

    def saved(self, checkpoint: str, seconds: float = 0.5) -> Story:
        self.write(
            "saved",
            replica=self.members[0],
            checkpoint=checkpoint,
            committed=self.committed,
            lineage=1,
            seconds=seconds,
        )
        return self

    def reform(self, *members: str, pause_s: float = 0.0) -> Story:
        order = self.order(self.generation + 1, members)
        self.write("reform", to=list(members), order=order)
        return self.enter(*members, pause_s=pause_s)

    def enter(self, *members: str, pause_s: float = 0.0) -> Story:
        self.now += pause_s
        self.generation += 1
        self.members = members
        for replica in members:
            self.write("switched", replica=replica, generation=self.generation, step=self.committed)
        return self

    def exited(self, replica: str, how: str, detail: str = "") -> Story:
        self.write("exited", replica=replica, exited_kind=how, detail=detail)
        return self

    def order(self, generation: int, members: tuple[str, ...]) -> dict[str, Any]:
        seats = [{"replica": name, "endpoint": "127.0.0.1:1"} for name in members]
        return {"generation": generation, "members": seats, "hold": False}


def eventful() -> Story:
    """Two replicas grow to four, one is drained, one is killed and replaced."""
    story = Story().started().decided(2, "grow from 0 to 2 replicas: 2 asked for")
    story.start("r1", "r2").spare("r1").spare("r2", after_s=0.0).planned()
    story.switch("r1", "r2").steps(10)
    story.write("scaled", target=4)
    story.decided(4, "grow from 2 to 4 replicas: 4 asked for")
    story.start("r3", "r4").steps(2).spare("r3", "r4", after_s=0.1)
    story.prepare("r1", "r2", "r3", "r4").steps(1, 0.4)
    story.switch("r1", "r2", "r3", "r4", pause_s=0.2).steps(10, 0.3)
    story.write("drain_requested", replica="r4", notice_s=30.0)
    story.decided(3, "shrink from 4 to 3 replicas: 3 asked for")
    story.prepare("r1", "r2", "r3").steps(1, 0.3).switch("r1", "r2", "r3").steps(10, 0.4)
    story.exited("r4", "left")
    story.now += 0.1
    story.exited("r2", "signal", "SIGKILL")
    story.reform("r1", "r3", pause_s=0.15).steps(2, 0.5)
    story.decided(3, "grow from 2 to 3 replicas: r2 is lost")
    story.start("r5").steps(3, 0.5).spare("r5", after_s=0.0).prepare("r1", "r3", "r5")
    story.switch("r1", "r3", "r5").steps(10, 0.4)
    return story
