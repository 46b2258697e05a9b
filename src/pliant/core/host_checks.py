"""Whether a host can take part in a job, judged from what was found on it.

Owns what is enough, and what to do where it is not.  Must not know how anything is found out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pliant.core.device_masks import Accelerator

FEWEST_FILES = 1024
"""Open files of a process: connections to all members, a window of each, and the script's own."""

LEAST_SHM_BYTES = 64 << 20
"""What containers have unless told otherwise; DataLoader's own workers fill it soon."""

LEAST_DISK_BYTES = 1 << 30
CLOCK_APART_S = 60.0
CLOCK_TOLD_S = 2.0
"""An answer tells its time in whole seconds, and takes a while; less than this may be nothing."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108  the name of a line


class Verdict(StrEnum):
    """What a finding means for the job."""

    OK = "ok"
    CAUTION = "caution"
    """It can take part, and something may be missed later."""

    OBSTACLE = "obstacle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the page."""

    name: str
    verdict: Verdict
    found: str
    do: str = ""
    """What to do; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorLook:
    """What was seen of a coordinator."""

    place: str
    obstacle: str = ""
    """Why it was not reached; empty: it was."""

    is_about_files: bool = False
    """That says which of this host's files are in the way, and what of them."""

    answer_s: float = 0.0
    token: str = ""
    """What it said of the token: ``taken``, ``refused``; empty: none was shown."""

    clock_ahead_s: float | None = None
    """Of ours, by its own."""

    nodes: tuple[tuple[str, str], ...] = ()
    """What it said of the others of its job: node, and address of its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLook:
    """What was seen of another host of the job."""

    name: str
    address: str
    obstacle: str = ""
    """Why it was not reached; empty: it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLook:
    """What was found on a host; None: it could not be found out, or there is no limit."""

    python: tuple[int, int, int]
    torch: str
    """Its version; empty: it cannot be imported, and ``torch_obstacle`` says why."""

    torch_obstacle: str = ""
    address: str = ""
    """Where the other hosts reach its replicas, with the interface."""

    address_obstacle: str = ""
    others: str = ""
    """Further addresses."""

    port_obstacle: str = ""
    """Why nothing could listen there and be reached."""

    cores: int = 1
    accelerators: tuple[Accelerator, ...] = ()
    ailments: Mapping[str, str] = field(default_factory=dict)
    """Why some of these are not healthy, by name."""

    shm_bytes: int | None = None
    disk_bytes: int | None = None
    directory: str = ""
    directory_obstacle: str = ""
    files: int | None = None
    processes: int | None = None
    coordinators: tuple[CoordinatorLook, ...] = ()
    """At the places where it may be: of several, one serves at a time."""

    nodes: tuple[NodeLook, ...] = ()


def findings(look: HostLook) -> tuple[Finding, ...]:
    """Judge a host; one line for each thing that a job needs."""
    return (
        _line("python", ".".join(map(str, look.python))),
        _torch(look),
        _interface(look),
        *_ports(look),
        *_clock(look),
        _shm(look),
        *_accelerators(look),
        *_limits(look),
        _disk(look),
        *_coordinators(look.coordinators),
        *_nodes(look.nodes),
    )


def _line(name: str, found: str, do: str = "", *, bad: Verdict = Verdict.OBSTACLE) -> Finding:
    return Finding(name=name, verdict=bad if do else Verdict.OK, found=found, do=do)


def _torch(look: HostLook) -> Finding:
    if look.torch:
        return _line("torch", look.torch)
    return _line(
        "torch", look.torch_obstacle, "pip install 'pliant[engine]', as on the other hosts"
    )


def _interface(look: HostLook) -> Finding:
    if look.address_obstacle:
        return _line("interface", look.address_obstacle, "name one with --interface")
    others = f"; also {look.others}" if look.others else ""
    return _line("interface", f"{look.address}{others}")


def _ports(look: HostLook) -> tuple[Finding, ...]:
    do = "let the firewall pass what comes to this address from the other hosts"
    return (_line("ports", look.port_obstacle, do),) if look.port_obstacle else ()


def _clock(look: HostLook) -> tuple[Finding, ...]:
    """Judge the clock by the coordinator's, if there is one."""
    told = [one.clock_ahead_s for one in look.coordinators if one.clock_ahead_s is not None]
    if not told:
        return ()
    ahead_s = told[0]
    word = "ahead of" if ahead_s > 0 else "behind"
    found = f"{abs(ahead_s):.0f} s {word} the coordinator's"
    if abs(ahead_s) <= CLOCK_TOLD_S:
        found = f"as the coordinator's, to {CLOCK_TOLD_S:g} s"
    do = "start NTP; training does not mind, but times in logs will not fit together"
    do = do if abs(ahead_s) > CLOCK_APART_S else ""
    return (_line("clock", found, do, bad=Verdict.CAUTION),)


