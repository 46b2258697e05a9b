"""Who gets which devices of a pool: claims, teams and devices in; grants and takings out.

The whole interface of the package.  ``step`` is the only way to change a pool:

    pool = new_pool(8)
    pool, actions = step(pool, Asked(claim=Claim(name="a", ask_replicas=8)), now_s=0.0)

Read one claim with ``standing``, why it has no more with ``why``, everything with ``summary``.
"""

from __future__ import annotations

from pliant.core.allocation.claim_state import Standing as Standing
from pliant.core.allocation.claim_state import Summary as Summary
from pliant.core.allocation.claim_state import TeamUse as TeamUse
from pliant.core.allocation.claim_state import claims as claims
from pliant.core.allocation.claim_state import standing as standing
from pliant.core.allocation.claim_state import summary as summary
from pliant.core.allocation.claim_state import why as why
from pliant.core.allocation.decide import new_pool as new_pool
from pliant.core.allocation.decide import next_deadline_s as next_deadline_s
from pliant.core.allocation.decide import step as step
from pliant.core.allocation.state import Pool as Pool
from pliant.core.allocation.values import CLASSES as CLASSES
from pliant.core.allocation.values import Action as Action
from pliant.core.allocation.values import Asked as Asked
from pliant.core.allocation.values import Claim as Claim
from pliant.core.allocation.values import ClassSet as ClassSet
from pliant.core.allocation.values import Cordoned as Cordoned
from pliant.core.allocation.values import DevicesSet as DevicesSet
from pliant.core.allocation.values import Drained as Drained
from pliant.core.allocation.values import Event as Event
from pliant.core.allocation.values import Grant as Grant
from pliant.core.allocation.values import Opened as Opened
from pliant.core.allocation.values import Overdue as Overdue
from pliant.core.allocation.values import PoolRules as PoolRules
from pliant.core.allocation.values import PriorityClass as PriorityClass
from pliant.core.allocation.values import Reclaim as Reclaim
from pliant.core.allocation.values import Recovered as Recovered
from pliant.core.allocation.values import Refuse as Refuse
from pliant.core.allocation.values import Released as Released
from pliant.core.allocation.values import Shrink as Shrink
from pliant.core.allocation.values import Suspend as Suspend
from pliant.core.allocation.values import Team as Team
from pliant.core.allocation.values import TeamRemoved as TeamRemoved
from pliant.core.allocation.values import TeamSet as TeamSet
from pliant.core.allocation.values import TimePassed as TimePassed
from pliant.core.allocation.values import Uncordoned as Uncordoned
from pliant.core.allocation.values import Withdrawn as Withdrawn
