"""A fixed claim in this process: devices of a pool for a person or a program, for a while.

Owns one claim from its first report to its withdrawal: the wait with its reasons, the locks of the
devices, the command that uses them, and what happens when the pool takes them back.  What an offer
means is for ``core.tenancy`` to say, how it is told to whoever listens.

    report --> wait (why) --> devices are offered: take their locks --> command, or the time
                                  |                                          |
                                  +-- taken back: end the command, exit 3 <--+--> over: give back
                                  +-- others are offered instead, and no command runs: take those

The command shares the locks, so that a device is free only when both have ended, however they end.
A command that runs cannot change its devices; a claim without one goes on with others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from pliant.core.device_names import confinement, devices_in_words
from pliant.core.errors import EXIT_FAILED, EXIT_NOT_STARTED, EXIT_OK, EXIT_STOPPED, ConfigError
from pliant.core.tenancy import DEFAULT_CLASS, DEFAULT_TEAM, Demand, Swap, swap_for
from pliant.machine import device_locks as locks
from pliant.machine.device_locks import DeviceLock
from pliant.machine.processes import signal_at_parents_death
from pliant.machine.registry import DEVICES, find_pool
from pliant.pool.claim_client import ClaimAtPool, UnheardError
from pliant.wire.offers import Offer, Report

REPORT_S = 0.5
"""Between two reports, in seconds: a person waits for the first answer, and the pool for the last
device."""

POLL_S = 0.05
"""Longest time for which the end of the command goes unnoticed, in seconds."""

MARGIN_S = 2.0
"""How long before the end of its notice a command is killed that does not end, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimConfig:
    """What is claimed, for whom and how long."""

    name: str
    pool: str
    records: Path
    """Directory of the records of pools, and of each pool's own directory."""

    devices: int
    for_s: float | None = None
    """None: until the command ends, or Ctrl-C."""

    wait_s: float | None = None
    """None: wait for as long as it takes."""

    priority: str = DEFAULT_CLASS
    team: str = DEFAULT_TEAM
    device_kind: str = ""
    notice_s: float = 30.0
    command: tuple[str, ...] = ()

    @property
    def demand(self) -> Demand:
        """Return what the pool is asked for."""
        return Demand(
            kind="fixed",
            device_kind=self.device_kind,
            team=self.team,
            priority=self.priority,
            min_replicas=self.devices,
            ask_replicas=self.devices,
            can_suspend=True,  # a program that is ended gives its devices back
            notice_s=self.notice_s,
        )


Tell = Callable[..., None]
"""Tells somebody where a claim stands: its state, a sentence, and values by name."""


class _Interrupted:
    """Whether Ctrl-C or SIGTERM came; ``wait`` ends at once when it does."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.times = 0
        self._event = threading.Event()

    def wait(self, wait_s: float) -> bool:
        """Wait; return whether a signal came."""
        return self._event.wait(max(0.0, wait_s))

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Catch both signals meanwhile."""

        def handler(number: int, frame: FrameType | None) -> None:
            self.number = number
            self.times += 1
            self._event.set()

        before = {number: signal.signal(number, handler) for number in (2, 15)}
        try:
            yield
        finally:
            for number, one in before.items():
                signal.signal(number, one)


def run_claim(config: ClaimConfig, environ: Mapping[str, str], tell: Tell) -> int:
    """Claim devices, hold them for as long as asked, give them back; return the exit code.

    Raises:
        ConfigError: no pool runs, or it refuses the claim.
    """
    find_pool(config.pool, config.records)
    interrupted = _Interrupted()
    claim = _FixedClaim(config, tell, interrupted)
    with interrupted.caught():
        return claim.run(environ)


