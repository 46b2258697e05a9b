"""How long a job waits for what, as people write it, and its translation to the core's and back.

Owns the names outside and what each limit means to people; that all of the core's are here a test
proves.  Defaults are the core's.

    limits:
      hangInSeconds: 600
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pliant.core.job.state import JobSettings
from pliant.core.membership.state import Timeouts
from pliant.spec.model import Model, SomeSeconds

_SETTINGS = JobSettings()
_TIMEOUTS = _SETTINGS.timeouts


class Limits(Model):
    """How long a job waits before it acts; a limit that concerns steps grows with long ones."""

    start_in_seconds: SomeSeconds = _SETTINGS.start_s
    """From the start of a replica until its script reaches steps(), and how long a job waits for
    its first node, or for the return of its last."""

    start_wait_in_seconds: SomeSeconds = _SETTINGS.start_wait_s
    """From the first replica that is ready until the job begins without the others."""

    heartbeat_in_seconds: SomeSeconds = _TIMEOUTS.heartbeat_s
    """Without a sign of life a replica is lost; below 2 s a busy machine looks like a dead one."""

    hang_in_seconds: SomeSeconds = _TIMEOUTS.hang_s
    """Without a step, a replica that the others wait for is ended; at least 20 usual steps."""

    step_in_seconds: SomeSeconds = _TIMEOUTS.step_s
    """Until all have come to the step boundary of a change or of a stop; at least 4 usual steps."""

    prepare_in_seconds: SomeSeconds = _TIMEOUTS.prepare_s
    """Until the members of a change are connected, while they train."""

    reform_in_seconds: SomeSeconds = _TIMEOUTS.reform_s
    """Until the survivors of a loss have met; at least 4 usual steps."""

    switch_in_seconds: SomeSeconds = _TIMEOUTS.switch_s
    """From there until all are in the new generation and joiners have their state."""

    grace_in_seconds: SomeSeconds = _TIMEOUTS.grace_s
    """After a broken connection, for the report of the death that explains it."""

    retry_in_seconds: SomeSeconds = _TIMEOUTS.retry_s
    """After a change that failed with nobody to blame; grows with each in a row."""

    register_in_seconds: SomeSeconds = _TIMEOUTS.register_s
    """A new coordinator waits so long for the replicas that run already."""

    node_in_seconds: SomeSeconds = _SETTINGS.node_s
    """Without a connection to its agent, a node is lost; replicas report through it."""

    silent_in_seconds: SomeSeconds = _SETTINGS.silent_s
    """Without a word of its agent, which is connected, nothing new is started on a node until it
    speaks again; what trains there is left alone."""

    slow_in_seconds: SomeSeconds = _SETTINGS.slow_s
    """How long a replica takes at least twice as long as the others until that is reported."""

    exit_in_seconds: SomeSeconds = _SETTINGS.exit_s
    """For the exit of a replica that was let go: its finally blocks."""

    finish_in_seconds: SomeSeconds = _SETTINGS.finish_s
    """For what the script does after its last step."""

    restart_forget_in_seconds: SomeSeconds = _SETTINGS.restart_forget_s
    """A loss longer ago does not count against --max-restarts, if a step was committed since."""


def core_limits(limits: Limits) -> dict[str, Any]:
    """Return the fields of the core's ``JobSettings`` that are limits."""
    values = {_core_name(name): getattr(limits, name) for name in Limits.model_fields}
    inner = {field.name: values.pop(field.name) for field in fields(Timeouts)}
    return {"timeouts": Timeouts(**inner), **values}


def document_of_limits(settings: JobSettings) -> dict[str, float]:
    """Return the limits that have not their default, as a job file has them."""
    document = {}
    for name, field in Limits.model_fields.items():
        core = _core_name(name)
        owner = settings.timeouts if hasattr(settings.timeouts, core) else settings
        if (value := getattr(owner, core)) != field.default:
            document[str(field.alias)] = float(value)
    return document


def _core_name(name: str) -> str:
    return f"{name.removesuffix('_in_seconds')}_s"
