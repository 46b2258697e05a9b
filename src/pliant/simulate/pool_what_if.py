"""What a pool would have answered by other rules: the same events, from the same log.

Owns which rules can be asked about, and where the answer stops being certain: at the first answer
that differs, as what claimants did afterwards they did in answer to what they were really told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pliant.core.allocation import (
    DevicesSet,
    Event,
    Team,
    TeamSet,
    TimePassed,
    kinds,
)
from pliant.core.allocation.beginning import PoolBeginning, begun
from pliant.core.allocation.values import Actions
from pliant.core.errors import ConfigError
from pliant.simulate.pool_replay import PoolStep, PoolTurn, difference_of
from pliant.simulate.replay import Break
from pliant.spec.pool import MOST_DEVICES

RULES = {
    "minGain": "min_gain",
    "restInSeconds": "rest_s",
    "patienceInSeconds": "patience_s",
}
TEAMS = {"quota": "quota", "borrowLimit": "borrow_limit"}
LATE_S = 1.0
"""After a deadline a pool looks at it within less."""

KNOWN = f"devices, {', '.join(RULES)}, quota.TEAM, borrowLimit.TEAM"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRules:
    """What is asked about; all else stays as it was."""

    devices: int | None = None
    rules: Mapping[str, float]
    teams: Mapping[str, Mapping[str, int]]

    def beginning(self, recorded: PoolBeginning) -> PoolBeginning:
        """Return with what the pool would have begun.

        Raises:
            ConfigError: of which kind further devices would be is not known.
        """
        if recorded.kinds and (self.devices or 0) > recorded.devices:
            raise ConfigError(
                f"--policy devices={self.devices}: the pool has {recorded.devices} devices of"
                " several kinds; of which kind more would be is not said"
            )
        known = {team.name: team for team in recorded.teams}
        for name in self.teams:
            known[name] = self._team(known.get(name, Team(name=name)))
        return replace(
            recorded,
            devices=max(recorded.devices, self.devices or 0),
            rules=replace(recorded.rules, **self.rules),
            teams=tuple(known.values()),
            events=tuple(map(self.event, recorded.events)),
        )

    def event(self, recorded: Event) -> Event:
        """Return what the core would have been told."""
        match recorded:
            case DevicesSet() if self.devices is not None:
                return DevicesSet(count=self.devices)
            case TeamSet(team=team):
                return TeamSet(team=self._team(team))
            case _:
                return recorded

    def _team(self, team: Team) -> Team:
        own = self.teams.get(team.name, {})
        return replace(
            team,
            quota=own.get("quota", team.quota),
            borrow_limit=own.get("borrow_limit", team.borrow_limit),
        )


def rules_of(fields: Mapping[str, Any]) -> OtherRules:
    """Read what is asked about, as ``{"devices": 8, "quota": {"vision": 2}}``.

    Raises:
        ConfigError: a field is none of a pool, or its value cannot be.
    """
    devices: int | None = None
    rules: dict[str, float] = {}
    teams: dict[str, dict[str, int]] = {}
    for key, value in fields.items():
        if key == "devices":
            devices = _whole(key, value)
        elif key in RULES:
            rules[RULES[key]] = _number(key, value)
        elif key in TEAMS and isinstance(value, dict):
            for team, number in value.items():
                teams.setdefault(team, {})[TEAMS[key]] = _whole(f"{key}.{team}", number)
        else:
            raise ConfigError(f"--policy {key[:80]} is no rule of a pool; there are {KNOWN}")
    return OtherRules(devices=devices, rules=rules, teams=teams)


def _whole(key: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_DEVICES:
        raise ConfigError(
            f"--policy {key}={value} is no number of devices from 0 to {MOST_DEVICES}"
        )
    return value


def _number(key: str, value: Any) -> float:
    if type(value) not in (int, float) or not value >= 0:
        raise ConfigError(f"--policy {key}={value} is no number of 0 or more")
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswer:
    """How far a question about a pool is answered."""

    same: int
    """Inputs with the same answer."""

    step: PoolStep | None = None
    """Where it stops being certain; None: nothing would have been different."""

    actions: Actions = ()
    """What would have been answered there."""

    why: str = ""


def asked_of_pool(
    steps: Iterable[PoolStep],
    other: OtherRules,
    *,
    on_same: Callable[[PoolTurn], None] = lambda turn: None,
) -> PoolAnswer:
    """Play the log by other rules, up to the first answer that differs.

    Raises:
        ConfigError: nothing can be played, or the pool cannot begin by these rules.
    """
    core, same = None, 0
    for step in steps:
        if isinstance(step, Break):
            if core is not None:
                return PoolAnswer(same=same, step=step, why=step.why)
            continue
        if step.beginning is not None:
            core = begun(other.beginning(step.beginning), now_s=step.now_s)
            continue
        if core is None or step.event is None:
            continue
        if step.difference is not None:
            return PoolAnswer(same=same, step=step, why=f"not as recorded: {step.difference}")
        found: list[Any] = []
        while (due_s := kinds.next_deadline_of_kinds_s(core)) < step.now_s - LATE_S:
            core, actions = kinds.step_kinds(core, TimePassed(), now_s=due_s)
            found += actions
        try:
            core, actions = kinds.step_kinds(core, other.event(step.event), now_s=step.now_s)
        except ConfigError as error:
            return PoolAnswer(same=same, step=step, why=str(error))
        found += actions
        recorded = [{k: v for k, v in one.items() if k != "reason"} for one in step.recorded]
        why = difference_of(tuple(found), recorded)
        if why is not None:
            return PoolAnswer(same=same, step=step, actions=tuple(found), why=why)
        same += 1
        on_same(step)
    if core is None:
        raise ConfigError("nothing of this log can be asked: it does not say how a pool began")
    return PoolAnswer(same=same)
