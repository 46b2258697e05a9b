"""``pliant``: start a job, look at it, resize it, prove what it did.

Owns argv: every option that people type, what it means, and the promise that bad input ends with
one sentence on stderr and exit code 2.  Knows nothing of how the answers are made.

    exit code   means
    0           finished
    1           the script failed, or the restart budget is spent
    2           the user's input: options, job file, ConfigError, UsageError, no Session
    3           stopped on request (stop, Ctrl-C once)
    4           the last holder of the state was lost; names the last committed step
    5           another coordinator has taken over; the job goes on under that one
    130         Ctrl-C twice
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from pliant.cli import checkpoint_commands, policy_commands, pool_commands, screens, settings
from pliant.cli.arguments import ExplainCommand, RunCommand
from pliant.cli.options import JobWords, job_options, takes
from pliant.core.counts import counted
from pliant.core.errors import ConfigError, PermanentError, PliantError
from pliant.core.exits import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from pliant.core.pool_defaults import DEFAULT_CLASS, DEFAULT_TEAM
from pliant.http.client import Client
from pliant.machine import jobs, pools, run_files
from pliant.observe import log
from pliant.observe.audit import audit_run
from pliant.observe.explain import decisions_of, interval_of, pool_of
from pliant.observe.goodput import goodput_of
from pliant.observe.pool_history import moves_of
from pliant.observe.status import board_of
from pliant.spec.model import NAME, NAME_RULE

app = typer.Typer(
    name="pliant",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # markup would swallow "[default: 1]"
)

app.add_typer(checkpoint_commands.app)
app.add_typer(policy_commands.app)
app.add_typer(pool_commands.app)

Job = Annotated[
    str | None, typer.Option("--job", metavar="NAME", help="Which job, if several run.")
]
LogJson = Annotated[
    bool, typer.Option("--json", help="Print the event log's records as they come.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Look at the run in this directory instead."),
]


PoolName = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="NAME",
        envvar="PLIANT_POOL",
        show_envvar=False,
        help="Which pool, if several run.",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pliant {version('pliant')}")
        raise typer.Exit


@app.callback()
def pliant(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Elastic training for PyTorch: grow, shrink and lose replicas; the weights stay the same."""


@app.command(cls=RunCommand, context_settings={"allow_interspersed_args": False})
@takes(job_options)
def run(
    words: JobWords,
    show: Annotated[
        str | None,
        typer.Option(
            "--show",
            metavar="all|none|REPLICA",
            help="Whose output to show.  [default: the oldest replica's]",
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool",
            metavar="[NAME]",
            help="Run on devices of this pool, with as many as it offers.  [name: default]",
        ),
    ] = None,
    team: Annotated[
        str | None,
        typer.Option("--team", metavar="NAME", help="Whose quota of the pool the job uses."),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(
            "--priority",
            metavar="CLASS",
            help="How important it is in the pool, e.g. high.  [default: normal]",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in --out from its newest checkpoint."),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; follow it with status.")
    ] = False,
    as_json: LogJson = False,
) -> int:
    """Run a script on replicas that may join, leave and die.

    Each setting is taken from the first that gives it: option, environment (PLIANT_MIN, ...),
    job file, default.
    """
    from pliant.cli import start as starting  # what it needs is slow to import

    given = {
        **words.given,
        "show": show,
        "pool": pool,
        "team": team,
        "priority": priority,
        "resume": resume or None,
    }
    command, job = settings.read_command(words.target, words.arguments)
    resolved = settings.resolve(given, os.environ, job)
    if detach:
        return starting.detached(command, resolved, as_json=as_json)
    return starting.attached(command, resolved, as_json=as_json)


@app.command(context_settings={"allow_interspersed_args": False})
@takes(
    job_options,
    high="Most replicas.  [default: devices of all agents]",
    out="Where its files go; agents see the same.  [default: runs/NAME]",
    port="Where its agents find it.",
)
def coordinator(words: JobWords, as_json: LogJson = False) -> int:
    """Run a job's coordinator alone; agents on its nodes run the replicas.

    One that has died is started again with the same command: what runs goes on meanwhile, and the
    new one takes over.
    """
    from pliant.cli import start as starting  # what it needs is slow to import

    command, job = settings.read_command(words.target, words.arguments)
    resolved = settings.resolve(words.given, os.environ, job)
    return starting.coordinated(command, resolved, as_json=as_json)


@app.command()
def agent(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the coordinator is.")],
    token_file: Annotated[
        Path,
        typer.Option("--token-file", metavar="FILE", help="DIR/token of the coordinator's --out."),
    ],
    devices: Annotated[
        int | None,
        typer.Option(
            "--devices",
            metavar="N",
            help="Replicas at a time.  [default: accelerators, or 4 cores]",
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="[default: the host's name]")
    ] = None,
    give_up: Annotated[
        str,
        typer.Option("--give-up", metavar="TIME", help="How long to look for a lost coordinator."),
    ] = "5m",
) -> int:
    """Run replicas on this node for a coordinator, until the job ends."""
    from pliant.run import separate
    from pliant.run.local import count_devices

    if devices is not None and devices < 1:
        raise ConfigError(f"--devices {devices} must be at least 1")
    config = separate.NodeConfig(
        url=url,
        token_file=token_file,
        node=node or socket.gethostname(),
        devices=devices or count_devices(),
        give_up_s=settings.seconds(give_up),
    )
    try:
        return separate.run_agent(config, dict(os.environ))
    except PermanentError as error:
        print(f"pliant: {error}", file=sys.stderr)
        return EXIT_FAILED


