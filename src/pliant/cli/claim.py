"""``pliant claim``: devices of a pool for a person or a program, for a while.

Owns one claim from its first report to its withdrawal: the wait with its reasons, the locks of the
devices, the command that uses them, and what happens when the pool takes them back.  Decides
nothing.

    report --> wait (why) --> devices are offered: take their locks --> command, or the time
                                  |                                          |
                                  +-- taken back: end the command, exit 3 <--+--> over: give back
                                  +-- others are offered instead, and no command runs: take those

The command shares the locks, so that a device is free only when both have ended, however they end.
A command that runs cannot change its devices; a claim without one goes on with others.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import httpx

from pliant.cli.printing import say
from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_FAILED, EXIT_NOT_STARTED, EXIT_OK, EXIT_STOPPED
from pliant.core.pool_defaults import DEFAULT_CLASS, DEFAULT_TEAM
from pliant.http.client import UnheardError, offer_in
from pliant.machine import device_locks as locks
from pliant.machine.device_locks import DeviceLock
from pliant.machine.pools import DEVICES, find_pool, pool_directory
from pliant.machine.processes import signal_at_parents_death
from pliant.wire.offers import Offer, Report, Wanted

REPORT_S = 0.5
"""Between two reports, in seconds: a person waits for the first answer, and the pool for the last
device."""

ANSWER_S = 5.0
"""Longest wait for an answer, in seconds."""

POLL_S = 0.05
"""Longest time for which the end of the command goes unnoticed, in seconds."""

MARGIN_S = 2.0
"""How long before the end of its notice a command is killed that does not end, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimConfig:
    """What is claimed, for whom and how long."""

    name: str
    pool: str
    devices: int
    for_s: float | None = None
    """None: until the command ends, or Ctrl-C."""

    wait_s: float | None = None
    """None: wait for as long as it takes."""

    priority: str = DEFAULT_CLASS
    team: str = DEFAULT_TEAM
    notice_s: float = 30.0
    command: tuple[str, ...] = ()
    is_json: bool = False

    @property
    def wanted(self) -> Wanted:
        """Return what the pool is asked for."""
        return Wanted(
            kind="fixed",
            team=self.team,
            priority=self.priority,
            min_replicas=self.devices,
            ask_replicas=self.devices,
            can_suspend=True,  # a program that is ended gives its devices back
            notice_s=self.notice_s,
        )


class _Desk:
    """The conversation with the pool; the discovery record is read anew for each report."""

    def __init__(self, config: ClaimConfig) -> None:
        self._config = config
        self._http = httpx.Client(timeout=ANSWER_S, trust_env=False)
        self.offer: Offer | None = None

    def report(self, holds: tuple[int, ...]) -> Offer:
        """Say what is held; return what may be used.

        Raises:
            ConfigError: the pool refuses the claim.
            UnheardError: no answer.
        """
        before = self.offer
        body = Report(
            wanted=self._config.wanted,
            pool=before.pool if before else "",
            revision=before.revision if before else 0,
            holds=holds,
            pid=os.getpid(),
            is_running=bool(holds),
        )
        self.offer = offer_in(self._ask("PUT", body.model_dump(mode="json")))
        return self.offer

    def withdraw(self) -> None:
        """Say that the claim is over; a pool that does not hear it finds the locks free."""
        with contextlib.suppress(UnheardError):
            self._ask("DELETE", pid=os.getpid())
        self._http.close()

    def _ask(self, method: str, body: object = None, **query: int) -> httpx.Response:
        try:
            pool = find_pool(self._config.pool)
            return self._http.request(
                method,
                f"{pool.url}/v1/claims/{self._config.name}",
                json=body,
                params=query,
                headers={"Authorization": f"Bearer {pool.token()}"},
            )
        except ConfigError as error:
            raise UnheardError(str(error)) from error
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise UnheardError(f"pool {self._config.pool} does not answer: {said}") from error


