"""``pliant certs make``: certificates for people who have no CA.

Owns argv and what is said: which file goes where.  Knows nothing of how they are made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.help_pages import CommandGroup
from pliant.cli.options import Json
from pliant.cli.printing import print_json, say
from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_OK
from pliant.machine.own_ca import CA_DAYS, NamedHost, OwnCa

app = typer.Typer(
    name="certs",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make the certificates of a job on several hosts.",
)


@app.callback()
def certs() -> None:
    """Make the certificates of a job on several hosts."""


@app.command("make")
def make(
    hosts: Annotated[
        list[str],
        typer.Argument(
            metavar="HOST[,NAME|ADDRESS...]...",
            help="Each host, by all names and addresses by which others reach it.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where they go; a CA there is used again.")
    ] = Path("certs"),
    days: Annotated[
        int, typer.Option("--days", metavar="N", help="How long they are valid.")
    ] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace those of these hosts.  The CA stays.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Make a CA, and a certificate and its key for each host."""
    if not 1 <= days <= CA_DAYS:
        raise ConfigError(f"--days {days} must be between 1 and {CA_DAYS}")
    named, ca = [NamedHost.of(host) for host in hosts], OwnCa(out)
    twice = [host.stem for host in named if sum(host.stem == one.stem for one in named) > 1]
    if twice:
        raise ConfigError(f"host {twice[0]} is named twice; give all names of it at once, with ','")
    is_new = ca.make(named, days=days, may_replace=renew)
    if as_json:
        files = {host.stem: [*map(str, ca.files_of(host))] for host in named}
        return print_json({"ca": str(ca.certificate), "made_ca": is_new, "hosts": files})
    if is_new:
        say(f"{ca.key} stays here: who has it can make a host of the job")
    for host in named:
        certificate, key = ca.files_of(host)
        place = f"[{host.names[0]}]" if ":" in host.names[0] else host.names[0]
        say(f"to {host.names[0]}: scp {ca.certificate} {certificate} {key} {place}:")
        say(
            f"    there --tls-ca {ca.certificate.name} --tls-certificate {certificate.name} "
            f"--tls-key {key.name}"
        )
    say(f"each is valid for {days} days; pliant certs make --renew makes the next, in time")
    return EXIT_OK
