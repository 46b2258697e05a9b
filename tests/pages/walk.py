"""A walk through one page: its commands, in order, in a fresh directory, as a reader types them.

Every command is a program of its own.  As typed, it is run by bash with the ``pliant`` of this
environment; in a quick walk, ``pliant`` and ``python`` with plain words are forked from a process
that has imported everything.  What goes on in a terminal of its own is ended with the walk.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.live.prompt import statuses
from tests.live.stage import FORKED_PLIANT, Program, Stage
from tests.pages.blocks import ROOT, Block, Note, Page, PageError
from tests.pages.shown import is_shown

from pliant.spec.cluster import ClusterFile
from pliant.spec.job import ElasticJob
from pliant.spec.load import check, parse
from pliant.spec.pool import PoolFile

DEADLINE_S = 120.0
BASH = "import os, sys; os.execvp('bash', ['bash', '-c', sys.argv[1]])"
WIDTH = "112"

ENVELOPE = {
    "apiVersion": "pliant.dev/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "part"},
}


@dataclass(slots=True)
class Terminal:
    """A command that goes on while others are typed."""

    command: str
    place: str
    program: Program
    said: Path
    exits: int = 0


@dataclass(slots=True)
class Walk:
    """One reader, from the top of a page to its bottom."""

    page: Page
    directory: Path
    fresh: Stage
    """Where bash is started."""

    forked: Stage
    """Where python blocks are, and what a quick walk forks: torch is loaded already."""

    is_soak: bool = False
    """Whether the blocks that take long are run, too, and every command as it is typed."""

    terminals: list[Terminal] = field(default_factory=list)
    preamble: str = ""
    count: int = 0

    @property
    def home(self) -> Path:
        """Return the reader's home."""
        return self.directory / "home"

    @property
    def work(self) -> Path:
        """Return where the reader works."""
        return self.directory / "work"

    @property
    def elsewhere(self) -> Path:
        """Return another directory."""
        return self.directory / "elsewhere"

    def environment(self) -> Mapping[str, str]:
        """Return what the reader's programs find around them."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PLIANT_", "XDG_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**kept, "HOME": str(self.home), "PATH": path, "COLUMNS": WIDTH}

    def all_of_it(self) -> None:
        """Do what the page says, from top to bottom."""
        for each in (self.home, self.work, self.elsewhere):
            each.mkdir()
        (self.work / "examples").symlink_to(ROOT / "examples")
        for block in self.page.blocks:
            needs = block.note("needs")
            if needs is not None and shutil.which(needs.text) is None:
                continue
            if block.note("soak") is not None and not self.is_soak:
                continue
            self._notes(block)
            if block.reason is None:
                DOINGS[block.language](self, block)
        for terminal in self.terminals:
            if terminal.exits and terminal.program.poll() is None:
                os.killpg(terminal.program.pid, signal.SIGINT)
            if terminal.exits or terminal.program.poll() is not None:
                self._end(terminal)

    def _notes(self, block: Block) -> None:
        for note in block.notes:
            if note.verb == "$":
                self._command(note.text, Block(f"{block.place} (before it)", "sh"), is_last=True)
            elif note.verb == "python":
                self.preamble = note.text + "\n"
            elif note.verb == "file":
                is_python = block.language == "python"
                text = self._script(block) if is_python else block.text
                (self.work / note.text).write_text(text)
            elif note.verb == "all ended":
                for terminal in self.terminals:
                    self._end(terminal)

    # --- commands ---------------------------------------------------------------------------

    def do_sh(self, block: Block) -> None:
        """Run each line."""
        lines = [line for line in block.text.splitlines() if line.strip()]
        commands = [line for line in lines if not line.lstrip().startswith("#")]
        for command in commands:
            self._command(command, block, is_last=command is commands[-1])

    def do_console(self, block: Block) -> None:
        """Run each line after "$ ", and compare what it prints with what is shown below it."""
        first, *rest = ("\n" + block.text.rstrip("\n")).split("\n$ ")
        if first.strip() or not rest:
            raise PageError(f"{block.place}: a console begins with '$ ' and a command")
        for number, part in enumerate(rest, start=1):
            command, *shown = part.split("\n")
            said = self._command(command, block, is_last=number == len(rest))
            if said is not None and not is_shown(shown, said.splitlines()):
                wanted = "\n".join(shown)
                raise AssertionError(f"{block.place}: {command}\nshown:\n{wanted}\nsaid:\n{said}")

    def _command(self, command: str, block: Block, *, is_last: bool) -> str | None:
        """Run one command to its end, unless it goes on; return what it said."""

        def note(verb: str) -> Note | None:
            of_it = (n for n in block.notes if n.verb.startswith(verb))
            return next((n for n in of_it if n.is_of(command) or (not n.text and is_last)), None)

        if any(
            n.verb == "not run" and command.startswith(n.text.split(": ")[0]) for n in block.notes
        ):
            return None
        self.count += 1
        said = self.directory / f"{self.count}.out"
        said.touch()  # it is read while the program begins
        words = None if self.is_soak else forked_words(command)
        on, started = (self.fresh, ["-c", BASH, command]) if words is None else (self.forked, words)
        cwd = self.elsewhere if block.note("elsewhere") else self.work
        program = on.start(*started, out=said, environment=self.environment(), cwd=cwd)
        exits = note("exits ")
        wanted = int(exits.verb.split()[1]) if exits else 0
        terminal = Terminal(command, block.place, program, said, wanted)
        if (goes_on := note("goes on")) is not None:
            self.terminals.append(terminal)
            is_job = goes_on.verb == "goes on"

            def has_begun() -> bool:
                return self._has_begun() if is_job else said.exists() and said.stat().st_size > 0

            self._until(terminal, lambda: program.poll() is not None or has_begun())
            if program.poll() not in (None, wanted):
                self._fail(terminal, f"ended with exit code {program.returncode}")
            return None
        if note("interrupted") is not None:
            self._until(
                terminal,
                lambda: program.poll() is not None or (said.exists() and said.stat().st_size > 0),
            )
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGINT)
            self._until(terminal, lambda: program.poll() is not None)
        else:
            self._end(terminal)
        self._until(terminal, self._has_settled)
        return said.read_text()

    def _end(self, terminal: Terminal) -> None:
        program = terminal.program
        self._until(terminal, lambda: program.poll() is not None)
        if program.returncode != terminal.exits:
            code = f"{program.returncode}, not {terminal.exits}"
            self._fail(terminal, f"ended with exit code {code}")

    def _until(self, terminal: Terminal, is_true: Callable[[], bool]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not is_true():
            if time.monotonic() > until_s:
                self._fail(terminal, f"is not done after {DEADLINE_S:g} s; jobs: {self._jobs()}")
            time.sleep(0.05)

    def _fail(self, terminal: Terminal, why: str) -> None:
        others = "".join(f"\n--- {t.command}\n{t.said.read_text()}" for t in self.terminals)
        said = f"{terminal.said.read_text()}{others}"
        raise AssertionError(f"{terminal.place}: {terminal.command}\n{why}\n{said}")

    # --- what runs --------------------------------------------------------------------------

    def _jobs(self) -> list[dict[str, Any]]:
        return statuses({"XDG_STATE_HOME": str(self.home / ".local/state")})

    def _has_begun(self) -> bool:
        """Whether some job runs, and each trains or waits for devices."""
        jobs = self._jobs()
        return bool(jobs) and all(_is_settled(job) for job in jobs)

    def _has_settled(self) -> bool:
        return all(_is_settled(job) for job in self._jobs())

    # --- what is no command -----------------------------------------------------------------

    def do_python(self, block: Block) -> None:
        """Run it as a script; doctests are for the test of the whole page."""
        if ">>> " in block.text:
            return
        self.count += 1
        script, said = self.work / f"block_{self.count}.py", self.directory / f"{self.count}.out"
        script.write_text(self._script(block))
        program = self.forked.start(script, out=said, environment=self.environment(), cwd=self.work)
        terminal = Terminal(f"python {script.name}", block.place, program, said)
        self._until(terminal, lambda: program.poll() is not None)
        if program.returncode != 0:
            self._fail(terminal, f"ended with exit code {program.returncode}")

    def _script(self, block: Block) -> str:
        """Return a python block with the lines before it, indented as these ask for."""
        last = self.preamble.rstrip().rpartition("\n")[2]
        indent = len(last) - len(last.lstrip()) + 4 if last.endswith(":") else 0
        return self.preamble + textwrap.indent(block.text, " " * indent)

    def do_yaml(self, block: Block) -> None:
        """Check it as the command that reads it would."""
        values = yaml.safe_load(block.text)
        if values.get("kind") == "Pool":
            parse(PoolFile, block.text, source=block.place)
        elif values.get("kind") == "Cluster":
            parse(ClusterFile, block.text, source=block.place)
        elif "kind" in values:
            parse(ElasticJob, block.text, source=block.place)
        else:
            spec = {"command": ["train.py"], **values["spec"]}
            check(ElasticJob, {**ENVELOPE, **values, "spec": spec}, source=block.place)

    def do_json(self, block: Block) -> None:
        """Check that it is JSON."""
        json.loads(block.text)

    def do_nothing(self, block: Block) -> None:
        """Look at a picture."""


DOINGS: Mapping[str, Callable[[Walk, Block], None]] = {
    "sh": Walk.do_sh,
    "console": Walk.do_console,
    "python": Walk.do_python,
    "yaml": Walk.do_yaml,
    "json": Walk.do_json,
    "text": Walk.do_nothing,
    "mermaid": Walk.do_nothing,
    "diff": Walk.do_nothing,
    "{eval-rst}": Walk.do_nothing,
}


def _is_settled(job: dict[str, Any]) -> bool:
    """Whether nothing of it is under way: who is asked for trains, or it waits for devices."""
    if job.get("pool") is not None and job["state"] == "waiting":
        return True
    states = [replica["state"] for replica in job.get("replicas", ())]
    return (
        job.get("state") == "training"
        and job["step"] > 0
        and states.count("training") == job["target_replicas"]
        and set(states) <= {"training", "spare"}
    )


_SHELL = re.compile(r"[$`*?~{}\[\]]|[();<>|&]+$")
"""What in a word, or as a word, is for bash to understand."""


def forked_words(command: str) -> list[str] | None:
    """Return what a forked stage starts for a command; None if it takes bash or another program."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    if any(_SHELL.search(word) for word in words):
        return None
    match words:
        case ["pliant", *rest]:
            return [str(FORKED_PLIANT), *rest]
        case ["python", script, *rest] if not script.startswith("-"):
            return [script, *rest]
        case _:
            return None
