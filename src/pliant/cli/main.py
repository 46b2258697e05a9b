"""``pliant``: start a job, look at it, resize it, prove what it did.

Owns the list of commands, and the promise that bad input ends with one sentence on stderr and exit
code 2.  ``core.errors`` has the exit codes.  Knows nothing of what a command does.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pliant.cli import (
    check_command,
    checkpoint_commands,
    cluster_commands,
    dashboard_command,
    help,
    host_commands,
    job_commands,
    operator_commands,
    pool_commands,
    recipe_commands,
    run_commands,
    run_list,
    simulate_command,
)
from pliant.cli.arguments import ExplainCommand, RunCommand
from pliant.cli.help import CommandGroup
from pliant.cli.terminal import complain, open_closed_streams
from pliant.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, PliantError

app = typer.Typer(
    name="pliant",
    cls=CommandGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # markup would swallow "[default: 1]"
)

SCRIPT_FOLLOWS = {"allow_interspersed_args": False}
"""What stands behind the script is the script's."""

COMMANDS: dict[Callable[..., int], dict[str, Any]] = {
    run_commands.run: {"cls": RunCommand, "context_settings": SCRIPT_FOLLOWS},
    run_commands.coordinator: {"cls": RunCommand, "context_settings": SCRIPT_FOLLOWS},
    run_commands.agent: {},
    check_command.check: {"cls": RunCommand, "context_settings": SCRIPT_FOLLOWS},
    run_list.ls: {},
    job_commands.status: {},
    job_commands.scale: {},
    job_commands.drain: {},
    job_commands.kill: {},
    job_commands.stop: {},
    job_commands.suspend: {},
    run_commands.resume: {},
    job_commands.explain: {"cls": ExplainCommand},
    pool_commands.claim: {},
    pool_commands.top: {},
    dashboard_command.dashboard: {},
    job_commands.logs: {},
    job_commands.audit: {},
    job_commands.trace: {},
    cluster_commands.submit: {},
    cluster_commands.get: {},
    cluster_commands.describe: {},
    cluster_commands.delete: {},
    operator_commands.convert: {},
    run_commands.config: {},
    simulate_command.simulate: {},
    host_commands.doctor: {},
    help.docs: {},
    run_commands.demo: {},
}
"""In the order of the help."""

for _command, _options in COMMANDS.items():
    app.command(**{"cls": TyperCommand, **_options})(_command)
GROUPS = (
    checkpoint_commands.app,
    job_commands.policy_app,
    pool_commands.app,
    operator_commands.app,
    recipe_commands.app,
)
for _group in GROUPS:
    app.add_typer(_group)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pliant {version('pliant')}")
        raise typer.Exit


@app.callback()
def pliant(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Elastic training for PyTorch: grow, shrink and lose replicas; the weights stay the same."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    open_closed_streams()
    sys.exit(code_of(sys.argv[1:] if arguments is None else arguments))


def code_of(arguments: Sequence[str]) -> int:
    """Run the command line; return its exit code.  Bad input becomes one sentence on stderr."""
    asked = list(arguments)
    if help.VARIABLE in os.environ:
        help.prepare()
    if asked in ([], *([group.info.name] for group in GROUPS)):
        asked.append("--help")  # as a page: click would call it a mistake
    return exit_code_of(lambda: app(args=asked, prog_name="pliant", standalone_mode=False))


def exit_code_of(command: Callable[[], Any]) -> int:
    """Run a command; return its exit code, whatever it raises."""
    try:
        code = command()
        _flush()
    except PliantError as error:
        return complain(str(error), EXIT_USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `pliant logs | head`
        _drop_output()
        return EXIT_OK
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:  # of a disk that is full
            _drop_output()
            return complain(f"the output cannot be written: {error.strerror}", EXIT_FAILED)
        if error.filename is None:
            raise
        return complain(f"{error.filename} cannot be used: {error.strerror}", EXIT_USAGE)
    except Exception as error:  # the boundary of the process
        sentence_of = getattr(error, "format_message", None)
        if sentence_of is None:
            raise
        sentence = _with_advice(error, sentence_of())
        return complain(sentence, EXIT_USAGE) if sentence else EXIT_USAGE  # empty: help was shown
    return code if isinstance(code, int) else EXIT_OK


def _with_advice(error: Exception, sentence: str) -> str:
    """Say what to do about a mistake that the parser found, beside what is wrong."""
    ctx, param = getattr(error, "ctx", None), getattr(error, "param", None)
    path = "pliant" if ctx is None else ctx.command_path
    if sentence.startswith("Missing ") and param is not None:
        what = param.metavar or param.name
        what = f"{param.opts[0]} {what}" if param.param_type_name == "option" else what
        more = (getattr(param, "help", None) or "").rstrip(".")
        return f"{path} needs {what}" + f" ({more})" * bool(more) + f"; see {path} --help"
    option = str(getattr(error, "option_name", ""))
    if option[1:2].isdigit():
        return f"{path}: {option} is read as an option; a number here is not negative"
    if sentence.startswith("No such "):
        return f"{sentence.rstrip('.')}; {path} --help lists what there is"
    return sentence


def _flush() -> None:
    """Write what was printed; Python's own end would tell a full disk with a traceback."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()


def _drop_output() -> None:
    """Let nobody read what is printed from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
