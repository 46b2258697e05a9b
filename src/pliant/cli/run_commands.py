"""``pliant run``, ``coordinator``, ``agent``, ``resume``, ``demo``, ``config``: start something.

Owns argv of these commands, and the list of all that can be set with them, made of the objects that
mean it.  Knows nothing of what happens around a job (``cli.start``), which is slow to import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel
from rich.padding import Padding
from rich.text import Text

from pliant.cli import screens
from pliant.cli.arguments import (
    Arguments,
    Detach,
    Json,
    LogJson,
    Target,
    TlsCa,
    TlsCertificate,
    TlsKey,
    labels_of,
    seconds,
    state_directory,
)
from pliant.cli.cluster_jobs import CLUSTER_JOB, ClusterJob
from pliant.cli.dashboard_command import show_day
from pliant.cli.help import argument, job_names, option
from pliant.cli.job_commands import answer
from pliant.cli.job_file import read_command
from pliant.cli.settings import COORDINATOR, RUN, SETTINGS, Setting, resolve, with_settings
from pliant.cli.terminal import PlainConsole, draw, print_json
from pliant.cli.which_job import Context
from pliant.core.errors import EXIT_FAILED, EXIT_OK, ConfigError
from pliant.machine.named_modules import require_engine
from pliant.observe.runs import find_resumable
from pliant.spec.job import Limits
from pliant.spec.policy import ElasticPolicy
from pliant.wire.bounds import MOST_DEVICES


@with_settings(RUN)
def run(
    given: dict[str, Any],
    target: Target,
    arguments: Arguments = None,
    detach: Detach = False,
    as_json: LogJson = False,
) -> int:
    """Run a script on replicas that may join, leave and die.

    Each setting is taken from the first that gives it: option, environment (PLIANT_MIN, ...),
    job file, default.
    """
    from pliant.cli import several_hosts, start

    require_engine("pliant run")
    what = read_command(target, arguments or [])
    settings = resolve(given, os.environ, what.job)
    if settings["join"].value is not None:
        if detach:
            raise ConfigError("--detach does not go with --join; start it with nohup, or in tmux")
        return several_hosts.run_on_several(what, settings, os.environ, as_json=as_json)
    several_hosts.refuse_without_join(settings)
    planned = start.planned(what.words, settings, os.environ)
    planned = start.working_in(planned, what.directory)
    return (start.detached if detach else start.attached)(planned, as_json=as_json)


@with_settings(COORDINATOR)
def coordinator(
    given: dict[str, Any], target: Target, arguments: Arguments = None, as_json: LogJson = False
) -> int:
    """Run a job's coordinator alone; agents on its nodes run the replicas.

    One that has died is started again with the same command: what runs goes on meanwhile, and the
    new one takes over.
    """
    from pliant.cli import several_hosts, start
    from pliant.run.job_config import is_config_map

    is_elsewhere = is_config_map(given.get("register"))
    what = read_command(target, arguments or [], is_elsewhere=is_elsewhere)
    settings = resolve(given, os.environ, what.job)
    planned = several_hosts.planned_coordinator(what.words, settings, os.environ)
    planned = start.working_in(planned, what.directory)
    return start.attached(planned, as_json=as_json)


def agent(
    join: Annotated[
        str,
        option(
            "--join PLACE",
            "Where the coordinator listens: HOST:PORT or a URL; several, with commas, if it"
            " may return elsewhere; or @FILE, the coordinator.json of its --out.",
        ),
    ],
    token_file: Annotated[
        Path, option("--token-file FILE", "DIR/token of the coordinator's --out, or a copy of it.")
    ],
    devices: Annotated[
        int | None,
        option(
            "--devices N",
            "Devices of this host, one for each worker.  [default: accelerators, or cores]",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        option("--kind KIND", "Of which kind they are, e.g. cpu on a host with accelerators."),
    ] = None,
    node: Annotated[str | None, option("--node NAME", "[default: the host's name]")] = None,
    interface: Annotated[
        str | None,
        option(
            "--interface ADDRESS|NAME",
            "Where other nodes reach the replicas of this one."
            "  [default: the interface that leads to the coordinator]",
        ),
    ] = None,
    label: Annotated[
        str | None,
        option(
            "--label KEY=VALUE",
            "Where this node is, e.g. rack=a, or several with commas.",
            envvar="PLIANT_LABEL",
        ),
    ] = None,
    give_up: Annotated[
        str, option("--give-up TIME", "How long to look for a lost coordinator.")
    ] = "5m",
    grace: Annotated[
        str,
        option(
            "--grace TIME",
            "How long replicas may take to leave between two steps, once this is told to end.",
        ),
    ] = "25s",
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> int:
    """Run replicas on this node for a coordinator, until the job ends."""
    from pliant.agent.node_facts import AgentConfig
    from pliant.cli import several_hosts
    from pliant.cli.job_settings import tls_files
    from pliant.run.host_devices import HostDevices

    require_engine("pliant agent")
    if devices is not None and not 1 <= devices <= MOST_DEVICES:
        raise ConfigError(f"--devices {devices} must be between 1 and {MOST_DEVICES}")
    here, give_up_s = HostDevices.of(os.environ, kind), seconds("--give-up", give_up)
    config = AgentConfig(
        node=several_hosts.node_named(node),
        address=several_hosts.address_here(join, interface, give_up_s),
        devices=here.require(devices or here.count(), f"--devices {devices}"),
        device_name=here.device_name,
        environment=dict(os.environ),
        give_up_s=give_up_s,
        grace_s=seconds("--grace", grace),
        labels=labels_of("--label", label) if label else (),
        tls=tls_files(tls_ca, tls_certificate, tls_key),
    )
    return several_hosts.run_agent(join, token_file, config, is_job=False)


def resume(
    which: Annotated[
        str | None,
        argument("RUN|JOB", "Its directory, or its name; see pliant ls.", autocompletion=job_names),
    ] = None,
    arguments: Arguments = None,
    job: Annotated[
        str | None,
        option("--job NAME", "The same, as of other commands.", autocompletion=job_names),
    ] = None,
    context: Context = None,
    detach: Detach = False,
    as_json: Json = False,
) -> int:
    """Go on with a run from its newest checkpoint.

    Behind -- the script with other arguments: pliant resume -- train.py --steps 200.
    """
    from pliant.cli import start

    command = list(arguments or ())
    if (named := which or job or "").startswith(CLUSTER_JOB):
        if command:
            raise ConfigError(f"{named} runs what its resource says; leave out {command[0]}")
        return answer(ClusterJob.of(named, context).change(suspend=False), as_json=as_json)
    if which is not None and which.endswith(".py"):  # a script, not a run
        command = [which, *command]
        which = None
    if which is not None and job is not None:
        raise ConfigError(f"{which} and --job {job} both say what goes on; leave out one")
    require_engine("pliant resume")
    out = find_resumable(which or job, state_directory(), is_longer=bool(command))
    planned = start.resumed(out, os.environ, command)
    return (start.detached if detach else start.attached)(planned, as_json=as_json)


def demo(
    quick: Annotated[bool, option("--quick", "A few short runs, for CI.")] = False,
    out: Annotated[Path, option("--out DIR", "Where the runs and the report go.")] = Path(
        "runs/demo"
    ),
    as_json: Annotated[bool, option("--json", "Print the report as JSON.")] = False,
    dashboard: Annotated[
        bool,
        option("--dashboard", "Instead, show a simulated day of a shared pool in a browser."),
    ] = False,
    port: Annotated[
        int | None, option("--port N", "Of that page.  [default: any that is free]")
    ] = None,
) -> int:
    """Disturb a run in every way, and show that nothing was lost."""
    if dashboard and (quick or as_json):
        raise ConfigError("--dashboard shows a page and runs nothing: leave out --quick and --json")
    if dashboard:
        return show_day(port or 0)
    if port is not None:
        raise ConfigError("--port is that of the page: it goes with --dashboard")
    from pliant.recipes.demo import demo as run_demo

    console = PlainConsole(stderr=as_json)
    report = run_demo(
        out,
        quick=quick,
        quiet=as_json,
        say=lambda sentence: console.print(Text(sentence), soft_wrap=True),
    )
    if as_json:
        print_json(report)
    else:
        for part in screens.demo_report(report, out):
            console.print(part, soft_wrap=isinstance(part, Text))
    return EXIT_OK if report["passed"] else EXIT_FAILED


SECONDS = "InSeconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One thing that can be set."""

    name: str
    default: str
    unit: str
    where: str
    """The ways to set it: option, environment variable, field of the job file, command."""

    meaning: str


