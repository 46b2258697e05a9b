"""Help pages: how a group of commands lists them, and what it says of their arguments.

Owns that a list says the whole of each sentence, however narrow the terminal is, and nothing of a
program's types.  Knows nothing of what a command does.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

WHOLE = 1_000
"""Characters of a command's first sentence that are shown: all of them."""


class CommandGroup(TyperGroup):
    """A group whose commands are listed with their whole sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands; typer's own list cuts each to what is left of one line."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(WHOLE)) for name, command in named if command]
            )

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command whose help does not say ``<list[str]>`` beside an argument's name."""
        command = super().get_command(ctx, cmd_name)
        for param in command.params if command is not None else ():
            if param.param_type_name == "argument":  # an instance's: newer typers ask it for help
                vars(param)["display_type_rich"] = _no_type
        return command


def _no_type(ctx: Any) -> str:
    """Return the type of an argument for people: none."""
    return ""
