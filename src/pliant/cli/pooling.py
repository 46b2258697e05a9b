"""A pool in this process: served, found by jobs and people, ended by signals.

Owns what a process that runs a pool has besides it: socket, event log, token, discovery record,
signals, the source of its capacity, and that no other pool of its name runs.  Decides nothing.

    run_pool: state of the life before --> serve --> record --> ... --> record gone, socket closed
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pliant.cli.discovery import RuntimeFiles
from pliant.cli.hosting import locked, log_path
from pliant.cli.pools import DEVICES, pool_directory, running_pools
from pliant.core.errors import ConfigError
from pliant.observe.log import EventLog, Record
from pliant.pool.capacity import read_number, replayed, watched
from pliant.pool.driver import Driver, PoolSettings
from pliant.pool.orders import Orders
from pliant.pool.push import Pusher
from pliant.pool.state import SavedPool, StateFile
from pliant.pool.watch import Watch
from pliant.pool.wishes import Wishes
from pliant.spec.pool import PoolFile, TeamEntry, promised_too_much
from pliant.spec.trace import Change, parse_trace
from pliant.wire.clock import Clock

Listener = Callable[[Record], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What sets the number of devices: nobody but people, a watched file, or a trace."""

    text: str
    """As it was typed."""

    file: Path | None = None
    trace: Path | None = None
    time_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """A pool to run."""

    name: str
    devices: int | None
    """None: as many as in the life before, or ``default_devices``."""

    default_devices: int
    file: PoolFile | None = None
    """None: teams and classes as in the life before."""

    capacity: Capacity | None = None
    port: int = 0
    address: str = "127.0.0.1"
    settings: PoolSettings | None = None


def parse_capacity(text: str | None, *, time_scale: float | None) -> Capacity | None:
    """Read ``file:PATH`` or ``trace:FILE``.

    Raises:
        ConfigError: it is neither, or is played at no speed.
    """
    kind, _, path = (text or "").partition(":")
    if time_scale is not None and kind != "trace":
        raise ConfigError("--time-scale is for --capacity trace:FILE")
    if time_scale is not None and time_scale <= 0:
        raise ConfigError(f"--time-scale {time_scale:g} must be above 0")
    if text is None:
        return None
    if kind not in ("file", "trace") or not path:
        raise ConfigError(f"--capacity {text!r} is neither file:PATH nor trace:FILE")
    if kind == "file":
        return Capacity(text=text, file=Path(path))
    return Capacity(text=text, trace=Path(path), time_scale=time_scale or 1.0)


def check(config: PoolConfig) -> None:
    """Check what can be checked before anything is written.

    Raises:
        ConfigError: it cannot run like this, or runs already.
    """
    if any(pool.name == config.name for pool in running_pools()):
        raise ConfigError(_runs_already(config.name))
    if config.file is not None:
        _check_promises(config.file.spec.teams, config.devices or config.default_devices)
    if config.capacity is not None:
        _changes(config.capacity, config.devices or config.default_devices)
        if config.capacity.file is not None:
            read_number(config.capacity.file)


def run_pool(config: PoolConfig, *, listener: Listener) -> int:
    """Run a pool until it is stopped; return the exit code.

    Raises:
        ConfigError: it cannot run like this, or a pool of this name runs.
        PermanentError: its state cannot be read.
    """
    try:
        return asyncio.run(_run(config, listener))
    except KeyboardInterrupt:  # before it had begun
        return 0


