"""Options that commands share look to the parser like their own."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from pliant.cli.options import with_settings
from pliant.cli.settings import Setting

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