def _shm(look: HostLook) -> Finding:
    if look.shm_bytes is None:
        return _line(SHARED_MEMORY, "not there", "mount a tmpfs on /dev/shm", bad=Verdict.CAUTION)
    do = "give it more (docker run --shm-size 8g): loaders of the script may need it"
    is_little = look.shm_bytes <= LEAST_SHM_BYTES
    return _line(
        SHARED_MEMORY,
        f"{_as_text(look.shm_bytes)} free",
        do if is_little else "",
        bad=Verdict.CAUTION,
    )


def _accelerators(look: HostLook) -> tuple[Finding, ...]:
    """Judge each; where there are none, a host trains on its cores."""
    found = []
    for one in look.accelerators:
        ailment, size = look.ailments.get(one.name, ""), one.memory_bytes
        said = ", ".join(filter(None, (one.model, _as_text(size) if size else "", ailment)))
        do = "leave it out of the variable that masks devices, or cordon it" if ailment else ""
        found.append(_line(one.name, said, do, bad=Verdict.CAUTION))
    return tuple(found)


def _limits(look: HostLook) -> tuple[Finding, ...]:
    few = look.files is not None and look.files < FEWEST_FILES
    needed = 16 * look.cores
    tight = look.processes is not None and look.processes < needed
    return (
        _line(
            "open files",
            _limit(look.files),
            f"ulimit -n {8 * FEWEST_FILES}, or LimitNOFILE= of its unit" if few else "",
        ),
        _line(
            "processes",
            _limit(look.processes),
            f"ulimit -u {64 * needed}, or TasksMax= of its unit" if tight else "",
        ),
    )


def _disk(look: HostLook) -> Finding:
    if look.directory_obstacle:
        do = "start the agent in a directory that this user may write to"
        return _line("directory", look.directory_obstacle, do)
    if look.disk_bytes is None:
        return _line("directory", look.directory)
    do = "make room: output and ledgers of replicas go there"
    found = f"{look.directory}: {_as_text(look.disk_bytes)} free"
    is_little = look.disk_bytes < LEAST_DISK_BYTES
    return _line("directory", found, do if is_little else "", bad=Verdict.CAUTION)


def _coordinators(looks: tuple[CoordinatorLook, ...]) -> tuple[Finding, ...]:
    """Judge the places: where one serves, the others need not."""
    is_there = any(not look.obstacle for look in looks)
    return tuple(_coordinator(look, may_be_away=is_there) for look in looks)


def _coordinator(look: CoordinatorLook, *, may_be_away: bool) -> Finding:
    if look.obstacle and may_be_away:
        return _line("coordinator", f"{look.place}: {look.obstacle}; it is not needed now")
    if look.obstacle:
        do = "start the coordinator, or open its port for this host; --join names its --listen"
        if look.is_about_files:
            do = "give files of TLS that fit this host; see pliant docs encrypt-the-traffic"
        return _line("coordinator", f"{look.place}: {look.obstacle}", do)
    found = f"{look.place} answers within {1000 * look.answer_s:.0f} ms"
    if not look.token:
        do = "show it the token, too: --token-file FILE"
        return _line("coordinator", found, do, bad=Verdict.CAUTION)
    is_taken = look.token == "taken"  # noqa: S105  a word
    do = "" if is_taken else "copy the token file of the coordinator anew"
    return _line("coordinator", f"{found}, and the token is {look.token}", do)


def _nodes(looks: tuple[NodeLook, ...]) -> tuple[Finding, ...]:
    """Judge the way to the other hosts of the job, if there are any yet."""
    if not looks:
        return ()
    away = [look for look in looks if look.obstacle]
    if not away:
        return (_line("other hosts", f"{', '.join(look.name for look in looks)}: reached"),)
    found = "; ".join(f"{one.name} ({one.address}): {one.obstacle}" for one in away)
    do = "let the hosts reach each other, at the ports above 1023, or choose an --interface"
    return (_line("other hosts", found, do),)


def _limit(value: int | None) -> str:
    return "no limit" if value is None else str(value)


def _as_text(num_bytes: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes >> 10} kB"
