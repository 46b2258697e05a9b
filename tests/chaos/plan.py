"""What goes wrong in a run of chaos, and when: a function of the seed and the number of faults.

Owns the draw and its rules.  Knows nothing of processes and hosts beyond their names; ``chaos``
acts on it.  Times count from the moment when all hosts train and a checkpoint lies on the disk that
they share.

What no plan may hold, because no job could survive it:

    the shared disk lost        the register, the log and the checkpoints lie there
    all hosts lost before       there is nothing to go on from; hence the moment that times count
    the first checkpoint        from
    a coordinator away for      agents give up; each fault ends within ``MOST_S``, and the
    five minutes                coordinator is started again
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pliant.testing import faults

HEARTBEAT_S = 4.0
"""After which silence a replica is lost in these jobs."""

MOST_S = 120.0
"""Longest that a fault lasts."""


class Kind(StrEnum):
    """What goes wrong, or is asked for."""

    LINK_ONE_WAY = "what one host sends to another is lost"
    LINK = "two hosts do not reach each other"
    CUT_OFF = "a host reaches nobody"
    DUMB = "nobody hears a host"
    DEAF = "a host hears nobody"
    SLOW = "packets of a host wait"
    LOSSY = "packets of a host are lost"
    WORKER_DIES = "a worker is killed"
    REPLICAS_DIE = "all workers of a host are killed"
    AGENT_DIES = "an agent is killed"
    COORDINATOR_DIES = "the coordinator is killed"
    HOST_DIES = "a host is switched off and on"
    HOSTS_DIE = "several hosts are switched off and on"
    ALL_DIE = "all hosts are switched off and on"
    WORKER_PAUSES = "a worker stops for a moment"
    WORKER_HANGS = "a worker stops"
    AGENT_HANGS = "an agent stops"
    COORDINATOR_HANGS = "the coordinator stops"
    HOST_HANGS = "everything on a host stops"
    SCALE = "another size is asked for"
    DRAIN = "a replica is to leave"
    SUSPEND = "the job is suspended and resumed"


CARDS = {
    Kind.LINK_ONE_WAY: 5,
    Kind.LINK: 4,
    Kind.CUT_OFF: 4,
    Kind.DUMB: 2,
    Kind.DEAF: 2,
    Kind.SLOW: 2,
    Kind.LOSSY: 2,
    Kind.WORKER_DIES: 8,
    Kind.REPLICAS_DIE: 3,
    Kind.AGENT_DIES: 4,
    Kind.COORDINATOR_DIES: 6,
    Kind.HOST_DIES: 3,
    Kind.HOSTS_DIE: 1,
    Kind.ALL_DIE: 1,
    Kind.WORKER_PAUSES: 4,
    Kind.WORKER_HANGS: 4,
    Kind.AGENT_HANGS: 3,
    Kind.COORDINATOR_HANGS: 3,
    Kind.HOST_HANGS: 2,
    Kind.SCALE: 4,
    Kind.DRAIN: 3,
    Kind.SUSPEND: 1,
}
"""How often each comes in one deck; decks are dealt one after the other."""

PHASES = ("", "", "prepare", "switch", "reform", "release", "saved", "commit")
"""Of what the coordinator is killed in the midst: it has just logged this; empty: of anything."""

LASTS_S = {
    Kind.LINK_ONE_WAY: (0.5, 12.0),
    Kind.LINK: (0.5, 12.0),
    Kind.CUT_OFF: (0.5, 12.0),
    Kind.DUMB: (0.5, 12.0),
    Kind.DEAF: (0.5, 12.0),
    Kind.SLOW: (5.0, 20.0),
    Kind.LOSSY: (5.0, 20.0),
    Kind.AGENT_DIES: (0.0, 5.0),
    Kind.COORDINATOR_DIES: (0.0, 8.0),
    Kind.HOST_DIES: (1.0, 12.0),
    Kind.HOSTS_DIE: (1.0, 12.0),
    Kind.ALL_DIE: (1.0, 5.0),
    Kind.WORKER_PAUSES: (0.1, HEARTBEAT_S / 3),
    Kind.WORKER_HANGS: (HEARTBEAT_S, 3 * HEARTBEAT_S),
    Kind.AGENT_HANGS: (0.5, 3 * HEARTBEAT_S),
    Kind.COORDINATOR_HANGS: (0.5, 3 * HEARTBEAT_S),
    Kind.HOST_HANGS: (0.5, 3 * HEARTBEAT_S),
    Kind.SUSPEND: (3.0, 8.0),
}
"""How long each lasts, from and to; the others are over at once."""

LINKS = (Kind.LINK_ONE_WAY, Kind.LINK, Kind.CUT_OFF, Kind.DUMB, Kind.DEAF)
"""What is cut may stay so for minutes."""

OFF = (Kind.HOST_DIES, Kind.HOSTS_DIE, Kind.ALL_DIE)

MINUTES = 0.12
"""Of the cuts, and of the coordinators that are killed, so many stay away for long."""

PLACED = 0.2
"""Of the replicas, so many meet a fault of their own."""

STOPPED = 0.1
"""Of these faults, so many stop the process and do not kill it."""

POINTS = tuple(sorted(faults.POINTS - {"evaluate"}))
"""The script evaluates nothing."""

Link = tuple[str, str]
"""Who sends and who receives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One thing that goes wrong."""

    number: int
    kind: Kind
    at_s: float
    lasts_s: float = 0.0
    hosts: tuple[str, ...]
    """Whom it is about; for a worker, the coordinator or a request: whom to try first."""

    links: tuple[Link, ...] = ()
    choice: int = 0
    """Which worker, replica or size, of those that are there then."""

    phase: str = ""

    @property
    def ends_s(self) -> float:
        return self.at_s + self.lasts_s

    def __str__(self) -> str:
        who = ",".join(f"{a}>{b}" for a, b in self.links) or ",".join(self.hosts)
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        phase = f" after {self.phase}" if self.phase else ""
        return f"#{self.number} at {self.at_s:.1f} s: {self.kind}{phase} ({who}){lasts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosPlan:
    """All that goes wrong in one run."""

    seed: int
    faults: tuple[PlannedFault, ...]

    placed: str
    """What replicas do to themselves besides, as ``pliant.testing.faults`` reads it."""

    @classmethod
    def of(
        cls, seed: int, num_faults: int, hosts: tuple[str, ...], *, gap_s: float, has_minutes: bool
    ) -> ChaosPlan:
        """Draw so many faults, one every ``gap_s`` on average.

        Args:
            seed: decides everything.
            num_faults: how many.
            hosts: their names; the order is that of the places of the coordinator.
            gap_s: from the beginning of one to that of the next.
            has_minutes: whether some last for minutes.
        """
        draw = random.Random(seed)
        kinds = _dealt(draw)
        at_s, drawn = 0.0, list[PlannedFault]()
        off_until_s = dict.fromkeys(hosts, 0.0)
        for number in range(1, num_faults + 1):
            at_s += draw.uniform(0.2, 1.8) * gap_s
            kind = next(kinds)
            chosen = _hosts_of(draw, kind, hosts)
            if kind in OFF:
                at_s = max(at_s, _all_back_s(off_until_s, chosen))
            lasts_s = _lasts_s(draw, kind, has_minutes=has_minutes)
            if kind in OFF:
                off_until_s |= dict.fromkeys(chosen, at_s + lasts_s)
            drawn.append(
                PlannedFault(
                    number=number,
                    kind=kind,
                    at_s=at_s,
                    lasts_s=lasts_s,
                    hosts=chosen,
                    links=_links_of(kind, chosen, hosts),
                    choice=draw.randrange(10**6),
                    phase=draw.choice(PHASES) if kind is Kind.COORDINATOR_DIES else "",
                )
            )
        return cls(seed=seed, faults=tuple(drawn), placed=_placed(seed, 4 * num_faults))

    @property
    def ends_s(self) -> float:
        """Return when all that was done is undone."""
        return max(fault.ends_s for fault in self.faults)


def _placed(seed: int, num_names: int) -> str:
    """Have some replicas die, or stop, when they first come to a point of a step or of a change."""
    draw = random.Random(f"placed {seed}")
    found = []
    for number in range(2, num_names):
        point, is_stopped = draw.choice(POINTS), draw.random() < STOPPED
        if draw.random() < PLACED:
            action = "SIGSTOP" if is_stopped else "SIGKILL"
            found.append(f"r{number}@{point}={action}")
    return ",".join(found)


def _dealt(draw: random.Random) -> Iterator[Kind]:
    """Yield kinds for ever, each as often as its cards among any whole deck."""
    deck = [kind for kind, cards in CARDS.items() for _ in range(cards)]
    while True:
        yield from draw.sample(deck, len(deck))


def _hosts_of(draw: random.Random, kind: Kind, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Choose whom it is about; in the order of the hosts where the order means nothing."""
    if kind is Kind.ALL_DIE:
        return hosts
    if kind in (Kind.LINK, Kind.LINK_ONE_WAY):
        return tuple(draw.sample(hosts, 2))
    if kind is Kind.HOSTS_DIE:
        many = draw.randint(2, max(2, len(hosts) - 1))
        return tuple(sorted(draw.sample(hosts, many), key=hosts.index))
    return (draw.choice(hosts),)


def _all_back_s(off_until_s: dict[str, float], chosen: tuple[str, ...]) -> float:
    """Return when these may go off: each is on, and not all of the hosts are off by chance."""
    others = [until_s for name, until_s in off_until_s.items() if name not in chosen]
    return max([off_until_s[name] for name in chosen] + sorted(others)[:1])


def _lasts_s(draw: random.Random, kind: Kind, *, has_minutes: bool) -> float:
    if kind not in LASTS_S:
        return 0.0
    low_s, high_s = LASTS_S[kind]
    if has_minutes and kind in (*LINKS, Kind.COORDINATOR_DIES) and draw.random() < MINUTES:
        low_s, high_s = 45.0, MOST_S
    return draw.uniform(low_s, high_s)


def _links_of(kind: Kind, chosen: tuple[str, ...], hosts: tuple[str, ...]) -> tuple[Link, ...]:
    if kind not in LINKS:
        return ()
    first, *more = chosen
    others = tuple(name for name in hosts if name != first)
    out = tuple((first, name) for name in (more or others))
    back = tuple((receiver, sender) for sender, receiver in out)
    if kind in (Kind.LINK_ONE_WAY, Kind.DUMB):
        return out
    return back if kind is Kind.DEAF else (*out, *back)
