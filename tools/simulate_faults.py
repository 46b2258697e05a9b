"""Seeded faults of what is simulated: progress, pauses, losses, and what is counted of them."""

from __future__ import annotations

from functools import partial

from tools.faults import Fault

SUITE = ("tests/simulate/test_simulation.py", "tests/simulate/test_training_run.py")

_SIMULATION = partial(Fault, rule="Simulation", room="simulate", suite=SUITE)
_TRAINING = partial(_SIMULATION, path="training_run.py")
_ELASTIC = partial(_SIMULATION, path="elastic_run.py")
_RIGID = partial(_SIMULATION, path="rigid_run.py")

SIMULATE_FAULTS = [
    _TRAINING(
        what="a job trains on while it pauses",
        old="trained_s = passed_s - paused_s",
        new="trained_s = passed_s",
    ),
    _TRAINING(
        what="what is lost with the state need not be done again",
        old="self.done_s = max(0.0, self.done_s - work_s)",
        new="self.done_s = max(0.0, self.done_s)",
    ),
    _TRAINING(
        what="a change comes in the midst of a step",
        old="return part_s if LEAST_S < part_s < step_s - LEAST_S else 0.0",
        new="return 0.0",
    ),
    _TRAINING(
        what="beyond the largest size that was measured a job becomes ever faster",
        old="return points[-1][1]\n",
        new="return points[-1][1] * size / points[-1][0]\n",
    ),
    _ELASTIC(
        what="who is ready joins before the step has ended",
        old="if now_s < (self._join_at_s or 0.0):",
        new="if now_s < 0.0:",
    ),
    _ELASTIC(
        what="a leave on notice pauses nobody",
        old="self._change(before, self.costs.leave_pause_s)",
        new="self._change(before, 0.0)",
    ),
    _ELASTIC(
        what="the step in which others are lost is not done again",
        old="elif self.rate and self.costs.redoes_step:",
        new="elif self.rate and not self.costs.keeps_steps:",
    ),
    _ELASTIC(
        what="a restart that is known of loses what was done since the checkpoint",
        old="self.keep()  # a change that is known of is saved for",
        new="self.lose_state()",
    ),
    _ELASTIC(
        what="those who are left pause no longer than for a restart",
        old="self.pause(self.costs.loss_pause_s if self.costs.keeps_steps else self.restart_s)",
        new="self.pause(0.0)",
    ),
    _ELASTIC(
        what="the policy hears of starts that take no time",
        old="costs.started(self._measured, self.start_s)",
        new="costs.started(self._measured, 0.0)",
    ),
    _ELASTIC(
        what="spares join without anybody missing",
        old="ready = ready[: max(0, self.decision.target_replicas - len(self._training))]",
        new="ready = ready[:]",
    ),
    _ELASTIC(
        what="of a replica of which a device is lost the others train on",
        old="hit = {one for one in everybody if not gone.isdisjoint(one)}",
        new="hit = {one for one in everybody if gone.issuperset(one)}",
    ),
    _SIMULATION(
        path="replay.py",
        what="that a pool answers less than was recorded is not noticed",
        old="    if len(recorded) > len(now):\n",
        new="    if len(recorded) > 9:\n",
        suite=("tests/simulate/test_pool_replay.py", "tests/simulate/test_replay.py"),
    ),
    _RIGID(
        what="a job that has lost everything is stopped once more",
        old="if self._stop is not None or not self.held:",
        new="if self._stop is not None:",
    ),
    _RIGID(
        what="nobody sees to a job that was stopped",
        old="self.record.interventions += self.costs.is_by_hand",
        new="self.record.interventions += 0",
    ),
    _SIMULATION(
        path="simulated_pool.py",
        what="a simulation in which nothing is left to happen does not end",
        old="if due_s > until_s or due_s == math.inf:",
        new="if due_s > until_s:",
    ),
    _SIMULATION(
        path="measures.py",
        what="what inference held counts against training",
        old='there_h - spent["serving"]',
        new="there_h",
    ),
    _SIMULATION(
        path="recorded.py",
        what="all idle hours are taken for those while a job waited",
        old="idle_s if waiting else 0.0",
        new="idle_s",
        suite=("tests/simulate/test_recorded.py",),
    ),
    _SIMULATION(
        path="html_report.py",
        what="a column of a picture has what comes in the next one as well",
        old="min(until_s, (column + 1) * width_s)",
        new="min(until_s, (column + 2) * width_s)",
        suite=("tests/simulate/test_html_report.py",),
    ),
    _SIMULATION(
        room="spec",
        path="exported_jobs.py",
        what="small jobs are made elastic as well",
        old="if job.is_elastic or job.devices < least",
        new="if job.is_elastic",
        suite=("tests/spec/test_exported_jobs.py",),
    ),
    _SIMULATION(
        room="spec",
        path="sacct.py",
        what="accelerators without a type are not counted",
        old="    if whole:\n",
        new="    if not tres:\n",
        suite=("tests/spec/test_sacct.py",),
    ),
]
