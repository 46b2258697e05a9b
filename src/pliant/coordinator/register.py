"""The register on storage, written by compare-and-swap (R1).

Owns that a write either happened and is durable, or raises, and whose write it was.  Knows nothing
of what the register means, nor of the place that it lies in (``register_places``).  Two
coordinators on one place cannot both believe that they decide: the second write over the same value
is a conflict.

Beside the register each write names its writer and has a number, so no two writes have the same
bytes: who looks whether a write that failed has happened does not take another's for its own, and
one that arrives late finds other bytes than it expects.  It has digests of the token and of the
command, too: who has another token would find none of the job's agents, which train on, and begin
it a second time; who runs another command is another job of the same name.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pliant.coordinator.register_places import RegisterPlace
from pliant.core.errors import (
    ConfigError,
    ConflictError,
    PermanentError,
    RegisterGoneError,
)
from pliant.core.values import Register
from pliant.machine.descriptors import SpareDescriptors
from pliant.machine.event_loop import aside, aside_first

SPARE = 4
"""Descriptors kept for the register: out of descriptors is not out of job."""

HOLD_S = 0.05
"""How long a coordinator does nothing else while the register is written or looked at, in seconds:
a disk takes milliseconds.  What is on its way waits for an order, or is a sign of life.  For a
write so soon after another it does not stand still: much happens, and should be written together.
"""

_log = logging.getLogger(__name__)
_ADAPTER: TypeAdapter[Register] = TypeAdapter(Register)


@dataclass(frozen=True, slots=True)
class _OwnWrite:
    """One write: the bytes that lie there, what they say, and which write it was."""

    data: bytes
    register: Register
    number: int


class StoredRegister:
    """One register in one place, for one coordinator; every method may block on the storage."""

    def __init__(
        self,
        place: RegisterPlace,
        token: str = "",
        command: Sequence[str] = (),
        *,
        may_have_changed: Callable[[], bool] = lambda: True,
    ) -> None:
        """``token``: of agents on other hosts, ``command``: what they run; empty: none;
        ``may_have_changed``: since this one has read or written, raises OSError if nobody knows.
        """
        self._place = place
        self.may_have_changed = may_have_changed
        said = {"token": token, "command": json.dumps(list(command)) if command else ""}
        self._digests = {name: _digest_of(text) for name, text in said.items() if text}
        self._writer = uuid.uuid4().hex
        self._written: _OwnWrite | None = None
        """By this coordinator, last: what lies there mostly, and need not be read again."""

        self._spare = SpareDescriptors(SPARE)

    def __str__(self) -> str:
        return str(self._place)

    @property
    def write_again_s(self) -> tuple[float, ...]:
        """Pauses after a write that failed, in seconds."""
        return self._place.write_again_s

    def read(self) -> Register | None:
        """Return what is recorded; ``None`` if nothing ever was.

        Raises:
            PermanentError: what lies there is no register.
        """
        data = self._place.read()
        return None if data is None else self._register_of(data)

    def write(self, register: Register, *, expected: Register | None) -> None:
        """Replace ``expected`` by ``register``; on return it survives a power cut.

        Raises:
            ConflictError: something else is recorded.
            ConfigError: the agents of the job, which has not ended, have another token, or run
                another command.
        """
        with self._spare.lent():
            found, own = self._require(expected), self._written
            if own is not None and found == own.data:
                number = own.number
            else:
                if found is not None and self._register_of(found).outcome is None:
                    self._require_same(_beside(found))
                number = 0 if found is None else _beside(found).get("writes", 0)
            data = _ADAPTER.dump_python(register, mode="json")
            data |= {"writer": self._writer, "writes": number + 1}
            data |= self._digests
            written = json.dumps(data, separators=(",", ":")).encode()
            is_taken = self._place.exchange(written, expected=found)
            # A store may be asked again after a lost answer, and refuse what it has taken.
            if not is_taken and self._place.read() != written:
                self._raise_conflict()
            self._written = _OwnWrite(written, register, number + 1)

    def confirm(self, expected: Register) -> None:
        """Raise ConflictError unless ``expected`` is still what is recorded (R20)."""
        with self._spare.lent():
            self._require(expected)

    def holds(self, register: Register) -> bool:
        """Whether this is what is recorded, and this coordinator has written it."""
        data = self._place.read()
        return data is not None and self._is_own(data) and self._register_of(data) == register

    def _require(self, expected: Register | None) -> bytes | None:
        """Return what lies there, if it is what is expected."""
        data = self._place.read()
        found = None if data is None else self._register_of(data)
        if found != expected or (self._written is not None and data and not self._is_own(data)):
            self._raise_conflict()
        return data

    def _raise_conflict(self) -> None:
        found = self.read()
        if found is None:
            raise RegisterGoneError(f"{self._place} was removed while the job ran")
        raise ConflictError(
            "another coordinator has taken over this job: "
            f"{self._place} is now that of incarnation {found.incarnation}"
        )

    def _require_same(self, known: dict[str, Any]) -> None:
        """Refuse a job that is another one than that which goes on here."""
        other = [name for name, own in self._digests.items() if known.get(name, own) != own]
        if "token" in other:
            raise ConfigError(
                f"the job whose register is {self._place} has another token: give this host "
                "the --token-file of the others, or begin another run with another --out"
            )
        if other:
            raise ConfigError(
                f"the job whose register is {self._place} runs another command, and goes on; "
                "begin this one with another --register, or stop that one"
            )

    def _is_own(self, data: bytes) -> bool:
        if self._written is not None and data == self._written.data:
            return True
        return bool(_beside(data).get("writer") == self._writer)

    def _register_of(self, data: bytes) -> Register:
        if self._written is not None and data == self._written.data:
            return self._written.register
        try:
            return _parsed(data)
        except ValidationError as error:
            raise PermanentError(
                f"{self._place} is damaged: it is no register. Once nothing of this job runs, "
                "remove it; what is started then goes on from the newest checkpoint"
            ) from error


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=2)  # what is looked at every two seconds is mostly what was there before
def _parsed(data: bytes) -> Register:
    return _ADAPTER.validate_json(data)


@lru_cache(maxsize=2)
def _beside(data: bytes) -> dict[str, Any]:
    """Return what a file of a register says besides it."""
    found: dict[str, Any] = json.loads(data)
    return found


class HeldRegister:
    """The register as this coordinator has written it; another's is a conflict.

    Where it is gone, a coordinator that alone speaks to its agents goes on as far as its last
    boundary, and opens no new history: another may have the register elsewhere (decision 20).
    """

    def __init__(self, register: StoredRegister, *, is_sole: bool = False) -> None:
        """``is_sole``: no other coordinator can reach the agents of this one."""
        self.is_gone = False
        self.trouble: dict[str, Any] | None = None
        """Since when (``at``) it is not reached, in seconds of the epoch, and why; None: it is."""
        self._stored = register
        self._is_sole = is_sole
        self._recorded: Register | None = None
        self._written_s = -HOLD_S

    async def read(self) -> Register | None:
        """Return what a coordinator before has left."""
        self._recorded = await aside(self._stored.read)
        return self._recorded

    @property
    def has_outcome(self) -> bool:
        """Whether it says that the job has ended."""
        return self._recorded is not None and self._recorded.outcome is not None

    async def confirm(self) -> None:
        """Raise ConflictError if another coordinator has taken over (R20)."""
        if self._recorded is None or self.is_gone:
            return
        try:
            await aside_first(HOLD_S, self._stored.confirm, self._recorded)
        except RegisterGoneError:
            if not self._is_sole:
                raise
            self.is_gone = True

    async def confirm_if_changed(self) -> None:
        """Confirm, unless it is known that nobody has written.

        Raises:
            ConflictError: another coordinator has taken over.
            OSError: it is not known.
        """
        try:
            if self._stored.may_have_changed():
                await self.confirm()
        except OSError as error:
            self._note_trouble(error)
            raise
        self.trouble = None

    def _note_trouble(self, error: OSError) -> None:
        since = time.time() if self.trouble is None else self.trouble["at"]
        self.trouble = {"at": since, "reason": f"{self._stored}: {error.strerror or error}"}

    async def write(self, register: Register) -> None:
        """Write, and where it is not known whether that worked, look and write again (R2).

        Raises:
            ConflictError: another coordinator has taken over.
            PermanentError: storage does not take it; or it is gone, and a new history was to begin.
        """
        if register == self._recorded:
            return
        if self.is_gone:
            self._record_without_it(register)
            return
        expected: Register | None = self._recorded
        failure: OSError | None = None
        conflict: ConflictError | None = None
        for wait_s in self._stored.write_again_s:
            try:
                if failure is not None and await aside(self._stored.holds, register):
                    expected = register  # it was written, but perhaps not yet durably
                is_alone = time.monotonic() - self._written_s >= HOLD_S
                write, hold_s = self._stored.write, HOLD_S if is_alone else 0.0
                await aside_first(hold_s, write, register, expected=expected)
                self._written_s = time.monotonic()
            except OSError as error:
                failure = error
                self._note_trouble(error)
                _log.warning("the register could not be written: %s", error)
                await asyncio.sleep(wait_s)
            except RegisterGoneError:
                if not self._is_sole:
                    raise
                self._record_without_it(register)
                return
            except ConflictError as error:
                if failure is None or conflict is not None:
                    raise
                conflict = error  # unless it is what failed, and has happened since it was looked
            else:
                self._recorded, self.trouble = register, None
                return
        if conflict is not None:
            raise conflict
        raise PermanentError(f"the register cannot be written: {failure}") from failure

    def _record_without_it(self, register: Register) -> None:
        """Remember what would be written, if it is of the history that the register told of."""
        before, self._recorded, self.is_gone = self._recorded, register, True
        if before is None or register.lineage != before.lineage:
            raise PermanentError(f"{self._stored} is gone, so no new history may begin")
