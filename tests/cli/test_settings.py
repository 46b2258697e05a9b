"""A setting has one source, and what contradicts itself is refused before anything starts."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from pliant.cli.job_settings import job_name, policy_of, pool_of
from pliant.cli.settings import SETTINGS, Setting, resolve, with_settings
from pliant.core.errors import ConfigError
from pliant.core.policy.decide import PolicyBackoff
from pliant.core.tenancy import PoolPlace
from pliant.spec.job import ElasticJob
from pliant.spec.load import parse

JOB = """\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {name: from-file}
spec:
  elasticPolicy: {minReplicas: 2, maxReplicas: 6}
  command: [train.py]
"""


def load(text: str) -> ElasticJob:
    return parse(ElasticJob, text, source="job.yaml")


def policy(**arguments: Any) -> Any:
    return policy_of(resolve(arguments, {}, None))


def test_fields_of_the_policy_come_each_from_the_first_that_gives_it() -> None:
    job = load(
        JOB.replace(
            "maxReplicas: 6", "maxReplicas: 6, spares: 1, backoff: {factor: 3, maxInSeconds: 60}"
        )
    )
    environ = {"PLIANT_POLICY": "spares=2 scalingTimeoutInSeconds=30"}

    found = policy_of(resolve({"policy": {"scalingTimeoutInSeconds": 5}}, environ, job))

    assert (found.min_replicas, found.max_replicas) == (2, 6)
    assert (found.spares, found.scaling_timeout_s) == (2, 5)
    assert found.backoff == PolicyBackoff(factor=3, max_s=60)


def test_a_list_of_sizes_brings_its_own_minimum() -> None:
    found = policy(policy={"replicaDiscreteValues": [2, 4]})

    assert (found.min_replicas, found.replica_discrete_values) == (2, (2, 4))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"maxReplicas": 4}, "maxReplicas is set with --max, not with --policy"),
        ({"spare": 1}, "--policy: unknown field spare; did you mean spares?"),
        ({"spares": "x"}, "--policy: spares must be a whole number, not 'x'"),
    ],
)
def test_a_field_that_cannot_be_set_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(policy=fields)

    assert str(caught.value) == sentence


def test_an_environment_variable_that_is_no_policy_is_named() -> None:
    with pytest.raises(ConfigError, match="PLIANT_POLICY: 'spares' is not KEY=VALUE"):
        resolve({}, {"PLIANT_POLICY": "spares"}, None)


@pytest.mark.parametrize(
    ("arguments", "environ", "job", "found"),
    [
        ({"max_replicas": 3}, {"PLIANT_MAX": "4"}, JOB, (3, "--max")),
        ({}, {"PLIANT_MAX": "4"}, JOB, (4, "PLIANT_MAX")),
        ({}, {"PLIANT_MAX": ""}, JOB, (6, "job file")),
        ({}, {}, JOB, (6, "job file")),
        ({}, {}, None, (None, "default")),
    ],
)
def test_argument_beats_environment_beats_file_beats_default(
    arguments: dict[str, Any], environ: dict[str, str], job: str | None, found: tuple[Any, str]
) -> None:
    resolved = resolve(arguments, environ, load(job) if job else None)["max_replicas"]

    assert (resolved.value, resolved.source) == found


def test_every_setting_has_its_own_flag_and_variable() -> None:
    assert len({item.flag for item in SETTINGS}) == len(SETTINGS)
    assert len({item.variable for item in SETTINGS}) == len(SETTINGS)


def test_an_environment_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(ConfigError, match="PLIANT_MIN=two must be a whole number"):
        resolve({}, {"PLIANT_MIN": "two"}, None)
    with pytest.raises(ConfigError, match="PLIANT_RESUME=maybe must be 1 or 0"):
        resolve({}, {"PLIANT_RESUME": "maybe"}, None)


def test_sizes_become_the_cores_policy() -> None:
    found = policy(min_replicas=1, max_replicas=4, start_replicas=2)

    assert (found.min_replicas, found.max_replicas, found.start_replicas) == (1, 4, 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"min_replicas": 0}, "--min 0 must be at least 1"),
        ({"max_replicas": 0}, "--max 0 must be at least 1"),
        ({"min_replicas": 3, "max_replicas": 2}, "--min 3 is greater than --max 2"),
        ({"min_replicas": 3, "start_replicas": 2}, "--start 2 is less than --min 3"),
        ({"max_replicas": 3, "start_replicas": 4}, "--start 4 is greater than --max 3"),
    ],
)
def test_contradicting_sizes_are_refused(arguments: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(**arguments)

    assert str(caught.value) == sentence


def test_a_contradiction_names_where_each_size_was_given() -> None:
    job = load(JOB)

    with pytest.raises(ConfigError) as caught:
        policy_of(resolve({}, {"PLIANT_MAX": "1"}, job))

    assert str(caught.value) == "--min 2 (job file) is greater than PLIANT_MAX=1"


@pytest.mark.parametrize("show", ["R1", "r0", "everything", ""])
def test_only_a_replicas_name_can_be_shown(show: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"show": show}, {}, None)

    assert str(caught.value) == f"--show {show!r} is neither all nor none nor a replica such as r1"


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("examples/train_gpt.py", "train-gpt"),
        ("'My Script!.py'", "my-script"),
        ("__.py", "job"),
        ("x" * 100 + ".py", "x" * 63),
        ("v1.2.py", "v1-2"),
        ("-m package.fine_tune", "fine-tune"),
    ],
)
def test_a_job_is_named_after_its_script(script: str, name: str) -> None:
    assert job_name(resolve({}, {}, None), shlex.split(script)) == name


def test_a_name_with_other_letters_is_refused() -> None:
    with pytest.raises(ConfigError, match="--name 'A B' must be lower-case letters"):
        job_name(resolve({"name": "A B"}, {}, None), ["x.py"])


IN_POOL = JOB.replace("  command:", "  pool: {name: gpus, team: vision}\n  command:")


@pytest.mark.parametrize(
    ("arguments", "environ", "job", "place"),
    [
        ({}, {}, JOB, None),
        ({"pool": "default"}, {}, None, PoolPlace()),
        (
            {},
            {"PLIANT_POOL": "p", "PLIANT_PRIORITY": "low"},
            None,
            PoolPlace(name="p", priority="low"),
        ),
        ({}, {}, IN_POOL, PoolPlace(name="gpus", team="vision")),
        ({"priority": "high"}, {}, IN_POOL, PoolPlace(name="gpus", team="vision", priority="high")),
    ],
)
def test_a_job_has_a_place_in_the_pool_that_is_named(
    arguments: dict[str, Any], environ: dict[str, str], job: str | None, place: PoolPlace | None
) -> None:
    assert pool_of(resolve(arguments, environ, load(job) if job else None)) == place


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"PLIANT_TEAM": "a"}, "PLIANT_TEAM=a says how a job stands in a pool; add --pool"),
        ({"PLIANT_POOL": "../x"}, "PLIANT_POOL=../x: a pool's name must be lower-case letters"),
    ],
)
def test_a_place_in_no_pool_is_refused(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        pool_of(resolve({}, environ, None))

    assert str(refused.value).startswith(sentence)


Loud = Annotated[bool, typer.Option("--loud", help="Shout.")]
Name = Annotated[str, typer.Argument(help="Whom.")]

TABLE = (
    Setting(
        name="times",
        kind=int,
        help="How often.  [default: 1]",
        help_in={"brief": "How often, at most 3."},
        commands=("polite", "brief"),
    ),
    Setting(name="whisper", kind=bool, help="Softly.", commands=("brief",)),
)

app = typer.Typer(rich_markup_mode=None)


def greeting(name: str, given: dict[str, Any]) -> str:
    return " ".join([f"hello {name}"] * (given["times"] or 1))


@app.command()
@with_settings("polite", TABLE)
def polite(given: dict[str, Any], name: Name, loud: Loud = False) -> int:
    """Greet."""
    words = greeting(name, given)
    typer.echo(words.upper() if loud else words)
    return 0


@app.command()
@with_settings("brief", TABLE)
def brief(given: dict[str, Any], name: Name) -> int:
    """Greet somebody shortly."""
    typer.echo(greeting(name, given))
    return 0


def said(*words: str) -> str:
    return CliRunner().invoke(app, list(words)).output


def test_a_command_gets_what_the_shared_options_amount_to_and_its_own() -> None:
    assert said("polite", "--times", "2", "--loud", "ada") == "HELLO ADA HELLO ADA\n"
    assert said("brief", "ada") == "hello ada\n"


def test_a_command_has_its_own_words_for_a_shared_option() -> None:
    assert "How often.  [default: 1]" in said("polite", "--help")
    assert "How often, at most 3." in said("brief", "--help")
    assert "at most 3" not in said("polite", "--help")
    assert "Greet somebody shortly." in said("brief", "--help")


def test_a_command_has_only_the_options_that_are_its_own() -> None:
    assert "--whisper" in said("brief", "--help")
    assert "--whisper" not in said("polite", "--help")
