"""How a job is stopped, suspended, finished, begun again from a checkpoint, and ended.

Owns what follows for the whole job when someone asks for it, when its state is lost, or when its
members are done.  Must not know from which event that came.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.commands import EndJob, EndReplica, Release, Stop
from pliant.core.durability import nothing_to_do
from pliant.core.errors import EXIT_FAILED, EXIT_OK, EXIT_STATE_LOST, EXIT_STOPPED, EXIT_USAGE
from pliant.core.events import Exited, ExitKind, Finished, Registered
from pliant.core.job import replicas, restoring
from pliant.core.job.crash_loop import charge
from pliant.core.job.state import (
    Job,
    JobPhase,
    ReplicaState,
    age,
    free_devices,
    is_durable,
    is_held,
    is_kept,
    is_lacking,
)
from pliant.core.job.transaction import Transaction, start_wait_s
from pliant.core.job.transitions import JobPhaseCause, ReplicaCause
from pliant.core.membership import changes
from pliant.core.membership.failure import worker_activity
from pliant.core.membership.state import (
    NEVER,
    busy_until_s,
    dispensable,
    is_finished,
    members,
    under_way,
)
from pliant.core.membership.transitions import Phase
from pliant.core.policy import costs
from pliant.core.text import counted, worker_name
from pliant.core.values import NodeId, Outcome, ReplicaId, StopKind

# --- on request ------------------------------------------------------------------------


def stop(tx: Transaction, kind: StopKind) -> None:
    """Stop at the next step boundary; at once where nobody trains or what there is is kept."""
    job = tx.job
    if job.phase is JobPhase.FINISHING or job.ending.stop in (kind, StopKind.SUSPEND):
        return
    tx.job.ending = replace(job.ending, stop=kind)
    present = members(job.membership)
    if job.membership.orders.recorded is None or not present or (is_held(job) and is_kept(job)):
        end_job(tx, EXIT_STOPPED, _stopped(job), JobPhaseCause.STOP_ASKED)
        return
    if job.phase is not JobPhase.STOPPING:
        begin_stop(tx, JobPhaseCause.STOP_ASKED)
    tx.commands.append(Stop(to=present))
    why = f": {job.ending.stop_for}" if job.ending.stop_for else ", on request"
    tx.notes.append(f"{kind} after the next step{why}")


def stop_at_once(tx: Transaction) -> None:
    """End every process now, whatever they are doing."""
    tx.job.ending = replace(tx.job.ending, stop=StopKind.STOP, stop_for="")
    count = tx.job.membership.committed
    reason = f"{_stopped(tx.job)}, at once, after {count} steps"
    end_job(tx, EXIT_STOPPED, reason, JobPhaseCause.STOP_ASKED)


def suspend(tx: Transaction, reason: str) -> None:
    """Stop so that the job can go on another day, if its script allows for that."""
    if tx.job.start.reference is not None and not is_durable(tx.job):
        tx.decline("its script keeps no checkpoints to go on from; pliant stop ends it")
        return
    if tx.job.ending.stop is None:
        tx.job.ending = replace(tx.job.ending, stop_for=reason)
    stop(tx, StopKind.SUSPEND)


def begin_stop(tx: Transaction, cause: JobPhaseCause) -> None:
    """Let the job stop, and wait for its step boundary for as long as a step may take."""
    tx.enter(JobPhase.STOPPING, cause)
    tx.job.ending = replace(tx.job.ending, stop_by_s=tx.now_s + tx.moment.timeouts.step_s)


def press(tx: Transaction, within_s: float | None = None) -> None:
    """Let a stop that is under way take no longer than this, unless it was told so before.

    After half of the time those are ended for whom the others wait, which then make the step
    without them.  ``within_s``: by default as long as a replica that leaves may take, or four
    usual steps.  Behind the last step scripts have as long to end.
    """
    ending, is_over = tx.job.ending, tx.job.phase is JobPhase.FINISHING
    if not (is_over or tx.job.phase is JobPhase.STOPPING) or ending.stop_rest_s < NEVER:
        return
    if within_s is None:
        usual_s = 4 * tx.job.sizing.costs.usual_step_s
        within_s = max(tx.settings.leave_s, usual_s)
    if is_over:
        tx.job.ending = replace(ending, stop_by_s=tx.now_s + within_s, stop_rest_s=0.0)
        for name, replica in tx.job.replicas.items():
            tx.put(name, replace(replica, due_s=min(replica.due_s, tx.now_s + within_s)))
        return
    by_s = min(ending.stop_by_s, tx.now_s + within_s / 2)
    tx.job.ending = replace(ending, stop_by_s=by_s, stop_rest_s=within_s / 2)


def end_if_stop_is_overdue(tx: Transaction) -> None:
    """End a job whose members do not come to the boundary at which they were to stop."""
    known = tx.job.membership
    if tx.job.phase is JobPhase.FINISHING:  # each process has its own time
        return
    if tx.job.ending.stop_by_s <= tx.now_s:  # who saves its last state says that it is busy
        tx.job.ending = replace(tx.job.ending, stop_by_s=busy_until_s(known, members(known)))
    if tx.job.ending.stop_by_s > tx.now_s:
        return
    rest_s = tx.job.ending.stop_rest_s
    if 0.0 < rest_s < NEVER:
        tx.job.ending = replace(tx.job.ending, stop_by_s=tx.now_s + rest_s, stop_rest_s=0.0)
        if hung := dispensable(known, worker_activity.awaited(known)):
            why = "the job is to stop, and the others wait for it"
            replicas.accept_membership(tx, changes.end(known, hung, why, tx.moment))
    else:
        late = f"{_stopped(tx.job)}, without reaching a step boundary in time"
        _end_stopped(tx, late)


def suspend_if_all_must_leave(tx: Transaction) -> None:
    """Save what there is where all who hold the state must go, and nobody else can come."""
    job = tx.job
    present = members(job.membership)
    coming = (ReplicaState.STARTING, ReplicaState.SPARE)
    if (
        is_durable(job)
        and bool(present)
        and all(job.replicas[name].is_reclaimed for name in present)
        and not any(replica.state in coming for replica in job.replicas.values())
        and (job.offer.replicas == 0 or not free_devices(job))
    ):
        if job.nodes.leaving:
            tx.job.ending = replace(
                job.ending, stop_for="nobody else has the state of the run, or room for it"
            )
        else:
            tx.notes.append("every replica is reclaimed and there is no room for another")
        stop(tx, StopKind.SUSPEND)
        press(tx, min(job.replicas[name].due_s for name in present) - tx.now_s)


# --- at the end of the training ----------------------------------------------------------


def finish_if_done(tx: Transaction) -> None:
    """Once every member has done its last step, let them all go."""
    job = tx.job
    is_stop = job.phase is JobPhase.STOPPING
    if not is_finished(job.membership):
        if is_stop and is_held(job) and is_kept(job):
            _end_stopped(tx, f"{_stopped(job)}, while waiting for a replacement")
        return
    count = job.membership.committed
    steps = "" if tx.settings.is_restarting else f" after {counted(count, 'step')}"
    reason = f"{_stopped(job)}{steps}" if is_stop else f"finished {count} steps"
    if not is_stop and tx.settings.is_restarting:
        reason = "every process of the script has ended with code 0"
    elif not is_stop and not restoring.has_trained(job):
        reason = nothing_to_do(count)
    exit_code = EXIT_STOPPED if is_stop else EXIT_OK
    if not is_stop and is_lacking(job):
        exit_code = EXIT_FAILED
        reason += _without_leader(
            job, job.budget.losses[-1].sentence if job.budget.losses else "it was ended"
        )
    tx.enter(JobPhase.FINISHING, JobPhaseCause.FINISHED)
    done = job.membership.finished | job.membership.orders.leavers
    leader = None if is_stop else next(n for n in members(job.membership) if n in done)
    _decide(tx, Outcome(exit_code=exit_code, reason=reason, is_final=is_stop, leader=leader))
    left_s = tx.job.ending.stop_rest_s  # NEVER: scripts may take their time
    by_s = NEVER if left_s == NEVER else tx.job.ending.stop_by_s + left_s
    tx.job.ending = replace(tx.job.ending, stop_by_s=by_s)
    tx.notes.append(reason)
    _let_all_exit(tx, done)


def go_on_ending(tx: Transaction, outcome: Outcome, done: frozenset[ReplicaId]) -> None:
    """Take up the end that was recorded before; ``done`` have made their last step."""
    tx.enter(JobPhase.FINISHING, JobPhaseCause.OUTCOME_RECORDED)
    _decide(tx, outcome)
    tx.notes.append(f"{outcome.reason}, as the coordinator before has recorded")
    _let_all_exit(tx, done)


def leave_after_the_end(tx: Transaction, event: Exited) -> None:
    """Let the end stand once one has left by itself; its script may decide the exit code."""
    outcome = tx.job.ending.outcome
    has_failed = event.kind in (ExitKind.SCRIPT, ExitKind.USAGE, ExitKind.DEVICE)
    is_known = _has_trained_to_the_end(tx.job, event.replica)
    is_known |= has_failed and tx.job.phase is JobPhase.FINISHING
    if outcome is None or not is_known:
        return
    if event.kind in (ExitKind.SIGNAL, ExitKind.UNKNOWN):
        lose_after_the_end(tx, event.replica, sentence(event))
        return
    if not (has_failed or event.kind is ExitKind.FINISHED):
        return
    if has_failed:
        code = EXIT_USAGE if event.kind is ExitKind.USAGE else EXIT_FAILED
        reason = f"after its last step, {sentence(event)}"
        outcome = replace(outcome, exit_code=code, reason=reason)
    _decide(tx, replace(outcome, is_final=True))


def lose_after_the_end(
    tx: Transaction, name: ReplicaId, what: str, *, is_final: bool = False
) -> None:
    """Say of one that is gone that its script was not at its end; of the leader that is a failure.

    Nobody does again what the leader alone does after the last step.  ``is_final``: it was ended
    for what it did there, and would be again.
    """
    outcome = tx.job.ending.outcome
    if outcome is None or not _has_trained_to_the_end(tx.job, name):
        return
    if outcome.exit_code == EXIT_OK:
        reason = f"{outcome.reason}; then {what}, before its script had ended"
        if name == outcome.leader:
            reason = f"{outcome.reason}{_without_leader(tx.job, what)}"
            outcome = replace(outcome, exit_code=EXIT_FAILED)
        outcome = replace(outcome, reason=reason)
        tx.notes.append(reason)
    _decide(tx, replace(outcome, is_final=outcome.is_final or is_final))


def _without_leader(job: Job, what: str) -> str:
    """Say that the leader's script was not at its end."""
    return (
        f"; then {what}, before its script had ended: what the leader alone was to save then may be"
        " missing" + "; the newest checkpoint has the weights" * _has_saved_the_end(job)
    )


