"""Whatever is refused is refused with the sentence that the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.features import refusals
from tests.features.raised import Raised, raised
from tests.features.refusal import Refusal

from pliant.cli.main import code_of
from pliant.core.errors import ConfigError, UsageError
from pliant.pool.allocator import RefusedError

ROOT = Path(__file__).resolve().parents[2]
ALL = [row for table in refusals.TABLES.values() for row in table]
SCRIPTS = [row for row in ALL if row.script is not None]
COMMANDS = [row for row in ALL if row.command]


@pytest.mark.parametrize("row", SCRIPTS, ids=lambda row: row.sentence[:60])
def test_a_script_is_refused_with_this_sentence(
    row: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert row.script is not None

    with pytest.raises((ConfigError, UsageError, RefusedError)) as caught:
        row.script()

    assert is_said(row, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.sentence[:60])
def test_a_command_is_refused_with_this_sentence(
    row: Refusal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("train.py").touch()
    Path("job.yaml").write_text(refusals.JOB.replace(*row.replaced))
    if row.before is not None:
        row.before()

    code = code_of(shlex.split(row.command))

    said = capsys.readouterr().err
    assert (code, said[:8], said[-1]) == (2, "pliant: ", "\n")
    assert is_said(row, said[8:-1]), said


def is_said(row: Refusal, sentence: str) -> bool:
    """Whether this is the sentence of the page."""
    parts = re.split(r"(?:^| )\.\.\. ", row.sentence)  # what stands for more of the same
    return re.fullmatch(".* ?".join(map(re.escape, parts)), sentence) is not None


def test_what_is_not_reproduced_here_names_a_test_that_is_there() -> None:
    for row in ALL:
        if row.script is None and not row.command:
            path, _, name = row.proof.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), row.sentence


def test_every_refusal_is_on_the_page() -> None:
    missing = [str(one) for one in raised() if one.is_known and not is_shown(one)]

    assert left_over(missing, UNSEEN) == ([], [])


def test_every_refusal_that_is_not_known_before_it_is_said_has_its_reason() -> None:
    given_on = [str(one) for one in raised() if not one.is_known]

    assert left_over(given_on, GIVEN_ON) == ([], [])


def left_over(said: list[str], parts: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the parts that are in none, and those that none of the parts is in."""
    unused = [part for part in parts if not any(part in one for one in said)]
    return unused, [one for one in said if not any(part in one for part in parts)]


def is_shown(refusal: Raised) -> bool:
    return any(refusal.is_in(row.sentence) for row in ALL)


UNSEEN = {
    "engine/worker/bootstrap.py": "an environment that nobody sets by hand",
    "tail_team.py": "an evaluation on some replicas only, of which another sentence tells",
    "restart_budget must be": "--max-restarts, a flag, says it first",
    "must be more than 0 seconds": "the schema of limits says it first",
    "must be a whole number of at least": "the schema of the policy says it first",
    "must be a number of at least": "the schema of the policy says it first",
    "which no replica reaches": "the schema of the policy says it first",
    "replicaDiscreteValues must not be empty": "the schema of the policy says it first",
    "replicas cannot share": "who divides slots has looked at their number",
    "a team needs a name": "the command and the schema of teams say it first",
    "a priority class is a name": "the command and the schema of classes say it first",
    "a pool has 0 or more devices": "--devices, a flag, and the schema say it first",
    "must be 0 or more devices": "the schema of teams says it first",
    "reclaim.from must be": "the schema of teams says it first",
    "min_gain must be above 0": "no option sets the rules of a pool",
    "must be 0 seconds or more": "no option sets the rules of a pool",
    "an earlier claim named": "it lasts a moment",
    "the claim {name} is gone": "it lasts a moment",
    "openssl {words[0]}": "openssl says in its own words what is wrong with it",
    "cannot be used with its key": "openssl says in its own words what else is wrong",
    "it is not known who asks": "every kernel that pliant runs on says it",
    "it is in another container": "the tests have no other container",
    "has just taken it": "it lasts a moment",
    "comes after the opening": "a pool that starts again takes up who returns before it opens",
    "is held by another claim": "a pool that starts again has looked at the locks",
    "this installation of pliant has no recipes": "no package lacks them",
    "simulate/replay_notation.py": "scenario files are written by pliant replay --to-scenario",
    "simulate/replay_player.py": "scenario files are written by pliant replay --to-scenario",
    "simulate/pool_scenario.py": "scenario files are written by pliant replay --to-scenario",
    "is empty; no scenario can be made of it": "an empty log is of no pool",
    "answers otherwise": "a log of this release answers as it did",
}
"""Parts of what is refused and not on the page, with the reason."""


GIVEN_ON = {
    "checkpoint_commands.py": "what the library says of an object that it does not trust",
    "cli/settings.py": "the sentence of --policy, behind the name of a variable",
    "{given.source}: {error}": "the core's, of --placement, behind where that was given",
    "state_handover.py": "the sentence of who found that replicas differ",
    "other_scripts.py": "a custom's; each is on the page, of a script",
    "http/client.py": "what a job or a pool has answered",
    "pool/claim_client.py": "what the pool has answered",
    "pool/claims.py": "the core's; it is found where that refuses",
    "tagged_codec.py": "what is wrong with a value, behind its path; it is found for itself",
    "--init {source}: {sentence}": "the sentence of the process that reads the weights",
    "run_directory.py": "the sentence of who wants the directory for itself",
    "simulate/simulation.py": "the policy's, behind the line of a job that it does not allow",
    "simulate/world_files.py": "why a file cannot be read, behind who names it",
    "spec/load.py": "the words of pydantic, of what has no sentence of ours",
}
"""Where something is refused in words that are another's, with whose they are."""
