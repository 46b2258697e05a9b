"""Seeded faults of what is told of a pool: ``pliant usage`` and the numbers for Prometheus."""

from __future__ import annotations

from functools import partial

from tools.faults import Fault

_USAGE = partial(
    Fault,
    rule="Usage",
    room="observe",
    path="pool_usage.py",
    suite=("tests/observe/test_pool_usage.py",),
)
_METRICS = partial(
    Fault,
    rule="Metrics",
    room="pool",
    path="pool_metrics.py",
    suite=("tests/pool/test_pool_metrics.py",),
)

POOL_FAULTS = [
    _USAGE(
        what="the oldest time is counted for the span that was asked for",
        old="for span in reversed(spans):",
        new="for span in spans:",
    ),
    _USAGE(
        what="a span that reaches too far back counts whole",
        old="seconds = min(span.seconds, left_s - counted_s)",
        new="seconds = span.seconds",
    ),
    _USAGE(
        what="a log that does not reach back is not said to be cut",
        old="is_cut=since_s is not None and known_s < since_s,",
        new="is_cut=False,",
    ),
    _USAGE(
        what="every claim counts as one that had to give",
        old="one.preemptions += name == span.preempted",
        new="one.preemptions += bool(span.preempted)",
    ),
    _USAGE(
        what="who gives by itself counts as one that had to",
        old='                if record.get("for_"):\n                    self._span',
        new="                if True:\n                    self._span",
    ),
    _USAGE(
        what="time passes by the wall clock",
        path="log_clock.py",
        old='mono = number(record.get("mono"))\n        if mono is None:',
        new='mono = number(record.get("at"))\n        if mono is None:',
    ),
    _USAGE(
        what="the time from the last record until now is left out",
        old="self._span(max(0.0, now_mono + clock.ahead_s - clock.newest_s))",
        new="pass",
    ),
    _USAGE(
        what="who waits is counted as if it held one device",
        old="one.device_s += devices * seconds",
        new="one.device_s += max(devices, waits) * seconds",
    ),
    _USAGE(
        what="a claim with devices waits on",
        old='known.waits = not known.devices and not record.get("to")',
        new="pass",
    ),
    _USAGE(
        what="what is given back is still held",
        old='known.devices -= _devices(record.get("devices"))',
        new="pass",
    ),
    _USAGE(
        what="a claim that is gone waits for ever",
        old='case "gone" | "withdrawn" if known is not None:\n                known.waits = False',
        new='case "gone" | "withdrawn" if known is not None:\n                pass',
    ),
    _USAGE(
        what="a claim that is refused waits for ever",
        old="                elif not known.devices:\n                    del self._claims[name]",
        new="                elif not known.devices:\n                    pass",
    ),
    _USAGE(
        what="who has devices and asks in vain for another team is billed to it",
        old="known.team, known.waits = known.before",
        new="pass",
    ),
    _USAGE(
        what="a claim that is suspended does not wait",
        old='                if kind == "suspend":\n                    known.waits = True',
        new='                if kind == "suspend":\n                    pass',
    ),
    _USAGE(
        what="what a dead pool's claims hold is not counted",
        old="        self._spans[at] = _Span(seconds=span.seconds, claims=(*span.claims, held))",
        new="        pass",
    ),
    _USAGE(
        what="what a dead pool's claims hold counts, whether they are there again or not",
        old="self._absent, self._claims = ({} if is_rebooted else self._claims), {}",
        new="self._absent = {} if is_rebooted else self._claims",
    ),
    _USAGE(
        what="devices are held over a reboot",
        old="self._absent, self._claims = ({} if is_rebooted else self._claims), {}",
        new="self._absent, self._claims = self._claims, {}",
    ),
    _USAGE(
        what="the time of a reboot is that of the monotonic clock",
        path="log_clock.py",
        old="self.newest_s + max(0.0, at - self.newest_at) - mono",
        new="self.newest_s - mono",
    ),
    _USAGE(
        what="a list of who holds what is not read",
        old='            case "holding":\n                self._hold(record)',
        new='            case "holding":\n                pass',
    ),
    _USAGE(
        what="who is not in a list of who holds what holds on",
        old="        for name in self._claims.keys() - holders.keys():\n"
        "            del self._claims[name]\n",
        new="",
    ),
    _USAGE(
        what="a user's claims are the pool owner's",
        old="user if slash else owner)",
        new="owner)",
    ),
    _USAGE(
        what="a sum by user is one by team",
        old='key = {"team": team, "user": user, "job": name}[by]',
        new='key = {"team": team, "user": team, "job": name}[by]',
    ),
    _METRICS(
        what="a device that somebody has is idle",
        old='("in_use", device["claim"] is not None),',
        new='("in_use", False),',
    ),
    _METRICS(
        what="a device that is out of use is idle",
        old='("cordoned", device["is_cordoned"]),',
        new='("cordoned", False),',
    ),
    _METRICS(
        what="a drained device counts as cordoned",
        old='        ("drained", device["is_drained"]),\n',
        new="",
    ),
    _METRICS(
        what="a device that a stranger uses is idle",
        old='        ("blocked", device["is_blocked"]),\n',
        new="",
    ),
    _METRICS(
        what="kinds of devices are one",
        old='(device.get("kind") or "", _state(device))',
        new='("", _state(device))',
    ),
    _METRICS(
        what="the number of usable devices is that of all",
        old='usable = board["usable"]',
        new='usable = len(board["devices"])',
    ),
    _METRICS(
        what="a state that cannot be written is not told",
        old='value=bool(board["failure"])',
        new="value=0",
    ),
    _METRICS(
        what="a state of claims without any is left out",
        old="    for state in STATES:\n        family.add_metric([state], states[state])",
        new="    for state in states:\n        family.add_metric([state], states[state])",
    ),
    _METRICS(
        what="every team is a label",
        old="        if at >= MOST_TEAMS:",
        new="        if False:",
    ),
    _METRICS(
        what="the teams that are not labels are not counted",
        old='            others += team["share"]',
        new="            others += 0",
    ),
    _METRICS(
        what="the busiest teams are left out",
        old='key=lambda one: -one["share"]',
        new='key=lambda one: one["share"]',
    ),
    _METRICS(
        what="a team without a quota has one of 0",
        old='        if team["quota"] is not None:\n'
        '            quotas.add_metric([team["team"]], team["quota"])',
        new='        quotas.add_metric([team["team"]], team["quota"] or 0)',
    ),
    _METRICS(
        what="what happened in the pool is not counted",
        path="pool_counts.py",
        old="            self.counts[kind] += 1",
        new="            pass",
    ),
    _METRICS(
        what="a suspension counts as a grant",
        path="pool_counts.py",
        old='    "suspend": "suspensions",\n',
        new='    "suspend": "grants",\n',
    ),
    _METRICS(
        what="numbers are those of when the pool began",
        path="pool_metrics.py",
        old="        board = self._board_now()\n",
        new="        self._first = board = getattr(self, '_first', None) or self._board_now()\n",
    ),
]
