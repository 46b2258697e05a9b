"""``pliant pool ...``, ``claim``, ``top``: a pool of devices that jobs and people share.

Owns argv of these commands.  Knows nothing of how a pool runs (``run.pool_host``) or is drawn
(``cli.top``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from pliant.cli import job_commands
from pliant.cli.arguments import (
    BorrowLimit,
    ByClass,
    Device,
    ForUsers,
    Job,
    Json,
    Kind,
    LogJson,
    NoBorrowLimit,
    NoQuota,
    PoolName,
    Quota,
    Reclaim,
    Team,
    Why,
    devices_here,
    rules_of,
    seconds,
    some_seconds,
    state_directory,
    users_of,
)
from pliant.cli.help import CommandGroup, argument, option
from pliant.cli.screens import job_panel
from pliant.cli.terminal import (
    PlainConsole,
    draw,
    patient_output,
    print_json,
    print_record,
    say,
)
from pliant.cli.which_job import JobPlace, from_any_host, the_job
from pliant.client import Pool
from pliant.core.errors import EXIT_OK, ConfigError, PermanentError
from pliant.core.tenancy import DEFAULT_CLASS, DEFAULT_POOL, DEFAULT_TEAM
from pliant.core.text import in_one_line
from pliant.machine import run_files
from pliant.machine.files import read_named
from pliant.machine.registry import (
    NotRunningError,
    any_pool,
    running_jobs,
    served_pools,
)
from pliant.observe.log import Record
from pliant.observe.pool_history import Teller, sentence
from pliant.observe.runs import find_running
from pliant.observe.status_facts import clock
from pliant.run import background
from pliant.spec.load import parse, place_of
from pliant.spec.model import NAME, NAME_RULE
from pliant.spec.pool import MOST_DEVICES, PoolFile

if TYPE_CHECKING:
    from pliant.run.pool_config import PoolConfig

app = typer.Typer(
    name="pool",
    cls=CommandGroup,
    no_args_is_help=True,
    help="Share the devices of this machine among jobs and people.",
)


@app.command("start")
def start(
    devices: Annotated[
        str | None,
        option(
            "--devices N|KIND:LIST",
            "How many there are, or which: cuda:0-3, cpu:0-3,4-7, two kinds with +."
            "  [default: accelerators, or cores]",
        ),
    ] = None,
    name: Annotated[str | None, option("--name NAME", "[default: default]")] = None,
    config: Annotated[
        Path | None, option("--config POOL.YAML", "Its teams, quotas and classes.")
    ] = None,
    group: Annotated[
        str | None,
        option("--group GROUP", "Share it with the users of this group.  [default: with nobody]"),
    ] = None,
    forget: Annotated[
        bool, option("--forget", "Begin without the quotas and classes that were set before.")
    ] = False,
    port: Annotated[
        int | None, option("--port N", "Port of the REST interface.  [default: any]")
    ] = None,
    detach: Annotated[
        bool, option("--detach", "Run in the background; end it with pool stop.")
    ] = False,
    as_json: LogJson = False,
) -> int:
    """Start a pool, and tell what happens in it until it is stopped.

    One that has died is started again with the same command: jobs keep what they have meanwhile,
    and it goes on with them.
    """
    from pliant.run.pool_host import check

    given: dict[str, Any] = {
        "name": name,
        "devices": devices,
        "config": None if config is None else str(config),
        "forget": forget,
        "group": group,
        "port": port,
    }
    if not detach:
        return serve(given, as_json=as_json)
    resolved = _resolved(given)
    check(resolved)
    return _detached(resolved, given | {"name": resolved.name}, as_json=as_json)


def serve(given: Mapping[str, Any], *, as_json: bool = False) -> int:
    """Run a pool, as its options say, in this process until it is stopped; return the exit code."""
    from pliant.run.pool_host import run_pool

    pool = _resolved(given)
    try:
        with patient_output():
            return run_pool(pool, listener=print_record if as_json else move_printer())
    except (OSError, PermanentError) as error:
        raise ConfigError(f"pool {pool.name} cannot run: {error}") from error


def _resolved(given: Mapping[str, Any]) -> PoolConfig:
    from pliant.run.host_devices import HostDevices
    from pliant.run.pool_config import PoolConfig, group_id

    path: str | None = given["config"]
    state, group = state_directory(), given.get("group")
    if group is not None and given["port"]:
        raise ConfigError("--group and --port: a pool that users share has no port; leave out one")
    source, text = path or "", "" if path is None else read_named(Path(path))
    file = parse(PoolFile, text, source=source) if path else None
    place = place_of(text, "spec", "devices", source=source)
    number, names = devices_here(given["devices"], file.spec.devices if file else None, place=place)
    here = HostDevices.of(os.environ) if number is None else HostDevices()
    return PoolConfig(
        name=_checked("--name", given["name"] or (file.metadata.name if file else DEFAULT_POOL)),
        devices=number,
        names=names,
        default_devices=here.count(),
        default_names=here.names,
        environ=os.environ,
        file=file,
        forget=bool(given.get("forget")),
        port=given["port"] or 0,
        records=state.pools if group is None else state.shared_pools,
        gid=None if group is None else group_id(group),
    )


@app.command("status")
def status(which: PoolName = None, as_json: Json = False) -> int:
    """Show what there is, who has it, and who waits for what."""
    pool = the_pool(which)
    found = pool.status()
    if as_json:
        return print_json({**found, **pool.place})
    from pliant.cli.top import pool_panel

    return draw(pool_panel(found))


@app.command("set")
def set_devices(
    devices: Annotated[int, option("--devices N", "How many there are.")],
    which: PoolName = None,
    as_json: Json = False,
) -> int:
    """Change how many devices there are; whoever has too many gives some back."""
    if not 0 <= devices <= MOST_DEVICES:
        raise ConfigError(f"--devices {devices} must be between 0 and {MOST_DEVICES}")
    return job_commands.answer(the_pool(which).set_devices(devices), as_json=as_json)


@app.command("set-team")
def set_team(
    team: Team,
    quota: Quota = None,
    no_quota: NoQuota = False,
    borrow_limit: BorrowLimit = None,
    no_borrow_limit: NoBorrowLimit = False,
    reclaim: Reclaim = None,
    by: ByClass = None,
    user: ForUsers = None,
    remove: Annotated[bool, option("--remove", "Forget the team.")] = False,
    which: PoolName = None,
    as_json: Json = False,
) -> int:
    """Make a team, or change what is named of it; all else stays.

    A new one has no quota, takes from claims of lower priority, and is for everybody.
    """
    team = _checked("team", team)
    if remove:
        return job_commands.answer(the_pool(which).remove_team(team), as_json=as_json)
    rules = rules_of(quota, no_quota, borrow_limit, no_borrow_limit, reclaim, by) | users_of(user)
    return job_commands.answer(the_pool(which).set_team(team, **rules), as_json=as_json)


@app.command("set-class")
def set_class(
    priority: Annotated[str, argument("CLASS", "A priority class.")],
    value: Annotated[int, option("--value N", "The higher goes first; normal is 0.")],
    user: ForUsers = None,
    which: PoolName = None,
    as_json: Json = False,
) -> int:
    """Make a priority class, or change its value."""
    name, users = _checked("class", priority), users_of(user)
    return job_commands.answer(the_pool(which).set_class(name, value, **users), as_json=as_json)


@app.command("cordon")
def cordon(device: Device, reason: Why = "", which: PoolName = None, as_json: Json = False) -> int:
    """Hand a device out no more; who has it keeps it."""
    return job_commands.answer(the_pool(which).cordon(device, reason), as_json=as_json)


@app.command("uncordon")
def uncordon(device: Device, which: PoolName = None, as_json: Json = False) -> int:
    """Hand a device out again."""
    return job_commands.answer(the_pool(which).uncordon(device), as_json=as_json)


@app.command("drain")
def drain(device: Device, reason: Why = "", which: PoolName = None, as_json: Json = False) -> int:
    """Take a device back on notice, and hand it out no more."""
    return job_commands.answer(the_pool(which).drain(device, reason), as_json=as_json)


@app.command("release")
def release(
    claim_name: Annotated[str, argument("CLAIM", "As pool status calls it, e.g. ada/gpt.")],
    which: PoolName = None,
    as_json: Json = False,
) -> int:
    """End a claim, whosever it is: its command or job ends within its notice."""
    return job_commands.answer(the_pool(which).release(claim_name), as_json=as_json)


@app.command("stop")
def stop(which: PoolName = None, as_json: Json = False) -> int:
    """Stop a pool; who has devices keeps them.  The next of its name may be started at once."""
    return job_commands.answer(the_pool(which).stop(), as_json=as_json)


def claim(
    devices: Annotated[int, argument("N", "Devices wanted, all at once.")],
    command: Annotated[
        list[str] | None, argument("-- COMMAND...", "Run it with PLIANT_DEVICES set.")
    ] = None,
    for_: Annotated[
        str | None, option("--for TIME", "Give them back then.  [default: Ctrl-C, or its end]")
    ] = None,
    priority: Annotated[str, option("--priority CLASS", "How important it is.")] = DEFAULT_CLASS,
    team: Annotated[str, option("--team NAME", "Whose quota it uses.")] = DEFAULT_TEAM,
    kind: Kind = "",
    wait: Annotated[str | None, option("--wait TIME", "Give up then.  [default: never]")] = None,
    notice: Annotated[
        str, option("--notice TIME", "What COMMAND gets to end if they are taken back.")
    ] = "30s",
    name: Annotated[str | None, option("--name NAME", "[default: claim-PID]")] = None,
    of_pool: PoolName = None,
    as_json: Annotated[bool, option("--json", "Print each change as JSON.")] = False,
) -> int:
    """Hold devices of the pool for a while, or for a command."""
    from pliant.run.pool_claim import ClaimConfig, run_claim

    if devices < 1:
        raise ConfigError(f"a claim is of at least 1 device, not {devices}")
    name = _checked("--name", name or f"claim-{os.getpid()}")
    for_s = None if for_ is None else some_seconds("--for", for_)
    wait_s = None if wait is None else some_seconds("--wait", wait)
    notice_s = seconds("--notice", notice)
    pool = any_pool(of_pool, state_directory())
    config = ClaimConfig(
        name=name,
        pool=pool.name,
        records=pool.out.parent,
        devices=devices,
        for_s=for_s,
        wait_s=wait_s,
        notice_s=notice_s,
        priority=priority,
        team=team,
        device_kind=kind,
        command=tuple(command or ()),
    )
    return run_claim(config, dict(os.environ), claim_printer(as_json=as_json))


def the_pool(which: str | None) -> Pool:
    """Return a pool of this host; None: the only one."""
    return Pool(which)


def _checked(what: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{what} {name!r} {NAME_RULE}")
    return name


def claim_printer(*, as_json: bool) -> Callable[..., None]:
    """Return what says where a claim stands, to a person or to a program, at each change."""
    last: tuple[str, str] | None = None

    def tell(state: str, text: str, **values: Any) -> None:
        nonlocal last
        if (state, text) == last:
            return
        last = (state, text)
        if as_json:
            print(json.dumps({"state": state, "reason": text, **values}), flush=True)
        else:
            say(text)

    return tell


def move_printer() -> Callable[[Record], None]:
    """Return what prints what each record of a pool's log tells people, if it tells something."""
    teller = Teller()

    def tell(record: Record) -> None:
        move = teller.move_of(record)
        if move is not None:
            print(f"{clock(move.at)}  {in_one_line(sentence(move))}", flush=True)

    return tell


