"""The elastic policy as people write it, and its translation to the core's and back.

Owns the names of the fields outside (those of HyperPod's ``elasticPolicy``, where it has them) and
that the core's rules refuse what contradicts itself.  Defaults and contradictions are the core's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from pliant.core.errors import ConfigError
from pliant.core.policy import decide as core
from pliant.spec.model import Model, Seconds, core_fields, document, impossible

_BACKOFF = core.PolicyBackoff()
_POLICY = core.Policy()

Count = Annotated[int, Field(ge=1)]

BOUNDS = ("minReplicas", "maxReplicas")
"""Fields that have options of their own, beside ``--policy``."""


class Backoff(Model):
    """Ever longer waits between voluntary changes that follow each other."""

    initial_in_seconds: Seconds = _BACKOFF.initial_s
    """Wait after the first change."""

    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = _BACKOFF.factor
    """How many times longer each next wait is."""

    max_in_seconds: Seconds = _BACKOFF.max_s
    """No wait is longer."""

    reset_after_in_seconds: Seconds = _BACKOFF.reset_after_s
    """So long after the newest change the next one counts as the first again."""


class ElasticPolicy(Model):
    """Between which sizes the job may be resized, and when it is worth it."""

    min_replicas: Count = _POLICY.min_replicas
    """Replicas below which the job does not train; the default is 1, or the smallest of
    replicaDiscreteValues."""

    max_replicas: Count | None = _POLICY.max_replicas
    """Replicas above which it does not grow; the default is the number of cores."""

    replica_increment_step: Count | None = _POLICY.replica_increment_step
    """Only minReplicas and multiples of this more; excludes replicaDiscreteValues."""

    replica_discrete_values: Annotated[list[Count], Field(min_length=1)] | None = None
    """Only these sizes, ascending; excludes replicaIncrementStep."""

    graceful_shutdown_timeout_in_seconds: Seconds = _POLICY.graceful_shutdown_timeout_s
    """Notice that a replica gets when the target falls; after it the process is ended."""

    scaling_timeout_in_seconds: Seconds = _POLICY.scaling_timeout_s
    """Wait after capacity appears, so that what arrives meanwhile is taken together."""

    faulty_scale_down_timeout_in_seconds: Seconds = _POLICY.faulty_scale_down_timeout_s
    """How long after the loss of a node a replacement is taken at once, and survivors are kept
    whose number is none of the sizes; they train all the while."""

    scale_up_snooze_time_in_seconds: Seconds = _POLICY.scale_up_snooze_time_s
    """No growth for so long after a restart of the coordinator, or from a checkpoint."""

    min_stability_period_in_seconds: Seconds = _POLICY.min_stability_period_s
    """Time between two voluntary changes."""

    backoff: Backoff | None = None
    """Ever longer waits between voluntary changes that follow each other; the default is none."""

    max_scale_events_per_hour: Count | None = _POLICY.max_scale_events_per_hour
    """Voluntary changes in any hour; the default is any number."""

    amortization: bool = _POLICY.amortization
    """Grow only once capacity is expected to stay for longer than growing costs."""

    min_marginal_efficiency: Annotated[float, Field(ge=0, le=1)] = _POLICY.min_marginal_efficiency
    """What a further replica must add, as a share of what one of the others does; one that turns
    out to add less is given back.  0: anything."""

    spares: Annotated[int, Field(ge=0)] = _POLICY.spares
    """Replicas kept started and unused, for the next loss."""

    replace_slow_after_in_seconds: Seconds | None = _POLICY.replace_slow_after_s
    """A spare takes the place of a replica that takes twice as long as the others for so long; the
    default is never."""

    max_slow_replacements_per_hour: Count = _POLICY.max_slow_replacements_per_hour
    """Replacements of slow replicas in any hour."""

    @model_validator(mode="before")
    @classmethod
    def _smallest_size(cls, given: Any) -> Any:
        """Take the smallest of the sizes for the minimum where none is given."""
        sizes = given.get("replicaDiscreteValues") if isinstance(given, dict) else None
        if not isinstance(sizes, list) or "minReplicas" in given:
            return given
        whole = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]
        return {**given, "minReplicas": min(whole)} if whole and min(whole) > 0 else given

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            core_policy(self)
        except ConfigError as error:
            raise impossible(str(error)) from None
        return self


def core_policy(policy: ElasticPolicy, start_replicas: int | None = None) -> core.Policy:
    """Return the same policy as the core has it; refuse a start size that it does not allow."""
    values = core_fields(policy)
    if policy.replica_discrete_values is not None:
        values["replica_discrete_values"] = tuple(policy.replica_discrete_values)
    if policy.backoff is not None:
        values["backoff"] = core.PolicyBackoff(**core_fields(policy.backoff))
    return core.Policy(**values, start_replicas=start_replicas)


def document_of(policy: core.Policy, *, is_whole: bool = True) -> dict[str, Any]:
    """Return the fields of ``elasticPolicy`` as a job file has them.

    If not whole, without those that have their default.
    """
    found = document(ElasticPolicy, partial(getattr, policy), is_whole=is_whole)
    if policy.replica_discrete_values is not None:
        found["replicaDiscreteValues"] = list(policy.replica_discrete_values)
    if policy.backoff is not None:
        value_of = partial(getattr, policy.backoff)
        found["backoff"] = document(Backoff, value_of, is_whole=True)
    return found


def fields_beside_bounds(policy: core.Policy) -> dict[str, Any]:
    """Return what ``--policy`` would have to say: all but the bounds, which have own options."""
    fields = document_of(policy, is_whole=False)
    return {name: value for name, value in fields.items() if name not in BOUNDS}


def merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with these fields changed; None sets a default, inner fields are kept."""
    result = {name: value for name, value in document.items() if value is not None}
    if "replicaDiscreteValues" in changes and "minReplicas" not in changes:
        result.pop("minReplicas", None)
    for name, value in changes.items():
        inner = result.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(inner, Mapping | None):
            result[name] = merged(inner or {}, value)
        else:
            result[name] = value
    return result


def changes_in_words(changes: Mapping[str, Any]) -> str:
    """Say what is set, as people type it: ``maxReplicas=6 backoff.factor=2``."""
    words = []
    for name, value in changes.items():
        if isinstance(value, Mapping):
            words += [f"{name}.{changes_in_words({inner: item})}" for inner, item in value.items()]
        else:
            words.append(f"{name}={'none' if value is None else json.dumps(value)}")
    return " ".join(words)


def start_that_fits(policy: ElasticPolicy, start_replicas: int | None) -> core.Policy:
    """Return the core's policy; a start size that it does not allow any more has had its time."""
    try:
        return core_policy(policy, start_replicas)
    except ConfigError:
        return core_policy(policy)
