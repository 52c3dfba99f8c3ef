"""Print messages for people to standard error; standard output is for results."""

from typing import NoReturn

import typer

__all__ = ["INTERRUPTED", "fail", "say"]

# The status of a command that Ctrl-C ended, as shells report it.
INTERRUPTED = 130


def say(message: str) -> None:
    """Print a line."""
    typer.echo(message, err=True)


def fail(message: object, code: int = 1) -> NoReturn:
    """End the command with an error message."""
    say(f"echoic: {message}")
    raise typer.Exit(code)
