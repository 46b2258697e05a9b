"""``pliant doctor``: can this host take part in a job?

Owns argv, what is asked of whom, what is enough, and how the findings are shown.
``machine.host_look`` says how a thing is found out.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import httpx
from rich import box
from rich.table import Table
from rich.text import Text

from pliant.agent.uplink import FORBIDDEN
from pliant.cli.arguments import Json, TlsCa, TlsCertificate, TlsKey
from pliant.cli.help import option
from pliant.cli.job_settings import tls_files
from pliant.cli.terminal import draw, print_json
from pliant.cli.which_job import require_join
from pliant.core.errors import EXIT_FAILED, EXIT_OK, ConfigError
from pliant.core.values import TlsFiles
from pliant.http.client import refusal, rest_url, trust_at
from pliant.machine import host_look
from pliant.machine.accelerators import ailments, visible
from pliant.machine.interfaces import (
    address_named,
    address_towards,
    host_addresses,
    is_own,
    others_reach,
    place_of,
    resolved,
)
from pliant.machine.tls import NEEDS_TLS, fault_of_tls
from pliant.run.register_location import places_now
from pliant.run.run_directory import read_token

KNOWN = (*FORBIDDEN, 503)
"""HTTP status of a coordinator that does not take the token, or has taken it and is busy."""

MOST_NODES = 64
"""Of the other hosts of a job that are looked at: each may take seconds."""


class Verdict(StrEnum):
    """What a finding means for the job."""

    OK = "ok"
    CAUTION = "caution"
    """It can take part, and something may be missed later."""

    OBSTACLE = "obstacle"


COLOURS = {Verdict.OK: "green", Verdict.CAUTION: "yellow", Verdict.OBSTACLE: "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the page."""

    name: str
    found: str
    do: str = ""
    """What to do; empty: nothing."""

    verdict: Verdict = Verdict.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorLook:
    """What was seen of a coordinator."""

    place: str
    obstacle: str = ""
    """Why it was not reached; empty: it was."""

    token: str = ""
    """What it said of the token: ``taken``, ``refused``; empty: none was shown."""

    nodes: tuple[tuple[str, str], ...] = ()
    """What it said of the others of its job: node, and address of its workers."""