class _FixedClaim:
    def __init__(self, config: ClaimConfig, tell: Tell, interrupted: _Interrupted) -> None:
        self._config = config
        self._tell = tell
        self._interrupted = interrupted
        self._pool = ClaimAtPool(config.pool, config.name, config.records)
        self._offer: Offer | None = None
        self._called: dict[int, str] = {}
        self._held: list[DeviceLock] = []
        self._command: subprocess.Popen[bytes] | None = None

    def run(self, environ: Mapping[str, str]) -> int:
        """Wait, use the devices, give them back; return the exit code."""
        try:
            return self._use(environ) if self._wait() else self._not_given()
        finally:
            for lock in self._held:
                lock.release()
            self._pool.withdraw(os.getpid())
            self._pool.close()

    # --- what is offered ----------------------------------------------------------------

    def _report(self, holds: tuple[int, ...]) -> Offer:
        """Say what is held; return what may be used."""
        before = self._offer
        body = Report(
            wanted=self._config.demand,
            pool=before.pool if before else "",
            revision=before.revision if before else 0,
            holds=holds,
            pid=os.getpid(),
            is_running=bool(holds),
        )
        offer = self._offer = self._pool.report(body)
        self._called.update(zip(offer.devices, offer.names, strict=False))
        return offer

    def _swap(self, offer: Offer) -> Swap | None:
        return swap_for(
            self._devices,
            self._config.devices,
            devices=offer.devices,
            replicas=offer.replicas,
            suspend=offer.suspend,
        )

    @property
    def _devices(self) -> tuple[int, ...]:
        return tuple(lock.device for lock in self._held)

    # --- waiting ------------------------------------------------------------------------

    def _wait(self) -> bool:
        """Wait until the devices are offered and nobody else uses them; return whether they are."""
        wait_s = self._config.wait_s
        until_s = None if wait_s is None else time.monotonic() + wait_s
        while True:
            why = self._why_waiting()
            if not why:
                return True
            self._tell("waiting", f"waiting: {why}")
            left_s = REPORT_S if until_s is None else min(REPORT_S, until_s - time.monotonic())
            if left_s <= 0 or self._interrupted.wait(left_s):
                return False

    def _why_waiting(self) -> str:
        """Report, and take what is offered; return why nothing is held yet."""
        before = self._offer
        try:
            offer = self._report(before.devices if before and not before.suspend else ())
        except UnheardError as error:
            return str(error)
        swap = self._swap(offer)
        if swap is None:
            return offer.reason or "the pool decides"
        taken = self._take_locks(swap.take)
        if taken is None:
            return "the devices are still in use by another process"
        self._held = taken
        return ""

    def _take_locks(self, devices: Sequence[int]) -> list[DeviceLock] | None:
        """Take the locks of all devices, or of none."""
        directory = self._config.records / self._config.pool / DEVICES
        held: list[DeviceLock] = []
        for device in devices:
            lock = locks.take_device(directory, device, claim=self._config.name)
            if lock is None:
                for other in held:
                    other.release()
                return None
            held.append(lock)
        return held

    def _not_given(self) -> int:
        if self._interrupted.number is not None:
            self._tell("withdrawn", "withdrawn; nothing was given")
            return EXIT_STOPPED
        why = self._offer.reason if self._offer else "the pool did not answer"
        self._tell("withdrawn", f"not given within {self._config.wait_s:g} s: {why}")
        return EXIT_FAILED

    # --- holding ------------------------------------------------------------------------

    def _use(self, environ: Mapping[str, str]) -> int:
        """Hold the devices until the time or the command is over, or they are taken back."""
        config = self._config
        limit = "" if config.for_s is None else f" for {config.for_s:g} s"
        what = "it" if len(self._held) == 1 else "them"
        how = "" if config.command else f"; Ctrl-C gives {what} back"
        self._tell("given", f"{self._are(self._devices)} yours{limit}{how}", devices=self._devices)
        try:
            self._start(environ)
        except OSError as error:
            return self._not_started(str(error.strerror))
        except subprocess.SubprocessError:  # its confinement has failed
            return self._not_started(f"this process may not use {', '.join(self._names)}")
        until_s = None if config.for_s is None else time.monotonic() + config.for_s
        report_s = 0.0
        while True:
            now_s = time.monotonic()
            code = self._ended(now_s, until_s)
            if code is None and now_s >= report_s:
                report_s = now_s + REPORT_S
                code = self._follow()
            if code is not None:
                return code
            left_s = REPORT_S if until_s is None else until_s - time.monotonic()
            self._interrupted.wait(POLL_S if self._command is not None else min(REPORT_S, left_s))

    def _not_started(self, why: str) -> int:
        self._tell("ended", f"{self._config.command[0]} cannot be run: {why}")
        return EXIT_NOT_STARTED

    def _ended(self, now_s: float, until_s: float | None) -> int | None:
        """Return the exit code if the command, a person or the time has ended the claim."""
        given_back = f"{self._are(self._devices)} given back"
        if self._command is not None and self._command.poll() is not None:
            self._tell("ended", f"the command has ended; {given_back}")
            code = self._command.returncode
            return code if code >= 0 else 128 - code
        if self._interrupted.number is not None:
            self._end_interrupted()
            self._tell("withdrawn", given_back)
            return EXIT_STOPPED
        if until_s is not None and now_s >= until_s:
            self._end_command(MARGIN_S)
            self._tell("ended", f"{self._config.for_s:g} s are over; {given_back}")
            return EXIT_OK
        return None

    def _follow(self) -> int | None:
        """Report, and hold what is offered; return the exit code if that is not possible.

        While the pool is dead, nobody else can be given the devices.
        """
        before = self._devices
        try:
            offer = self._report(before)
        except UnheardError as error:
            self._tell("alone", f"the devices stay yours, and the pool is looked for: {error}")
            return None
        except ConfigError as error:  # it does not know, or does not want, this claim any more
            return self._taken_back(str(error), self._config.notice_s)
        swap = self._swap(offer)
        if swap is None:
            return self._taken_back(offer.reason or "the pool needs them", offer.notice_s)
        if not swap.leave:
            return None
        why = self._move(swap)
        if why:
            return self._taken_back(why, offer.notice_s)
        text = (
            f"{self._are(self._devices)} yours in place of {devices_in_words(before, self._called)}"
        )
        self._tell("moved", text, devices=self._devices)
        return None

    def _move(self, swap: Swap) -> str:
        """Hold what is offered in place of what is held; return why not, or nothing."""
        if self._config.command:
            gone = self._are(swap.leave)
            return f"{gone} drained, and a command that runs cannot go on with others"
        taken = self._take_locks(swap.take)
        if taken is None:
            return f"{self._are(swap.take)} offered in place, and still in use by another process"
        for lock in [lock for lock in self._held if lock.device in swap.leave]:
            lock.release()
            self._held.remove(lock)
        self._held = sorted([*self._held, *taken], key=lambda lock: lock.device)
        return ""

    def _taken_back(self, why: str, notice_s: float) -> int:
        self._end_command(notice_s - MARGIN_S)
        were = "was" if len(self._held) == 1 else "were"
        said = devices_in_words(self._devices, self._called)
        self._tell("taken back", f"{said} {were} taken back: {why}")
        return EXIT_STOPPED

    # --- the command --------------------------------------------------------------------

    def _start(self, environ: Mapping[str, str]) -> None:
        """Start the command, confined to the devices and with their locks; it is told to end if
        this process dies.
        """
        if not self._config.command:
            return
        around = confinement(self._names, environ=environ)
        numbers = {locks.DEVICES_VARIABLE: ",".join(map(str, self._devices))}
        self._command = subprocess.Popen(  # noqa: S603 - what the user typed
            self._config.command,
            env={**environ, **around.variables, **numbers},
            pass_fds=[lock.fd for lock in self._held],
            preexec_fn=partial(_begin_command, around.cores),
        )

    @property
    def _names(self) -> list[str]:
        """What the devices are called that are held, as far as they have names."""
        return [self._called.get(device, "") for device in self._devices if self._called]

    def _are(self, devices: tuple[int, ...]) -> str:
        verb = "is" if len(devices) == 1 else "are"
        return f"{devices_in_words(devices, self._called)} {verb}"

    def _end_interrupted(self) -> None:
        """End the command, which has heard Ctrl-C as well; the next signal ends the wait for it."""
        command, interrupted = self._command, self._interrupted
        if command is None:
            return
        times, until_s = interrupted.times, time.monotonic() + self._config.notice_s
        if interrupted.number not in (None, signal.SIGINT):
            command.send_signal(interrupted.number)
        while interrupted.times == times and command.poll() is None and time.monotonic() < until_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(POLL_S)
        _wait_for(command, 0.0)

    def _end_command(self, within_s: float) -> None:
        """Ask the command to end; kill it if it does not in time."""
        if self._command is not None and self._command.poll() is None:
            self._command.terminate()
            _wait_for(self._command, max(0.0, within_s))


def _begin_command(cores: frozenset[int] | None) -> None:
    """Confine this process, which is about to become the command."""
    if cores is not None:
        os.sched_setaffinity(0, cores)
    signal_at_parents_death(signal.SIGTERM)


def _wait_for(command: subprocess.Popen[bytes], within_s: float) -> None:
    try:
        command.wait(within_s)
    except subprocess.TimeoutExpired:
        command.kill()
        command.wait()
