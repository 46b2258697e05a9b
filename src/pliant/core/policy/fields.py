"""What a user may set about a job's size: bounds, sizes, waits, and what a change must be worth.

Owns the fields with their defaults, and one sentence for each way in which they contradict each
other; what a field may be by itself ``spec.policy`` says.  Names in sentences are those of the job
file, where people set them.  Must not know what the job does now; ``policy`` applies these fields
to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pliant.core.errors import ConfigError
from pliant.core.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBackoff:
    """Ever longer waits between changes that follow each other."""

    initial_s: float = 30.0
    """After the first change; the second waits ``factor`` times as long."""

    factor: float = 2.0

    max_s: float = 600.0
    """No wait is longer."""

    reset_after_s: float = 1800.0
    """So long after the newest change the next one counts as the first again."""

    def __post_init__(self) -> None:
        if self.initial_s > self.max_s:
            raise ConfigError(
                f"backoff.initialInSeconds {self.initial_s:g} is greater than "
                f"backoff.maxInSeconds {self.max_s:g}"
            )
        if self.max_s > self.reset_after_s:
            raise ConfigError(
                f"backoff.maxInSeconds {self.max_s:g} is greater than backoff.resetAfterInSeconds "
                f"{self.reset_after_s:g}, after which nothing waits any more"
            )

    def wait_s(self, level: int) -> float:
        """Return how long to wait after so many changes that followed each other."""
        if level < 1 or self.initial_s == 0:
            return 0.0
        if (level - 1) * math.log(self.factor) > math.log(self.max_s / self.initial_s):
            return self.max_s
        return min(self.max_s, self.initial_s * self.factor ** (level - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every default takes what is offered at once, as a resize costs less than a step here."""

    min_replicas: int = 1
    """Below it nothing trains; the members hold until a replacement has come."""

    max_replicas: int | None = None
    """None: as many as there are devices (without ``spares``), and no more than a step has
    slots."""

    start_replicas: int | None = None
    """Size to start with, kept until someone wishes for another.  None: the maximum."""

    replica_increment_step: int | None = None
    """Only ``min_replicas`` and multiples of this more.  None: any size."""

    replica_discrete_values: tuple[int, ...] | None = None
    """Only these sizes, ascending.  None: any size."""

    scaling_timeout_s: float = 0.0
    """Wait after capacity appears, so that what arrives meanwhile is taken together."""

    faulty_scale_down_timeout_s: float = 0.0
    """After a node is lost: how long a replacement may still be taken at once, and survivors are
    kept whose number is not among the sizes.  They train all the while."""

    graceful_shutdown_timeout_s: float = 30.0
    """Notice that a replica gets when the target falls; after it the process is ended."""

    min_stability_period_s: float = 0.0
    """Between two voluntary changes."""

    backoff: PolicyBackoff | None = None
    """Ever longer waits between voluntary changes that follow each other.  None: none."""

    scale_up_snooze_time_s: float = 0.0
    """After a restart (of the coordinator, or from a checkpoint): no growth for so long."""

    max_scale_events_per_hour: int | None = None
    """Voluntary changes in any 3600 s.  None: any number."""

    amortization: bool = True
    """Grow only once the capacity is expected to stay for longer than growing costs.  As long as
    no cost was measured, or no capacity was seen to go, growth costs nothing."""

    min_marginal_efficiency: float = 0.0
    """What a further replica must add, as a share of what one of the others does.  0: anything,
    so that replicas are kept that only wait, as they hold a copy of the state."""

    spares: int = 0
    """Replicas kept started and unused, for the next loss."""

    replace_slow_after_s: float | None = None
    """A spare takes the place of a replica that takes twice as long as the others for so long.
    None: never."""

    max_slow_replacements_per_hour: int = 2
    """So that a slow node, or a part of the data that takes long, does not change one after the
    other."""

    def __post_init__(self) -> None:
        if self.replace_slow_after_s is not None and not self.spares:
            raise ConfigError(
                "replaceSlowAfterInSeconds needs spares, of which one takes the place of a slow "
                "replica; give spares=1 as well"
            )
        if self.graceful_shutdown_timeout_s == 0:
            raise ConfigError("gracefulShutdownTimeoutInSeconds must be more than 0")
        self._require_sizes()
        _require_between(self, "startReplicas", self.start_replicas)
        if self.start_replicas is not None and self.fitted(self.start_replicas) is None:
            raise ConfigError(f"startReplicas {self.start_replicas} is none of {self.sizes_text()}")

    def _require_sizes(self) -> None:
        step, values = self.replica_increment_step, self.replica_discrete_values
        if self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise ConfigError(
                f"minReplicas {self.min_replicas} is greater than maxReplicas {self.max_replicas}"
            )
        if values is None:
            return
        if step is not None:
            raise ConfigError(
                f"replicaIncrementStep {step} and replicaDiscreteValues {_list(values)} "
                "exclude each other; give one of them"
            )
        for value in values:
            _require_between(self, "replicaDiscreteValues", value)
        if list(values) != sorted(set(values)):
            raise ConfigError(f"replicaDiscreteValues {_list(values)} must ascend")
        if self.min_replicas != values[0]:
            raise ConfigError(
                f"minReplicas {self.min_replicas} is not the smallest of replicaDiscreteValues "
                f"{_list(values)}"
            )

    def largest(self, limit: int) -> int | None:
        """Return the largest allowed size up to this one; None if there is none."""
        if self.max_replicas is not None:
            limit = min(limit, self.max_replicas)
        if limit < self.min_replicas:
            return None
        if self.replica_increment_step is not None:
            return limit - (limit - self.min_replicas) % self.replica_increment_step
        if self.replica_discrete_values is not None:
            return max(value for value in self.replica_discrete_values if value <= limit)
        return limit

    def fitted(self, size: int) -> int | None:
        """Return this size if it is allowed, else None."""
        return size if self.largest(size) == size else None

    def sizes(self, limit: int) -> tuple[int, ...]:
        """Return the allowed sizes up to this one, ascending."""
        if self.max_replicas is not None:
            limit = min(limit, self.max_replicas)
        if self.replica_discrete_values is not None:
            return tuple(value for value in self.replica_discrete_values if value <= limit)
        return tuple(range(self.min_replicas, limit + 1, self.replica_increment_step or 1))

    @property
    def has_gaps(self) -> bool:
        """Whether some sizes between the bounds are not allowed."""
        return self.replica_discrete_values is not None or (self.replica_increment_step or 1) > 1

    def sizes_text(self) -> str:
        """Say which sizes are allowed, where not every one between the bounds is."""
        if self.replica_discrete_values is not None:
            return f"replicaDiscreteValues {_list(self.replica_discrete_values)}"
        step = self.replica_increment_step
        return f"the sizes from minReplicas {self.min_replicas} in steps of {step}"


def require_slots(policy: Policy, num_slots: int) -> None:
    """Check the sizes against ``K``, once the first script has reported it.

    Raises:
        ConfigError: a size that the user set is above ``K``.
    """
    for name, value in (
        ("minReplicas", policy.min_replicas),
        ("maxReplicas", policy.max_replicas),
        ("startReplicas", policy.start_replicas),
        *(("replicaDiscreteValues", value) for value in policy.replica_discrete_values or ()),
    ):
        if value is not None and value > num_slots:
            raise ConfigError(
                f"{name}={value} is above the {counted(num_slots, 'micro-batch')} of a step, and "
                f"each replica needs one; lower {name} to {num_slots}, or make micro_batch_size "
                "smaller"
            )


def _require_between(policy: Policy, name: str, value: int | None) -> None:
    if value is not None and value < policy.min_replicas:
        raise ConfigError(f"{name} {value} is less than minReplicas {policy.min_replicas}")
    if value is not None and policy.max_replicas is not None and value > policy.max_replicas:
        raise ConfigError(f"{name} {value} is greater than maxReplicas {policy.max_replicas}")


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
