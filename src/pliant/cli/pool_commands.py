"""``pliant pool ...``: a pool of devices that jobs and people share.

Owns argv of these commands.  Knows nothing of how a pool runs (``run.pool_host``) or is drawn
(``cli.top``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pliant.cli import printing
from pliant.core.errors import ConfigError, PermanentError
from pliant.core.exits import EXIT_OK
from pliant.core.pool_defaults import DEFAULT_POOL
from pliant.http.client import Caller
from pliant.machine import run_files
from pliant.machine.pools import find_pool, pool_directory, running_pools
from pliant.run import background
from pliant.spec.model import NAME, NAME_RULE
from pliant.spec.pool import MOST_DEVICES, PoolFile, load_pool

app = typer.Typer(
    name="pool",
    no_args_is_help=True,
    help="Share the devices of this machine among jobs and people.",
)

Which = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="NAME",
        envvar="PLIANT_POOL",
        show_envvar=False,
        help="Which pool, if several run.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[int, typer.Argument(metavar="DEVICE", help="Its number.")]


@app.command("start")
def start(
    devices: Annotated[
        int | None,
        typer.Option(
            "--devices",
            metavar="N",
            help="How many there are.  [default: accelerators, or 4 cores]",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="[default: default]")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="POOL.YAML", help="Its teams, quotas and classes."),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            "--capacity",
            metavar="file:PATH|trace:FILE",
            help="Follow a number in a file, or replay a trace; N at most.",
        ),
    ] = None,
    time_scale: Annotated[
        float | None,
        typer.Option(
            "--time-scale", metavar="X", help="Replay it so many times as fast.  [default: 1]"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", help="Port of the REST interface.  [default: any]"),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; end it with pool stop.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the event log's records as they come.")
    ] = False,
) -> int:
    """Start a pool, and tell what happens in it until it is stopped.

    One that has died is started again with the same command: jobs keep what they have meanwhile,
    and it goes on with them.
    """
    from pliant.run.local import count_devices
    from pliant.run.pool_host import PoolConfig, check, parse_capacity, run_pool

    if devices is not None and not 1 <= devices <= MOST_DEVICES:
        raise ConfigError(f"--devices {devices} must be between 1 and {MOST_DEVICES}")
    file = _read(config)
    wanted = PoolConfig(
        name=_name(name, file),
        devices=devices or (file.spec.devices if file else None),
        default_devices=count_devices(),
        file=file,
        capacity=parse_capacity(capacity, time_scale=time_scale),
        port=port or 0,
    )
    if detach:
        check(wanted)
        return _detached(
            wanted.name,
            [
                *_option("--devices", devices),
                *_option("--config", config),
                *_option("--capacity", capacity),
                *_option("--time-scale", time_scale),
                *_option("--port", port),
            ],
            as_json=as_json,
        )
    try:
        with printing.lasting():
            return run_pool(wanted, listener=printing.record if as_json else printing.move)
    except (OSError, PermanentError) as error:
        raise ConfigError(f"pool {wanted.name} cannot run: {error}") from error


@app.command("status")
def status(which: Which = None, as_json: Json = False) -> int:
    """Show what there is, who has it, and who waits for what."""
    found = Caller(find_pool(which)).ask("GET", "/v1/status")
    if as_json:
        return printing.as_json(found)
    from pliant.cli.top import pool_panel

    Console(highlight=False).print(pool_panel(found))
    return EXIT_OK


@app.command("set")
def set_devices(
    devices: Annotated[int, typer.Option("--devices", metavar="N", help="How many there are.")],
    which: Which = None,
    as_json: Json = False,
) -> int:
    """Change how many devices there are; whoever has too many gives some back."""
    if not 0 <= devices <= MOST_DEVICES:
        raise ConfigError(f"--devices {devices} must be between 0 and {MOST_DEVICES}")
    return _wish(which, "POST", "/v1/devices", {"devices": devices}, as_json=as_json)


@app.command("set-team")
def set_team(
    team: Annotated[str, typer.Argument(metavar="TEAM", help="A new one, or one that is there.")],
    quota: Annotated[
        int | None, typer.Option("--quota", metavar="N", help="Devices that are its own.")
    ] = None,
    borrow_limit: Annotated[
        int | None,
        typer.Option("--borrow-limit", metavar="N", help="Devices beyond them.  [default: all]"),
    ] = None,
    reclaim: Annotated[
        str | None,
        typer.Option(
            "--reclaim",
            metavar="LowerPriority|SameTeam|Never",
            help="Whom its claims may take devices from.  [default: LowerPriority]",
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", metavar="CLASS", help="Only claims of this class may.  Repeatable."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the team.")] = False,
    which: Which = None,
    as_json: Json = False,
) -> int:
    """Make a team, or change all that it may use."""
    path = f"/v1/teams/{_checked('team', team)}"
    if remove:
        return _wish(which, "DELETE", path, None, as_json=as_json)
    if borrow_limit is not None and quota is None:
        raise ConfigError(f"--borrow-limit {borrow_limit} is beyond a --quota; give one")
    rule: dict[str, Any] = {"from": reclaim} if reclaim else {}
    rule |= {"by": by} if by else {}
    body = {"name": team, "quota": quota, "borrowLimit": borrow_limit, "reclaim": rule}
    return _wish(which, "PUT", path, body, as_json=as_json)


@app.command("set-class")
def set_class(
    priority: Annotated[str, typer.Argument(metavar="CLASS", help="A priority class.")],
    value: Annotated[
        int, typer.Option("--value", metavar="N", help="The higher goes first; normal is 0.")
    ],
    which: Which = None,
    as_json: Json = False,
) -> int:
    """Make a priority class, or change its value."""
    path = f"/v1/classes/{_checked('class', priority)}"
    return _wish(which, "PUT", path, {"value": value}, as_json=as_json)


@app.command("cordon")
def cordon(device: Device, which: Which = None, as_json: Json = False) -> int:
    """Hand a device out no more; who has it keeps it."""
    return _wish(which, "POST", f"/v1/devices/{device}/cordon", None, as_json=as_json)


@app.command("uncordon")
def uncordon(device: Device, which: Which = None, as_json: Json = False) -> int:
    """Hand a device out again."""
    return _wish(which, "POST", f"/v1/devices/{device}/uncordon", None, as_json=as_json)


@app.command("drain")
def drain(device: Device, which: Which = None, as_json: Json = False) -> int:
    """Take a device back on notice, and hand it out no more."""
    return _wish(which, "POST", f"/v1/devices/{device}/drain", None, as_json=as_json)


@app.command("stop")
def stop(which: Which = None, as_json: Json = False) -> int:
    """Stop a pool; who has devices keeps them."""
    return _wish(which, "POST", "/v1/stop", None, as_json=as_json)


def _wish(
    which: str | None, method: str, path: str, body: dict[str, Any] | None, *, as_json: bool
) -> int:
    values = Caller(find_pool(which)).ask(method, path, body)
    if as_json:
        return printing.as_json(values)
    printing.say(str(values.get("reason") or "done"))
    return EXIT_OK


def _read(config: Path | None) -> PoolFile | None:
    if config is None:
        return None
    try:
        text = config.read_text()
    except OSError as error:
        raise ConfigError(f"{config} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{config} cannot be read: it is no UTF-8 text") from None
    return load_pool(text, source=str(config))


def _name(given: str | None, file: PoolFile | None) -> str:
    return _checked("--name", given or (file.metadata.name if file else DEFAULT_POOL))


def _checked(what: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{what} {name!r} {NAME_RULE}")
    return name


def _detached(name: str, options: list[str], *, as_json: bool) -> int:
    directory = pool_directory(name)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}") from error
    found = background.start(
        ["pool", "start", "--name", name, *options],
        log=directory / run_files.OUTPUT,
        find=lambda: next((pool for pool in running_pools() if pool.name == name), None),
    )
    if as_json:
        where = {"pool": name, "pid": found.pid, "url": found.url, "out": str(found.out)}
        return printing.as_json(where)
    printing.say(f"pool {name} runs in the background; look at it with pliant top")
    return EXIT_OK


def _option(flag: str, value: object) -> list[str]:
    return [] if value is None else [flag, str(value)]