async def _run(config: PoolConfig, listener: Listener) -> int:
    from pliant.coordinator.bearer import Bearer
    from pliant.coordinator.server import Server, open_socket, url_of
    from pliant.pool.app import create_app

    check(config)
    out, files = pool_directory(config.name), RuntimeFiles.of("pool", config.name)
    _make(out)
    sock = open_socket(config.address, config.port)
    with contextlib.closing(sock), locked(out, alone=True, taken=_runs_already(config.name)):
        state = StateFile(out / "state.json")
        found = state.read()
        saved = _begun(config, found)
        log, pusher = EventLog(log_path(out), job=config.name), Pusher()
        log.subscribe(listener)
        with contextlib.closing(log):
            orders = Orders.of(saved, follows=config.capacity.text if config.capacity else "")
            driver = Driver(
                saved,
                orders=orders,
                state=state,
                watch=Watch(out / DEVICES, log),
                log=log,
                pusher=pusher,
                clock=Clock(),
                settings=config.settings,
            )
            token = secrets.token_urlsafe(32)
            app = create_app(driver, guard=Bearer(token, "the pool"), events_path=log_path(out))
            server = Server(app, sock)
            with _signals(driver):
                log.write(
                    "pool_started",
                    name=config.name,
                    life=driver.life,
                    devices=saved.size,
                    capacity=orders.follows or None,
                    follows=found is not None,
                    url=url_of(sock),
                )
                try:
                    await driver.begin()
                    await server.start()
                    files.write(url=url_of(sock), token=token, out=out)
                    await _until_stopped(driver, config, saved)
                finally:
                    await server.stop()
                    await pusher.close()
                    files.remove()
            keeping = driver.stop()
            if not keeping:
                state.remove()
            log.write("pool_stopped", name=config.name, keeping=keeping)
    return 0


async def _until_stopped(driver: Driver, config: PoolConfig, saved: SavedPool) -> None:
    running = asyncio.create_task(driver.run())
    following = asyncio.create_task(_follow(driver, config, saved))
    try:
        done, _ = await asyncio.wait({running, following}, return_when=asyncio.FIRST_COMPLETED)
        if following in done:
            following.result()
        await running
    finally:
        for task in (running, following):
            task.cancel()
        await asyncio.gather(running, following, return_exceptions=True)


async def _follow(driver: Driver, config: PoolConfig, saved: SavedPool) -> None:
    """Tell the pool how many devices there are, as its source says it."""
    capacity = config.capacity
    if capacity is not None:
        async for devices in _numbers(capacity, saved, driver):
            await Wishes(driver).follow(devices)
    await asyncio.Event().wait()


def _numbers(capacity: Capacity, saved: SavedPool, driver: Driver) -> AsyncIterator[int]:
    if capacity.file is not None:
        return watched(capacity.file, saved.size, driver.complain)
    elapsed_s = time.time() - (saved.trace_began_at or time.time())
    return replayed(
        _changes(capacity, saved.size), time_scale=capacity.time_scale, elapsed_s=elapsed_s
    )


def _begun(config: PoolConfig, found: SavedPool | None) -> SavedPool:
    """Return what the pool begins with: what was asked for, over what the life before has left.

    Raises:
        ConfigError: quotas promise more than there is.
    """
    spec = config.file.spec if config.file else None
    size = config.devices or (found.size if found else config.default_devices)
    begun = found or SavedPool(name=config.name, size=size, devices=size)
    changed: dict[str, object] = {"size": size, "devices": size, "trace_began_at": None}
    if spec is not None:
        changed["teams"] = tuple(spec.teams)
        changed["classes"] = {entry.name: entry.value for entry in spec.priority_classes}
    if config.capacity is not None:
        changed["devices"] = _first(config.capacity, size)
    if config.capacity is not None and config.capacity.trace is not None:
        changed["trace_began_at"] = begun.trace_began_at or time.time()
        changed["devices"] = begun.devices if begun.trace_began_at else changed["devices"]
    begun = begun.model_copy(update=changed)
    _check_promises(begun.teams, size)
    return begun


def _check_promises(teams: Iterable[TeamEntry], size: int) -> None:
    """Refuse quotas that promise more than there is."""
    teams = list(teams)
    if sum(team.quota or 0 for team in teams) > size:
        raise ConfigError(promised_too_much(teams, size))


def _first(capacity: Capacity, size: int) -> int:
    """Return how many devices there are at the very beginning."""
    if capacity.file is not None:
        return min(read_number(capacity.file), size)
    changes = _changes(capacity, size)
    return changes[0].devices if changes[0].at_s == 0 else 0


def _changes(capacity: Capacity, size: int) -> list[Change]:
    """Read the trace; nothing if there is none."""
    if capacity.trace is None:
        return []
    try:
        text = capacity.trace.read_text()
    except OSError as error:
        raise ConfigError(f"{capacity.trace} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{capacity.trace} cannot be read: it is no UTF-8 text") from None
    return parse_trace(text, source=str(capacity.trace), most=size)


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error


def _runs_already(name: str) -> str:
    return f"a pool named {name} is running already; choose another with --name"


@contextlib.contextmanager
def _signals(driver: Driver) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into the end of the pool."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, driver.stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
