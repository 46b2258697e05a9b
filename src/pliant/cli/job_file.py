"""What to run: a script or a module with its arguments, or a job file that names one.

Owns that everything in a job file means what it says beside that file, wherever the command was
typed; what was typed, or is in the environment, is meant from there; and what people type there out
of habit.  Knows nothing of settings.

    paths of a job file       spec.command[0], the module of spec.command [-m, MODULE], spec.tls.*:
                              relative to the file
    paths of its script       checkpoints, data: the job works in the directory of the file
    --out, --init, --tls-*    relative to where they are typed; runs/NAME as well
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant.cli.terminal import say_aside
from pliant.core.errors import ConfigError
from pliant.machine.accelerators import visible
from pliant.machine.files import read_named
from pliant.machine.named_modules import FLAG as MODULE
from pliant.machine.named_modules import file_of, module_of
from pliant.recipes.auto import GIB, fill
from pliant.spec.cluster_job import fields_for_a_cluster
from pliant.spec.job import ElasticJob
from pliant.spec.load import parse

LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "lightning")
"""What starts scripts elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatToRun:
    """What to run, and where."""

    words: list[str]
    """The script and its arguments; the script is relative to ``directory``."""

    job: ElasticJob | None = None
    """What a job file says; None: a script was named."""

    directory: Path | None = None
    """That of the job file, in which the job works; None: where the command was typed."""


def read_command(target: str, arguments: list[str], *, is_elsewhere: bool = False) -> WhatToRun:
    """Return what to run: a script with its arguments, or what a job file names.

    ``is_elsewhere``: a script that a job file names is where the agents are.

    Raises:
        ConfigError: the file is missing, is no job, or arguments follow a job file.
    """
    if target == MODULE:
        return WhatToRun(words=_module([target, *arguments]))
    path = Path(target)
    if (why := _misunderstanding(path, arguments)) is not None:
        raise ConfigError(why)
    if path.is_dir():
        raise ConfigError(f"{target} is a directory; name a script or a job file")
    if path.suffix not in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"the script {target} does not exist")
        return WhatToRun(words=[target, *arguments])
    if arguments:
        raise ConfigError(
            f"{target} names its command itself; put {' '.join(arguments)} into spec.command"
        )
    job, reasons = read_job(path, read_named(path), is_here=not is_elsewhere)
    for reason in reasons:
        say_aside(f"{target}: {reason}")
    if (unused := fields_for_a_cluster(job.spec)) and not is_elsewhere:
        say_aside(f"{target}: ignored here, as only a cluster uses it: {', '.join(unused)}")
    directory, words = path.absolute().parent, job.spec.program
    beside = "" if directory == Path.cwd() else f" in {directory}, where {path.name} lies"
    if is_elsewhere:
        pass
    elif words[0] == MODULE:
        words = _module(words, directory, beside)
    elif file_of(words, directory) is None:
        raise ConfigError(f"the script {words[0]} does not exist{beside}")
    return WhatToRun(words=words, job=_beside(job, directory), directory=directory)


def read_job(
    path: Path, text: str, *, memory: float | None = None, is_here: bool = True
) -> tuple[ElasticJob, list[str]]:
    """Return what a job file says, and why what it leaves open (``auto``) is as it is.

    ``memory``: GiB of a device; ``is_here``: whether the devices of this machine say it otherwise.

    Raises:
        ConfigError: it is no job file, or nothing fits.
    """
    reasons: list[str] = []
    found = _memory_here if is_here else lambda: None

    def change(document: dict[str, Any]) -> None:
        reasons.extend(fill(document, path, memory=memory, found=found))

    return parse(ElasticJob, text, source=str(path), change=change), reasons


def _memory_here() -> float | None:
    """Return the GiB of the smallest accelerator of this machine."""
    sizes = [one.memory_bytes for one in visible(os.environ)]
    return min((size / GIB for size in sizes if size), default=None)


def _module(words: list[str], directory: Path | None = None, beside: str = "") -> list[str]:
    """Return a command that runs a module, if there is one.

    Raises:
        ConfigError: there is none of this name.
    """
    name = module_of(words)
    if name is None:
        raise ConfigError("-m needs the name of a module: pliant run -m package.train")
    where = directory or Path.cwd()
    if file_of(words, where) is not None:
        return words
    if file_of([MODULE, f"{name}.__init__"], where) is not None:
        raise ConfigError(f"{name} is a package without __main__.py; name a module of it")
    how, path = ", nor is it installed", Path(name)
    if path.suffix == ".py":
        how = f"; -m takes a name, without .py: -m {'.'.join(path.with_suffix('').parts)}"
    raise ConfigError(f"there is no module {name}{beside or ' here'}{how}")


def _beside(job: ElasticJob, directory: Path) -> ElasticJob:
    """Return the job with its paths as the file means them."""
    tls = job.spec.tls
    if tls is None or tls.secret_name is not None:
        return job
    paths = tls.model_dump(exclude_none=True).items()
    found = {name: str(directory / path) for name, path in paths}
    spec = job.spec.model_copy(update={"tls": tls.model_copy(update=found)})
    return job.model_copy(update={"spec": spec})


def _misunderstanding(path: Path, arguments: list[str]) -> str | None:
    """Say what is to be typed for what cannot be run like this."""
    if path.suffix == ".ipynb":
        made = path.with_suffix(".py")
        return (
            f"{path} is a notebook; make a script of it, `jupyter nbconvert --to script {path}`, "
            f"and run {made}"
        )
    if path.name in LAUNCHERS and not path.is_file():
        script = next((word for word in arguments if word.endswith(".py")), "train.py")
        if MODULE in arguments[:-1]:
            script = f"-m {arguments[arguments.index(MODULE) + 1]}"
        return f"pliant run starts the workers itself, without {path}: pliant run {script}"
    return None
