"""What a coordinator says that has begun to serve: how others come to its job.

Must not know how they are served.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pliant.cli.terminal import say_aside


def invitation(token: Path, *, takes_part: bool, is_quiet: bool) -> Callable[[str], None]:
    """Return what says it, once the URL is known.

    ``takes_part``: this host runs replicas as well, as every host does that is given the command.
    """

    def say_it(url: str) -> None:
        place, is_tls = url.rpartition("//")[2], url.startswith("https:")
        if takes_part:
            say_aside(
                f"this host coordinates, at {place}: the same command on any other host joins it, "
                f"with a copy of {token}"
            )
            return
        more = " --tls-ca CA --tls-certificate CERTIFICATE --tls-key KEY" if is_tls else ""
        say_aside(f"waiting for agents: pliant agent --join {place} --token-file {token}{more}")

    return (lambda url: None) if is_quiet else say_it
