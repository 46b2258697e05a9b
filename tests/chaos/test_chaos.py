"""Whatever goes wrong on several hosts, a job ends with the bits of one that nothing happened to.

``make chaos`` acts on a thousand faults, ``make chaos SEED=n FAULTS=m`` on others.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.chaos import Chaos
from tests.chaos.checks import check_ledgers, digests, growth, held_by, leftovers
from tests.chaos.fleet import Fleet, Style
from tests.chaos.plan import ChaosPlan
from tests.live import namespaces
from tests.live.stage import DEADLINE_S
from tests.processes import elastic, hosts

SEED = int(os.environ.get("SEED", "1"))
FAULTS = int(os.environ.get("FAULTS", "6"))

IS_LONG = "FAULTS" in os.environ
"""Faults may last for minutes, and all hosts must train together at the end."""

GAP_S = 2.5 if IS_LONG else 1.5
PACE_S = 0.1 if IS_LONG else 0.03
"""Of each micro-batch."""

NAMES: tuple[str, ...] = ("a", "b", "c", "d") if IS_LONG else ("a", "b", "c")

MODELS = ("gpt", "cnn", "moe", "frozen")

FEW_IMPOSSIBLE = 0.02
"""Of the faults, so many may find nobody to happen to; with more, little was tried."""

RETURN_S = 900.0
"""How long hosts that could not reach each other have until all train together: the pause after a
failed try is at most 10 minutes."""

LASTS_S = int(600 + 2 * RETURN_S + 2 * GAP_S * FAULTS)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.chaos,
    pytest.mark.timeout(LASTS_S),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]


def test_whatever_goes_wrong_it_ends_as_a_run_that_nothing_happened_to(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    try:
        with hosts.hosts(tmp_path, *NAMES, lasts_s=LASTS_S) as net:
            plan = ChaosPlan.of(SEED, FAULTS, NAMES, gap_s=GAP_S, has_minutes=IS_LONG)
            run(shared, net, plan)
    except AssertionError as error:
        raise AssertionError(
            f"{error}\n\nIt repeats with: make chaos SEED={SEED} FAULTS={FAULTS}\n"
            f"What happened when is in {shared}/chaos.txt; a scenario file of it, that the core "
            f"alone plays:\n  python -m tools.log_scenario {shared}/run chaos-{SEED}.txt"
        ) from error


def run(shared: Path, net: namespaces.Network, plan: ChaosPlan) -> None:
    """Let a job train while everything of the plan goes wrong, and check what came out."""

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        with (shared / "chaos.txt").open("a") as trail:
            trail.write(f"{line}\n")

    model = random.Random(plan.seed).choice(MODELS)
    over, ends = shared / "over", shared / "digests"
    script = ("--model", model, "--steps", 10_000_000, "--pace", PACE_S, "--until", over)
    kept = ("--digest-file", ends, "--checkpoint", shared / "kept", "--every", "20steps")
    sizes: dict[str, Any] = {"global_batch_size": 16, "micro_batch_size": 2}
    given = [word for name, size in sizes.items() for word in (f"--{name.replace('_', '-')}", size)]
    style, devices = (Style.APART, Style.TOGETHER)[plan.seed % 2], 1 + plan.seed // 2 % 2
    fleet = Fleet(net, shared, style, (*script, *kept, *given, "--faults", plan.placed), devices)
    chaos = Chaos(fleet, plan, say)
    say(
        f"chaos of seed {plan.seed}: {len(plan.faults)} faults, {style}, {model}, {devices} devices"
    )
    began_s = time.monotonic()
    fleet.start()
    chaos.wait(lambda: len(chaos.told.training()) > 1, "two hosts train", 2 * DEADLINE_S)
    chaos.wait(lambda: chaos.told.kinds["saved"] > 0, "a checkpoint is there", 2 * DEADLINE_S)
    say(f"{time.monotonic() - began_s:7.1f} s until it trains and is kept")

    chaos.play()
    chaos.calm()
    chaos.ask_for_all()
    most = len(NAMES) if IS_LONG else 1
    chaos.wait(lambda: len(chaos.told.training()) >= most, "all hosts train together", RETURN_S)
    before = chaos.told.kinds["commit"]
    chaos.wait(lambda: chaos.told.kinds["commit"] > before + 20, "it trains on", RETURN_S)
    fleet.is_over = True
    programs = [program for name in NAMES for program in fleet.programs(name)]
    over.touch()
    codes = [program.wait(2 * DEADLINE_S) for program in programs]
    answers = Counter(asked.wait() for asked in fleet.asked if asked.host.is_on)

    found = digests(ends)
    lives = held_by(chaos.held)
    for what, one in lives.items():
        say(f"{what}: {one}; {one.slopes()}")
    happened = Counter(fault.kind.name for fault in chaos.done)
    say(f"{len(chaos.done)} faults in {time.monotonic() - began_s:.0f} s: {dict(happened)}")
    say(f"{len(chaos.impossible)} were impossible; {dict(chaos.told.kinds)}")
    say(f"{chaos.answered} requests were granted; they ended with {dict(answers)}")
    say(f"ended with {codes}, {found}; by themselves: {fleet.surprises}")
    assert len(chaos.impossible) <= max(1, FEW_IMPOSSIBLE * len(plan.faults)), chaos.impossible
    assert codes == [0] * len(codes)
    assert len(codes) >= len(NAMES)
    ((digest, steps),) = found.items()
    assert digest == elastic.reference(model, steps, **sizes)
    check_ledgers(fleet.out, steps)
    assert fleet.surprises == []
    assert leftovers(fleet) == []
    assert growth(lives) == {}