def doctor(
    join: Annotated[
        str | None,
        option(
            "--join PLACE",
            "A coordinator that is to be reached, or several places, as agents name them.",
        ),
    ] = None,
    token_file: Annotated[Path | None, option("--token-file FILE", "Of that coordinator.")] = None,
    interface: Annotated[
        str | None,
        option(
            "--interface ADDRESS|NAME", "Where other hosts are to reach the replicas of this one."
        ),
    ] = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    as_json: Json = False,
) -> int:
    """Say whether this host can take part in a job, and what to do where it cannot."""
    if join is None:
        tls_given = {"tls_ca": tls_ca, "tls_certificate": tls_certificate, "tls_key": tls_key}
        require_join(token_file=token_file, **tls_given)
    token = None if token_file is None else read_token(token_file)
    tls = tls_files(tls_ca, tls_certificate, tls_key)
    found = _findings(join, token, interface, tls)
    is_fit = all(one.verdict is not Verdict.OBSTACLE for one in found)
    if as_json:
        print_json({"fit": is_fit, "findings": [asdict(one) for one in found]})
        return EXIT_OK if is_fit else EXIT_FAILED
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1), pad_edge=False)
    for name in ("what", "", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for one in found:
        verdict = Text(one.verdict, style=COLOURS[one.verdict])
        table.add_row(Text(one.name), verdict, Text(one.found), Text(one.do))
    draw(table)
    return EXIT_OK if is_fit else EXIT_FAILED


def _findings(
    join: str | None, token: str | None, interface: str | None, tls: TlsFiles | None
) -> list[Finding]:
    try:
        places, looks = ([], []) if join is None else (places_now(join), [])
    except ConfigError as error:
        places, looks = [], [CoordinatorLook(place=str(join), obstacle=str(error))]
    with ThreadPoolExecutor() as pool:  # each takes at most as long as importing torch may
        torch = pool.submit(host_look.torch_here)
        looks += pool.map(lambda place: _coordinator(place, token, tls), places)
        others = dict(pair for look in looks for pair in look.nodes)
        ways = dict(zip(others, pool.map(host_look.host_obstacle, others.values()), strict=True))
        return [
            _torch(*torch.result()),
            _interface(places, interface),
            *_accelerators(),
            *_told(looks),
            *_others(others, ways),
        ]


def _torch(version: str, obstacle: str) -> Finding:
    if version:
        return Finding("torch", version)
    do = "pip install 'pliant[engine]', as on the other hosts"
    return Finding("torch", obstacle, do, Verdict.OBSTACLE)


def _interface(places: list[str], interface: str | None) -> Finding:
    try:
        address = _address(places, interface)
    except ConfigError as error:
        return Finding("interface", str(error), "name one with --interface", Verdict.OBSTACLE)
    known = {one.address: str(one) for one in host_addresses()}
    return Finding("interface", known.get(address, address))


def _address(places: list[str], interface: str | None) -> str:
    """Return where others reach this host.

    Raises:
        ConfigError: nowhere.
    """
    if interface is not None:
        return address_named(interface, "--interface")
    failure = ConfigError("there is none but loopback")
    for place in places:
        try:
            return address_towards(resolved(place_of(place)[0], "--join"))
        except ConfigError as error:
            failure = error
    if places or not (others := others_reach()):
        raise failure
    return others[0].address


def _accelerators() -> list[Finding]:
    """Judge each; where there are none, a host trains on its cores."""
    there, found = visible(os.environ), []
    ill = ailments(one.name for one in there)
    for one in there:
        why, gb = ill.get(one.name, ""), (one.memory_bytes or 0) / (1 << 30)
        said = ", ".join(filter(None, (one.model, f"{gb:.3g} GB" if gb else "", why)))
        do = "leave it out of the variable that masks devices, or cordon it" if why else ""
        found.append(Finding(one.name, said, do, Verdict.CAUTION if why else Verdict.OK))
    return found


def _told(looks: list[CoordinatorLook]) -> list[Finding]:
    """Judge the places of coordinators: where one serves, the others need not."""
    is_there, found = any(not look.obstacle for look in looks), []
    for look in looks:
        said, do, verdict = f"{look.place} answers, and the token is {look.token}", "", Verdict.OK
        if look.obstacle and is_there:
            said = f"{look.place}: {look.obstacle}; it is not needed now"
        elif look.obstacle:
            said, verdict = f"{look.place}: {look.obstacle}", Verdict.OBSTACLE
            do = (
                "start the coordinator, open its port for this host, or give the files of TLS that "
                "it wants; --join names its --listen"
            )
        elif not look.token:
            said, verdict = f"{look.place} answers", Verdict.CAUTION
            do = "show it the token, too: --token-file FILE"
        elif look.token == "refused":  # noqa: S105  a word
            do, verdict = "copy the token file of the coordinator anew", Verdict.OBSTACLE
        found.append(Finding("coordinator", said, do, verdict))
    return found


def _others(nodes: dict[str, str], ways: dict[str, str]) -> list[Finding]:
    """Judge the way to the other hosts of the job, if there are any yet."""
    if not nodes:
        return []
    away = [f"{name} ({nodes[name]}): {why}" for name, why in ways.items() if why]
    if not away:
        return [Finding("other hosts", f"{', '.join(nodes)}: reached")]
    do = "let the hosts reach each other, at the ports above 1023, or choose an --interface"
    return [Finding("other hosts", "; ".join(away), do, Verdict.OBSTACLE)]


def _coordinator(place: str, token: str | None, tls: TlsFiles | None) -> CoordinatorLook:
    """Connect to a coordinator and ask it something."""

    def unfit(obstacle: str) -> CoordinatorLook:
        return CoordinatorLook(place=place, obstacle=obstacle)

    try:
        host, port = place_of(place)
        url = rest_url(place, tls)
        address = resolved(host, "--join")
    except ConfigError as error:
        return unfit(str(error))
    port = port or (443 if url.startswith("https") else 80)
    if obstacle := host_look.connect_obstacle(address, port)[0]:
        return unfit(obstacle)
    header = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with httpx.Client(
            base_url=url,
            headers=header,
            timeout=host_look.CONNECT_S,
            trust_env=False,
            verify=trust_at(url, tls),
        ) as client:
            health = client.get("/healthz")
            status = client.get("/v1/status")
            nodes = client.get("/v1/nodes")
    except ConfigError as error:
        return unfit(str(error))
    except httpx.HTTPError as error:
        if (fault := fault_of_tls(error, url, tls)) is not None:
            return unfit(fault)
        return unfit(f"it answers, but no coordinator: {error}")
    if health.status_code == NEEDS_TLS:
        return unfit(refusal(health, "coordinator"))
    for answer in (health, status):
        if not answer.is_success and (answer is health or answer.status_code not in KNOWN):
            return unfit(f"it answers, but no coordinator (status {answer.status_code})")
    said = "" if token is None else "refused" if status.status_code in FORBIDDEN else "taken"
    return CoordinatorLook(
        place=place,
        token=said,
        nodes=_named(nodes) if nodes.is_success else (),
    )


def _named(answer: httpx.Response) -> tuple[tuple[str, str], ...]:
    """Return the other hosts that a coordinator has named, with their addresses; some of many."""
    try:
        said = answer.json()
    except ValueError:
        return ()
    pairs = said.items() if isinstance(said, dict) else ()
    return tuple((str(node), str(at)) for node, at in pairs if not is_own(str(at)))[:MOST_NODES]