@app.command()
def status(job: Job = None, out: Out = None, as_json: Json = False) -> int:
    """Show what a job is doing: step, speed, replicas, events."""
    if out is None:
        found = Client(jobs.find_job(job)).status()
    else:
        found = board_of(log.read(run_files.event_log(jobs.find_run(job, out))).records).as_json()
    if as_json:
        return _print_json(found)
    _console().print(screens.job_panel(found))
    return EXIT_OK


@app.command()
def scale(
    target: Annotated[int, typer.Argument(metavar="N", help="Replicas wanted.")],
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Ask for a number of replicas; the job resizes while it trains."""
    if target < 1:
        raise ConfigError(f"a job has at least 1 replica, not {target}; pliant stop ends it")
    return _answer(Client(jobs.find_job(job)).scale(target), as_json=as_json)


@app.command()
def drain(
    replica: Annotated[str, typer.Argument(metavar="REPLICA", help="Who leaves, e.g. r3.")],
    notice: Annotated[
        str, typer.Option("--notice", metavar="TIME", help="Time it has, e.g. 30s.")
    ] = "30s",
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Let a replica leave at a step boundary; the target falls by one."""
    notice_s = settings.seconds(notice)
    if notice_s == 0:
        raise ConfigError(f"--notice {notice} must be more than 0; pliant kill gives no notice")
    return _answer(Client(jobs.find_job(job)).drain(replica, notice_s), as_json=as_json)


@app.command()
def kill(
    replica: Annotated[str, typer.Argument(metavar="REPLICA", help="Who dies, e.g. r2.")],
    job: Job = None,
    as_json: Json = False,
) -> int:
    """Kill a replica as a fault would; it is replaced under a new name."""
    return _answer(Client(jobs.find_job(job)).kill(replica), as_json=as_json)


@app.command()
def stop(job: Job = None, as_json: Json = False) -> int:
    """Stop a job at its next step boundary."""
    values = Client(jobs.find_job(job)).stop()
    return _answer(values if as_json else {"reason": values.get("reason")}, as_json=as_json)


@app.command()
def suspend(job: Job = None, as_json: Json = False) -> int:
    """Stop a job with a checkpoint, to resume it later."""
    values = Client(jobs.find_job(job)).suspend()
    return _answer(values if as_json else {"reason": values.get("reason")}, as_json=as_json)


@app.command()
def resume(
    which: Annotated[
        str | None,
        typer.Argument(metavar="RUN|JOB", help="Its directory, or the name of a suspended job."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; follow it with status.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Go on with a run from its newest checkpoint."""
    from pliant.cli import start as starting  # what it needs is slow to import

    return starting.resumed(jobs.find_resumable(which), detach=detach, as_json=as_json)


@app.command(cls=ExplainCommand)
def explain(
    job: Job = None,
    of_pool: Annotated[
        str | None,
        typer.Option(
            "--pool",
            metavar="[NAME]",
            help="Who took what from whom in this pool instead.  [name: default]",
        ),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> int:
    """Show why the job has its size, and what would change it."""
    if of_pool is not None:
        return _explain_pool(of_pool, out, as_json=as_json)
    records = log.read(run_files.event_log(jobs.find_run(job, out))).records
    decisions = decisions_of(records)
    interval, place = interval_of(records), pool_of(records)
    if as_json:
        said = [asdict(decision) for decision in decisions]
        return _print_json({"decisions": said, "checkpoints": interval, "pool": place})
    if not decisions:
        _console().print("nothing was decided yet")
    else:
        _console().print(screens.decisions_table(decisions))
    for sentence in (place, interval):
        if sentence is not None:
            _console().print(f"\n{sentence}", soft_wrap=True, highlight=False, markup=False)
    return EXIT_OK


@app.command()
def claim(
    devices: Annotated[int, typer.Argument(metavar="N", help="Devices wanted, all at once.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Run it with PLIANT_DEVICES set."),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", help="Give them back then.  [default: Ctrl-C, or its end]"
        ),
    ] = None,
    priority: Annotated[
        str, typer.Option("--priority", metavar="CLASS", help="How important it is.")
    ] = DEFAULT_CLASS,
    team: Annotated[
        str, typer.Option("--team", metavar="NAME", help="Whose quota it uses.")
    ] = DEFAULT_TEAM,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="TIME", help="Give up then.  [default: never]"),
    ] = None,
    notice: Annotated[
        str,
        typer.Option(
            "--notice", metavar="TIME", help="What COMMAND gets to end if they are taken back."
        ),
    ] = "30s",
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="[default: claim-PID]")
    ] = None,
    of_pool: PoolName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each change as JSON.")] = False,
) -> int:
    """Hold devices of the pool for a while, or for a command."""
    from pliant.cli import claim as claiming
    from pliant.run.pool_claim import ClaimConfig

    if devices < 1:
        raise ConfigError(f"a claim is of at least 1 device, not {devices}")
    if name is not None and not NAME.fullmatch(name):
        raise ConfigError(f"--name {name!r} {NAME_RULE}")
    for_s, wait_s = _more_than_none("--for", for_), _more_than_none("--wait", wait)
    notice_s = settings.seconds(notice)
    config = ClaimConfig(
        name=name or f"claim-{os.getpid()}",
        pool=pools.find_pool(of_pool).name,
        devices=devices,
        for_s=for_s,
        wait_s=wait_s,
        notice_s=notice_s,
        priority=priority,
        team=team,
        command=tuple(command or ()),
    )
    return claiming.claim(config, dict(os.environ), is_json=as_json)


@app.command()
def top(of_pool: PoolName = None, as_json: Json = False) -> int:
    """Watch the pool: devices, who has them, who waits and why."""
    caller = Client(pools.find_pool(of_pool))
    if as_json:
        return _print_json(caller.status())
    from pliant.cli import top as watching

    console = _console()
    if not console.is_terminal:
        console.print(watching.pool_panel(caller.status()))
        return EXIT_OK
    watching.live(caller.status, console)
    return EXIT_OK


@app.command()
def logs(
    replica: Annotated[
        str | None, typer.Argument(metavar="REPLICA", help="Whose output, e.g. r1.")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for more.")] = False,
    job: Job = None,
    out: Out = None,
    as_json: Json = False,
) -> int:
    """Show what a replica printed."""
    from pliant.cli.logs import show

    return show(jobs.find_run(job, out), replica, follow=follow, as_json=as_json)


@app.command()
def audit(job: Job = None, out: Out = None, as_json: Json = False) -> int:
    """Prove from the ledger that every sample counted exactly once."""
    directory = jobs.find_run(job, out)
    found = audit_run(directory)
    spent = goodput_of(log.read(run_files.event_log(directory)).records)
    if as_json:
        values = {**asdict(found), "samples_exactly_once": found.exactly_once}
        _print_json({**values, "goodput": asdict(spent)})
    else:
        _console().print(screens.audit_text(found, spent, directory), soft_wrap=True)
    return EXIT_OK if found.exactly_once else EXIT_FAILED


@app.command()
def demo(
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute, for CI.")] = False,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where report and pictures go.")
    ] = Path("runs/demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Disturb a run in every way, and show that nothing was lost."""
    from pliant.recipes.demo import demo as run_demo

    console = Console(highlight=False, stderr=as_json)
    report = run_demo(
        out,
        quick=quick,
        quiet=as_json,
        say=lambda sentence: console.print(Text(sentence), soft_wrap=True),
    )
    for part in () if as_json else screens.demo_report(report, out):
        console.print(part, soft_wrap=isinstance(part, Text))
    if as_json:
        _print_json(report)
    return EXIT_OK if report["passed"] else EXIT_FAILED


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(code_of(sys.argv[1:] if arguments is None else arguments))


def code_of(arguments: Sequence[str]) -> int:
    """Run the command line; return its exit code.  Bad input becomes one sentence on stderr."""
    try:
        code = app(args=list(arguments), prog_name="pliant", standalone_mode=False)
    except PliantError as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # `pliant logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_OK
    except Exception as error:  # the boundary of the process
        say = getattr(error, "format_message", None)
        if say is None:
            raise
        return _refuse(say()) if say() else EXIT_USAGE  # empty: the help was shown
    return code if isinstance(code, int) else EXIT_OK


def _refuse(sentence: str) -> int:
    print(f"pliant: {' '.join(sentence.split())}", file=sys.stderr)
    return EXIT_USAGE


def _explain_pool(name: str, out: Path | None, *, as_json: bool) -> int:
    """Tell who took what from whom; of a pool that does not run, by its directory."""
    if out is None:
        out = pools.find_pool(name).out
    elif not run_files.holds_run(out):
        raise ConfigError(f"{out} holds no pool: it has no {run_files.EVENTS}")
    moves = moves_of(log.read(run_files.event_log(out)).records)
    if as_json:
        return _print_json({"moves": [asdict(move) for move in moves]})
    _console().print(screens.moves_table(moves) if moves else "nothing has happened yet")
    return EXIT_OK


def _more_than_none(flag: str, text: str | None) -> float | None:
    """Read a duration that is more than 0, if one was given."""
    value_s = None if text is None else settings.seconds(text)
    if value_s == 0:
        raise ConfigError(f"{flag} {text} must be more than 0")
    return value_s


def _answer(values: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        return _print_json(values)
    said = str(values.get("reason") or "accepted")
    if values.get("target_replicas") is not None:
        said = f"target {counted(values['target_replicas'], 'replica')}: {said}"
    _console().print(said, soft_wrap=True, highlight=False, markup=False)
    return EXIT_OK


def _print_json(values: Any) -> int:
    print(json.dumps(log.plain(values), indent=2))
    return EXIT_OK


def _console() -> Console:
    return Console(highlight=False)
