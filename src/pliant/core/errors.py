"""Errors of pliant.  A stale message is none of them: it is expected, dropped and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar


class PliantError(Exception):
    """Base of everything this package raises on purpose."""


class Refusal(PliantError):  # noqa: N818 - what it is, and a base only
    """What pliant cannot do as it was asked to, in one sentence for its user; never retried."""

    heard: ClassVar[Callable[[str, str], None]] = staticmethod(lambda kind, sentence: None)
    """Called with each that is made: a script may catch all, and say nothing of it."""

    def __init__(self, *said: object) -> None:
        super().__init__(*said)
        Refusal.heard(type(self).__name__, str(self))

    @classmethod
    def tell(cls, heard: Callable[[str, str], None]) -> None:
        """Call this with each from now on."""
        cls.heard = heard


class ConfigError(Refusal, ValueError):
    """A setting is missing, out of range or contradicts another: the user's to fix, not retried."""


class UsageError(Refusal):
    """The script used the session in a way that its contract forbids; never retried either."""


class TransitionError(PliantError):
    """An event arrived in a state that forbids it: our bug.

    Carries both, and the last events of the same object, so that the report is enough to write the
    failing test.
    """

    def __init__(self, *, phase: str, event: object, history: Sequence[object] = ()) -> None:
        said = event if isinstance(event, str) else repr(event)
        sentence = f"{said} is not legal in phase {phase}"
        if history:
            sentence += "; before it, oldest first: " + "; ".join(map(str, history))
        super().__init__(sentence)
        self.phase = phase
        self.event = event
        self.history = tuple(history)


class NotBegunError(PliantError):
    """A job was asked to stop before it had begun, and what it waited for did not come."""


class NoStateError(PliantError):
    """No member of the new generation holds the state, and none may provide a first one."""


class PermanentError(PliantError):
    """A shell failed in a way that trying again cannot mend."""


class WrongTokenError(PermanentError, ConfigError):
    """Who joins a job showed another token than the job's: the user's to fix."""


class StateCorruptError(PermanentError):
    """The state of this replica is not that of most others: its memory or device changed it."""


class ConflictError(PermanentError):
    """Another coordinator has written the register: it has taken over, this one must end."""


class HandedOverError(ConflictError):
    """This coordinator was told to end, and the job is not: the next one takes it over."""


class RegisterGoneError(ConflictError):
    """The register is no longer there: its directory was removed or moved."""


class TransientError(PliantError):
    """A shell failed in a way that may mend itself."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


# --- exit codes: what the commands tell the shell, and a worker its agent

EXIT_OK = 0
"""Finished."""
EXIT_FAILED = 1
"""The script failed, a checkpoint is damaged, devices did not come in time."""
EXIT_USAGE = 2
"""The user's input: not worth a restart.  Also what argparse and typer exit with."""
EXIT_STOPPED = 3
"""Stopped on request, or taken back."""
EXIT_STATE_LOST = 4
"""Nobody who is left holds the state of the run, and no checkpoint does."""
EXIT_TAKEN_OVER = 5
"""Another coordinator has the job now."""
EXIT_AGENT_GONE = 70
"""A worker whose agent is gone; nobody reads it but a person with strace."""
EXIT_NOT_STARTED = 127
"""The command of a claim could not be started; what shells say."""
EXIT_INTERRUPTED = 130
"""Ctrl-C twice; 128 and the number of SIGINT."""
