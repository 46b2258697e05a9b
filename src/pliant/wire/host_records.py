"""What the hosts of a host group tell each other, over a link that both have proved to be on.

Owns the records, and how each end proves that it knows the secret of the link without saying it.
Both ends are of one installation, which their coordinator has looked at, so these carry no version;
but the other end is another machine, so what cannot be read, or is out of the bounds of messages,
ends the link.  Knows nothing of sockets.

    part  --TunnelOpened, PartStarted, PartReaped, PartEnded, PartSaid, ...-->  head
          <-------StartPart, KillPart, AllJoined---------------------------
          <-------HostAlive, TunnelRead, bytes of tunnels----------------->

    part  <--HostAlive-->  part

Of a worker: PartStarted, what it says, PartReaped at once when it is gone, PartEnded when its last
words are told.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from pliant.core.events import ExitKind
from pliant.core.text import MOST_S
from pliant.core.values import Incarnation, NodeId, ReplicaId
from pliant.wire.bounds import MOST, MOST_DEVICES, REPLICA

MAX_FRAME_BYTES = 4 << 20
"""Largest record: a message may have 1 MB, and is a text in a text here."""

STREAM_BYTES = 4
"""Of a frame of a tunnel, which begins with its number; one with nothing behind it is the last."""


Replica = Annotated[ReplicaId, Field(pattern=f"^{REPLICA.pattern}$")]
Count = Annotated[int, Field(ge=0, le=MOST)]
Place = Annotated[int, Field(ge=0, lt=MOST_DEVICES)]
"""Of a worker in its replica."""

Seconds = Annotated[float, Field(ge=0, le=MOST_S, allow_inf_nan=False)]
ReturnCode = Annotated[int, Field(ge=-MOST, le=MOST)]
"""Of a process; a signal is negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllJoined:
    """To a part: all hosts of the node are there; from now on it is one."""

    type: Literal["joined"] = "joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPart:
    """To a part: start these workers of a replica."""

    replica: Replica
    places: Annotated[tuple[Place, ...], Field(max_length=MOST_DEVICES)]
    incarnation: Annotated[Incarnation, Field(ge=0, le=MOST)]
    type: Literal["start"] = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPart:
    """To a part: kill what it runs of a replica."""

    replica: Replica

    is_asked: bool
    """Whether the end of the replica was asked for; else one of its workers has ended."""

    type: Literal["kill"] = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfWorker:
    """To the head: something of one worker that the part runs."""

    replica: Replica
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStarted(OfWorker):
    """A worker has a process."""

    pid: Count
    device: Count | None
    type: Literal["started"] = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReaped(OfWorker):
    """The process of a worker was reaped; what it has said follows."""

    returncode: ReturnCode
    type: Literal["reaped"] = "reaped"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEnded(OfWorker):
    """How a worker has ended, and that nothing more of it follows."""

    kind: ExitKind
    detail: str
    worker: Place | None
    type: Literal["ended"] = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSilent(OfWorker):
    """At so many looks in a row a worker has shown no life; said when it changes."""

    looks: Count
    type: Literal["silent"] = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSaid(OfWorker):
    """What a worker has said, as a message of ``wire.codec``."""

    message: str
    type: Literal["said"] = "said"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNews:
    """To the head: what workers have written or printed, as a message of ``wire.codec``."""

    message: str
    type: Literal["news"] = "news"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLeaving:
    """To the head: this host was told to end; the replicas have so long to leave, in seconds."""

    notice_s: Seconds
    type: Literal["leaving"] = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelOpened:
    """To the head: a worker of the part wants to talk to worker 0 of its replica."""

    stream: Count
    replica: Replica
    socket: Literal["channel", "store"]
    type: Literal["tunnel"] = "tunnel"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelRead:
    """So many more bytes of a tunnel have found their reader, and others may follow."""

    stream: Count
    count: Count
    type: Literal["read"] = "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAlive:
    """The other end is there."""

    type: Literal["alive"] = "alive"


HeadRecord = AllJoined | StartPart | KillPart
PartRecord = PartStarted | PartReaped | PartEnded | PartSilent | PartSaid | PartNews | PartLeaving
TunnelRecord = TunnelOpened | TunnelRead
LinkRecord = HeadRecord | PartRecord | TunnelRecord | HostAlive

RECORDS: TypeAdapter[LinkRecord] = TypeAdapter(LinkRecord)
"""Turns records into values and back: ``dump_json``, ``validate_json``."""


def proof(secret: str, side: str, head: NodeId, part: NodeId, devices: int, nonce: str) -> str:
    """Return what only who knows the secret can say of a connection: a digest, hex.

    ``side``: who proves it, of ``head`` and ``part``; ``nonce``: the part's, never used before;
    ``devices``: how many it has.
    """
    said = json.dumps([side, head, part, devices, nonce]).encode()
    return hmac.new(bytes.fromhex(secret), said, "sha256").hexdigest()
