"""The file of a pool: its devices, priority classes and teams.

Owns the names and the bounds of what can be said, and the sentence for each contradiction.  Knows
nothing of who asks for devices; what a quota or a class does is the core's.
``docs/howto/share-a-pool.md`` shows one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from pliant.core import allocation
from pliant.core.allocation.values import From
from pliant.core.device_names import parse_devices
from pliant.core.errors import ConfigError
from pliant.core.tenancy import CLASS_VALUES, DEFAULT_POOL
from pliant.spec.model import Model, check_name, impossible, refuse_twice

MOST_DEVICES = 100_000
"""More than any pool of one machine will have; a number above it is a mistake in typing."""


Name = Annotated[str, check_name("name")]

User = Annotated[str, Field(min_length=1, max_length=256)]


class ClassEntry(Model):
    """How important claims of a class are."""

    name: Name
    value: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)]
    """Higher goes first."""

    users: list[User] | None = None
    """Of a shared pool: who may use it; None: everybody."""


class ReclaimEntry(Model):
    """From whom a team may take devices that exceed nobody's guarantee."""

    from_: Annotated[Literal["LowerPriority", "SameTeam", "Never"], Field(alias="from")] = (
        "LowerPriority"
    )
    """Any team's claims of lower priority, only the team's own, or nobody's."""

    by: list[Name] | None = None  # a list, as YAML has it: strict models take none for a tuple
    """Only claims of these classes may; None: all."""


class TeamEntry(Model):
    """What a team may use, and from whom it may take."""

    name: Name
    quota: Annotated[int, Field(ge=0)] | None = None
    """Devices that are its own; None: it has no quota and may use everything."""

    borrow_limit: Annotated[int, Field(ge=0)] | None = None
    """Devices beyond its quota that it may use while they are idle; None: all."""

    reclaim: ReclaimEntry = Field(default_factory=ReclaimEntry)

    users: list[User] | None = None
    """Of a shared pool: whose claims may be the team's; None: everybody's."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.borrow_limit is not None and self.quota is None:
            raise impossible(
                f"team {self.name} has a borrowLimit of {self.borrow_limit} but no quota that it"
                " could exceed; give it a quota"
            )
        return self


class PoolMetadata(Model):
    """Which pool it is."""

    name: Annotated[str, check_name("metadata.name")] = DEFAULT_POOL


class PoolSpec(Model):
    """What there is, and who may use how much of it."""

    devices: int | str | None = None
    """How many there are, or which of which kinds (``cuda:0-3+cpu:0-7,8-15``), as ``--devices``
    says it, which comes first."""

    priority_classes: list[ClassEntry] = Field(default_factory=list)
    teams: list[TeamEntry] = Field(default_factory=list)

    @field_validator("devices", mode="before")
    @classmethod
    def _devices(cls, given: object) -> object:
        if given is None:
            return None
        if isinstance(given, bool) or not isinstance(given, int | str):
            raise impossible(
                f"spec.devices must be a whole number, or a list such as cuda:0-3, not {given!r}"
            )
        try:
            devices_of(given, given="spec.devices")
        except ConfigError as error:
            raise impossible(str(error)) from None
        return given

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse_twice("class", [entry.name for entry in self.priority_classes])
        refuse_twice("team", [entry.name for entry in self.teams])
        classes = CLASS_VALUES.keys() | {entry.name for entry in self.priority_classes}
        for team in self.teams:
            strange = next((name for name in team.reclaim.by or () if name not in classes), None)
            if strange is not None:
                raise impossible(
                    f"team {team.name} lets class {strange} reclaim, which does not exist; classes"
                    f" are {', '.join(sorted(classes))}"
                )
        if self.devices is not None:
            number, _ = devices_of(self.devices, given="spec.devices")
            if excess := promised_too_much(self.teams, number):
                raise impossible(excess)
        return self


class PoolFile(Model):
    """One pool, whole."""

    api_version: Literal["pliant.dev/v1alpha1"]
    kind: Literal["Pool"]
    metadata: PoolMetadata = Field(default_factory=PoolMetadata)
    spec: PoolSpec = Field(default_factory=PoolSpec)


def devices_of(said: str | int, *, given: str) -> tuple[int, tuple[str, ...] | None]:
    """Return how many devices there are, and what they are called; None: they are numbers.

    Raises:
        ConfigError: there cannot be so many, or it cannot be read; ``given`` says where it is.
    """
    found = said if isinstance(said, int) else parse_devices(said, given=given)
    number, names = (found, None) if isinstance(found, int) else (len(found), found)
    if not 1 <= number <= MOST_DEVICES:
        raise ConfigError(f"{given} {said} must be between 1 and {MOST_DEVICES}")
    return number, names


def promised_too_much(teams: Iterable[TeamEntry], devices: int) -> str:
    """Say that quotas promise more devices than there are, or nothing if they do not."""
    quotas = [team for team in teams if team.quota]
    if sum(team.quota or 0 for team in quotas) <= devices:
        return ""
    said = " + ".join(f"{team.quota} ({team.name})" for team in quotas)
    return (
        f"the quotas {said} are more than the pool's {devices} devices; lower one or give the pool"
        " more"
    )


RECLAIM_FROM: dict[str, From] = {
    "LowerPriority": "lower_priority",
    "SameTeam": "same_team",
    "Never": "never",
}


def team_of(entry: TeamEntry) -> allocation.Team:
    """Translate what a file or a person says of a team."""
    from_, by = RECLAIM_FROM[entry.reclaim.from_], entry.reclaim.by
    return allocation.Team(
        name=entry.name,
        quota=entry.quota,
        borrow_limit=entry.borrow_limit,
        reclaim=allocation.Reclaim(from_=from_, by=None if by is None else tuple(by)),
    )