class _Voice:
    """Tells the person, or the program that reads the JSON, what has changed."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._said: tuple[str, str] | None = None

    def tell(self, state: str, text: str, **values: Any) -> None:
        """Say where the claim stands, once."""
        if (state, text) == self._said:
            return
        self._said = (state, text)
        if self._is_json:
            print(json.dumps({"state": state, "reason": text, **values}), flush=True)
        else:
            say(text)


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


def claim(config: ClaimConfig, environ: Mapping[str, str]) -> int:
    """Claim devices, hold them for as long as asked, give them back; return the exit code.

    Raises:
        ConfigError: no pool runs, or it refuses the claim.
    """
    find_pool(config.pool)
    desk, voice, interrupted = _Desk(config), _Voice(is_json=config.is_json), _Interrupted()
    with interrupted.caught():
        try:
            held = _wait(config, desk, voice, interrupted)
            if held is None:
                return _not_given(config, voice, desk, interrupted)
            try:
                return _use(config, desk, voice, interrupted, held, environ)
            finally:
                for lock in held:
                    lock.release()
        finally:
            desk.withdraw()


def _wait(
    config: ClaimConfig, desk: _Desk, voice: _Voice, interrupted: _Interrupted
) -> list[DeviceLock] | None:
    """Wait until the devices are offered and nobody else uses them; None: given up."""
    until_s = None if config.wait_s is None else time.monotonic() + config.wait_s
    while True:
        try:
            offer = desk.report(_kept(desk.offer))
        except UnheardError as error:
            voice.tell("waiting", f"waiting: {error}")
        else:
            if offer.replicas >= config.devices and not offer.suspend:
                held = _take(config, offer.devices[: config.devices])
                if held is not None:
                    return held
                voice.tell("waiting", "waiting: the devices are still in use by another process")
            else:
                voice.tell("waiting", f"waiting: {offer.reason or 'the pool decides'}")
        left_s = REPORT_S if until_s is None else min(REPORT_S, until_s - time.monotonic())
        if left_s <= 0 or interrupted.wait(left_s):
            return None


def _kept(offer: Offer | None) -> tuple[int, ...]:
    """Return what a claim that uses nothing yet keeps of an offer: all of it, or nothing."""
    return () if offer is None or offer.suspend else offer.devices


def _take(config: ClaimConfig, devices: Sequence[int]) -> list[DeviceLock] | None:
    """Take the locks of all devices, or of none."""
    directory = pool_directory(config.pool) / DEVICES
    held: list[DeviceLock] = []
    for device in devices:
        lock = locks.take(directory, device, claim=config.name)
        if lock is None:
            for other in held:
                other.release()
            return None
        held.append(lock)
    return held


def _not_given(config: ClaimConfig, voice: _Voice, desk: _Desk, interrupted: _Interrupted) -> int:
    if interrupted.number is not None:
        voice.tell("withdrawn", "withdrawn; nothing was given")
        return EXIT_STOPPED
    why = desk.offer.reason if desk.offer else "the pool did not answer"
    voice.tell("withdrawn", f"not given within {config.wait_s:g} s: {why}")
    return EXIT_FAILED


def _use(
    config: ClaimConfig,
    desk: _Desk,
    voice: _Voice,
    interrupted: _Interrupted,
    held: list[DeviceLock],
    environ: Mapping[str, str],
) -> int:
    """Hold the devices until the time or the command is over, or they are taken back."""
    devices = _numbers(held)
    which, are, were = _words(devices)
    limit = "" if config.for_s is None else f" for {config.for_s:g} s"
    what = "it" if len(held) == 1 else "them"
    how = "" if config.command else f"; Ctrl-C gives {what} back"
    voice.tell("given", f"{which} {are} yours{limit}{how}", devices=devices)
    try:
        command = _started(config, held, devices, environ)
    except OSError as error:
        voice.tell("ended", f"{config.command[0]} cannot be run: {error.strerror}")
        return EXIT_NOT_STARTED
    until_s = None if config.for_s is None else time.monotonic() + config.for_s
    report_s = 0.0
    while True:
        now_s = time.monotonic()
        if command is not None and command.poll() is not None:
            voice.tell("ended", f"the command has ended; {which} {are} given back")
            return command.returncode if command.returncode >= 0 else 128 - command.returncode
        if interrupted.number is not None:
            return _interrupted(command, voice, f"{which} {are}", interrupted, config)
        if until_s is not None and now_s >= until_s:
            _end(command, MARGIN_S)
            voice.tell("ended", f"{config.for_s:g} s are over; {which} {are} given back")
            return EXIT_OK
        if now_s >= report_s:
            report_s = now_s + REPORT_S
            other = _other(config, desk, voice, devices)
            if other is not None:
                why = _move(config, held, other)
                if why:
                    _end(command, other.notice_s - MARGIN_S)
                    voice.tell("taken back", f"{which} {were} taken back: {why}")
                    return EXIT_STOPPED
                before, devices = which, _numbers(held)
                which, are, were = _words(devices)
                voice.tell("moved", f"{which} {are} yours in place of {before}", devices=devices)
        interrupted.wait(POLL_S if command is not None else min(REPORT_S, _left_s(until_s)))


def _move(config: ClaimConfig, held: list[DeviceLock], offer: Offer) -> str:
    """Hold what is offered in place of what is held; return why not, or nothing."""
    if offer.suspend or min(offer.replicas, len(offer.devices)) < config.devices:
        return offer.reason or "the pool needs them"
    kept = [lock for lock in held if lock.device in offer.devices]
    gone = [lock for lock in held if lock not in kept]
    if config.command:
        which, is_, _ = _words(_numbers(gone))
        return f"{which} {is_} drained, and a command that runs cannot go on with others"
    others = set(offer.devices).difference(_numbers(held))
    fresh = sorted(others)[: config.devices - len(kept)]
    taken = _take(config, fresh)
    if taken is None:
        which, is_, _ = _words(tuple(fresh))
        return f"{which} {is_} offered in place, and still in use by another process"
    for lock in gone:
        lock.release()
    held[:] = sorted([*kept, *taken], key=lambda lock: lock.device)
    return ""


def _numbers(held: list[DeviceLock]) -> tuple[int, ...]:
    return tuple(lock.device for lock in held)


def _words(devices: tuple[int, ...]) -> tuple[str, str, str]:
    """Return what people call these devices, and the verbs that go with it."""
    if len(devices) == 1:
        return f"device {devices[0]}", "is", "was"
    return f"devices {', '.join(map(str, devices))}", "are", "were"


def _other(
    config: ClaimConfig, desk: _Desk, voice: _Voice, devices: tuple[int, ...]
) -> Offer | None:
    """Report; return the offer if it does not cover what is held any more.

    While the pool is dead, nobody else can be given the devices.
    """
    try:
        offer = desk.report(devices)
    except UnheardError as error:
        voice.tell("alone", f"the devices stay yours, and the pool is looked for: {error}")
        return None
    except ConfigError as error:  # it does not know, or does not want, this claim any more
        return Offer(pool="", revision=1, notice_s=config.notice_s, reason=str(error))
    is_whole = offer.replicas >= config.devices and set(devices) <= set(offer.devices)
    return None if is_whole and not offer.suspend else offer


def _started(
    config: ClaimConfig,
    held: list[DeviceLock],
    devices: tuple[int, ...],
    environ: Mapping[str, str],
) -> subprocess.Popen[bytes] | None:
    """Start the command with the devices' locks; it is told to end if this process dies."""
    if not config.command:
        return None
    return subprocess.Popen(  # noqa: S603 - what the user typed
        config.command,
        env={**environ, locks.DEVICES_VARIABLE: ",".join(map(str, devices))},
        pass_fds=[lock.fd for lock in held],
        preexec_fn=partial(signal_at_parents_death, signal.SIGTERM),
    )


