"""What the commands tell a person. It goes to standard error: standard output is for results."""

from typing import NoReturn

import typer

__all__ = ["fail", "say"]


def say(message: str) -> None:
    """Write a line."""
    typer.echo(message, err=True)


def fail(message: object, code: int = 1) -> NoReturn:
    """End the command; a line says why."""
    say(f"echoic: {message}")
    raise typer.Exit(code)
