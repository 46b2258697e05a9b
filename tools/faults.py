"""The seeded faults: each takes one rule of DESIGN 4 or 5 out of the core."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One change of the source that breaks one rule."""

    rule: str
    """Section or rule of DESIGN."""

    what: str
    """What is wrong then, in a few words."""

    path: str
    """File below ``src/pliant/core``, or below ``room``."""

    old: str
    """Text that occurs there exactly once."""

    new: str

    room: str = "core"
    """Directory below ``src/pliant``."""

    suite: tuple[str, ...] = ()
    """Tests that are run instead of those of the core."""

    equivalent: str = ""
    """Why no test can notice it: nothing that can happen comes out otherwise."""


FAULTS = [
    Fault(
        rule="R1",
        what="the register is never written",
        path="job/controller.py",
        old="register=record_to_write(job, tx.job),",
        new="register=None,",
    ),
    Fault(
        rule="R1",
        what="a coordinator begins without a write",
        path="job/controller.py",
        old="incarnation=job.membership.incarnation, register=record(job))",
        new="incarnation=job.membership.incarnation)",
    ),
    Fault(
        rule="R2",
        what="the number of a Prepare is not in the register",
        path="membership/state.py",
        old="        number=state.issued,",
        new="        number=state.recorded.generation if state.recorded else NO_GENERATION,",
    ),
    Fault(
        rule="R2",
        what="a failed attempt's number is used again",
        path="membership/changes.py",
        old="generation=Generation(state.issued + 1),",
        new="generation=Generation((state.recorded.generation if state.recorded else 0) + 1),",
    ),
    Fault(
        rule="R3",
        what="commands of an older incarnation are obeyed",
        path="membership/member.py",
        old="    return incarnation < member.incarnation",
        new="    return False",
    ),
    Fault(
        rule="R5",
        what="spares in an older steps() call are not told",
        path="membership/changes.py",
        old="    return (FallThrough(to=behind, calls=state.calls),) if behind else ()",
        new="    return ()",
    ),
    Fault(
        rule="R5",
        what="a joiner in an older steps() call is lost, not set aside",
        path="membership/worker_events.py",
        old="        if event.calls:\n            return _on_late_for_call(state, event, moment)\n",
        new="",
    ),
    Fault(
        rule="R5",
        what="what a joiner says from its next steps() call is forgotten",
        path="membership/worker_events.py",
        old="        if known is not None and known.calls < event.calls:",
        new="        if False:",
    ),
    Fault(
        rule="R5",
        what="a joiner is set aside that may hold state",
        path="membership/worker_events.py",
        old="    if event.replica not in state.joiners:\n        return _stale(state)\n",
        new="",
    ),
    Fault(
        rule="R5",
        what="a joiner that was left out of a Reform still waits for its generation",
        path="membership/member.py",
        old='        return became(member, "Reform", spare, order.generation), older',
        new="        return member, ()",
    ),
    Fault(
        rule="5.6",
        what="a member that hangs while its heartbeats go on is waited for",
        path="membership/silence.py",
        old="    return changes.end(state, hung, reason, moment)",
        new="    return state, ()",
    ),
    Fault(
        rule="5.6",
        what="members in one long tail are taken for hung",
        path="membership/hangs.py",
        old="    return present - waiting if waiting else NOBODY",
        new="    return present - waiting",
    ),
    Fault(
        rule="5.6",
        what="joiners are blamed for a member that keeps the interpreter lock",
        path="membership/silence.py",
        old="    if group.mute_holders(state) & silent:",
        new="    if False:",
    ),
    Fault(
        rule="5.6",
        what="a member that keeps the interpreter lock is taken for silent in a Reform",
        path="membership/silence.py",
        old="max(group.busy_until_s(state), group.mute_until_s(state, moment))",
        new="group.busy_until_s(state)",
    ),
    Fault(
        rule="5.6",
        what="a joiner is late where the last holder keeps the interpreter lock for too long",
        path="membership/silence.py",
        old="    if silent & state.unheard or mute - group.dispensable(state, mute):",
        new="    if silent & state.unheard:",
    ),
    Fault(
        rule="5.6",
        what="nobody is late where one of several holders keeps the interpreter lock",
        path="membership/silence.py",
        old="    if silent & state.unheard or mute - group.dispensable(state, mute):",
        new="    if silent & state.unheard or mute:",
    ),
    Fault(
        rule="5.6",
        what="a joiner is blamed for a member that keeps the interpreter lock in a Reform",
        path="membership/blame.py",
        old="    if until_s > moment.now_s or mute - group.dispensable(state, mute):",
        new="    if False:",
    ),
    Fault(
        rule="5.6",
        what="a member that keeps the interpreter lock is never ended if nothing is built with it",
        path="membership/blame.py",
        old="    if mute:\n",
        new="    if False:\n",
    ),
    Fault(
        rule="R6",
        what="a joiner is dropped with one that keeps the interpreter lock",
        path="membership/blame.py",
        old="cut or group.unable_of(state, suspects) or state.suspects",
        new="cut or state.suspects",
    ),
    Fault(
        rule="R6",
        what="a joiner is dropped in a Reform with one that keeps the interpreter lock",
        path="membership/blame.py",
        old="(group.unable_joiners(state) or new) if is_blamed",
        new="new if is_blamed",
    ),
    Fault(
        rule="R6",
        what="a joiner is late in an attempt with one that keeps the interpreter lock",
        path="membership/silence.py",
        old="unable, reason, moment)\n    late = state.late\n",
        new="joiners, reason, moment)\n    late = state.late\n",
    ),
    Fault(
        rule="R6",
        what="a joiner is late in a Reform with one that keeps the interpreter lock",
        path="membership/silence.py",
        old="unable, reason, moment)\n    lost = group",
        new="group.outsiders(state), reason, moment)\n    lost = group",
    ),
    Fault(
        rule="R6",
        what="a joiner is late with one of which a worker keeps the others waiting",
        path="membership/state.py",
        old="pulse.is_mute or pulse.held_up_by is not None)",
        new="pulse.is_mute)",
    ),
    Fault(
        rule="R2",
        what="a Reform is sent that another one overtakes before it is in the register",
        path="job/transaction.py",
        old="if one.order.generation != newest]",
        new="if False]",
    ),
    Fault(
        rule="5.6",
        what="a spare that keeps the interpreter lock is never ended",
        path="membership/hangs.py",
        old="    if held_up_by is None and not pulse.is_mute:\n",
        new="    if held_up_by is None:\n",
    ),
    Fault(
        rule="5.6",
        what="a spare that has let go of the interpreter lock counts as hung until its next sign",
        path="membership/worker_events.py",
        old="hung_at_s = NEVER if pulse.is_mute and not is_mute else pulse.hung_at_s",
        new="hung_at_s = pulse.hung_at_s",
    ),
    Fault(
        rule="5.6",
        what="a member that keeps the interpreter lock is ended for it as a spare is",
        path="membership/hangs.py",
        old="    others |= mute_of(state, said) - (state.spares.keys() - present)\n",
        new="",
    ),
    Fault(
        rule="5.6",
        what="a joiner is blamed for the last holder, which keeps the interpreter lock for long",
        path="membership/blame.py",
        old="    if until_s > moment.now_s or mute - group.dispensable(state, mute):",
        new="    if until_s > moment.now_s:",
    ),
    Fault(
        rule="5.6",
        what="a pause that was announced counts as a hang where nothing is built",
        path="membership/blame.py",
        old="max(group.mute_until_s(state, moment), group.busy_until_s(state) if mute else 0.0)",
        new="group.mute_until_s(state, moment)",
    ),
    Fault(
        rule="5.6",
        what="a member that keeps the interpreter lock is waited for for ever",
        path="membership/state.py",
        old="    since_s = max(",
        new="    since_s = moment.now_s if mute else max(",
    ),
    Fault(
        rule="5.6",
        what="a pause that was announced counts as a hang",
        path="membership/silence.py",
        old="    began_s = max(busy_until_s, moment.now_s)",
        new="    busy_until_s = began_s = moment.now_s",
    ),
    Fault(
        rule="R6",
        what="Switch before all have prepared",
        path="membership/worker_events.py",
        old="return (state, ()) if awaiting else changes.switch(state, moment)",
        new="return changes.switch(state, moment)",
    ),
    Fault(
        rule="R6",
        what="an answer to an older attempt counts",
        path="membership/worker_events.py",
        old="if state.attempt is None or event.generation != state.attempt.generation:",
        new="if state.attempt is None:",
    ),
    Fault(
        rule="R6",
        what="a late joiner stalls the survivors",
        path="membership/silence.py",
        old="        late |= joiners\n",
        new="        pass\n",
    ),
    Fault(
        rule="R6",
        what="an old member is lost the first time it is late",
        path="membership/silence.py",
        old="    lost = group.dispensable(state, silent & late)\n",
        new="    lost = group.dispensable(state, silent)\n",
    ),
    Fault(
        rule="R6",
        what="a joiner is dropped for the silence of the last holder",
        path="membership/silence.py",
        old="    if not silent & state.unheard:  # else no group can be built, whoever joins\n",
        new="    if True:\n",
    ),
    Fault(
        rule="R6",
        what="a joiner with another model is let in",
        path="job/handlers.py",
        old="elif (why := difference(event, reference)) is not None:",
        new="elif (why := difference(event, reference)) is not None and not why:",
    ),
    Fault(
        rule="R6",
        what="a joiner is blamed for every build that fails",
        path="membership/member.py",
        old="reason=reason, joiner=False)",
        new="reason=reason, joiner=member.current == NO_GENERATION)",
    ),
    Fault(
        rule="R7",
        what="ready although its groups are not built",
        path="membership/member.py",
        old="if member.ordered is None or not member.built or member.broken",
        new="if member.ordered is None or member.broken",
    ),
    Fault(
        rule="R7",
        what="ready before the Switch",
        path="membership/member.py",
        old=(
            "    if member.ordered is None or not member.built or member.broken or "
            "member.reform is not None:\n"
            "        return NO_GENERATION\n"
            "    return member.ordered.generation"
        ),
        new=(
            "    if member.prepared is None or not member.built or member.broken:\n"
            "        return NO_GENERATION\n"
            "    return member.prepared.generation"
        ),
    ),
    Fault(
        rule="R7",
        what="one member's number is enough for the boundary",
        path="membership/member.py",
        old="if numbers and all(one == ordered for one in numbers) else",
        new="if any(one == ordered for one in numbers) else",
    ),
    Fault(
        rule="R7",
        what="a Prepare displaces an order that was switched to",
        path="membership/member.py",
        old="        or member.ordered is not None\n",
        new="",
    ),
    Fault(
        rule="R7",
        what="a new attempt begins while a Switch is out",
        path="membership/changes.py",
        old="state.phase in (Phase.EMPTY, Phase.STEADY, Phase.PREPARING)",
        new="state.phase in (Phase.EMPTY, Phase.STEADY, Phase.PREPARING, Phase.SWITCHING)",
    ),
    Fault(
        rule="R7",
        what="still ready when the next group is broken",
        path="membership/member.py",
        old='    return became(member, "broken", replace(member, built=False), generation), news',
        new="    return member, news",
    ),
    Fault(
        rule="R8",
        what="a receiver holds state before its digest matched",
        path="membership/member.py",
        old='replace(member, vote=None, has_state=False), "to receive")',
        new='replace(member, vote=None, has_state=True), "to receive")',
    ),
    Fault(
        rule="R8",
        what="a generation is entered without state",
        path="membership/member.py",
        old=("    if is_sealed(member, order.generation) or not member.has_state:\n        raise"),
        new="    if is_sealed(member, order.generation):\n        raise",
    ),
    Fault(
        rule="R9",
        what="a leaver is released at the first Switched",
        path="membership/worker_events.py",
        old="    if state.leavers and state.awaiting <= state.joiners:",
        new="    if state.leavers:",
    ),
    Fault(
        rule="R9",
        what="a leaver is never released",
        path="membership/worker_events.py",
        old="    if state.leavers and state.awaiting <= state.joiners:",
        new="    if state.leavers and state.awaiting < state.awaiting:",
    ),
    Fault(
        rule="R9",
        what="released when the first has finished",
        path="membership/state.py",
        old="    return bool(present) and present <= state.finished",
        new="    return bool(present & state.finished)",
    ),
    Fault(
        rule="R9",
        what="the last member's Finished is not waited for",
        path="membership/changes.py",
        old="gone=state.gone | old)\n        if not group.is_finished(state):",
        new="gone=state.gone | old)\n        if not state.finished:",
    ),
    Fault(
        rule="R10",
        what="every member may leave at once",
        path="membership/changes.py",
        old="    if leavers == present:\n        leavers = NOBODY\n",
        new="",
    ),
    Fault(
        rule="R11",
        what="Broken in the newest generation is stale",
        path="membership/worker_events.py",
        old="if not known or event.generation < state.formed:",
        new="if not known or event.generation <= state.formed:",
    ),
    Fault(
        rule="R11",
        what="every Broken counts, however old",
        path="membership/worker_events.py",
        old="if not known or event.generation < state.formed:",
        new="if not known:",
    ),
    Fault(
        rule="R11",
        what="an exit is not a loss",
        path="job/handlers.py",
        old="    lifecycle.lose(tx, frozenset({event.replica}), event.kind, what, likeness=alike)",
        new="    pass",
    ),
    Fault(
        rule="R11",
        what="silence is not a loss",
        path="membership/silence.py",
        old="    if group.found_silent_at_s(state) <= now_s:",
        new="    if group.found_silent_at_s(state) <= now_s < 0:",
    ),
    Fault(
        rule="R11",
        what="those that fall silent together are lost one by one",
        path="heartbeats.py",
        old="    until_s = min(moments) + interval_s(len(moments)) + HEARTBEAT_S / 2\n",
        new="    until_s = min(moments)\n",
    ),
    Fault(
        rule="R11",
        what="the last holder of the state is ended for its silence",
        path="membership/silence.py",
        old="ended = group.dispensable(state, silent)",
        new="ended = silent",
    ),
    Fault(
        rule="R12",
        what="a Reform contains leavers",
        path="membership/changes.py",
        old="    places = group.seats(state)\n    if not places:",
        new=(
            '    left = (Seat(replica=r, endpoint="") for r in sorted(state.leavers))\n'
            "    places = (*group.seats(state), *left)\n"
            "    if not places:"
        ),
    ),
    Fault(
        rule="R12",
        what="a Reform contains the lost",
        path="membership/changes.py",
        old="        state = replace(state, gone=state.gone | old)\n",
        new="",
    ),
    Fault(
        rule="R12",
        what="a Reform contains spares",
        path="membership/changes.py",
        old="    places = group.seats(state)\n    if not places:",
        new=(
            '    new = (Seat(replica=r, endpoint="") for r in sorted(state.spares))\n'
            "    places = (*group.seats(state), *(seat for seat in new if seat not in "
            "group.seats(state)))\n"
            "    if not places:"
        ),
    ),
    Fault(
        rule="R12",
        what="a Reform has an old number",
        path="membership/changes.py",
        old="        issued=order.generation,\n        recorded=order,",
        new="        recorded=order,",
    ),
    Fault(
        rule="R13",
        what="a completion in a sealed generation counts",
        path="membership/member.py",
        old="    return generation < member.sealed",
        new="    return False",
    ),
    Fault(
        rule="R13",
        what="a Reform seals nothing",
        path="membership/member.py",
        old="        sealed=order.generation,",
        new="        sealed=member.sealed,",
    ),
    Fault(
        rule="R13",
        what="the broken group is not abandoned",
        path="membership/member.py",
        old="    if member.current:\n        older +=",
        new="    if member.leaving:\n        older +=",
    ),
    Fault(
        rule="R13",
        what="an older Reform is accepted after a newer one",
        path="membership/member.py",
        old=(
            "    if member.leaving or order.generation <= newest(member):\n"
            '        return became(member, "Reform"'
        ),
        new='    if member.leaving:\n        return became(member, "Reform"',
    ),
    Fault(
        rule="R14",
        what="commits without having voted",
        path="membership/member.py",
        old=(
            "    if is_sealed(member, generation) or member.vote != (member.committed, generation):"
        ),
        new=(
            "    member = replace(member, vote=(member.committed, generation))\n"
            "    if is_sealed(member, generation):"
        ),
    ),
    Fault(
        rule="R14",
        what="a commit does not say which generation made it",
        path="membership/member.py",
        old="    return replace(member, committed=step + 1, made_by=generation, vote=None",
        new="    return replace(member, committed=step + 1, vote=None",
    ),
    Fault(
        rule="R15",
        what="one that voted receives state instead of committing",
        path="membership/resolve.py",
        old="    behind = [r for r in holders if _lacks_only(headers[r], committed, made_by)]",
        new="    behind: list[int] = []",
    ),
    Fault(
        rule="R15",
        what="a vote of another generation is committed",
        path="membership/resolve.py",
        old="        (header.vote_step, header.vote_generation) == (committed - 1, made_by)",
        new="        header.vote_step == committed - 1",
    ),
    Fault(
        rule="R15",
        what="a step that all voted for is redone",
        path="membership/resolve.py",
        old="if not behind and len(votes) == 1 and",
        new="if not behind and len(votes) == 0 and",
    ),
    Fault(
        rule="R15",
        what="a step that only some voted for is committed",
        path="membership/resolve.py",
        old="if not behind and len(votes) == 1 and (vote := votes.pop())[0] == committed:",
        new="if not behind and (vote := max(votes))[0] == committed:",
    ),
    Fault(
        rule="R15",
        what="a step that all voted for is recorded under the old generation",
        path="membership/resolve.py",
        old="        committed, made_by = committed + 1, vote[1]",
        new="        committed = committed + 1",
    ),
    Fault(
        rule="R15",
        what="members without state take part",
        path="membership/resolve.py",
        old="    holders = [rank for rank, header in enumerate(headers) if header.has_state]",
        new="    holders = list(range(len(headers)))",
    ),
    Fault(
        rule="R15",
        what="the older lineage counts",
        path="membership/resolve.py",
        old="    lineage = max(headers[rank].lineage for rank in holders)",
        new="    lineage = min(headers[rank].lineage for rank in holders)",
    ),
    Fault(
        rule="R15",
        what="a redone step keeps its old vote",
        path="membership/member.py",
        old='replace(member, vote=None, has_state=True), "to go on")',
        new='replace(member, has_state=True), "to go on")',
    ),
    Fault(
        rule="R15",
        what="a fresh start although the run has begun",
        path="membership/changes.py",
        old="        origin=None if state.formed else _origin(state, places),",
        new="        origin=_origin(state, places),",
    ),
    Fault(
        rule="R18",
        what="trains below the minimum",
        path="membership/changes.py",
        old="        hold=len(places) < moment.min_replicas,",
        new="        hold=False,",
    ),
    Fault(
        rule="R18",
        what="a drain goes below the minimum",
        path="job/sizing.py",
        old="    return leaving[: max(room, forced, 0)]",
        new="    return leaving",
    ),
    Fault(
        rule="5.6",
        what="an entry has no deadline",
        path="membership/silence.py",
        old="    return _entry_expired(state, moment)",
        new="    return state, ()",
    ),
    Fault(
        rule="5.6",
        what="state cannot be lost before the first Switched",
        path="membership/changes.py",
        old='        return given_up(state, cause="nobody left"), ()',
        new=(
            "        if not state.formed:\n"
            "            return replace(_without_attempt(state), phase=Phase.EMPTY, "
            "recorded=None), ()\n"
            '        return given_up(state, cause="nobody left"), ()'
        ),
    ),
    Fault(
        rule="R7",
        what="a Switch goes out between a Broken and its Reform",
        path="membership/worker_events.py",
        old='    state = changes.at_rest(state, "broken") if state.attempt is not None else state',
        new="",
    ),
    Fault(
        rule="5.6",
        what="more replicas than devices",
        path="policy/decide.py",
        old="possible = _worth(case, min(bound, case.capacity))",
        new="possible = _worth(case, bound)",
    ),
    Fault(
        rule="5.6",
        what="more replicas than slots",
        path="policy/decide.py",
        old="limit, bound = min(limit, view.num_slots), min(bound, view.num_slots)",
        new="pass",
    ),
    Fault(
        rule="5.6",
        what="a name is given twice",
        path="job/replicas.py",
        old="        tx.job = replace(tx.job, named=named)\n",
        new="",
    ),
    Fault(
        rule="5.6",
        what="a device is used before its process is reaped",
        path="job/node_devices.py",
        old="        if replica.node in free:",
        new="        if replica.node in free and replica.state.name != 'ENDING':",
    ),
    Fault(
        rule="4.2",
        what="plain midpoint halving",
        path="step/batching.py",
        old='    return lo + (hi - lo + (side != "right")) // 2',
        new="    return lo + (hi - lo + 1) // 2",
    ),
    Fault(
        rule="4.2",
        what="cuts wherever they fall",
        path="step/batching.py",
        old="    if not num_long:\n",
        new=(
            "    if num_long:\n"
            "        return _ranges([size + 1] * num_long + [size] * (num_replicas - "
            "num_long))\n"
            "    if not num_long:\n"
        ),
    ),
    Fault(
        rule="4.2",
        what="slot order, one more gradient copy",
        path="step/batching.py",
        old="        first, second = second, first",
        new="        pass",
    ),
    Fault(
        rule="6",
        what="cycle walking forgotten",
        path="step/order.py",
        old="        if position < size:\n            return position",
        new="        return position % size",
    ),
    Fault(
        rule="5.6",
        what="a joiner that received the state is given up as one that has not",
        path="membership/worker_events.py",
        old="        return _stale(replace(known, joiners=known.joiners - {event.replica}))",
        new="        return _stale(known)",
    ),
    Fault(
        rule="5.6",
        what="those who may hold the state are given up at the second broken group",
        path="membership/blame.py",
        old=" and (is_hopeless or new != present)\n",
        new="\n",
    ),
    Fault(
        rule="5.6",
        what="a generation without state reforms for ever",
        path="membership/blame.py",
        old=" and (is_hopeless or new != present)\n",
        new=" and new != present\n",
    ),
]