def _interrupted(
    command: subprocess.Popen[bytes] | None,
    voice: _Voice,
    devices: str,
    interrupted: _Interrupted,
    config: ClaimConfig,
) -> int:
    """End the command, which has heard Ctrl-C as well; return the exit code.

    The next signal ends the wait for it.
    """
    if command is not None:
        times, until_s = interrupted.times, time.monotonic() + config.notice_s
        if interrupted.number not in (None, signal.SIGINT):
            command.send_signal(interrupted.number)
        while interrupted.times == times and command.poll() is None:
            if time.monotonic() >= until_s:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(POLL_S)
        _wait_for(command, 0.0)
    voice.tell("withdrawn", f"{devices} given back")
    return EXIT_STOPPED


def _end(command: subprocess.Popen[bytes] | None, within_s: float) -> None:
    """Ask the command to end; kill it if it does not in time."""
    if command is not None and command.poll() is None:
        command.terminate()
        _wait_for(command, max(0.0, within_s))


def _wait_for(command: subprocess.Popen[bytes], within_s: float) -> None:
    try:
        command.wait(within_s)
    except subprocess.TimeoutExpired:
        command.kill()
        command.wait()


def _left_s(until_s: float | None) -> float:
    return REPORT_S if until_s is None else until_s - time.monotonic()