Rows = Iterator[SettingRow]


def config(as_json: Json = False) -> int:
    """List every setting and limit: default, unit, where to set it, meaning."""
    if as_json:
        return print_json([asdict(row) for row in rows()])
    for row in rows():
        default = f"  [{row.default} {row.unit}".rstrip() + "]" if row.default else ""
        draw(Text(f"{row.name}{default}"))
        draw(Padding(Text(f"{row.where}\n{row.meaning}"), (0, 0, 0, 4), expand=False))
    return EXIT_OK


def rows() -> Rows:
    """Yield a row for each setting, each limit, each field of the policy, each option of agents."""
    yield from map(_setting, SETTINGS)
    yield from _fields(Limits, "spec.limits", "--limit")
    yield from _fields(ElasticPolicy, "spec.elasticPolicy", "--policy, pliant policy set")
    yield from _options(agent, "pliant agent")


def _setting(item: Setting) -> SettingRow:
    places = (item.flag, item.variable, item.file_field)
    default, meaning = _default_and_meaning(item.help)
    return SettingRow(
        name=item.name,
        default=default or ("" if item.default is None else str(item.default).lower()),
        unit="",
        where=", ".join(place for place in places if place),
        meaning=meaning or f"The job's {item.name}.",
    )


def _fields(model: type[BaseModel], place: str, option: str, inside: str = "") -> Rows:
    """Yield the fields of a part of the job file, those of the parts in it after them."""
    for field in model.model_fields.values():
        name = f"{inside}{field.alias}"
        flag = next((one.flag for one in SETTINGS if one.file_field == f"{place}.{name}"), None)
        yield SettingRow(
            name=name,
            default=_default(field.default),
            unit="s" if name.endswith(SECONDS) else "",
            where=f"{flag or option}, {place}",
            meaning=" ".join((field.description or "").split()),
        )
        for part in get_args(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _fields(part, place, option, f"{name}.")


def _options(command: Callable[..., int], called: str) -> Rows:
    """Yield the options of a command that has none of the settings above."""
    alone = typer.Typer(add_completion=False)
    alone.command()(command)
    item: Any
    for item in typer.main.get_command(alone).params:
        default, meaning = _default_and_meaning(item.help or "")
        yield SettingRow(
            name=item.name,
            default=default if item.default is None else str(item.default),
            unit="",
            where=f"{called} {item.opts[0]}",
            meaning=meaning or f"Its {item.name}.",
        )


def _default_and_meaning(text: str) -> tuple[str, str]:
    """Return the default that a help text tells, and the rest of it."""
    found = re.search(r"\s*\[(?:default|name): (.*?)\]", text)
    return (found[1], text.replace(found[0], "")) if found else ("", text)


def _default(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
