"""Seeded faults of what follows from speed, from several workers, and from nodes lost together."""

from __future__ import annotations

from functools import partial

from tools.faults import Fault

_SCENARIOS = ("tests/conformance", "tests/core/job", "tests/core/test_explorer.py")
_SLOW = partial(Fault, rule="Slow", path="job/stragglers.py", suite=_SCENARIOS)
_SLOWNESS = partial(_SLOW, path="job/slowness.py")
_BALANCE = partial(
    Fault,
    rule="Balance",
    path="step/balance.py",
    suite=("tests/core/step", "tests/core/test_explorer.py"),
)
_WORKERS = partial(
    Fault,
    rule="Workers",
    path="membership/follower_answers.py",
    suite=("tests/core/membership", "tests/conformance", "tests/core/test_explorer.py"),
)
_WHERE = partial(_WORKERS, path="membership/whereabouts.py")
_ANSWERS = partial(
    Fault, rule="R7", path="job/mere_answers.py", suite=("tests/core/job/test_mere_answers.py",)
)
_SIGNS = partial(
    Fault, rule="5.6", path="job/mere_signs.py", suite=("tests/core/job/test_mere_signs.py",)
)
_TOGETHER = partial(Fault, rule="R11", path="job/handlers.py", suite=_SCENARIOS)
_NODES = partial(Fault, rule="R11", path="job/node_loss.py", suite=_SCENARIOS)

