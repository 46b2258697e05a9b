"""Scenarios of the operator: what happens to a cluster, and what is done about it.

job min=2 max=4 queue=lq      the job; fields as in ``JOB``
at 3 evict x1 by=b/urgent     something happens; then plans are made until they are quiet
  tell x1-0 ...               what is done
  at 8: ask x1 pods=1         the same, later, because a plan said when to look again
  ! PodFailed ...             an event that is a warning
  ? QueueUsable False: ...    a condition that has changed
  = Running ...               the status, where it has changed
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from tests.core.operator.world import World, in_words

from pliant.core.operator.actions import Plan
from pliant.core.operator.plan import plan
from pliant.core.operator.state import (
    CoordinatorView,
    DemandView,
    Eviction,
    JobEnding,
    JobStatus,
    JobView,
    Part,
    PodPhase,
    QueueView,
    Taint,
)
from pliant.core.policy.fields import Policy

WATCHED = ("CoordinatorReached", "QueueUsable", "RoomForPods", "Complete")
DULL = ("NoCoordinator", "CoordinatorStarting")
MOST_PLANS = 60


def new_world(words: list[str]) -> World:
    given = dict(word.split("=", 1) for word in words)
    sizes = given.get("sizes")
    policy = Policy(
        min_replicas=int(given.get("min", "1")),
        max_replicas=int(given["max"]),
        replica_increment_step=int(given["step"]) if "step" in given else None,
        replica_discrete_values=tuple(map(int, sizes.split(","))) if sizes else None,
        spares=int(given.get("spares", "0")),
        min_stability_period_s=float(given.get("stability", "0")),
        max_scale_events_per_hour=int(given["events"]) if "events" in given else None,
    )
    job = JobView(
        name="gpt",
        namespace="team-a",
        uid="j1",
        generation=1,
        policy=policy,
        hosts_per_replica=int(given.get("hosts", "1")),
        queue=given.get("queue", ""),
    )
    return World(job=job)


class Play:
    """One scenario as it goes on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lines: list[str] = []
        self.wake_s: float | None = None

    def happen(self, at_s: float, words: list[str]) -> None:
        while self.wake_s is not None and self.wake_s <= at_s:
            self.world.now_s = self.wake_s
            self.settle(f"at {self.wake_s:g}: ")
        self.world.now_s = at_s
        if words:
            getattr(Happenings(self.world), words[0].replace("-", "_"))(*words[1:])
        self.settle("")

    def settle(self, when: str) -> None:
        before = self.world.status
        for _ in range(MOST_PLANS):
            made = plan(self.world.snapshot(), self.world.now_s)
            is_quiet = not made.actions and made.status == self.world.status
            self._carry_out(made, when)
            if is_quiet:
                break
        else:
            raise AssertionError(f"never quiet: {made.actions}")
        soon_s = made.requeue_after_s
        self.wake_s = None if soon_s is None else self.world.now_s + soon_s
        self._say(before, when)

    def _carry_out(self, made: Plan, when: str) -> None:
        self.world.status = made.status
        for action in made.actions:
            self.world.apply(action)
        told = [f"{when}{line}" for line in in_words(self.world, made.actions)]
        warned = [f"! {one.reason} {one.note}" for one in made.events if one.is_warning]
        seen = {f"! {one.reason} {one.message}" for one in made.status.conditions}
        self.lines += told + [line for line in warned if line not in seen]

    def _say(self, before: JobStatus, when: str) -> None:
        now, old = self.world.status, {one.type: one for one in before.conditions}
        for one in now.conditions:
            is_dull = one.type not in old and one.status == "True"
            was = old.get(one.type)
            is_new = was is None or was.message != one.message
            if one.type in WATCHED and is_new and not is_dull and one.reason not in DULL:
                self.lines.append(f"? {one.type} {one.status}: {one.message}")
        if (line := status_line(now)) != status_line(before):
            self.lines.append(line)


def status_line(status: JobStatus) -> str:
    wanted = "" if status.wanted_replicas is None else f" wanted={status.wanted_replicas}"
    admitted, size = status.admitted_replicas, status.allowed_replicas
    sums = f" admitted={admitted} size={size}{wanted}" if admitted else ""
    return f"= {status.phase}{sums}{f': {status.reason}' if status.reason else ''}"