def lose_overdue_after_the_end(tx: Transaction) -> None:
    """Say of those that take too long after their last step that their script is not let end."""
    for name, replica in tx.job.replicas.items():
        if replica.due_s <= tx.now_s and isinstance(replica.farewell, Release):
            within = f"within {tx.settings.finish_s:g} s"
            if tx.job.ending.stop_by_s <= tx.now_s:
                within = "in time once the job was told to end,"
            what = f"{name} did not exit {within} and was ended"
            lose_after_the_end(tx, name, what, is_final=True)


def is_end_awaited(job: Job, node: NodeId) -> bool:
    """Whether it matters how a script on this node ends: the leader's, or any until one has."""
    is_final = job.ending.outcome is not None and job.ending.outcome.is_final
    return any(
        not replica.is_lost and (name == _leader(job) or not is_final)
        for name, replica in job.replicas.items()
        if replica.node == node
    )


def _leader(job: Job) -> ReplicaId | None:
    return None if job.ending.outcome is None else job.ending.outcome.leader


def _has_trained_to_the_end(job: Job, name: ReplicaId) -> bool:
    """Whether this replica is one of those that have made the last step."""
    order = job.membership.orders.recorded
    return order is not None and name in {*order.replicas, *job.membership.orders.leavers}


def sentence(event: Exited) -> str:
    """Say how a replica has ended."""
    detail = f": {event.detail}" if event.detail else ""
    words = {
        ExitKind.FINISHED: "exited before it was released",
        ExitKind.LEFT: "left",
        ExitKind.USAGE: "refused its input",
        ExitKind.SCRIPT: "failed",
        ExitKind.SIGNAL: "was killed",
        ExitKind.EARLY: "ended without having trained to the end",
        ExitKind.CORRUPT: "had another state than most replicas",
        ExitKind.SHORT: "failed",
        ExitKind.DEVICE: "could not go on with its device",
        ExitKind.TAKEN: "could not have its device",
        ExitKind.UNKNOWN: "is not known to its agent",
    }
    return f"{worker_name(event.replica, event.worker)} {words[event.kind]}{detail}"


