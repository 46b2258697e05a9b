"""What a pool begins with, after a life before or without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pliant.core.errors import ConfigError
from pliant.core.tenancy import Demand
from pliant.pool.state import SavedClaim, SavedPool
from pliant.run.pool_config import PoolConfig, begun
from pliant.spec.load import parse
from pliant.spec.pool import PoolFile

FILE = """
apiVersion: pliant.dev/v1alpha1
kind: Pool
spec:
  priorityClasses:
    - {name: nightly, value: -500%s}
"""

GPUS = ("cuda:0", "cuda:1", "cuda:2", "cuda:3")


def config(names: tuple[str, ...] | None = None, **values: Any) -> PoolConfig:
    given = {"devices": len(names) if names else None, **values}
    return PoolConfig(name="default", names=names, default_devices=4, records=Path(), **given)


def after(before: SavedPool | None, config: PoolConfig) -> SavedPool:
    return begun(config, before, Path("state.json"))


def held(device: int, names: tuple[str, ...] = ()) -> SavedPool:
    """Return what a pool leaves in which ada has one device."""
    claim = SavedClaim(
        name="ada/gpt",
        since=1.0,
        wanted=Demand(),
        pid=7,
        started="1",
        revision=1,
        replicas=1,
        devices=(device,),
    )
    began = after(None, config(names) if names else config(devices=8))
    return began.model_copy(update={"claims": (claim,)})


@pytest.mark.parametrize(
    ("before", "started"),
    [
        (held(0, GPUS), config(forget=True)),
        (held(0, GPUS), config(devices=4, forget=True)),
        (held(0, GPUS), config(("cuda:7", *GPUS[1:]), forget=True)),
        (held(7), config(GPUS[:2])),
        (held(7), config(GPUS[:2], forget=True)),
        (held(3, GPUS), config(GPUS[:2])),
    ],
)
def test_a_device_that_somebody_has_is_not_called_otherwise_whatever_is_forgotten(
    before: SavedPool, started: PoolConfig
) -> None:
    with pytest.raises(
        ConfigError, match=r"ada/gpt still has device \d, which is called otherwise"
    ):
        after(before, started)


def test_what_was_set_is_forgotten_while_somebody_has_a_device_of_the_same_name() -> None:
    before = held(0, GPUS).model_copy(update={"cordoned": (3,), "notes": {3: "fan"}})

    began = after(before, config(GPUS, forget=True))

    assert (began.names, began.cordoned, began.notes) == (GPUS, (), {})
    assert [claim.devices for claim in began.claims] == [(0,)]
    assert after(held(7), config(devices=4, forget=True)).names == ()


def test_a_file_that_names_no_users_of_a_class_any_more_opens_it() -> None:
    def filed(users: str) -> PoolConfig:
        return config(devices=4, file=parse(PoolFile, FILE % users, source="pool.yaml"))

    first = after(None, filed(", users: [ada]"))
    assert first.class_users == {"nightly": ("ada",)}
    by_hand = first.model_copy(update={"class_users": {"nightly": ("bob",)}})

    assert after(by_hand, filed(", users: [ada]")).class_users == {"nightly": ("bob",)}
    assert after(by_hand, filed("")).class_users == {}
