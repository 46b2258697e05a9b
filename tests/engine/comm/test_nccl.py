"""NCCL as its package is: what is called exists, and who asked for it without it is told."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from tests.engine.comm.circle import Idle

from pliant.core.errors import ConfigError
from pliant.core.values import Exchange
from pliant.engine.comm import nccl, transport
from pliant.engine.comm.device_communicator import Library

CPU, GPU, OTHER = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Idle()
    monkeypatch.setitem(transport.LIBRARIES, nccl.KIND, lambda: library)
    return library


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transport.LIBRARIES, nccl.KIND, lambda: None)


def test_it_is_used_where_it_is_installed_and_nobody_wants_another_way(installed: Library) -> None:
    def chosen(exchange: Exchange, *, tls: bool = False) -> Library | None:
        return transport.library_for([GPU], exchange, is_encrypted=tls)

    assert chosen(Exchange.AUTO) is chosen(Exchange.NCCL) is installed
    assert chosen(Exchange.HOST) is chosen(Exchange.AUTO, tls=True) is None


@pytest.mark.usefixtures("missing")
def test_without_it_gradients_go_through_the_host_unless_it_was_asked_for() -> None:
    assert transport.library_for([GPU], Exchange.AUTO, is_encrypted=False) is None

    with pytest.raises(ConfigError, match="nccl4py is not installed"):
        transport.library_for([GPU], Exchange.NCCL, is_encrypted=False)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("devices", "where"), [([], "the host"), ([GPU, OTHER], "cuda:0 and")])
def test_a_model_elsewhere_has_no_use_for_it(devices: list[torch.device], where: str) -> None:
    assert transport.library_for(devices, Exchange.AUTO, is_encrypted=False) is None

    with pytest.raises(ConfigError, match=where):
        transport.library_for(devices, Exchange.NCCL, is_encrypted=False)


def test_what_is_called_of_the_package_exists() -> None:
    package: Any = pytest.importorskip("nccl.core", reason="nccl4py is not installed")

    assert isinstance(nccl.library(), nccl.Nccl)
    assert package.NCCLConfig(blocking=False).blocking is False
    assert len(unique_id := bytes(package.get_unique_id())) == 128
    assert bytes(package.UniqueId.from_bytes(unique_id)) == unique_id
    assert [*inspect.signature(package.Communicator.init).parameters] == [
        "nranks",
        "rank",
        "unique_id",
        "config",
    ]
    assert {"sendbuf", "peer", "stream"} < {
        *inspect.signature(package.Communicator.send).parameters
    }
    for name in ("get_async_error", "revoke", "abort", "recv"):
        assert callable(getattr(package.Communicator, name))
    with package.group():
        pass
