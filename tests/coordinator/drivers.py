"""Coordinators' drivers on real files, for tests that need no more of one."""

from __future__ import annotations

from tests.coordinator.register_file import RegisterFile

from pliant.coordinator.driver import JobDriver
from pliant.core.job.state import JobSettings
from pliant.machine.clock import Clock
from pliant.observe.log import EventLog


def driver_of(
    log: EventLog,
    settings: JobSettings,
    *,
    workers_per_replica: int = 1,
    hosts_per_replica: int = 1,
) -> JobDriver:
    """Return a driver whose files lie beside its log."""
    return JobDriver(
        settings=settings,
        register=RegisterFile(log.path.with_name("register.json")),
        log=log,
        metrics_path=log.path.with_name("metrics.jsonl"),
        clock=Clock(),
        boot=7,
        workers_per_replica=workers_per_replica,
        hosts_per_replica=hosts_per_replica,
    )
