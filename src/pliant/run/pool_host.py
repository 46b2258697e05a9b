"""A pool in this process: served, found by jobs and people, ended by signals.

Owns what a process that runs a pool has besides it: socket, event log, token, discovery record,
signals, and that no other pool of its name runs.  Decides nothing.

    run_pool: state of the life before --> serve --> record --> ... --> record gone, socket closed
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from pliant.core.errors import EXIT_OK, ConfigError
from pliant.machine import run_files
from pliant.machine.clock import Clock
from pliant.machine.device_locks import make_entered
from pliant.machine.event_loop import END_SIGNALS, on_signals
from pliant.machine.files import is_shared_directory
from pliant.machine.interfaces import user_name
from pliant.machine.processes import machine_id, process_started
from pliant.machine.registry import (
    DEVICES,
    SHARED_POOLS_VARIABLE,
    SOCKET,
    RuntimeFiles,
    listen,
    name_taken,
    served_pools,
)
from pliant.observe.log import EventLog, Journal, Record
from pliant.observe.parts import PART_BYTES
from pliant.pool.claim_client import Pusher
from pliant.pool.devices import DeviceWatch, SharedDeviceWatch
from pliant.pool.driver import PoolDriver
from pliant.pool.state import StateFile, at_rest
from pliant.run.host_devices import accelerators_called
from pliant.run.pool_config import PoolConfig, begun, check_promises
from pliant.run.run_directory import ENDING_S, locked, make_private

Listener = Callable[[Record], None]


def check(config: PoolConfig) -> None:
    """Check what can be checked before anything is written.

    Raises:
        ConfigError: it cannot run like this, or runs already.
    """
    if any(pool.name == config.name for pool in served_pools(config.records)):
        raise name_taken("pool", config.name)
    if config.gid is not None and process_started(1) is None:
        raise ConfigError(
            "a shared pool must see whether the processes of other users live, and /proc hides them"
            " here (hidepid); have root start it"
        )
    if config.file is not None:
        check_promises(config.file.spec.teams, config.devices or config.default_devices)


def run_pool(config: PoolConfig, *, listener: Listener) -> int:
    """Run a pool until it is stopped; return the exit code.

    Raises:
        ConfigError: it cannot run like this, or a pool of this name runs.
        PermanentError: its state cannot be read.
    """
    try:
        return asyncio.run(_run(config, listener))
    except KeyboardInterrupt:  # before it had begun
        return EXIT_OK


def make_directory(config: PoolConfig) -> Path:
    """Make the directory of a pool: for its user, or for those who share it.

    Raises:
        ConfigError: it cannot be made.
    """
    out = config.records / config.name
    if config.gid is None:
        make_private(out)
        if is_shared_directory(out):
            raise ConfigError(
                f"{out} is of a pool that users share; start that with --group, or choose another"
                " --name"
            )
        return out
    try:
        fresh = [one for one in (config.records, *config.records.parents) if not one.exists()]
        config.records.mkdir(parents=True, exist_ok=True)
        for one in fresh:
            one.chmod(0o755)  # whatever the umask: members are to find the pool
    except OSError as error:
        raise ConfigError(
            f"{config.records} cannot be made: {error.strerror}; have it made, or say where pools"
            f" are shared with {SHARED_POOLS_VARIABLE}"
        ) from error
    make_entered(out, config.gid)
    return out


async def _run(config: PoolConfig, listener: Listener) -> int:
    from pliant.http.server import WAITING, open_socket

    check(config)
    out = make_directory(config)
    with contextlib.ExitStack() as stack:
        if config.gid is None:
            sock = stack.enter_context(contextlib.closing(open_socket(config.address, config.port)))
        taken = str(name_taken("pool", config.name))
        stack.enter_context(locked(out, alone=True, taken=taken, within_s=ENDING_S))
        if config.gid is not None:
            sock = stack.enter_context(contextlib.closing(listen(out, config.gid, waiting=WAITING)))
            stack.callback((out / SOCKET).unlink, missing_ok=True)
        state = StateFile(out / run_files.STATE)
        found = state.read()
        saved = begun(config, found, state.path)
        log = Journal(run_files.event_log(out), job=config.name)
        log.subscribe(listener)
        log.carried = list
        log.subscribe(lambda _: _cut_when_long(log))
        with contextlib.closing(log):
            driver = PoolDriver(
                saved,
                state=state,
                watch=(
                    DeviceWatch(out / DEVICES, log)
                    if config.gid is None
                    else SharedDeviceWatch(out / DEVICES, log, gid=config.gid)
                ),
                log=log,
                accelerators=accelerators_called(saved.names, config.environ),
                pusher=Pusher(),
                clock=Clock(),
                settings=config.settings,
            )
            await _serve(driver, config, log, sock, follows=found is not None)
            keeping = driver.stop()
            if not keeping:
                _put_to_rest(driver, state)
            log.write("pool_stopped", name=config.name, keeping=keeping)
    return EXIT_OK


def _put_to_rest(driver: PoolDriver, state: StateFile) -> None:
    """Keep what the next pool of this name begins with."""
    try:
        state.write(at_rest(driver.saved))
    except OSError as error:  # what was written last is there still
        driver.log_complaint(f"what was set cannot be kept: {error.strerror}")


def _cut_when_long(log: EventLog) -> None:
    if log.size() >= PART_BYTES:
        log.cut()


async def _serve(
    driver: PoolDriver, config: PoolConfig, log: EventLog, sock: socket.socket, *, follows: bool
) -> None:
    from pliant.dashboard.page import add_page
    from pliant.http.login import Logins
    from pliant.http.server import answering, serving, url_of
    from pliant.pool.app import create_app

    if config.gid is not None:
        app = create_app(driver, token=None, events_path=log.path, owner_uid=os.geteuid())
        served: AbstractAsyncContextManager[None] = answering(app, sock)
    else:
        files, token = (
            RuntimeFiles.of("pool", config.name, config.records),
            secrets.token_urlsafe(32),
        )
        logins = Logins({socket.gethostname()})
        app = create_app(driver, token=token, events_path=log.path, logins=logins)
        add_page(app, "pool", logins)
        served = serving(app, sock, files, token=token, out=log.path.parent)
    log.write(
        "pool_started",
        name=config.name,
        life=driver.saved.life,
        devices=driver.saved.size,
        names=list(driver.saved.names),
        follows=follows,
        url=url_of(sock),
        user=user_name(os.geteuid()),
        boot=machine_id().partition(" ")[0],
    )
    with on_signals(dict.fromkeys((signal.SIGINT, *END_SIGNALS), driver.stop)):
        try:
            await driver.begin()
            async with served:
                await driver.run()
        finally:
            await driver.pusher.close()
