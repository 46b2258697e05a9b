"""``pliant status``, ``scale``, ``logs``, ``policy show`` ...: look at one job, and change it.

Owns argv of these commands, and how output is shown: as plain text, one line each, whatever was
printed; where a replica has several workers, that of each behind its name.  Knows nothing of how
the answers are made, and of what the fields of a policy mean: the job checks them.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from pliant.cli import otlp, run_list, screens
from pliant.cli.arguments import Job, Json, Out, changes_of, some_seconds, state_directory
from pliant.cli.cluster_jobs import ClusterJob
from pliant.cli.help import CommandGroup, argument, option, replica_names, worker_names
from pliant.cli.terminal import draw, print_json, say, say_aside
from pliant.cli.which_job import (
    JobPlace,
    from_any_host,
    from_any_host_or_resource,
    the_job,
)
from pliant.client import Pool
from pliant.core.errors import EXIT_FAILED, EXIT_OK, ConfigError
from pliant.core.tenancy import DEFAULT_POOL
from pliant.core.text import counted, line_left, printable
from pliant.machine import run_files
from pliant.machine.files import KEPT_FILES, MAX_FILE_BYTES
from pliant.machine.registry import Handle, running_jobs
from pliant.observe.audit import Audit, audit_run
from pliant.observe.goodput import Goodput, goodput_of
from pliant.observe.history import History, read_history
from pliant.observe.log import Record
from pliant.observe.pool_history import moves_of
from pliant.observe.printed import PrintedUntil, chosen, printed_after, printers, workers_of
from pliant.observe.reading import every, left
from pliant.observe.runs import find_ended, find_run, goes_on, run_in
from pliant.observe.status_facts import doubts, hosts_of_replica, placed, placed_line
from pliant.observe.trace import trace_of

policy_app = typer.Typer(
    name="policy",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show or change the elastic policy of a running job.",
)


@from_any_host
def status(job: Job = None, out: Out = None, as_json: Json = False) -> int:
    """Show what a job is doing, or how it ended: step, speed, replicas, events."""
    state, place = state_directory(), cast(JobPlace, job)
    if isinstance(place, Handle):
        return show_status(place, as_json=as_json)
    if out is not None:
        return run_list.show_ended(run_in(_run_of(job, out)), as_json=as_json)
    running = running_jobs(state.jobs)
    meant = _run_of(job, None).absolute()
    of_it = next((one.name for one in running if one.out == meant), None)
    if of_it is not None:
        show_status(of_it, as_json=as_json)
    elif job is not None:
        run_list.show_ended(find_ended(job, state), as_json=as_json)
    else:
        run_list.show_ended(run_in(meant), as_json=as_json)
    others = [one.name for one in running if one.name != of_it]
    if job is None and others and not as_json:
        say_aside(f"also running: {', '.join(others)} (pliant status --job NAME)")
    return EXIT_OK


@from_any_host_or_resource
def scale(
    target: Annotated[int, argument("N", "Replicas wanted.")],
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Ask for a number of replicas; the job resizes while it trains."""
    if target < 1:
        raise ConfigError(f"a job has at least 1 replica, not {target}; pliant stop ends it")
    if isinstance(job, ClusterJob):
        return answer(job.change(replicas=target), as_json=as_json)
    return answer(the_job(job).scale(target), as_json=as_json)


