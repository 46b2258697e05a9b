"""What happens to a job: what workers, agents, people and time tell the core.

Frozen values only.  The class names are the types of the wire and of the event log.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.events.from_agents import OUT_OF_MEMORY as OUT_OF_MEMORY
from pliant.core.events.from_agents import AgentEvent as AgentEvent
from pliant.core.events.from_agents import DiedTogether as DiedTogether
from pliant.core.events.from_agents import Exited as Exited
from pliant.core.events.from_agents import ExitKind as ExitKind
from pliant.core.events.from_agents import NodeFailed as NodeFailed
from pliant.core.events.from_agents import NodeJoined as NodeJoined
from pliant.core.events.from_agents import NodeLeaving as NodeLeaving
from pliant.core.events.from_agents import NodeLost as NodeLost
from pliant.core.events.from_agents import NodeSilent as NodeSilent
from pliant.core.events.from_agents import Running as Running
from pliant.core.events.from_people import DrainRequested as DrainRequested
from pliant.core.events.from_people import KillRequested as KillRequested
from pliant.core.events.from_people import Offered as Offered
from pliant.core.events.from_people import PeopleEvent as PeopleEvent
from pliant.core.events.from_people import PolicySet as PolicySet
from pliant.core.events.from_people import Reclaimed as Reclaimed
from pliant.core.events.from_people import Scaled as Scaled
from pliant.core.events.from_people import StopRequested as StopRequested
from pliant.core.events.from_people import SuspendRequested as SuspendRequested
from pliant.core.events.from_workers import Broken as Broken
from pliant.core.events.from_workers import Busy as Busy
from pliant.core.events.from_workers import Finished as Finished
from pliant.core.events.from_workers import Prepared as Prepared
from pliant.core.events.from_workers import Progressed as Progressed
from pliant.core.events.from_workers import PublishAsked as PublishAsked
from pliant.core.events.from_workers import Refused as Refused
from pliant.core.events.from_workers import Registered as Registered
from pliant.core.events.from_workers import Saved as Saved
from pliant.core.events.from_workers import Spare as Spare
from pliant.core.events.from_workers import Switched as Switched
from pliant.core.events.from_workers import Unrestorable as Unrestorable
from pliant.core.events.from_workers import WorkerEvent as WorkerEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Only time has passed."""


Event = WorkerEvent | AgentEvent | PeopleEvent | Ticked
