"""``pliant doctor``: can this host take part in a job?

Owns argv, what is asked of whom, and how the findings are shown.  ``core.host_checks`` says what is
enough, ``machine.host_look`` how a thing is found out.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from email.utils import parsedate_to_datetime
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
from pliant.core.host_checks import CoordinatorLook, HostLook, NodeLook, Verdict, findings
from pliant.core.values import TlsFiles
from pliant.http.client import refusal, rest_url, trust_at
from pliant.machine import host_look
from pliant.machine.accelerators import ailments, visible
from pliant.machine.interfaces import (
    address_named,
    address_towards,
    addresses_in_words,
    host_addresses,
    is_own,
    others_reach,
    place_of,
    resolved,
)
from pliant.machine.tls import NEEDS_TLS, fault_of_tls
from pliant.run.host_devices import count_cores
from pliant.run.register_location import places_now
from pliant.run.run_directory import read_token

KNOWN = (*FORBIDDEN, 503)
"""HTTP status of a coordinator that does not take the token, or has taken it and is busy."""

MOST_NODES = 64
"""Of the other hosts of a job that are looked at: each may take seconds."""

COLOURS = {Verdict.OK: "green", Verdict.CAUTION: "yellow", Verdict.OBSTACLE: "red"}


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
    found = findings(_seen_here(join, token, interface, tls))
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


def _seen_here(
    join: str | None, token: str | None, interface: str | None, tls: TlsFiles | None
) -> HostLook:
    here, there = Path.cwd(), visible(os.environ)
    places, fault = _places(join)
    with ThreadPoolExecutor() as pool:  # each takes at most as long as importing torch may
        torch = pool.submit(host_look.torch_here)
        looks = [pool.submit(_coordinator, place, token, tls) for place in places]
        others = dict(pair for look in looks for pair in look.result().nodes)
        nodes = [pool.submit(_node, name, at) for name, at in others.items()]
        address, obstacle = _address(places, interface)
        names = {one.address: str(one) for one in host_addresses()}
        return HostLook(
            python=sys.version_info[:3],
            torch=torch.result()[0],
            torch_obstacle=torch.result()[1],
            address=names.get(address, address),
            address_obstacle=obstacle,
            others=addresses_in_words(
                tuple(one for one in others_reach() if one.address != address), none=""
            ),
            port_obstacle=host_look.port_obstacle(address) if address else "",
            cores=count_cores(),
            accelerators=there,
            ailments=ailments(one.name for one in there),
            shm_bytes=host_look.free_bytes(host_look.SHARED_MEMORY),
            disk_bytes=host_look.free_bytes(here),
            directory=str(here),
            directory_obstacle=host_look.write_obstacle(here),
            files=host_look.limit(resource.RLIMIT_NOFILE),
            processes=host_look.limit(resource.RLIMIT_NPROC),
            coordinators=(fault,) if fault else tuple(one.result() for one in looks),
            nodes=tuple(one.result() for one in nodes),
        )


def _places(join: str | None) -> tuple[list[str], CoordinatorLook | None]:
    """Return the places that are named, or why none can be."""
    if join is None:
        return [], None
    try:
        return places_now(join), None
    except ConfigError as error:
        return [], CoordinatorLook(place=join, obstacle=str(error))


def _address(places: list[str], interface: str | None) -> tuple[str, str]:
    """Return where others reach this host, or why nowhere."""
    try:
        if interface is not None:
            return address_named(interface, "--interface"), ""
    except ConfigError as error:
        return "", str(error)
    obstacle = ""
    for place in places:
        try:
            return address_towards(resolved(place_of(place)[0], "--join")), ""
        except ConfigError as error:
            obstacle = str(error)
    if obstacle:
        return "", obstacle
    others = others_reach()
    return (others[0].address, "") if others else ("", "there is none but loopback")


def _coordinator(place: str, token: str | None, tls: TlsFiles | None) -> CoordinatorLook:
    """Connect to a coordinator and ask it something."""

    def unfit(obstacle: str, *, is_about_files: bool = False) -> CoordinatorLook:
        return CoordinatorLook(place=place, obstacle=obstacle, is_about_files=is_about_files)

    try:
        host, port = place_of(place)
        url = rest_url(place, tls)
        address = resolved(host, "--join")
    except ConfigError as error:
        return unfit(str(error))
    port = port or (443 if url.startswith("https") else 80)
    obstacle, answer_s = host_look.connect_obstacle(address, port)
    if obstacle:
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
            ahead_s = _ahead(health.headers.get("date"))
            status = client.get("/v1/status")
            nodes = client.get("/v1/nodes")
    except ConfigError as error:
        return unfit(str(error), is_about_files=True)
    except httpx.HTTPError as error:
        if (fault := fault_of_tls(error, url, tls)) is not None:
            return unfit(fault, is_about_files=True)
        return unfit(f"it answers, but no coordinator: {error}")
    if health.status_code == NEEDS_TLS:
        return unfit(refusal(health, "coordinator"), is_about_files=True)
    for answer in (health, status):
        if not answer.is_success and (answer is health or answer.status_code not in KNOWN):
            return unfit(f"it answers, but no coordinator (status {answer.status_code})")
    said = "" if token is None else "refused" if status.status_code in FORBIDDEN else "taken"
    return CoordinatorLook(
        place=place,
        answer_s=answer_s,
        token=said,
        clock_ahead_s=ahead_s,
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


def _node(name: str, address: str) -> NodeLook:
    return NodeLook(name=name, address=address, obstacle=host_look.host_obstacle(address))


def _ahead(date: str | None) -> float | None:
    """Return by how much this host's clock is ahead of one that an answer tells."""
    try:
        return None if date is None else time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
