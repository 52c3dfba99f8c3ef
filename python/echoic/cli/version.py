"""`echoic version`: print what is installed, for bug reports."""

import json
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import numpy as np
import typer

from echoic.cli.options import AsJson

__all__ = ["version"]

# Optional dependencies and packages often used together; bugs depend on their versions.
NEIGHBOURS = (
    "optree",
    "typer",
    "rich",
    "textual",
    "nicegui",
    "pyarrow",
    "gymnasium",
    "torch",
    "jax",
)


def version(*, as_json: AsJson = False) -> None:
    """Print the versions of Echoic and of the packages that it works with here."""
    found = {"echoic": version_of("echoic"), "python": platform.python_version()}
    found |= {"platform": platform.platform(), "numpy": np.__version__}
    for name in NEIGHBOURS:
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:
            continue
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, text in found.items():
        typer.echo(f"{name} {text}")
