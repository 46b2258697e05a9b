"""How a job stands in a pool, by its settings.

Owns the contradictions between them.  Knows nothing of where they come from.
"""

from __future__ import annotations

from pliant.cli.resolved import Settings
from pliant.core.errors import ConfigError
from pliant.core.tenancy import PoolPlace
from pliant.spec.model import NAME, NAME_RULE


def pool_of(settings: Settings) -> PoolPlace | None:
    """Return the pool that the job runs in, and how it stands there; None: in none.

    Raises:
        ConfigError: no pool can have this name, or how it stands in one is said without one.
    """
    name = settings["pool"]
    if name.value is None:
        for other in (settings["priority"], settings["team"], settings["kind"]):
            if other.value is not None:
                raise ConfigError(f"{other.given} says how a job stands in a pool; add --pool")
        return None
    if not NAME.fullmatch(name.value):
        raise ConfigError(f"{name.given}: a pool's name {NAME_RULE}")
    standing = {key: settings[key].value for key in ("team", "priority")}
    return PoolPlace(
        name=name.value,
        device_kind=settings["kind"].value or "",
        **{key: value for key, value in standing.items() if value is not None},
    )
