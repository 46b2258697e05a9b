"""What a job runs, as an agent judges it before it takes part, and as it is on this node.

Owns whether this node has what the job needs, in which directories it has it, and how that is
worded.  Starts nothing.

    working directory   the job's if this node has it, with the script in it; else the one in which
                        the agent was started
    directory of the    the job's if this node sees the same one, which the file ``holder`` in it
    run                 shows; else one of its own, ``runs/HOLDER/NODE`` where the agent was
                        started: agents of other nodes may see the same ``runs``
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from pliant.agent.ledger_news import LedgerNews
from pliant.agent.node_facts import AgentConfig
from pliant.agent.output import OutputListener, OutputNews
from pliant.core.errors import ConfigError
from pliant.core.events import Exited
from pliant.core.text import counted
from pliant.core.values import Mode, NodeId, TlsFiles
from pliant.machine import run_files
from pliant.machine.files import make_private_directory
from pliant.machine.named_modules import digest_of, file_of
from pliant.machine.tls import TlsContexts, exposed_key
from pliant.wire.codec import Message
from pliant.wire.messages import Alive, Work

MOST_PIECES = 16
"""Of ledgers that go up with one sign of life: 4 MB, more than is written meanwhile, and read and
packed in 70 ms at most."""

PASSING_ON_LOOKS = 600
"""The head of a host group has passed on what it was told so many looks ago, about one a second,
unless it has no coordinator, which it bears for as long as this host would.  The ledger of a
million steps has 750 MB: telling all of it again took 10 s of a processor."""

MOST_LOOKS_KEPT = 100_000
"""However long a coordinator is looked for: about a day."""

SHOWN_DIGITS = 12
"""Of a digest, for people."""

_log = logging.getLogger(__name__)


class JobHere:
    """The job of an agent: as it was told, and as it is on this node."""

    def __init__(self, config: AgentConfig) -> None:
        self.work = config.work
        """As it runs on this node; None: nobody has said what runs."""
        self._told = config.work
        self._config = config
        self._ledgers: LedgerNews | None = None
        self._printed: OutputNews | None = None

    def heard_by(self, listener: OutputListener) -> OutputListener:
        """Return what takes each line of a worker: for this listener, and for the coordinator."""

        def take_line(worker: str, line: str, /) -> None:
            if self._printed is not None:
                self._printed.add(worker, line)
            listener(worker, line)

        return take_line

    def news_before(self, message: Message, *, has_room: bool) -> Iterable[Message]:
        """Return what is to be said before a message: what else the coordinator does not see.

        ``has_room``: whether it hears that soon.  While it does not, ledgers wait in their files,
        for however long; of one that has exited all is said, as the job may end with it.
        """
        if self._ledgers is None or self._printed is None:
            return ()
        ledgers: Iterable[Message]
        if isinstance(message, Exited):
            ledgers = self._ledgers.new(message.replica)
        elif isinstance(message, Alive) and has_room:
            ledgers = islice(self._ledgers.new(), MOST_PIECES)
        else:
            return ()
        return chain(ledgers, self._printed.new() if has_room else ())

    @property
    def starts_all(self) -> bool:
        """Return whether one process of each replica starts all others, as in restart mode."""
        return self.work is not None and self.work.mode is Mode.RESTART

    @property
    def workers_here(self) -> int:
        """Return how many workers of each replica are on this node."""
        return 1 if self.work is None else _workers_here(self.work)

    def tell_again(self) -> None:
        """Count as new what was told of ledgers lately: who was told it may not have passed it on.

        Each line goes with its place, so one that is told twice is written once.
        """
        if self._ledgers is not None:
            self._ledgers.tell_again()

    def take_on(self, told: Work) -> bool:
        """Take on a job; False if it is the one that was taken on before.

        Raises:
            ConfigError: it is another one, or this node has not what it needs.
        """
        if self._told is None:
            asked = self._config.asked
            if asked and not _is_alike(asked, told.command):
                raise ConfigError(
                    f"job {told.job} runs {' '.join(told.command)}, and this node was to run "
                    f"{' '.join(asked)}; give the same command on every host"
                )
            _check_sizes(told, self._config)
            _check_room(told, self._config.devices)
            here, node = self._config.here, self._config.node
            home = self._config.environment.get("HOME", "")
            self.work = placed(told, here, node, self._config.tls, home)
            self._told = told
            if not sees(told):
                looks = int(self._config.give_up_s) + PASSING_ON_LOOKS
                self._ledgers = LedgerNews(Path(self.work.out), min(looks, MOST_LOOKS_KEPT))
                self._printed = OutputNews()
            return True
        if not _is_same(told, self._told):
            mine, theirs = named(self._told), named(told)
            if mine == theirs and (other := _another_size(told, self._told)) is not None:
                option, new, old = other
                theirs, mine = f"{theirs} with {option} {new}", f"a job with {option} {old}"
            raise ConfigError(
                f"the coordinator runs {theirs}, and the workers here belong to {mine}"
            )
        if told.bare_life not in ("", self._told.bare_life) and self._ledgers is not None:
            self._told = replace(self._told, bare_life=told.bare_life)
            self._ledgers.tell_all()
        return False


def _is_same(told: Work, before: Work) -> bool:
    """Whether a coordinator runs the job that was taken on: its script may have been edited, and
    who has taken it over on another host may have it in other directories.
    """
    if told.holder:
        told = replace(told, cwd=before.cwd, out=before.out)
    told = replace(told, bare_life=before.bare_life, graceful_s=before.graceful_s)
    told = replace(told, max_restarts=before.max_restarts)
    if told.tls is not None and before.tls is not None:  # where that host has its files
        told = replace(told, tls=before.tls)
    return replace(told, digest=before.digest) == before


def placed(
    work: Work, here: Path, node: NodeId, tls: TlsFiles | None = None, home: str = ""
) -> Work:
    """Return a job with its directories, and files of ``tls``, as they are on this node.

    ``home``: where its files go if nothing can be written ``here``, as in a container.

    Raises:
        ConfigError: this node has not what the job needs.
    """
    cwd = _working_directory(work, here)
    if work.init is not None and not os.access(work.init, os.R_OK):
        raise ConfigError(
            f"job {work.job} begins with the weights in {work.init}, which this node does not "
            "have; copy the file to that path"
        )
    if work.tls is not None and tls is not None and tls.is_whole:
        work = replace(work, tls=tls)
    _check_tls(work)
    return replace(work, cwd=str(cwd), out=str(_run_directory(work, here, node, home)))


def named(work: Work) -> str:
    """Name a job for people."""
    how = "" if work.tls is None else f" with the certificate {work.tls.certificate}"
    return f"{' '.join(work.command)} of job {work.job} in {work.out}{how}"


def _workers_here(work: Work) -> int:
    return work.workers_per_replica // work.hosts_per_replica


def _another_size(told: Work, before: Work) -> tuple[str, int, int] | None:
    """Return an option that a job has otherwise than before, and both values; None: none."""
    for option, there, here in (
        ("--workers-per-replica", told.workers_per_replica, before.workers_per_replica),
        ("--hosts-per-replica", told.hosts_per_replica, before.hosts_per_replica),
    ):
        if there != here:
            return option, there, here
    return None


def _check_sizes(work: Work, config: AgentConfig) -> None:
    asked = replace(
        work,
        workers_per_replica=config.asked_workers or work.workers_per_replica,
        hosts_per_replica=config.asked_hosts or work.hosts_per_replica,
    )
    if (other := _another_size(work, asked)) is not None:
        option, there, here = other
        raise ConfigError(
            f"job {work.job} has {option} {there}, and this node was given {here}; give the same "
            "command on every host"
        )


def _check_room(work: Work, devices: int) -> None:
    if devices < (here := _workers_here(work)):
        where = "all on one node" if work.hosts_per_replica == 1 else f"{here} on each host"
        raise ConfigError(
            f"a replica of job {work.job} has {work.workers_per_replica} workers, {where}, "
            f"and this one has {counted(devices, 'device')}; start its agent with --devices "
            f"{here} or more, or leave it out"
        )


def _is_alike(mine: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    """Whether two commands are the same, wherever the script lies: it is compared by itself."""
    return (Path(mine[0]).name, *mine[1:]) == (Path(theirs[0]).name, *theirs[1:])


def _working_directory(work: Work, here: Path) -> Path:
    named = [Path(work.cwd), here] if work.cwd else [here]
    places = [place for place in named if _is_open(place)]
    if places and not work.digest:
        return places[0]
    found = {place: file for place in places if (file := file_of(work.command, place))}
    digests = {place: digest_of(file) for place, file in found.items()}
    for place, digest in digests.items():
        if digest == work.digest:
            return place
    what = " ".join(work.command[: 2 if work.command[0] == "-m" else 1])
    if not found:
        raise ConfigError(
            f"this node has no {what} of job {work.job}, neither in {work.cwd} nor in {here}; "
            "start the agent in the directory that has it"
        )
    place, digest = next(iter(digests.items()))
    raise ConfigError(
        f"{found[place]} is not what job {work.job} runs on its other nodes (SHA-256 "
        f"{digest[:SHOWN_DIGITS]} here, {work.digest[:SHOWN_DIGITS]} there); copy {what} from there"
    )


def _run_directory(work: Work, here: Path, node: NodeId, home: str) -> Path:
    if sees(work):
        return Path(work.out)
    if not work.holder:
        raise ConfigError(f"{work.out} of job {work.job} is no directory on this node")
    if home and not os.access(here, os.W_OK):
        here = Path(home)
    own = here / "runs" / work.holder / node
    try:
        for directory in (own.parent, own):
            make_private_directory(directory)
    except OSError as error:
        raise ConfigError(f"{own} cannot be written: {error.strerror}") from None
    return own


def sees(work: Work) -> bool:
    """Whether this node sees the directory of the run, and not another under its path."""
    out = Path(work.out)
    if not work.holder:
        return _is_open(out)
    try:
        return (out / run_files.HOLDER).read_text().strip() == work.holder
    except OSError:
        return False


def _is_open(directory: Path) -> bool:
    """Whether it is a directory that this user may enter."""
    return os.access(directory, os.X_OK) and directory.is_dir()


def _check_tls(work: Work) -> None:
    if work.tls is None:
        return
    try:
        TlsContexts.of(work.tls)
        if (warning := exposed_key(work.tls)) is not None:
            _log.warning("%s", warning)
    except (ConfigError, OSError) as error:
        raise ConfigError(f"job {work.job} needs TLS files of this node: {error}") from error