SPEED_FAULTS = [
    _ANSWERS(
        what="of the last answer nothing more is thought than of the others",
        old="            or len(left) == 1\n",
        new="",
    ),
    _ANSWERS(
        what="a joiner that enters is a joiner still",
        old="        and name not in state.joiners\n        and name not in state.spares\n",
        new="",
        equivalent="a joiner is a spare for the job until it is heard to have entered, and so is a "
        "spare: the look at the replica's state leaves both out",
    ),
    _SIGNS(
        what="a step that only a sign of life tells of is not heard",
        old="        and event.committed <= state.committed\n",
        new="",
    ),
    _SIGNS(
        what="who has come to the boundary is not seen there",
        old=" or _has_arrived(state, event)",
        new="",
    ),
    _SIGNS(
        what="one that registers again after a take-over is still waited for",
        old="        and name not in state.unheard\n",
        new="",
    ),
    _TOGETHER(
        what="where all die together the last of them is not waited for",
        old="    if lost and others and",
        new="    if lost and",
    ),
    _SLOW(
        what="a slow replica is sent away though no spare waits",
        old="not spares(job) or ",
        new="",
    ),
    _SLOW(
        what="a slow replica that trains alone is replaced",
        old=" or len(trainers(job)) < 2:",
        new=":",
    ),
    _SLOW(
        what="slow replicas are replaced one after the other",
        old="    if len(_recent(job, tx.now_s)) >= policy.max_slow_replacements_per_hour:\n"
        "        return None\n",
        new="",
    ),
    _SLOW(
        what="replacements of slow replicas are counted for ever",
        old=" if at_s > now_s - HOUR_S)",
        new=")",
    ),
    _SLOW(
        what="a slow replica is replaced while another leaves",
        old="    if any(replica.state in busy for replica in job.replicas.values()):\n"
        "        return None\n",
        new="",
    ),
    _SLOW(
        what="of several slow replicas the fastest is replaced",
        old="return max(due, key",
        new="return min(due, key",
    ),
    _SLOW(
        what="a replica is replaced as soon as it is slow",
        old=" if slow.since_s + after_s <= tx.now_s]",
        new="]",
    ),
    _SLOW(
        what="nothing wakes the job when a slow replica is to be looked at",
        old="slow_look_s=min(moments))",
        new="slow_look_s=NEVER)",
    ),
    _SLOW(
        what="a slow replica that has to be replaced is looked at once",
        old="moments.append(due_s if due_s > tx.now_s else tx.now_s + AGAIN_S)",
        new="moments.append(due_s if due_s > tx.now_s else NEVER)",
    ),
    _SLOW(
        what="one that leaves still counts as slow",
        old="    known = slowness.among(job.slow, trainers(job))\n",
        new="    known = job.slow\n",
    ),
    _SLOW(
        what="a slow replica is replaced in a job that stops",
        old=" or job.stage is not Stage.RUNNING:",
        new=":",
    ),
    _SLOWNESS(
        what="people hear of whoever is slow for a moment",
        old="if not slow.is_told and slow.since_s + after_s <= now_s",
        new="if not slow.is_told",
    ),
    _SLOWNESS(
        what="people hear of a slow replica at each look",
        old="if not slow.is_told and slow",
        new="if slow",
    ),
    _SLOWNESS(
        what="one that is fast again stays slow",
        old="return known if before is None else known.drop(name)",
        new="return known",
    ),
    _SLOWNESS(
        what="one that says how slow it is by now begins anew",
        old="replace(before, tenths=tenths)",
        new="Slow(tenths=tenths, since_s=now_s)",
    ),
    _BALANCE(
        what="one step moves slots",
        old="WINDOW_STEPS = 8",
        new="WINDOW_STEPS = 1",
    ),
    _BALANCE(
        what="slots are moved for a gain that noise feigns",
        old="within_us = step_us(sizes, pace_us, at_once) * 9 // 10",
        new="within_us = step_us(sizes, pace_us, at_once) - 1",
    ),
    _BALANCE(
        what="slots are moved again and again",
        old="rest=division.patience, ",
        new="rest=0, ",
    ),
    _BALANCE(
        what="the pause between two changes does not grow",
        old="min(2 * division.patience, _MOST_PATIENCE)",
        new="division.patience",
    ),
    _BALANCE(
        what="the pause between two changes never becomes shorter",
        old="calm=0, patience=max(1, division.patience // 2))",
        new="calm=0)",
    ),
    _BALANCE(
        what="a step in which one computed nothing says something of its time",
        old="    if UNKNOWN_US in said_us:\n        return division\n",
        new="",
    ),
    _BALANCE(
        what="one that comes anew is taken for the fastest",
        old="tuple(pace or _median(known) for",
        new="tuple(pace or min(known) for",
    ),
    _BALANCE(
        what="slots follow the speed though they are to be even",
        old="    if division.balance is Balance.EVEN:\n        return division\n",
        new="",
    ),
    _BALANCE(
        what="slots follow the speed from the first step though they are to be even",
        old="assumed is not None and balance is Balance.SPEED:",
        new="assumed is not None:",
    ),
    _BALANCE(
        what="a replica has no slots",
        old="if spare and size > 1:",
        new="if spare and size:",
    ),
    _BALANCE(
        what="a division needs more memory than is kept ready",
        old="if own <= most and (",
        new="if (",
    ),
    _BALANCE(
        what="one that takes a little longer is slow",
        old="FAR, NEAR = 20, 15",
        new="FAR, NEAR = 12, 11",
    ),
    _BALANCE(
        what="one that is slow is so and is not so by turns",
        old="(NEAR if before else FAR)",
        new="FAR",
    ),
    _BALANCE(
        what="one is compared with itself",
        old="tenths = 10 * own // _median(others)",
        new="tenths = 10 * own // _median(division.pace_us)",
    ),
    _BALANCE(
        what="a generation that ended soon says nothing of the times in it",
        old="known_us == UNKNOWN_US or 2 *",
        new="2 *",
    ),
    _BALANCE(
        what="one step of a window says more than the window before",
        old="2 * len(division.heard) > WINDOW_STEPS",
        new="division.heard",
    ),
    _WORKERS(
        what="a vote of some workers stands for all",
        old="if len(fitting) == len(said.places) else None",
        new="if fitting else None",
    ),
    _WORKERS(
        what="an answer of another generation counts",
        old="    if answer.generation != generation:\n        return False\n",
        new="",
    ),
    _WORKERS(
        what="a result of another step counts",
        old="or answer.step == step",
        new="or True",
    ),
    _WORKERS(
        what="an answer counts for the step that is done again, too",
        old="if key[0] is not kind}",
        new="}",
    ),
    _WORKERS(
        what="what a worker says of a generation that was given up is waited for",
        old="    if generation in said.given_up:\n        return Lost("
        'reason=f"generation {generation} was given up")\n',
        new="",
    ),
    _WORKERS(
        what="what follows from a failure is taken for its cause",
        old="    if isinstance(known, Failed) and known.generation == answer.generation:\n"
        "        return said\n",
        new="",
    ),
    _WORKERS(
        what="an older answer displaces a newer one",
        old=" or is_late:",
        new=":",
    ),
    _WORKERS(
        what="one digest for all workers does not depend on their places",
        old="mixed = (mixed * _ODD + digest) & _MASK",
        new="mixed = (mixed + digest) & _MASK",
    ),
    _WORKERS(
        what="a digest that one worker does not know is said for all",
        old="        if unknown in column:\n            joint.append(unknown)\n"
        "            continue\n",
        new="",
    ),
    _WHERE(
        what="a replica waits for the others while one of its workers is in the script",
        old=" and Whereabouts.SCRIPT not in workers",
        new="",
    ),
    _WHERE(
        what="workers that wait for each other keep nobody waiting",
        old="return EACH_OTHER if set(workers) == {Whereabouts.REPLICA} else None",
        new="return None",
    ),
    _WORKERS(
        what="one of whose workers hangs is waited for",
        path="membership/silence.py",
        old="        return _end_stuck(state, stuck, moment)\n",
        new="        return state, ()\n",
    ),
    _NODES(
        what="nodes that are lost at once are a fault each",
        old="    if gone:\n        lose_nodes(tx, gone)\n",
        new="    for node in gone:\n        lose_nodes(tx, [node])\n",
    ),
    _NODES(
        what="of nodes that are lost at once one is",
        path="job/controller.py",
        old="on_nodes_lost(tx, (node, *others), has_left",
        new="on_nodes_lost(tx, (node,), has_left",
    ),
    _NODES(
        what="of nodes that are lost while members register one is",
        path="job/registration.py",
        old="_lose_nodes(tx, (node, *others))",
        new="_lose_nodes(tx, (node,))",
    ),
    _NODES(
        what="the last nodes that hold the state are lost together",
        old="without = {node, *gone}",
        new="without = {node}",
    ),
]
