"""What is refused is refused with its sentence, and every sentence is on the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.features import refused_commands, refused_scripts, refused_simulations
from tests.features.raised import raised
from tests.features.refusal import Listed, Script, Typed
from tests.features.topics import TOPICS, topic_of

from pliant.cli.main import code_of
from pliant.core.errors import ConfigError, UsageError
from pliant.pool.allocator import RefusedError

TRANSCRIPTS = Path(__file__).with_name("refused.txt")
"""A line that is typed, and one that is said; a simulation finds its files."""


def transcripts() -> dict[str, Typed]:
    lines = TRANSCRIPTS.read_text().splitlines()
    typed = (line.removeprefix("$ pliant ") for line in lines[::2])
    files = refused_simulations.beside()
    return {
        said: Typed(words, before=files if words.startswith("simulate") else None)
        for words, said in zip(typed, lines[1::2], strict=True)
    }


reads_the_source = pytest.mark.timeout(240)
"""All of it, which takes long where many others compute."""

SCRIPTS = refused_scripts.SCRIPTS | refused_commands.SCRIPTS
COMMANDS = transcripts() | refused_commands.COMMANDS | refused_simulations.COMMANDS


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("sentence", SCRIPTS, ids=lambda sentence: sentence[:60])
def test_a_script_is_refused_with_this_sentence(sentence: str) -> None:
    row = SCRIPTS[sentence]
    script: Script | None = row.script if isinstance(row, Listed) else row
    assert script is not None

    with pytest.raises((ConfigError, UsageError, RefusedError)) as caught:
        script()

    assert is_said(sentence, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("sentence", COMMANDS, ids=lambda sentence: sentence[:60])
def test_a_command_is_refused_with_this_sentence(
    sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = COMMANDS[sentence]
    Path("train.py").touch()
    Path("job.yaml").write_text(refused_commands.JOB.replace(*row.replaced))
    if row.before is not None:
        row.before()

    code = code_of(shlex.split(row.command))

    said = capsys.readouterr().err
    assert (code, said[:8], said[-1]) == (2, "pliant: ", "\n")
    assert is_said(sentence, said[8:-1]), said


def is_said(sentence: str, said: str) -> bool:
    """Whether this is the sentence of a table."""
    parts = re.split(r"(?:^| )\.\.\. ", sentence)  # what stands for more of the same
    return re.fullmatch(".* ?".join(map(re.escape, parts)), said) is not None


@reads_the_source
def test_every_sentence_has_a_topic_and_every_topic_sentences() -> None:
    modules = {one.place for one in raised() if one.is_known}
    places = [place for topic in TOPICS for place in topic.places]

    assert [module for module in modules if topic_of(module) is None] == []
    assert [at for at in places if not any(module.startswith(at) for module in modules)] == []


@reads_the_source
def test_what_is_refused_here_is_found_in_the_source() -> None:
    known = [one for one in raised() if one.is_known]

    everything = [*SCRIPTS, *COMMANDS]
    assert [said for said in everything if not any(one.is_in(said) for one in known)] == []


@reads_the_source
def test_every_refusal_that_is_not_known_before_it_is_said_has_its_reason() -> None:
    given_on = [str(one) for one in raised() if not one.is_known]

    assert [part for part in GIVEN_ON if not any(part in one for one in given_on)] == []
    assert [one for one in given_on if not any(part in one for part in GIVEN_ON)] == []


GIVEN_ON = {
    "_why_not_running(": "the sentence of who looks for jobs, or how that one has ended",
    "said or f'it ended at once": "the last word of what was started in the background",
    "last_line(done.stderr) or": "the last word of the command that was started",
    "checkpoint_commands.py": "what the library says of an object that it does not trust",
    "cli/torchrun.py": "the words of argparse, of what is no command line of torchrun",
    "cli/settings.py": "the sentence of --policy, behind the name of a variable",
    "{flag}: {error}": "the core's, of --placement, behind where that was given",
    "state_handover.py": "the sentence of who found that replicas differ",
    "http/client.py": "what a job or a pool has answered",
    "pool/claim_client.py": "what the pool has answered",
    "pool/claims.py": "the core's; it is found where that refuses",
    "tagged_codec.py": "what is wrong with a value, behind its path; it is found for itself",
    "--init {source}: {last_line(": "the sentence of the process that reads the weights",
    "own_loop.py": "the first process's sentence, in all of them; it is found where that says it",
    "recipe_commands.py": "the sentence of the process that looks at a recipe's data",
    "recipes/tokens.py": "what is wrong with a row, behind its number; it is found for itself",
    "run_directory.py": "the sentence of who wants the directory for itself",
    "simulate/simulation.py": "the policy's, behind the line of a job that it does not allow",
    "simulate/world_files.py": "why a file cannot be read, behind who names it",
    "spec/load.py": "the words of pydantic, of what has no sentence of ours",
}
"""Where something is refused in words that are another's, with whose they are."""
