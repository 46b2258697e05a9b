"""Versions: whether the framework that an integration is for is installed, and as it was tried.

Owns the sentences where it is not, or where replicas have several workers, which it would take for
its own.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from pliant.core.errors import ConfigError
from pliant.engine.worker.bootstrap import worker_context
from pliant.engine.worker.refusals_alone import tell_in_a_sentence


def require(package: str, *, least: str, below: str) -> None:
    """Refuse to go on without a version of a package that these integrations were tried with.

    Raises:
        ConfigError: it is not installed, or older than ``least``, or not below ``below``; or the
            replicas of this job have several workers.
    """
    tell_in_a_sentence()
    context = worker_context()
    if context is not None and context.assignment.workers_per_replica > 1:
        raise ConfigError(
            f"an elastic trainer of {package} has one worker in each replica, and this job "
            f"{context.assignment.workers_per_replica}: leave out --workers-per-replica"
        )
    pip = f"pip install '{package}>={least},<{below}'"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise ConfigError(f"pliant.integrations needs {package} for this: {pip}") from None
    if not _numbers(least) <= _numbers(found) < _numbers(below):
        raise ConfigError(
            f"pliant.integrations was tried with {package} {least} to below {below}, and this is "
            f"{found}: {pip}"
        )


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()