@from_any_host
def drain(
    replica: Annotated[
        str, argument("REPLICA", "Who leaves, e.g. r3.", autocompletion=replica_names)
    ],
    notice: Annotated[str, option("--notice TIME", "Time it has, e.g. 30s.")] = "30s",
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Let a replica leave at a step boundary; the target falls by one."""
    notice_s = some_seconds("--notice", notice, "; pliant kill gives no notice")
    return answer(the_job(job).drain(replica, notice_s=notice_s), as_json=as_json)


@from_any_host
def kill(
    replica: Annotated[
        str, argument("REPLICA", "Who dies, e.g. r2.", autocompletion=replica_names)
    ],
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Kill a replica as a fault would; it is replaced under a new name."""
    return answer(the_job(job).kill(replica), as_json=as_json)


@from_any_host
def stop(
    now: Annotated[
        bool, option("--now", "End it at once, whatever it does; nothing is saved.")
    ] = False,
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Stop a job at its next step boundary."""
    return _ending(the_job(job).stop(now=now), as_json=as_json)


@from_any_host_or_resource
def suspend(job: Job = None, as_json: Json = False) -> int:
    """Stop a job with a checkpoint, to resume it later."""
    if isinstance(job, ClusterJob):
        return answer(job.change(suspend=True), as_json=as_json)
    return _ending(the_job(job).suspend(), as_json=as_json)


@from_any_host
def explain(
    job: Job = None,
    of_pool: Annotated[
        str | None,
        option(
            "--pool [NAME]",
            "Who took what from whom in this pool instead.  [name: default, or the only one]",
        ),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> int:
    """Show why the job has its size, and what would change it."""
    if of_pool is not None:
        return _explain_pool(of_pool, out, as_json=as_json)
    history = _history_of(job, out)
    board = history.board
    found, where = history.explained, placed(board.about, board.living)
    doubtful: dict[str, Any] = {"apart": board.apart, "silent": board.silent, "slow": board.slow}
    doubtful |= {"hosts": board.hosts, "nonfinite": board.nonfinite, "ailing": board.ailing}
    if as_json:
        reasons = [asdict(decision) for decision in found.decisions]
        facts = {"checkpoints": found.interval, "pool": found.pool, "start": found.start}
        more = {"placed": where, "aside": found.aside, "mode": found.mode, "cost": found.cost}
        return print_json({"decisions": reasons, **facts, **doubtful, **more})
    decisions = found.decisions
    draw(screens.decisions_table(decisions) if decisions else "nothing was decided yet")
    wrong = [line for _, line in doubts(doubtful)]
    here = None if where is None else placed_line(where)
    for sentence in (
        found.pool,
        found.interval,
        here,
        found.start,
        found.aside,
        found.mode,
        found.cost,
        *wrong,
    ):
        if sentence is not None:
            say(f"\n{sentence}")
    return EXIT_OK


@from_any_host
def logs(
    replica: Annotated[
        str | None,
        argument(
            "REPLICA",
            "Whose output: r1, all its workers; r1.0, one of several.",
            autocompletion=worker_names,
        ),
    ] = None,
    follow: Annotated[bool, option("-f --follow", "Wait for more.")] = False,
    everybody: Annotated[
        bool, option("--all", "Of all replicas, with -f also of those that come.")
    ] = False,
    grep: Annotated[
        str | None,
        option("--grep REGEX", "Lines in which it is found; of all replicas if none is named."),
    ] = None,
    job: Job = None,
    out: Out = None,
    as_json: Annotated[bool, option("--json", "A JSON object for each line, as it comes.")] = False,
) -> int:
    """Show what a replica printed."""
    place, is_wanted = cast(JobPlace, job), _search(grep)
    whose = EVERYBODY if replica is None and (everybody or grep is not None) else replica
    if replica is not None and everybody:
        raise ConfigError(f"{replica} is one replica, and --all are all; leave out one of them")
    if isinstance(place, Handle):
        shown = partial(_show, place.name, is_wanted=is_wanted, as_json=as_json)
        return show_distant(place, whose, shown, follow=follow)
    run = _run_of(job, out)
    shown = partial(_show, run.name, is_wanted=is_wanted, as_json=as_json)
    return show(run, whose, shown, state_directory().jobs, follow=follow)


@from_any_host
def audit(job: Job = None, out: Out = None, as_json: Json = False) -> int:
    """Prove from the ledger that every sample counted exactly once."""
    place = cast(JobPlace, job)
    if isinstance(place, Handle):
        (found, spent), where = _audit_elsewhere(place), place.name
    else:
        directory = _run_of(job, out)
        is_growing = goes_on(directory, _history(directory).board)
        found = audit_run(directory, is_growing=is_growing)
        spent = goodput_of(left(run_files.event_log(directory)))
        where = str(directory)
    if as_json:
        values = {**asdict(found), "samples_exactly_once": found.exactly_once}
        print_json({**values, "goodput": asdict(spent)})
    else:
        draw(screens.audit_text(found, spent, where), soft_wrap=True)
    return EXIT_OK if found.exactly_once else EXIT_FAILED


def _audit_elsewhere(job: Handle) -> tuple[Audit, Goodput]:
    """Have the coordinator audit its job: the ledgers are there."""
    values = the_job(job).audit()
    spent = Goodput(**values.pop("goodput"))
    del values["samples_exactly_once"]
    return Audit(**values), spent


@from_any_host
def trace(
    to: Annotated[
        str | None,
        option(
            "--to FILE|otlp:URL",
            "Where it is written, or who takes its resizes.  [default: standard output]",
        ),
    ] = None,
    job: Job = None,
    out: Out = None,
) -> int:
    """Write what each resize did when, for Perfetto or chrome://tracing.

    Or send it: otlp:http://HOST:4318 is an OpenTelemetry collector, for instance.
    """
    place = cast(JobPlace, job)
    if isinstance(place, Handle):
        records: Iterable[Record] = the_job(place).events(follow=False)
    else:
        records = every(run_files.event_log(_run_of(job, out)))
    trace_events = trace_of(records)
    if to is None:
        print(json.dumps(trace_events))
        return EXIT_OK
    if to.startswith(otlp.SCHEME):
        count = otlp.send(trace_events, to.removeprefix(otlp.SCHEME))
        return say(f"{counted(count, 'resize')} sent to {to.removeprefix(otlp.SCHEME)}")
    try:
        Path(to).write_text(json.dumps(trace_events))
    except OSError as error:
        raise ConfigError(f"--to {to} cannot be written: {error.strerror}") from None
    return say(
        f"{to} is written; open it at https://ui.perfetto.dev, which reads it in the browser"
    )


@policy_app.command("show")
@from_any_host
def show_policy(job: Job = None, as_json: Json = False) -> int:
    """Show every field, as a job file has it."""
    policy = the_job(job).policy()
    return print_json(policy) if as_json else say("\n".join(_lines_of(policy)))


@policy_app.command("set")
@from_any_host
def set_policy(
    fields: Annotated[
        list[str], argument("KEY=VALUE", "E.g. maxReplicas=6; none sets the default.")
    ],
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Change fields of the policy; what contradicts itself changes nothing."""
    return _ending(the_job(job).set_policy(**changes_of(fields)), as_json=as_json)


def _lines_of(policy: Mapping[str, Any], indent: str = "") -> list[str]:
    """Return the policy as a job file has it; unset fields say so."""
    lines = []
    for name, value in policy.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", *_lines_of(value, f"{indent}  ")]
        else:
            shown = "none" if value is None else json.dumps(value)
            lines.append(f"{indent}{name}: {shown.removesuffix('.0')}")
    return lines


def _explain_pool(name: str, out: Path | None, *, as_json: bool) -> int:
    """Tell who took what from whom; of a pool that does not run, by its directory."""
    if out is None:
        records: Iterable[Record] = _pool_called(name).events(follow=False)
    elif run_files.holds_run(out):
        records = every(run_files.event_log(out))
    else:
        raise ConfigError(f"{out} holds no pool: it has no {run_files.EVENTS}")
    moves = moves_of(records)
    if as_json:
        return print_json({"moves": [asdict(move) for move in moves]})
    return draw(screens.moves_table(moves) if moves else "nothing has happened yet")


def _pool_called(name: str) -> Pool:
    """Return the pool that is meant; without a name the only one will do, too."""
    try:
        return Pool(name)
    except ConfigError:
        if name != DEFAULT_POOL:
            raise
        return Pool()


def answer(values: Mapping[str, Any], *, as_json: bool) -> int:
    """Print what a job or a pool has answered to a request; return the exit code."""
    if as_json:
        return print_json(values)
    sentence = str(values.get("reason") or "accepted")
    if values.get("target_replicas") is not None:
        sentence = f"target {counted(values['target_replicas'], 'replica')}: {sentence}"
    return say(sentence)


def _ending(values: Mapping[str, Any], *, as_json: bool) -> int:
    """Answer without the target: the job ends whatever that is."""
    return answer(values if as_json else {"reason": values.get("reason")}, as_json=as_json)


def show_status(job: JobPlace, *, as_json: bool) -> int:
    """Show what a job is doing, which runs."""
    found = the_job(job).status()
    if as_json:
        return print_json(found)
    return draw(screens.job_panel(found, wrap=True))


def _history_of(job: JobPlace, out: Path | None) -> History:
    """Return what the log of a job tells; of one that has ended nobody is cut off, or slow."""
    if isinstance(job, Handle):
        history = History()
        for record in the_job(job).events(follow=False):
            history.add(record)
        return history
    directory = _run_of(job, out)
    history = _history(directory)
    if not goes_on(directory, history.board):
        history.board.forget_doubts()
    return history


def _run_of(job: str | None, out: Path | None) -> Path:
    return find_run(job, out, state_directory())


def _history(out: Path) -> History:
    return read_history(run_files.event_log(out))


POLL_S = 0.2
"""Between two looks at what is followed, in seconds."""

MOST_AT_ONCE = MAX_FILE_BYTES * (KEPT_FILES + 1)
"""All that is kept of a worker, in bytes: more than that was printed while it was shown."""

MAX_LINE_BYTES = 1 << 20
"""A longer line is shown in pieces, in bytes: a bar of progress may never end its line."""

Read = Callable[[str, PrintedUntil], tuple[bytes, PrintedUntil]]
"""Returns what a worker printed after a place, and the place behind it."""


EVERYBODY = ""
"""In place of the name of a replica."""

Shown = Callable[[str, Iterable[tuple[str, str]]], int]
"""Prints lines of workers, of the replica or the worker with this name."""


def _search(grep: str | None) -> Callable[[str], object]:
    """Return what tells whether a line is wanted."""
    if grep is None:
        return lambda text: True
    try:
        return re.compile(grep).search
    except re.error as error:
        raise ConfigError(f"--grep {grep} is no regular expression: {error}") from None


def show(out: Path, asked: str | None, shown: Shown, records: Path, *, follow: bool) -> int:
    """Print what a replica or a worker printed; with ``follow`` until its job has ended."""
    run = out.resolve()

    def is_over() -> bool:
        return not follow or all(job.out.resolve() != run for job in running_jobs(records))

    name = asked
    if name != EVERYBODY:
        name = chosen(printers(out), asked, out / run_files.LOGS, partial(_hosts_of, out))
    workers = partial(_workers, partial(printers, out), name)
    return shown(name, printed(workers, partial(printed_after, out), is_over))


def _workers(printers: Callable[[], list[str]], name: str) -> Iterable[str]:
    return workers_of(printers(), name) if name else printers()


def show_distant(job: Handle, asked: str | None, shown: Shown, *, follow: bool) -> int:
    """Print what a replica or a worker of a job elsewhere printed; with ``follow`` until that is
    gone.
    """
    there = the_job(job)

    def hosts_of(name: str) -> list[str]:
        return hosts_of_replica(there.status(), name)

    def is_over() -> bool:
        return not follow or there.status()["exit_code"] is not None

    def read(worker: str, after: PrintedUntil) -> tuple[bytes, PrintedUntil]:
        data, place = there.printed_after(worker, str(after))
        return data, PrintedUntil.of(place)

    name = asked
    if name != EVERYBODY:
        name = chosen(there.printers(), asked, f"the run at {job.name}", hosts_of)
    try:
        return shown(name, printed(partial(_workers, there.printers, name), read, is_over))
    except ConfigError as error:
        if not follow:
            raise
        say_aside(str(error))  # its coordinator is gone; whether the job has ended it cannot say
        return EXIT_OK


def _hosts_of(out: Path, name: str) -> list[str]:
    """Return where a replica of a run here runs, or one of its workers; none: it does not."""
    board = read_history(run_files.event_log(out)).board
    return hosts_of_replica(board.as_json(), name) if goes_on(out, board) else []


def _show(
    run: str,
    name: str,
    lines: Iterable[tuple[str, str]],
    *,
    is_wanted: Callable[[str], object],
    as_json: bool,
) -> int:
    for worker, text in lines:
        if not is_wanted(text):
            continue
        whose = "" if worker == name else f"{printable(worker)} | "
        said = {"run": run, "replica": worker, "line": text}
        sys.stdout.write((json.dumps(said) if as_json else whose + line_left(text)) + "\n")
        sys.stdout.flush()
    return EXIT_OK


@dataclass(slots=True)
class _ShownSoFar:
    """How far one worker's output was read."""

    place: PrintedUntil = field(default_factory=PrintedUntil)
    rest: bytes = b""
    """Of a line whose end has not come."""

    def new(self, read: Callable[[PrintedUntil], tuple[bytes, PrintedUntil]]) -> Iterator[str]:
        """Yield the lines that have come, and pieces of one that is too long."""
        data, taken = b"\n", 0
        while data and taken < MOST_AT_ONCE:
            data, self.place = read(self.place)
            taken += len(data)
            *lines, self.rest = (self.rest + data).split(b"\n")
            if len(self.rest) > MAX_LINE_BYTES:
                lines, self.rest = [*lines, self.rest], b""
            yield from (text.decode(errors="replace") for text in lines)


def printed(
    workers: Callable[[], Iterable[str]], read: Read, is_over: Callable[[], bool]
) -> Iterator[tuple[str, str]]:
    """Yield each line that is there, and that comes until it is over, once, behind its worker.

    Whoever prints faster than this is shown does not keep it from coming to its end.
    """
    readers: dict[str, _ShownSoFar] = {}
    pause = threading.Event()
    while True:
        over = is_over()  # asked before reading, so that the last lines are not missed
        for worker in workers():
            reader = readers.setdefault(worker, _ShownSoFar())
            yield from ((worker, text) for text in reader.new(partial(read, worker)))
            if over and reader.rest:
                yield worker, reader.rest.decode(errors="replace")
        if over:
            return
        pause.wait(POLL_S)