class Happenings:
    """What can happen; ``at 3 no-word x`` calls ``no_word("x")``."""

    def __init__(self, world: World) -> None:
        self.world = world

    def nothing(self) -> None:
        pass

    # --- the job

    def suspend(self) -> None:
        self._job(is_suspended=True)

    def resume(self) -> None:
        self._job(is_suspended=False)

    def wish(self, number: str) -> None:
        self._job(replicas=int(number))

    def delete_job(self) -> None:
        self._job(is_deleting=True)

    def _job(self, **changes: Any) -> None:
        self.world.job = replace(
            self.world.job, generation=self.world.job.generation + 1, **changes
        )

    def lost_part(self, part: str) -> None:
        self.world.parts.discard(Part(part))

    def outdated(self, part: str) -> None:
        self.world.outdated.add(Part(part))

    def foreign(self, *names: str) -> None:
        self.world.foreign = names

    # --- Kueue

    def admit(self, name: str) -> None:
        self.world.admit(name)

    def evict(self, name: str, *words: str) -> None:
        given = dict(word.split("=", 1) for word in words)
        reason = given.get("reason", "Preempted")
        eviction = Eviction(reason=reason, by=given.get("by", ""), message=given.get("message", ""))
        self.world.change_workload(name, eviction=eviction)

    def unadmit(self, name: str) -> None:
        self.world.change_workload(name, has_quota=False, is_admitted=False)

    def unmade(self, name: str) -> None:
        self.world.workloads.pop(f"gpt-{name}", None)

    def kueue(self, word: str = "yes") -> None:
        self._cluster(has_kueue=word == "yes")

    def queue(self, word: str) -> None:
        is_there, gives_back = word != "missing", word != "never"
        queue = QueueView(name="lq", cluster_queue="cq", exists=is_there, gives_back=gives_back)
        self._cluster(queues=(queue,))

    def default_queue(self) -> None:
        self._cluster(has_default_queue=True)

    def room(self, number: str, why: str = "") -> None:
        self._cluster(agent_room=None if number == "any" else int(number), room_reason=why)

    def _cluster(self, **changes: Any) -> None:
        self.world.cluster = replace(self.world.cluster, **changes)

    # --- the coordinator

    def demand(self, useful: str) -> None:
        said = DemandView(useful=int(useful), can_suspend=True)
        self.world.coordinator = CoordinatorView(is_reached=True, demand=said)

    def silent(self) -> None:
        self.world.coordinator = replace(self.world.coordinator, is_reached=False)

    def reached(self) -> None:
        self.world.coordinator = replace(self.world.coordinator, is_reached=True)

    def ends(self, code: str, reason: str) -> None:
        ending = JobEnding(exit_code=int(code), reason=reason, step=9, state="ended")
        over = PodPhase.SUCCEEDED
        self.world.change("gpt-coordinator", phase=over, is_ready=False, ending=ending)

    # --- pods and nodes

    def slow(self, word: str = "yes") -> None:
        self.world.is_slow = word == "yes"

    def run(self, *names: str) -> None:
        self.world.run(*(f"gpt-{name}" for name in names))

    def gone(self, *names: str) -> None:
        for name in names:
            self.world.pods.pop(f"gpt-{name}", None)

    def fail(self, name: str, reason: str) -> None:
        self.world.change(f"gpt-{name}", phase=PodPhase.FAILED, is_ready=False, failure=reason)

    def leave(self, name: str) -> None:
        self.world.change(f"gpt-{name}", phase=PodPhase.SUCCEEDED, is_ready=False)

    def image(self, name: str, why: str) -> None:
        self.world.change(f"gpt-{name}", waiting=why)

    def crash(self, name: str, why: str) -> None:
        self.world.change(f"gpt-{name}", waiting=why, is_ready=False)

    def restart(self, name: str) -> None:
        self.world.change(f"gpt-{name}", waiting="")

    def serve(self, name: str) -> None:
        self.world.change(f"gpt-{name}", is_ready=True)

    def unready(self, name: str) -> None:
        self.world.change(f"gpt-{name}", is_ready=False)

    def captured(self, name: str) -> None:
        self.world.change(f"gpt-{name}", is_captured=True)

    def preempt(self, name: str) -> None:
        self._disrupt(name, "PreemptionByScheduler")

    def drain(self, name: str) -> None:
        self._disrupt(name, "EvictionByEvictionAPI")

    def _disrupt(self, name: str, why: str) -> None:
        until_s = self.world.now_s + self.world.job.grace_s
        self.world.change(f"gpt-{name}", disruption=why, is_deleting=True, delete_by_s=until_s)

    def capacity(self, number: str) -> None:
        self.world.capacity = int(number)
        self.world.run()

    def node(self, name: str, word: str) -> None:
        key, _, value = word.partition("=")
        changes: dict[str, dict[str, Any]] = {
            "taint": {"taints": (Taint(key=value, added_s=self.world.now_s),)},
            "not-ready": {"is_ready": False, "not_ready_since_s": self.world.now_s},
            "ready": {"is_ready": True, "not_ready_since_s": None, "taints": ()},
            "cordon": {"is_cordoned": True},
        }
        self.world.nodes[name] = replace(self.world.nodes[name], **changes[key])


def played(text: str) -> str:
    """Return a scenario as it plays now."""
    shown, play = [], None
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        shown.append(line)
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "job":
            play = Play(new_world(words[1:]))
            continue
        if play is None or words[0] != "at":
            raise ValueError(f"not a line of a scenario: {line}")
        play.lines.clear()
        play.happen(float(words[1]), words[2:])
        shown += [f"  {said}" for said in play.lines]
    return "\n".join(shown) + "\n"