def _has_saved_the_end(job: Job) -> bool:
    """Whether this coordinator has heard that the last step is in a checkpoint."""
    return is_durable(job) and is_kept(job)


def _decide(tx: Transaction, outcome: Outcome) -> None:
    """Take note of how the job ends; it is in the register before anybody hears of it."""
    code, reason = outcome.exit_code, outcome.reason
    tx.job.ending = replace(tx.job.ending, exit_code=code, reason=reason, outcome=outcome)


def _let_all_exit(tx: Transaction, done: frozenset[ReplicaId]) -> None:
    """Release whoever has made its last step, the leader first, and end all others."""
    names = sorted(tx.job.replicas, key=lambda name: (name != _leader(tx.job), age(name)))
    release = Release(to=tuple(name for name in names if name in done))
    if release.to:
        tx.commands.append(release)
    for name in names:
        _let_exit(tx, name, tx.job.ending.reason, release if name in done else None)


def _let_exit(tx: Transaction, name: ReplicaId, reason: str, release: Release | None) -> None:
    """Let one go whose job has finished; who has done its last step may take its time."""
    replica, cause = tx.job.replicas[name], ReplicaCause.JOB_FINISHED
    if release is not None:
        wait_s = min(tx.settings.finish_s, tx.job.ending.stop_by_s - tx.now_s)
        replicas.end(tx, name, cause, replica.reason, told=release, is_lost=False, wait_s=wait_s)
    elif replica.state is not ReplicaState.ENDING:
        replicas.end(tx, name, cause, reason)