def _detached(config: PoolConfig, given: dict[str, Any], *, as_json: bool) -> int:
    from pliant.run.pool_host import make_directory

    records, name = config.records, config.name
    directory = make_directory(config)
    found = background.start(
        ("pliant.cli.detached", "pool", name),
        given,
        log=directory / run_files.OUTPUT,
        find=lambda: next((pool for pool in served_pools(records) if pool.name == name), None),
    )
    if as_json:
        where = {"pool": name, "pid": found.pid, "url": found.url, "out": str(found.out)}
        return print_json(where)
    return say(f"pool {name} runs in the background; look at it with pliant top")


def _only_a_job() -> str | None:
    """Return the job that runs where no pool does; None: there is a pool, or no job either."""
    state = state_directory()
    try:
        any_pool(None, state)
    except NotRunningError:
        return find_running(None, state).name if running_jobs(state.jobs) else None
    except ConfigError:  # several pools
        pass
    return None


@from_any_host
def top(which: PoolName = None, job: Job = None, as_json: Json = False) -> int:
    """Watch the pool: who has what, who waits and why; or a job."""
    from pliant.cli.top import live, pool_panel

    console, place = PlainConsole(), cast(JobPlace, job)
    is_watched = console.is_terminal and not as_json
    if place is None and which is None:
        place = _only_a_job()
    if place is None:
        if not is_watched:
            return status(which, as_json)
        live(the_pool(which).status, pool_panel, console)
        return EXIT_OK
    if which is not None and which != os.environ.get("PLIANT_POOL"):
        raise ConfigError(f"--pool {which} is a pool, and --job or --join a job; give one")
    if not is_watched:
        return job_commands.show_status(place, as_json=as_json)
    live(the_job(place).status, job_panel, console)
    return EXIT_OK
