"""Tracebacks that people see: one of each kind, and how many replicas failed like it.

Owns which tracebacks are alike, which were shown already, in the output of a replica or by
themselves, and who failed alike; and the line that a refused script ends with, which is the last
word of its job as well.  Knows nothing of screens.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

RECENT_LINES = 200
"""Lines of a replica's output that are kept, to know a traceback again that was shown in it."""

_DIFFERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_FRAME = "  File "
_REFUSED = re.compile(r"(?:ConfigError|UsageError): (.+)")


def is_last_word(text: str, reason: str | None) -> bool:
    """Whether a line of output is the refusal of a script that its job has ended with."""
    found = _REFUSED.fullmatch(text)
    return found is not None and found[1] in " ".join((reason or "").split())


@dataclass(slots=True)
class Likeness:
    """Tracebacks that are alike."""

    first: str
    """The replica in whose output it is shown, or that it is shown of."""
    replicas: list[str] = field(default_factory=list)
    """Who failed like that, in order."""
    told: int = 1
    """How many of them have been told of."""


class Tracebacks:
    """What is known of the tracebacks of a job's replicas."""

    def __init__(self) -> None:
        self._known: dict[str, Likeness] = {}
        self._held: dict[str, list[str]] = {}
        self._shown: dict[str, deque[str]] = {}
        self._refusals: dict[str, str] = {}

    def learn(self, replica: str, text: str) -> bool:
        """Take note of a traceback; return whether none was like it, nor was shown."""
        alike = _alike(text)
        found = self._known.get(alike)
        shown_of = self._shown_before(alike) if found is None else None
        if found is None:
            found = self._known[alike] = Likeness(first=shown_of or replica)
        found.replicas.append(replica)
        return len(found.replicas) == 1 and shown_of in (None, replica)

    def passed(self, replica: str, text: str) -> list[str]:
        """Return what is to be printed now, as one more line of a replica has come."""
        before = self._refusals.pop(replica, None)
        if _REFUSED.fullmatch(text) and not self._is_in_traceback(replica):
            self._refusals[replica] = text
            return [] if before is None else [before]
        lines = [*self._held.pop(replica, ()), *([] if before is None else [before]), text]
        said = [_alike(line) for line in lines]
        for alike, known in self._known.items():
            whole = alike.splitlines()
            if known.first != replica and whole[: len(said)] == said:
                if len(said) < len(whole):
                    self._held[replica] = lines
                return []
        self._shown.setdefault(replica, deque(maxlen=RECENT_LINES)).extend(said)
        return lines

    def unsaid(self, reason: str | None) -> list[tuple[str, str]]:
        """Return replicas with their last line, where that is a refusal but not the job's."""
        return [one for one in self._refusals.items() if not is_last_word(one[1], reason)]

    def is_repeated(self, replica: str) -> bool:
        """Whether a replica failed as another had before."""
        return any(replica in known.replicas[1:] for known in self._known.values())

    def untold(self) -> str | None:
        """Return who failed alike, as far as that has not been returned before."""
        new = [known for known in self._known.values() if len(known.replicas) > known.told]
        for known in new:
            known.told = len(known.replicas)
        said = [
            f"{len(known.replicas)} replicas failed alike: {', '.join(known.replicas)}"
            for known in new
        ]
        return "; ".join(said) or None

    def _is_in_traceback(self, replica: str) -> bool:
        """Whether the line before was one of code: what raised it is the script's own affair."""
        shown = self._shown.get(replica, ("",))
        return shown[-1].startswith("  ")

    def _shown_before(self, alike: str) -> str | None:
        for replica, lines in self._shown.items():
            if f"\n{alike}\n" in "\n".join(("", *lines, "")):
                return replica
        return None


def _alike(text: str) -> str:
    """Return a traceback, or a line of one, without what differs between failures that are alike:
    addresses and numbers, but for those of the lines of code.
    """
    return "\n".join(
        line if line.startswith(_FRAME) else _DIFFERS.sub("#", line) for line in text.splitlines()
    )
