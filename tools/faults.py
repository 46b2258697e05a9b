"""The seeded faults: each takes one rule of the protocol or of allocation out of the source.

R1 to R21 are the rules of changing a membership, 5.6 its invariants; "allocation" is what
docs/explanation/allocation.md promises.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One change of the source that breaks one rule."""

    rule: str
    what: str
    """What is wrong then, in a few words."""

    path: str
    """File below ``src/pliant``."""

    old: str
    """Text that occurs there exactly once."""

    new: str


FAULTS = (
    Fault(
        "R1",
        "the register is never written",
        "core/job/controller.py",
        "register=record_to_write(job, after),",
        "register=None,",
    ),
    Fault(
        "R1",
        "a coordinator begins without a write",
        "core/job/controller.py",
        "incarnation=job.membership.incarnation, register=record(job))",
        "incarnation=job.membership.incarnation)",
    ),
    Fault(
        "R2",
        "the number of a Prepare is not in the register",
        "core/membership/state.py",
        "        number=state.orders.issued,",
        (
            "        number=state.orders.recorded.generation\n"
            "        if state.orders.recorded\n        else NO_GENERATION,"
        ),
    ),
    Fault(
        "R2",
        "a failed attempt's number is used again",
        "core/membership/changes.py",
        "generation=Generation(state.orders.issued + 1),",
        (
            "generation=Generation(\n"
            "            state.orders.recorded.generation + 1 if state.orders.recorded else 1\n"
            "        ),"
        ),
    ),
    Fault(
        "R2",
        "a new coordinator goes on under the old incarnation",
        "core/membership/rejoin.py",
        "incarnation=Incarnation(register.incarnation + 1),",
        "incarnation=register.incarnation,",
    ),
    Fault(
        "R2",
        "a new coordinator begins again with the numbers",
        "core/membership/rejoin.py",
        "            issued=register.number,\n",
        "            issued=recorded.generation if recorded else NO_GENERATION,\n",
    ),
    Fault(
        "R3",
        "commands of an older incarnation are obeyed",
        "core/membership/member.py",
        "    return incarnation < member.incarnation",
        "    return False",
    ),
    Fault(
        "R4",
        "a new coordinator decides before everybody was heard",
        "core/job/registration.py",
        "    if silent and tx.now_s < tx.job.registration.by_s:\n",
        "    if silent and not tx.job.registration.registered:\n",
    ),
    Fault(
        "R4",
        "a member that does not register is waited for without end",
        "core/job/registration.py",
        "    if silent and tx.now_s < tx.job.registration.by_s:\n",
        "    if silent:\n",
    ),
    Fault(
        "R4",
        "a broken group is not asked about",
        "core/membership/rejoin.py",
        "and event.has_state and not event.broken",
        "and event.has_state",
    ),
    Fault(
        "R4",
        "members in an older generation are taken for whole",
        "core/membership/rejoin.py",
        "    return event.current == generation and",
        "    return bool(event.current) and",
    ),
    Fault(
        "R4",
        "a registration that answers an older coordinator counts",
        "core/job/registration.py",
        " or event.asked_by != job.membership.incarnation:",
        ":",
    ),
    Fault(
        "R5",
        "a joiner that was left out of a Reform still waits for its generation",
        "core/membership/member.py",
        '        return became(member, "Reform", spare, order.generation), older',
        "        return member, ()",
    ),
    Fault(
        "R6",
        "Switch before all have prepared",
        "core/membership/worker_events.py",
        "return (state, ()) if awaiting else changes.switch(state, moment)",
        "return changes.switch(state, moment)",
    ),
    Fault(
        "R6",
        "an answer to an older attempt counts",
        "core/membership/worker_events.py",
        "if state.orders.attempt is None or event.generation != state.orders.attempt.generation:",
        "if state.orders.attempt is None:",
    ),
    Fault(
        "R6",
        "a late joiner stalls the survivors",
        "core/membership/failure/silence.py",
        "        late |= joiners\n",
        "        pass\n",
    ),
    Fault(
        "R6",
        "an old member is lost the first time it is late",
        "core/membership/failure/silence.py",
        "    lost = dispensable(state, silent & late)\n",
        "    lost = dispensable(state, silent)\n",
    ),
    Fault(
        "R7",
        "ready although its groups are not built",
        "core/membership/member.py",
        "if member.ordered is None or not member.built or member.broken",
        "if member.ordered is None or member.broken",
    ),
    Fault(
        "R7",
        "one member's number is enough for the boundary",
        "core/membership/member.py",
        "if numbers and all(one == ordered for one in numbers) else",
        "if any(one == ordered for one in numbers) else",
    ),
    Fault(
        "R7",
        "a Prepare displaces an order that was switched to",
        "core/membership/member.py",
        "        or member.ordered is not None\n",
        "",
    ),
    Fault(
        "R7",
        "a new attempt begins while a Switch is out",
        "core/membership/changes.py",
        "state.phase in (Phase.EMPTY, Phase.STEADY, Phase.PREPARING)",
        "state.phase in (Phase.EMPTY, Phase.STEADY, Phase.PREPARING, Phase.SWITCHING)",
    ),
    Fault(
        "R7",
        "still ready when the next group is broken",
        "core/membership/member.py",
        '    return became(member, "broken", replace(member, built=False), generation), news',
        "    return member, news",
    ),
    Fault(
        "R8",
        "a receiver holds state before its digest matched",
        "core/membership/member.py",
        'replace(member, vote=None, has_state=False), "to receive")',
        'replace(member, vote=None, has_state=True), "to receive")',
    ),
    Fault(
        "R8",
        "a generation is entered without state",
        "core/membership/member.py",
        ("    if is_sealed(member, order.generation) or not member.has_state:\n        raise"),
        ("    if is_sealed(member, order.generation):\n        raise"),
    ),
    Fault(
        "R9",
        "a leaver is released at the first Switched",
        "core/membership/worker_events.py",
        "    if state.orders.leavers and state.wait.awaiting <= state.orders.joiners:",
        "    if state.orders.leavers:",
    ),
    Fault(
        "R9",
        "released when the first has finished",
        "core/membership/state.py",
        "    return bool(present) and present <= state.finished",
        "    return bool(present & state.finished)",
    ),
    Fault(
        "R9",
        "leavers are not released by the coordinator that comes after",
        "core/membership/rejoin.py",
        "if state.orders.leavers else ()\n",
        "if False else ()\n",
    ),
    Fault(
        "R10",
        "every member may leave at once",
        "core/membership/changes.py",
        ("    if leavers == present:\n        leavers = NOBODY\n"),
        "",
    ),
    Fault(
        "R11",
        "Broken in the newest generation is stale",
        "core/membership/worker_events.py",
        "if not known or event.generation < state.orders.formed:",
        "if not known or event.generation <= state.orders.formed:",
    ),
    Fault(
        "R11",
        "silence is not a loss",
        "core/membership/failure/silence.py",
        "    if found_silent_at_s(state) <= now_s:",
        "    if found_silent_at_s(state) <= now_s < 0:",
    ),
    Fault(
        "R11",
        "a Broken is forgotten when its generation forms",
        "core/membership/worker_events.py",
        "reform_at_s=state.trouble.reform_at_s if state.trouble.broken >= formed else NEVER,",
        "reform_at_s=NEVER,",
    ),
    Fault(
        "R12",
        "a Reform contains leavers",
        "core/membership/changes.py",
        ("    places = seats(state)\n    if not places:"),
        (
            '    left = (Seat(replica=r, endpoint="") for r in sorted(state.orders.leavers))\n'
            "    places = (*seats(state), *left)\n"
            "    if not places:"
        ),
    ),
    Fault(
        "R12",
        "a Reform has an old number",
        "core/membership/changes.py",
        ("            issued=order.generation,\n            recorded=order,"),
        "            recorded=order,",
    ),
    Fault(
        "R12",
        "a member with state that a Reform leaves out gives its place up",
        "core/membership/member.py",
        (
            "        if member.has_state:\n"
            '            return became(member, "Reform", known, order.generation), ()\n'
        ),
        "",
    ),
    Fault(
        "R13",
        "a completion in a sealed generation counts",
        "core/membership/member.py",
        "    return generation < member.sealed",
        "    return False",
    ),
    Fault(
        "R13",
        "a Reform seals nothing",
        "core/membership/member.py",
        "        sealed=order.generation,",
        "        sealed=member.sealed,",
    ),
    Fault(
        "R14",
        "commits without having voted",
        "core/membership/member.py",
        "    if is_sealed(member, generation) or member.vote != (member.committed, generation):",
        (
            "    member = replace(member, vote=(member.committed, generation))\n"
            "    if is_sealed(member, generation):"
        ),
    ),
    Fault(
        "R15",
        "one that voted receives state instead of committing",
        "core/membership/resolve.py",
        "    behind = [r for r in holders if _lacks_only(headers[r], committed, made_by)]",
        "    behind: list[int] = []",
    ),
    Fault(
        "R15",
        "a vote of another generation is committed",
        "core/membership/resolve.py",
        "        (header.vote_step, header.vote_generation) == (committed - 1, made_by)",
        "        header.vote_step == committed - 1",
    ),
    Fault(
        "R15",
        "a step that all voted for is redone",
        "core/membership/resolve.py",
        "if not behind and len(votes) == 1 and",
        "if not behind and len(votes) == 0 and",
    ),
    Fault(
        "R15",
        "a step that only some voted for is committed",
        "core/membership/resolve.py",
        "if not behind and len(votes) == 1 and (vote := votes.pop())[0] == committed:",
        "if not behind and (vote := max(votes))[0] == committed:",
    ),
    Fault(
        "R15",
        "members without state take part",
        "core/membership/resolve.py",
        "    holders = [rank for rank, header in enumerate(headers) if header.has_state]",
        "    holders = list(range(len(headers)))",
    ),
    Fault(
        "R15",
        "the older lineage counts",
        "core/membership/resolve.py",
        "    lineage = max(headers[rank].lineage for rank in holders)",
        "    lineage = min(headers[rank].lineage for rank in holders)",
    ),
    Fault(
        "R18",
        "trains below the minimum",
        "core/membership/changes.py",
        "        hold=len(places) < moment.min_replicas,",
        "        hold=False,",
    ),
    Fault(
        "R19",
        "a node that does not reach the others costs of the restart budget",
        "core/job/replicas.py",
        "    return left if len(stay) >= tx.moment.min_replicas else frozenset()",
        "    return frozenset()",
    ),
    Fault(
        "R20",
        "a restore goes on in the same lineage",
        "core/job/restoring.py",
        "    lineage = Lineage(max(state.lineage, found.lineage) + 1)\n",
        "    lineage = Lineage(max(state.lineage, found.lineage))\n",
    ),
    Fault(
        "R20",
        "an older lineage may publish",
        "core/job/handlers.py",
        "    if known and event.lineage == tx.job.membership.lineage:\n",
        "    if known:\n",
    ),
    Fault(
        "R20",
        "the origin of a restore holds the state before it has loaded it",
        "core/membership/member.py",
        "in resolution.survivors and resolution.restore is None:",
        "in resolution.survivors:",
    ),
    Fault(
        "R21",
        "an agent looks for a lost coordinator for ever",
        "agent/uplink.py",
        "    ticking = asyncio.create_task(_tick(clock))\n",
        "    ticking = asyncio.create_task(asyncio.sleep(0))\n",
    ),
    Fault(
        "5.6",
        "an entry has no deadline",
        "core/membership/failure/silence.py",
        "    return _entry_expired(state, moment)",
        "    return state, ()",
    ),
    Fault(
        "allocation",
        "a higher class may be taken from",
        "core/allocation/preemption.py",
        "    if value < asks or (value == asks and may_equal):",
        "    if value <= asks + 10000 or (value == asks and may_equal):",
    ),
    Fault(
        "allocation",
        "an increment takes a minimum",
        "core/allocation/preemption.py",
        "    if kind == DROPPABLE and not request.is_minimum:\n",
        "    if False:\n",
    ),
    Fault(
        "allocation",
        "what is lent does not come back",
        "core/allocation/preemption.py",
        ("        if request.is_owed:\n            return Bar.NONE\n"),
        "",
    ),
    Fault(
        "allocation",
        "a team has no limit",
        "core/allocation/values.py",
        "math.inf if self.borrow_limit is None else",
        "math.inf if self.borrow_limit is None or self.quota else",
    ),
    Fault(
        "allocation",
        "more is delivered than may be in use",
        "core/allocation/admission.py",
        "        count = min(free.bit_count(), room)",
        "        count = free.bit_count()",
    ),
    Fault(
        "allocation",
        "a minimum is handed over in pieces",
        "core/allocation/admission.py",
        "size = reach if reach == entry.share else entry.fit(reach)",
        "size = reach",
    ),
    Fault(
        "allocation",
        "cordoned devices are handed out",
        "core/allocation/draft.py",
        "& ~self.held & ~self.cordoned",
        "& ~self.held",
    ),
    Fault(
        "allocation",
        "a device is handed out while somebody holds it",
        "core/allocation/draft.py",
        "& ~self.held & ~self.cordoned",
        "& ~self.cordoned",
    ),
    Fault(
        "allocation",
        "the devices of the dead are free at once",
        "core/allocation/decide.py",
        ("    if not entry.held:\n        draft.forget(entry)\n        return"),
        ("    if True:\n        draft.forget(entry)\n        return"),
    ),
    Fault(
        "allocation",
        "a new pool gives before everybody is known",
        "core/allocation/admission.py",
        ("    if not draft.is_open:\n        return"),
        "",
    ),
)