# --- when state is lost --------------------------------------------------------------------


def lose(
    tx: Transaction, names: frozenset[ReplicaId], kind: ExitKind, what: str, *, signature: str = ""
) -> None:
    """Go on without these, if the state of the run is left."""
    replicas.drop_from_membership(tx, *names)
    if tx.job.membership.phase is Phase.LOST and tx.job.phase is not JobPhase.STARTING:
        lose_state(tx, kind, what, signature=signature)


def lose_state(tx: Transaction, kind: ExitKind, what: str, *, signature: str = "") -> None:
    """Begin again from a checkpoint, or where no step was committed yet, else end the job.

    A script that fails alike at the step at which it did before is not tried again: the same
    samples follow.  At an earlier step it was something else: an outage of storage, or of memory.
    """
    count = tx.job.membership.committed
    last = f"{counted(count, 'step')} had been committed" if count else "no step was committed"
    lost = f"the last replica that had the state of the run was lost: {what}; {last}"
    before, at = tx.job.budget.failed_at, (count, signature)
    failed_by_itself = (ExitKind.SCRIPT, ExitKind.EARLY)
    if signature:
        tx.job.budget = replace(tx.job.budget, failed_at=at)
    if count and before == at:
        failed = (
            f"the script fails alike after a restart and comes no further; last: {what}; {last}"
        )
        end_job(tx, EXIT_FAILED, failed, JobPhaseCause.STATE_LOST)
    elif is_durable(tx.job) or not (count or kind in failed_by_itself):
        go_back(tx, lost)
    elif kind in failed_by_itself:
        failed = f"the script failed on every replica; last: {what}; {last}"
        end_job(tx, EXIT_FAILED, failed, JobPhaseCause.STATE_LOST)
    else:
        end_job(tx, EXIT_STATE_LOST, lost, JobPhaseCause.STATE_LOST)


def go_back(tx: Transaction, why: str) -> None:
    """Begin again with others, or another day if the job is to stop anyway."""
    if tx.job.phase is JobPhase.STOPPING:
        _end_stopped(tx, f"{_stopped(tx.job)}, before a step boundary: {why}")
    else:
        _start_over(tx, why)


