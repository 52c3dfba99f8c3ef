"""How the commands say numbers, and what went wrong."""

from typing import NoReturn

import typer

__all__ = ["amount", "duration", "fail", "say", "size"]

THOUSAND = 1000


def scaled(value: float, units: tuple[str, ...]) -> str:
    """A number with three digits and the unit in which it is at least 1."""
    unit = 0
    # As it is rounded, so that nothing is written as 1000 of a unit.
    while abs(value) >= THOUSAND - 0.5 and unit + 1 < len(units):
        value /= THOUSAND
        unit += 1
    return f"{value:.3g} {units[unit]}".rstrip()


def amount(value: float) -> str:
    """A count, such as `1.23 M`."""
    return scaled(value, ("", "k", "M", "G", "T"))


def size(value: float) -> str:
    """A number of bytes, such as `1.23 MB`; a kB has 1000 of them, as in network rates."""
    return scaled(value, ("B", "kB", "MB", "GB", "TB"))


def duration(seconds: float) -> str:
    """A time, such as `1.23 ms`."""
    if seconds >= THOUSAND / 10:
        return f"{seconds:,.0f} s"
    return scaled(seconds * 1e9, ("ns", "µs", "ms", "s"))


def say(message: str) -> None:
    """Tell a person something; standard output is for results."""
    typer.echo(message, err=True)


def fail(message: object, code: int = 1) -> NoReturn:
    """End the command: one line says why."""
    say(f"echoic: {message}")
    raise typer.Exit(code)
