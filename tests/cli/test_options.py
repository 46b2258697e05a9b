"""Options that commands share look to the parser like their own."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.testing import CliRunner

from pliant.cli.options import takes

Loud = Annotated[bool, typer.Option("--loud", help="Shout.")]


def greeting(
    name: Annotated[str, typer.Argument(help="Whom.")],
    times: Annotated[int, typer.Option("--times", help="How often.")] = 1,
) -> str:
    return " ".join([f"hello {name}"] * times)


app = typer.Typer(rich_markup_mode=None)


@app.command()
@takes(greeting)
def polite(words: str, loud: Loud = False) -> int:
    """Greet."""
    typer.echo(words.upper() if loud else words)
    return 0


@app.command()
@takes(greeting, times="How often, at most 3.")
def brief(words: str) -> int:
    """Greet somebody shortly."""
    typer.echo(words)
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
