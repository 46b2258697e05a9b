"""A host that may coordinate, while another one does."""

from __future__ import annotations

import asyncio
import socket
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Never

import pytest

from pliant.agent.node_facts import AgentConfig
from pliant.coordinator.register import StoredRegister
from pliant.core import takeover
from pliant.core.errors import ConfigError
from pliant.core.job.state import JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.takeover import CoordinatorSign, looked
from pliant.core.values import Generation, Incarnation, Lineage, NodeId, Register, TlsFiles
from pliant.observe.log import Record
from pliant.run import candidate
from pliant.run.candidate import Candidate
from pliant.run.job_config import JobConfig
from pliant.run.register_location import DirectoryLocation

PLACES = "10.0.0.1:7000,10.0.0.2:7000"


@pytest.fixture
def second(tmp_path: Path) -> Candidate:
    """Return the second host of the list; it has no token yet."""
    config = JobConfig(
        name="gpt",
        argv=("train.py",),
        settings=JobSettings(policy=Policy()),
        out=tmp_path,
        environ={"XDG_STATE_HOME": str(tmp_path / "state")},
        address="10.0.0.2",
        port=7000,
        register=str(tmp_path / "register"),
    )

    def observed() -> Never:
        raise AssertionError("it coordinates")

    return Candidate(
        config=config,
        agent=AgentConfig(node=NodeId("b"), devices=1, environment={}),
        join=PLACES,
        turn=1,
        token_file=tmp_path / "job.token",
        observed=observed,
        say=print,
    )


def sign(url: str, beat: int = 0) -> CoordinatorSign:
    return CoordinatorSign(url=url, incarnation=1, beat=beat)


@pytest.mark.timeout(60)
def test_who_may_coordinate_waits_for_the_token_and_then_says_where_it_is(
    second: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host coordinates, as its sign of life shows; without the token none can join it."""
    beats = count()
    monkeypatch.setattr(
        DirectoryLocation, "read_sign", lambda _: sign("http://10.0.0.1:7000", next(beats))
    )
    monkeypatch.setattr(candidate, "TOKEN_S", 0.5, raising=False)

    said = r"job\.token is not there; copy it from the host that coordinates \(http://10\.0\.0\.1"
    with pytest.raises(ConfigError, match=said):
        asyncio.run(second.run())

    assert not second.token_file.exists()


@pytest.mark.timeout(60)
def test_a_job_that_has_begun_gets_no_second_token(
    second: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator is gone before the token was copied here, and its agents train on."""
    first = Register(incarnation=Incarnation(1), number=Generation(3), lineage=Lineage(1))
    home = DirectoryLocation(second.config.out / "register", is_shared=True)
    StoredRegister(home.register, "of the first host").write(first, expected=None)
    home.write_sign(sign("http://10.0.0.1:7000"))
    monkeypatch.setattr(takeover, "PATIENCE_S", 0.5)
    monkeypatch.setattr(takeover, "TURN_S", 0.1)
    second = replace(second, config=replace(second.config, address="127.0.0.1", port=0))

    with pytest.raises(ConfigError, match=r"copy it from the host that coordinates \(http://10\.0"):
        asyncio.run(second.run())
    assert not second.token_file.exists()

    second.token_file.write_text("another-token-of-22-letters")
    said: list[str] = []
    second = replace(second, observed=lambda: nullcontext(Silent()), say=said.append)
    with pytest.raises(ConfigError, match="has another token: give this host the --token-file of"):
        asyncio.run(second.run())
    assert StoredRegister(home.register).read() == first


class Silent:
    """Follows nothing."""

    def record(self, record: Record) -> None:
        pass

    def output(self, worker: str, text: str) -> None:
        pass


@pytest.mark.parametrize(
    ("tls", "url"), [(None, "http://10.0.0.2:7000"), (TlsFiles(), "https://gpu2:7000")]
)
def test_a_host_that_has_come_back_knows_its_own_sign(
    second: Candidate, tls: TlsFiles | None, url: str
) -> None:
    """With TLS the sign has the name by which the certificate knows the host."""
    config = replace(second.config, tls=tls, host="gpu2")
    host = replace(second, config=config)
    host._watch = looked(None, sign(url), now_s=host._clock.now_s())

    assert host._reason_to_coordinate() is not None
    host._watch = looked(None, sign("https://gpu1:7000"), now_s=host._clock.now_s())
    assert host._reason_to_coordinate() is None


def test_a_place_where_nobody_listens_refuses_and_one_that_is_silent_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as silent:
        port = listening.getsockname()[1]
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)  # its queue is full with one that nobody takes
        full = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with socket.create_connection(silent.getsockname()):
            assert not asyncio.run(candidate._refuses(f"http://127.0.0.1:{port}"))
            assert not asyncio.run(candidate._refuses(full))
            assert not asyncio.run(candidate._refuses("http://nobody.invalid:7000"))
    assert not asyncio.run(candidate._refuses("http://[fd00::1"))  # whatever wrote the sign

    assert asyncio.run(candidate._refuses(f"https://127.0.0.1:{port}"))
