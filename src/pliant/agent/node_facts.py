"""What an agent says of its node before it joins a job.

Owns where each fact is from.  What must agree is for ``core.agreement`` to say.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from pliant.agent.launcher import DEFAULT_ENVIRONMENT
from pliant.core.agreement import NodeFacts
from pliant.machine.processes import this_boot


def node_facts(*, address: str, environment: Mapping[str, str]) -> NodeFacts:
    """Return the facts of this node; imports nothing of what it asks for.

    ``environment`` is what the workers inherit, ``address`` the one at which they are reached.
    """
    return NodeFacts(
        pliant=_version("pliant"),
        python=".".join(platform.python_version_tuple()[:2]),
        torch=_version("torch"),
        numpy=_version("numpy"),
        processor=platform.machine(),
        hash_seed={**DEFAULT_ENVIRONMENT, **environment}["PYTHONHASHSEED"],
        address=address,
        boot=this_boot(),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
