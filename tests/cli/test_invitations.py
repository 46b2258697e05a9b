"""What a coordinator says once it serves is what the others are to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.cli.invitations import invitation

TOKEN = Path("/job.token")


def test_a_coordinator_alone_waits_for_agents(capsys: pytest.CaptureFixture[str]) -> None:
    invitation(TOKEN, takes_part=False, is_quiet=False)("https://10.0.0.1:7000")

    assert capsys.readouterr().err == (
        "waiting for agents: pliant agent --join 10.0.0.1:7000 --token-file /job.token "
        "--tls-ca CA --tls-certificate CERTIFICATE --tls-key KEY\n"
    )


def test_a_host_that_takes_part_names_the_command_that_was_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Seen: pliant run --join told people to start agents."""
    invitation(TOKEN, takes_part=True, is_quiet=False)("http://10.0.0.1:7000")

    assert capsys.readouterr().err == (
        "this host coordinates, at 10.0.0.1:7000: the same command on any other host joins it, "
        "with a copy of /job.token\n"
    )


def test_nothing_is_said_to_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    invitation(TOKEN, takes_part=True, is_quiet=True)("http://10.0.0.1:7000")

    assert capsys.readouterr().err == ""
