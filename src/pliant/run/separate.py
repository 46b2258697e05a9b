"""A job in several processes: one coordinator, and an agent on each node.

Owns the life of each of the two processes.  A coordinator may die at any moment and be started
again with the same words, or at another place that its agents know of (``register_location``);
training goes on meanwhile.  Who of two coordinators counts is for the register to say.  Decides
nothing about the job.

    run_coordinator: register --> serve --> agents come --> end: wait until they have heard it
    run_agent:       connect --> what the job runs --> fork server, workers --> end, or given up

A coordinator may have an agent in its own process as well (``pliant run --join``); then both end
together.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pliant.agent.agent import Agent
from pliant.agent.node_facts import AgentConfig
from pliant.agent.output import OutputListener, nobody_listens
from pliant.agent.uplink import Places
from pliant.core.commands import EndJob
from pliant.core.errors import EXIT_OK, EXIT_STOPPED, ConfigError, PermanentError
from pliant.machine import run_files
from pliant.machine.descriptors import allow_many
from pliant.machine.event_loop import END_SIGNALS, aside, cancelled, collect_when_calm, on_signals
from pliant.machine.tls import client_context
from pliant.observe.reading import only
from pliant.run.hosting import Host, Observer, hosted, refuse_second
from pliant.run.job_config import JobConfig
from pliant.run.pod_end import PodEnd
from pliant.run.register_location import always_at, open_location, places_of
from pliant.run.run_directory import lasting_token, locked, read_token


def run_coordinator(
    config: JobConfig,
    *,
    observer: Observer | None = None,
    on_serving: Callable[[str], None] = lambda url: None,
    sock: socket.socket | None = None,
    agent: AgentConfig | None = None,
) -> int:
    """Run the coordinator of a job whose agents are elsewhere; return the job's exit code.

    Agents can come once ``on_serving`` is called, to the URL that it is told.  ``sock`` is bound
    where they come, if that is done; ``agent`` runs replicas here, too.

    Raises:
        ConfigError: the port is in use, the directory holds something else, or a file cannot be
            written.
        ConflictError: another coordinator has taken over; the job goes on.
    """
    if agent is None:  # else workers would begin with the limit of this process
        allow_many()
    try:
        return asyncio.run(_coordinate(config, observer, on_serving, sock, agent))
    except KeyboardInterrupt:  # before the job could be asked to stop
        return EXIT_STOPPED


def run_agent(
    join: str,
    token_file: Path,
    config: AgentConfig,
    say: Callable[[str], None],
    listener: OutputListener = nobody_listens,
) -> EndJob | None:
    """Run workers for the coordinator where ``join`` says; return how the job ended, None if
    interrupted.  ``say`` tells people that it begins to look for the coordinator, ``listener`` what
    workers print.

    Raises:
        ConfigError: the places or the token cannot be used.
        PermanentError: the coordinator refuses this agent, or was not found for too long.
    """
    places, token = places_of(join), read_token(token_file)
    if config.tls is not None:
        client_context(config.tls)  # what is refused is said in one sentence
    say(f"this host joins the job at {join}")
    return asyncio.run(_serve(Agent(config, listener=listener), places, token, say))


async def _coordinate(
    config: JobConfig,
    observer: Observer | None,
    on_serving: Callable[[str], None],
    sock: socket.socket | None,
    here: AgentConfig | None,
) -> int:
    refuse_second(config.name, config.state.jobs, besides=config.out)
    with locked(config.out, alone=False):
        follows = follows_another(config)
        opened = await aside(open_location, config.register, config.out, config.environ)
        with closing(opened) as location:
            ending = await aside(PodEnd.of, config, location)
            if ending is not None and ending.found is not None:
                ending.tell(ending.found)
                return ending.found.exit_code
            token = lasting_token(config.token_file or config.out / run_files.TOKEN)
            listener = observer.output if observer else nobody_listens
            agent = None if here is None else Agent(here, listener=listener)
            async with hosted(
                config,
                token=token,
                follows=follows,
                is_asked=ending is None or ending.is_asked,
                is_apart=True,
                own=None if agent is None else agent.life,
                sock=sock,
                observer=observer,
                location=location,
            ) as host:
                on_serving(host.url)
                serving = () if agent is None else (beside(host, agent),)
                collecting = asyncio.create_task(collect_when_calm(lambda: host.driver.is_calm))
                try:
                    end = await host.until_the_end(*serving)
                    if ending is not None:
                        await aside(ending.write, host.driver.board)
                    return end.exit_code
                finally:
                    await cancelled(collecting)
                    if agent is not None:
                        await agent.close()


async def beside(host: Host, agent: Agent) -> None:
    """Run an agent beside the coordinator; if it may take no part, other hosts go on without it.

    Raises:
        PermanentError: it may not, and there are no others.
    """
    try:
        await agent.serve(always_at(host.url), host.token)
    except PermanentError as error:
        if not host.driver.nodes.has_others(agent.node):
            raise
        host.log.write("note", text=f"the host that coordinates runs no replicas: {error}")
        await agent.close()
        await asyncio.Event().wait()


def follows_another(config: JobConfig) -> bool:
    """Whether another coordinator of this job has gone before, and did not come to its end.

    Raises:
        ConfigError: the directory is that of another run, or of one that has finished.
    """
    marks = ("job_started", "coordinator_started", "job_ended")
    records = list(only(run_files.event_log(config.out), *marks))
    began = [record for record in records if record.get("kind") == "job_started"]
    if not began:
        return False
    mine = (config.name, list(config.argv))
    if (began[-1].get("job"), began[-1].get("command")) != mine:
        raise ConfigError(f"{config.out} holds another run; choose another --out")
    last = records[-1]
    if last["kind"] != "job_ended":
        return True
    if last.get("exit_code") == EXIT_OK:
        raise ConfigError(f"the run of {config.out} has finished; choose another --out")
    return False


async def _serve(
    agent: Agent, places: Places, token: str, say: Callable[[str], None]
) -> EndJob | None:
    with told_to_end(say) as (interrupted, hurried):
        serving = asyncio.create_task(agent.serve(places, token))
        stopping = asyncio.create_task(interrupted.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            else:
                await agent.depart(hurried)  # the job may have ended with what was here
            return agent.ended
        finally:
            await cancelled(serving, stopping)
            await agent.close()


@contextmanager
def told_to_end(say: Callable[[str], None]) -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Yield what a signal to end sets meanwhile, and what a second one does."""
    interrupted, hurried = asyncio.Event(), asyncio.Event()

    def end() -> None:
        if interrupted.is_set():
            hurried.set()
        else:
            say("this host was told to end: its replicas leave; told again, it ends them at once")
            interrupted.set()

    with on_signals(dict.fromkeys((signal.SIGINT, *END_SIGNALS), end)):
        yield interrupted, hurried