def _start_over(tx: Transaction, why: str) -> None:
    """Let everybody go who has trained, and wait for spares to begin again with."""
    where = "to the newest checkpoint that is found" if is_durable(tx.job) else "to the beginning"
    tx.notes.append(f"{why}; going back {where}")
    if tx.job.checkpoints.asked_after is not None:
        tx.job.checkpoints = replace(tx.job.checkpoints, asked_after=None)
        tx.notes.append("the checkpoint that was asked for did not come about; ask again")
    tx.enter(JobPhase.STARTING, JobPhaseCause.STATE_LOST)
    is_ready = any(replica.state is ReplicaState.SPARE for replica in tx.job.replicas.values())
    tx.job.start = replace(
        tx.job.start, by_s=tx.now_s + (start_wait_s(tx) if is_ready else tx.settings.start_s)
    )
    tx.job.membership = changes.given_up(tx.job.membership)
    tx.job.sizing = replace(
        tx.job.sizing,
        pace=replace(tx.job.sizing.pace, restarted_at=tx.now_s),
        costs=costs.interrupted(tx.job.sizing.costs),
    )
    fresh = (ReplicaState.STARTING, ReplicaState.SPARE)
    members = under_way(tx.job.membership).replicas
    for name, replica in tx.job.replicas.items():
        is_fresh = replica.state in fresh and name not in members
        if not is_fresh and replica.state is not ReplicaState.ENDING:
            replicas.send_away(tx, name, tx.settings.exit_s, "the job begins again")
    look_anew(tx)


def look_anew(tx: Transaction) -> None:
    """Have those who wait look which checkpoints there are now."""
    tx.job.checkpoints, commands = restoring.look_anew(tx.job)
    tx.commands.extend(commands)


def hear_finished(tx: Transaction, event: Finished | Registered) -> None:
    """Take note that the last step is done, whoever says it, also one that is lost or released.

    All had voted for that step, so whoever is left has it or its result.
    """
    last = (event.lineage, event.committed)
    if event.lineage == tx.job.membership.lineage and last != tx.job.ending.last_step:
        by_s = tx.now_s + tx.moment.timeouts.step_s
        tx.job.ending = replace(tx.job.ending, last_step=last, last_step_by_s=by_s)


def hear_lacking(tx: Transaction, event: Finished) -> None:
    """Take note whether what the leader alone does after the last step was another one's to do."""
    before = tx.job.ending.lacking
    tail, end = event.lacks_tail, event.lacks_end
    if before is not None and before[0] == event.committed:
        tail, end = tail and before[1], end and before[2]
    tx.job.ending = replace(tx.job.ending, lacking=(event.committed, tail, end))


# --- the end -------------------------------------------------------------------------------


def end_if_all_gone(tx: Transaction) -> None:
    """End a job that has finished, once its last process that can be ended has exited.

    Where none of them has come to the end of its script the state is lost, as before the end.
    """
    outcome = tx.job.ending.outcome
    is_awaited = any(replica.due_s < NEVER for replica in tx.job.replicas.values())
    if is_awaited or outcome is None:
        return
    if outcome.is_final:
        end_job(tx, outcome.exit_code, outcome.reason, JobPhaseCause.ALL_GONE)
        return
    what = "every replica was lost after the last step, before any script had ended"
    charge(tx, ExitKind.SIGNAL, what)
    tx.job.ending = replace(tx.job.ending, outcome=None, exit_code=None, reason="")
    lose_state(tx, ExitKind.SIGNAL, what)


def end_job(tx: Transaction, exit_code: int, reason: str, cause: JobPhaseCause) -> None:
    """End every process and the job; nothing else of this transaction matters any more."""
    names = sorted(tx.job.replicas, key=age)
    tx.commands.extend(EndReplica(replica=name, reason="the job ends") for name in names)
    tx.commands.append(EndJob(exit_code=exit_code, reason=reason))
    tx.notes.append(reason)
    tx.enter(JobPhase.ENDED, cause)
    leader = _leader(tx.job)
    _decide(tx, Outcome(exit_code=exit_code, reason=reason, is_final=True, leader=leader))


def _end_stopped(tx: Transaction, reason: str) -> None:
    """End a job that cannot stop at a boundary, with what it was given up for if it was."""
    code, why = tx.job.ending.exit_code, tx.job.ending.reason
    if code is None:
        code, why = EXIT_STOPPED, reason
    end_job(tx, code, why, JobPhaseCause.STOP_CUT_SHORT)


def _stopped(job: Job) -> str:
    how = "suspended" if job.ending.stop is StopKind.SUSPEND else "stopped"
    if job.ending.stop_for and job.ending.stop_for == job.ending.reason:
        return f"{how} because no node can start anything any more ({job.ending.reason})"
    if job.ending.stop_for and job.nodes.leaving:
        why = max(job.nodes.leaving.values())  # one that was told, if one was
        return f"{how} before its last node was gone" + f" ({why})" * bool(why)
    return f"{how} for others" if job.ending.stop_for else f"{how} on request"
