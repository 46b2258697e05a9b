"""``pliant check``: is a script's result the same, whatever happens to its replicas?

Owns argv of the command, the order of its findings and the screen.  Knows nothing of how a history
is played (``run.check``), nor of what counts as a difference (``core.checked``).
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pliant.cli.arguments import Arguments, Json, Target
from pliant.cli.help import option
from pliant.cli.job_file import read_command
from pliant.cli.settings import SETTINGS
from pliant.cli.terminal import print_json, say
from pliant.core.checked import (
    FEWEST_STEPS,
    Difference,
    Trace,
    causes,
    differences,
    histories,
    of_training,
    without_noise,
)
from pliant.core.device_names import CPU, confinement
from pliant.core.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, ConfigError
from pliant.core.text import counted
from pliant.machine.accelerators import visible
from pliant.machine.named_modules import require_engine
from pliant.run.check import CheckStage, Played, play, play_alone

MOST_SHOWN = 6
"""Differences that the screen names beside the first."""

PATIENCE_S, PATIENCE = 90.0, 6
"""Longest time of a history: so long, and so many times as long as the script alone takes."""


def check(
    target: Target,
    arguments: Arguments = None,
    steps: Annotated[int, option("--steps N", "Steps of each history.")] = 20,
    workers: Annotated[int, option("--workers-per-replica N", "Processes of one replica.")] = 1,
    link: Annotated[
        list[Path] | None, option("--link PATH", "Not copied: it is only read.  Repeatable.")
    ] = None,
    keep: Annotated[bool, option("--keep", "Keep the directories.")] = False,
    as_json: Json = False,
) -> int:
    """Say whether a script comes to the same alone and with replicas that join, die and resume.

    Exit code 0: it does; 1: something differs; 2: it cannot be checked.
    """
    require_engine("pliant check")
    if steps < FEWEST_STEPS:
        raise ConfigError(f"--steps {steps} must be at least {FEWEST_STEPS}")
    if workers < 1:
        raise ConfigError(f"--workers-per-replica {workers} must be at least 1")
    found = read_command(target, arguments or [])
    directory = (found.directory or Path.cwd()).absolute()
    linked = frozenset(directory / path for path in link or ())
    if missing := [str(path) for path in linked if not path.exists()]:
        raise ConfigError(f"--link {os.path.relpath(missing[0])} does not exist")
    ours = {item.variable for item in SETTINGS} | {"PLIANT_FROM_CHECKPOINT"}
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    if 0 < len(visible(environ)) < 2 * workers:  # on which two replicas have no room
        environ |= {"PLIANT_KIND": CPU, **confinement([CPU], environ=environ).variables}
    with _workplace(keep=keep) as work:
        stage = CheckStage(
            words=_words(found.words, directory),
            directory=directory,
            linked=linked,
            work=work,
            steps=steps,
            workers=workers,
            environ=environ,
        )
        report: dict[str, Any] = {"verdict": "", "reason": None, "first": None, "causes": []}
        report |= {"left_out": [], "histories": [], "kept": str(work) if keep else None}
        code = _checked(stage, report, (lambda text: None) if as_json else say)
        verdicts = {EXIT_OK: "same", EXIT_FAILED: "differs"}
        report["verdict"] = verdicts.get(code, "cannot be checked")
        if as_json:
            print_json(report)
        elif keep:
            say(f"kept in {work}")
        return code


def _checked(stage: CheckStage, report: dict[str, Any], tell: Callable[[str], object]) -> int:
    """Play everything, telling what is found; return the exit code."""

    def row(words: str, one: Played, found: list[Difference]) -> None:
        outcome = f"DIFFERS: {found[0].sentence.partition('; ')[0]}" if found else "the same"
        if words == "alone":
            outcome = counted(one.trace.committed, "step")
        tell(f"{one.seconds:5.1f} s  {words}: {outcome}")
        said = [{"kind": d.kind, "step": d.step, "sentence": d.sentence} for d in found]
        report["histories"].append({"history": words, "seconds": one.seconds, "differences": said})

    def cannot(reason: str) -> int:
        report["reason"] = reason
        tell(f"cannot be checked: {reason}")
        return EXIT_USAGE

    alone = play_alone(stage, "alone")
    row("alone", alone, [])
    if reason := _obstacle(alone.trace):
        return cannot(reason)
    began, wrong, noise = alone.trace.began or {}, [], None
    for history in histories(alone.trace.committed, is_durable=began["is_durable"]):
        one = play(stage, history, max(PATIENCE_S, PATIENCE * alone.seconds))
        found = differences(alone.trace, one.trace)
        if found and noise is None:
            again = play_alone(stage, "again").trace
            if again.fault:
                return cannot(f"the script fails alone, the second time: {again.fault}")
            noise = differences(alone.trace, again)
            report["left_out"] = sorted({each.mask or each.name for each in noise})
            if random := of_training(noise):
                step = random[0].step
                where = f"at step {step}" if step >= 0 else "before the first step"
                return cannot(
                    f"two runs of the script alone differ in the {random[0].kind} {where}; call "
                    "pliant.seed before the model is built, and draw from the global generators"
                )
        found = without_noise(found, noise or [])
        row(history.words, one, found)
        if found:
            wrong.append((history.words, one.trace, found))
    if report["left_out"]:
        shown = ", ".join(report["left_out"][:MOST_SHOWN])
        tell(f"Not compared, because two runs alone differ there already: {shown}")
    if wrong:
        return _differs(alone.trace, wrong, report, tell)
    files = alone.trace.files.keys() - {each.name for each in noise or []}
    tell(
        "The same in every history: model, optimizer, buffers, extra_state, logged values, what "
        f"the leader prints and {counted(len(files), 'written file')}."
    )
    return EXIT_OK


def _differs(
    alone: Trace,
    wrong: list[tuple[str, Trace, list[Difference]]],
    report: dict[str, Any],
    tell: Callable[[str], object],
) -> int:
    """Tell what differs first, and what may be behind it."""
    words, _, found = min(wrong, key=lambda each: (not of_training(each[2]), _step(each[2])))
    first = (of_training(found) or found)[0]
    report["first"] = f"with {words}: {first.sentence}"
    notes = [note for _, trace, _ in wrong for note in trace.notes]
    report["causes"] = causes(alone, found, notes)
    tell(f"First difference, {report['first']}.")
    for also in _besides(found, first):
        tell(f"  also: {also.sentence}")
    for cause in report["causes"]:
        tell(f"  likely cause: {cause}")
    return EXIT_FAILED


def _step(found: list[Difference]) -> int:
    return (of_training(found) or found)[0].step


def _obstacle(alone: Trace) -> str:
    """Return why there is nothing to compare with; empty: there is."""
    if alone.fault:
        return f"the script fails alone: {alone.fault}"
    if (began := alone.began) is None:
        return "the script makes no pliant.Session; see pliant docs bring-your-script"
    if alone.committed < FEWEST_STEPS:
        some = counted(alone.committed, "step")
        return f"the script trains {some}, and a change in the middle needs {FEWEST_STEPS}"
    if began["num_slots"] < 2:
        return (
            "a step is one micro-batch, so one replica trains; make micro_batch_size smaller than "
            "global_batch_size"
        )
    if began["reduction"] != "exact":
        return "reduction='fast' gives other bits for other replicas; check it with 'exact'"
    return ""


def _besides(found: list[Difference], first: Difference) -> list[Difference]:
    """Return the first difference of each other kind, and those of files."""
    kinds, shown = {first.kind, "gradient"}, []
    for one in found:
        if one.kind == "file" or one.kind not in kinds:
            kinds.add(one.kind)
            shown.append(one)
    return [one for one in shown if one is not first][:MOST_SHOWN]


def _words(words: list[str], directory: Path) -> tuple[str, ...]:
    """Name a script outside of the directory by its whole path: a copy has none there."""
    if words[0].startswith("-"):
        return tuple(words)
    script = Path(os.path.normpath(directory / words[0]))
    inside = script.is_relative_to(directory)
    return (str(script.relative_to(directory) if inside else script), *words[1:])


@contextmanager
def _workplace(*, keep: bool) -> Iterator[Path]:
    """Make a directory that goes at the end, however that comes."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupted(number: int, frame: object) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # what follows has a limit
        raise KeyboardInterrupt

    before = [signal.signal(number, interrupted) for number in numbers]
    work = Path(tempfile.mkdtemp(prefix="pliant-check-"))
    try:
        yield work
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
