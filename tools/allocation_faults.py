"""The seeded faults of allocation: each takes one rule of docs/allocation.md out of the core."""

from __future__ import annotations

from tools.faults import Fault

ALLOCATION_SUITE = [
    *("tests/core/allocation/test_decide.py", "tests/core/allocation/test_page.py"),
    "tests/core/allocation/test_machine.py",
]
"""What notices most comes first."""

_TAKING, _SETTLING = "allocation/taking.py", "allocation/settling.py"
_EVENTS, _STATE, _DEMAND = "allocation/decide.py", "allocation/state.py", "allocation/demand.py"

ALLOCATION_FAULTS = [
    Fault(
        rule="Pool",
        what="a higher class may be taken from",
        path=_TAKING,
        old="    if value < asks or (value == asks and may_equal):",
        new="    if value <= asks + 10000 or (value == asks and may_equal):",
    ),
    Fault(
        rule="Pool",
        what="a minimum does not take increments of its own class",
        path=_TAKING,
        old="(request.is_minimum or among_equals)",
        new="among_equals",
    ),
    Fault(
        rule="Pool",
        what="an increment takes a minimum",
        path=_TAKING,
        old="    if kind == DROPPABLE and not request.is_minimum:\n",
        new="    if False:\n",
    ),
    Fault(
        rule="Pool",
        what="a minimum goes before increments",
        path=_TAKING,
        old="""    cuts: list[Cut] = []
    for kind in (CUTTABLE, DROPPABLE):
        while short.is_left:""",
        new="""    cuts: list[Cut] = []
    for kind in (DROPPABLE, CUTTABLE):
        while short.is_left:""",
    ),
    Fault(
        rule="Pool",
        what="oldest claims give first",
        path=_STATE,
        old="        found.append((CUTTABLE, level, (-since, name)))",
        new="        found.append((CUTTABLE, level, (since, name)))",
    ),
    Fault(
        rule="Pool",
        what="who cannot be suspended loses its minimum",
        path=_STATE,
        old="""    elif entry.share and (claim.can_suspend or not entry.held):
        found""",
        new="""    elif entry.share:
        found""",
    ),
    Fault(
        rule="Pool",
        what="a minimum is not looked for behind increments",
        path=_STATE,
        old="""    if entry.share and (entry.claim.can_suspend or not entry.held):
        found""",
        new="""    if entry.share == entry.base and (entry.claim.can_suspend or not entry.held):
        found""",
    ),
    Fault(
        rule="Pool",
        what="victims that are not needed are not spared",
        path=_TAKING,
        old="    return _spared(draft, cuts, short)",
        new="    return tuple(cuts)",
    ),
    Fault(
        rule="Pool",
        what="a victim is cut to its minimum at once",
        path=_TAKING,
        old="    share = victim.lower(int(wanted)) if kind == CUTTABLE else 0\n    need",
        new="    share = victim.base if kind == CUTTABLE else 0\n    need",
    ),
    Fault(
        rule="Pool",
        what="a quota protects nobody",
        path=_TAKING,
        old="        if draft.teams[team].quota is not None and draft.owed(team) >= 0:\n",
        new="        if False:\n",
    ),
    Fault(
        rule="Pool",
        what="what is lent does not come back",
        path=_TAKING,
        old="        if request.is_owed:\n            return Bar.NONE\n",
        new="",
    ),
    Fault(
        rule="Pool",
        what="more is taken from a team than it has borrowed",
        path=_TAKING,
        old="        wanted = min(wanted, -draft.owed(team))",
        new="        pass",
    ),
    Fault(
        rule="Pool",
        what="reclaim.by is not read",
        path=_TAKING,
        old="    if reclaim.by is not None and claim.priority not in reclaim.by:",
        new="    if reclaim.by == ():",
    ),
    Fault(
        rule="Pool",
        what="same_team is lower_priority",
        path=_TAKING,
        old='        if reclaim.from_ == "same_team":\n',
        new="        if False:\n",
    ),
    Fault(
        rule="Pool",
        what="a team has no limit",
        path="allocation/values.py",
        old="math.inf if self.borrow_limit is None else",
        new="math.inf if self.borrow_limit is None or self.quota else",
    ),
    Fault(
        rule="Pool",
        what="a lowered quota is not enforced",
        path=_SETTLING,
        old="    for team in [team for team in draft.teams if draft.room(team) < 0]:",
        new="    for team in list[str]():",
    ),
    Fault(
        rule="Pool",
        what="a smaller pool is not enforced",
        path=_SETTLING,
        old="    if draft.slack < 0:\n        shed",
        new="    if draft.slack < -99:\n        shed",
    ),
    Fault(
        rule="Pool",
        what="the highest class is shed first",
        path=_TAKING,
        old="            victim = draft.entry(min(found)[-1][-1])\n            wanted",
        new="            victim = draft.entry(max(found)[-1][-1])\n            wanted",
    ),
    Fault(
        rule="Pool",
        what="more is delivered than may be in use",
        path=_SETTLING,
        old="        count = min(free.bit_count(), room)",
        new="        count = free.bit_count()",
    ),
    Fault(
        rule="Pool",
        what="who comes later overtakes one that cannot be completed yet",
        path=_SETTLING,
        old="        if entry.keeps + max(whole, 0) < entry.share:\n            return",
        new="        pass",
    ),
    Fault(
        rule="Pool",
        what="a minimum is handed over in pieces",
        path=_SETTLING,
        old="size = reach if reach == entry.share else entry.fit(reach)",
        new="size = reach",
    ),
    Fault(
        rule="Pool",
        what="what a claim below a raised minimum has lost comes back in pieces",
        path=_SETTLING,
        old="size = reach if reach == entry.share else",
        new="size = reach if entry.share < entry.base else",
    ),
    Fault(
        rule="Pool",
        what="a step that only pays as a whole is taken in part",
        path=_SETTLING,
        old="    if request.count > 1 or draft.lists[IMPATIENT]",
        new="    if draft.lists[IMPATIENT]",
    ),
    Fault(
        rule="Pool",
        what="cordoned devices are handed out",
        path="allocation/draft.py",
        old="& ~self.held & ~self.cordoned",
        new="& ~self.held",
    ),
    Fault(
        rule="Pool",
        what="a device is handed out while somebody holds it",
        path="allocation/draft.py",
        old="& ~self.held & ~self.cordoned",
        new="& ~self.cordoned",
    ),
    Fault(
        rule="Pool",
        what="nobody rests",
        path=_SETTLING,
        old="            draft.put(entry._replace(rests_until_s=until_s))",
        new="            pass",
    ),
    Fault(
        rule="Pool",
        what="equals swap for any gain",
        path=_SETTLING,
        old="    budget = gain * useful - draft.rules.min_gain",
        new="    budget = gain * useful + 1.0",
    ),
    Fault(
        rule="Pool",
        what="patience never ends",
        path=_SETTLING,
        old="        if first.rank >= request.rank:\n            return None",
        new="        return None",
    ),
    Fault(
        rule="Pool",
        what="increments are kept out although they can be taken back",
        path=_SETTLING,
        old="        if not request.is_minimum and bar(",
        new="        if request.is_minimum and bar(",
    ),
    Fault(
        rule="Pool",
        what="the efficiency of a size is not looked at",
        path=_DEMAND,
        old="    return math.log(num_slots / math.ceil(num_slots / share))",
        new="    return math.log(share)",
    ),
    Fault(
        rule="Pool",
        what="nothing is owed to anybody",
        path=_TAKING,
        old="    return draft.teams[team].quota is not None and draft.owed(team) >= count",
        new="    return False",
    ),
    Fault(
        rule="Pool",
        what="increments go before minimums of their class",
        path=_TAKING,
        old="    return (not is_owed, -value, not is_minimum, key[0], *key[-2:])",
        new="    return (not is_owed, -value, is_minimum, key[0], *key[-2:])",
    ),
    Fault(
        rule="Pool",
        what="the queue does not look at the class",
        path=_TAKING,
        old="    return (not is_owed, -value, not is_minimum, key[0], *key[-2:])",
        new="    return (not is_owed, not is_minimum, key[0], *key[-2:])",
    ),
    Fault(
        rule="Pool",
        what="a drained device is not named",
        path="allocation/telling.py",
        old="or min(entry.share, keeps), entry.drained",
        new="or min(entry.share, keeps), 0",
    ),
    Fault(
        rule="Pool",
        what="who comes back is not told which devices must go",
        path="allocation/telling.py",
        old="told_drain=drain if to else 0,",
        new="told_drain=drain,",
    ),
    Fault(
        rule="Pool",
        what="a drain cuts a minimum before it is replaced",
        path="allocation/telling.py",
        old="    if keeps >= min(entry.base, entry.share):",
        new="    if True:",
    ),
    Fault(
        rule="Pool",
        what="what is missing to a raised minimum is given in part",
        path="allocation/telling.py",
        old="to = min(entry.told, entry.share, held)",
        new="to = min(entry.share, held)",
    ),
    Fault(
        rule="Pool",
        what="a drain is forgotten when a minimum is raised",
        path="allocation/telling.py",
        old="return to, entry.drained if keeps >= to else 0",
        new="return to, 0",
    ),
    Fault(
        rule="Pool",
        what="a drained device goes although a minimum needs it",
        path="allocation/telling.py",
        old="return to, entry.drained if keeps >= to else 0",
        new="return to, entry.drained",
    ),
    Fault(
        rule="Pool",
        what="the devices of the dead are free at once",
        path=_EVENTS,
        old="    if not entry.held:\n        draft.forget(entry)\n        return",
        new="    if True:\n        draft.forget(entry)\n        return",
    ),
    Fault(
        rule="Pool",
        what="a new pool gives before everybody is known",
        path=_SETTLING,
        old="    if not draft.is_open:\n        return",
        new="",
    ),
    Fault(
        rule="Pool",
        what="a device is recovered twice",
        path=_EVENTS,
        old="    if mine & others:",
        new="    if False:",
    ),
    Fault(
        rule="Pool",
        what="a notice that is over is not told",
        path=_EVENTS,
        old="                found.append(overdue(entry))",
        new="                pass",
    ),
    Fault(
        rule="Pool",
        what="several steps are taken although something is left over",
        path=_TAKING,
        old="        if victim is None or victim.claim.sizes is not None:",
        new="        if victim is None:",
    ),
    Fault(
        rule="Pool",
        what="the queue is not built anew when something was taken",
        path=_SETTLING,
        old="        if is_looser or kind == WAITING:",
        new="        if kind == WAITING:",
    ),
]
