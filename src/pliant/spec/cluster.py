"""The file of a cluster that is simulated: nodes, what they cost, who comes and goes.

Owns the names and the bounds of what can be said, and the sentence for each contradiction.  Knows
nothing of what follows from it; teams and classes are those of a pool's file.
``docs/howto/simulate-a-cluster.md`` shows one.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pliant.core.text import MOST_S
from pliant.spec.model import Model, Seconds, check_name, impossible, refuse_twice
from pliant.spec.pool import MOST_DEVICES, ClassEntry, TeamEntry, promised_too_much

ClusterName = Annotated[str, check_name("name")]

DeviceKind = Annotated[str, Field(max_length=16)]


class NodeEntry(Model):
    """Nodes that are alike."""

    name: ClusterName
    count: Annotated[int, Field(ge=1, le=MOST_DEVICES)]

    devices: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = 1
    """Of each node."""

    kind: DeviceKind = ""
    """Of which kind its devices are, as jobs ask for them; empty: of none."""

    price_per_device_hour: Annotated[float, Field(ge=0, le=MOST_S)] = 0.0
    """In any currency; paid while the node is there."""

    capacity: str | None = None
    """A trace of how many of these nodes are there, beside this file; None: all, always."""

    notice_in_seconds: Seconds = 0.0
    """From the word that a node goes until it is gone."""


class ClusterSpec(Model):
    """What there is, and who may use how much of it."""

    nodes: Annotated[list[NodeEntry], Field(min_length=1)]
    priority_classes: list[ClassEntry] = Field(default_factory=list)
    teams: list[TeamEntry] = Field(default_factory=list)

    @property
    def devices(self) -> int:
        """How many there are when every node is there."""
        return sum(entry.count * entry.devices for entry in self.nodes)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for what, names in (
            ("class", [entry.name for entry in self.priority_classes]),
            ("team", [entry.name for entry in self.teams]),
            ("group of nodes", [entry.name for entry in self.nodes]),
        ):
            refuse_twice(what, names)
        if self.devices > MOST_DEVICES:
            raise impossible(
                f"spec.nodes have {self.devices} devices between them; at most {MOST_DEVICES} can"
                " be simulated"
            )
        if excess := promised_too_much(self.teams, self.devices):
            raise impossible(excess)
        return self


class ClusterFile(Model):
    """One cluster, whole."""

    api_version: Literal["pliant.dev/v1alpha1"]
    kind: Literal["Cluster"]
    spec: ClusterSpec
