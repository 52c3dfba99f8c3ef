"""The command `echoic`: a stand-alone server, a ping and a load generator.

`main` is what the command calls. The commands need typer and rich, which ``pip install
'echoic[cli]'`` brings; they are imported only here, so that ``import echoic`` needs neither, and a
missing one is one line that says how to get it.
"""

import sys

__all__ = ["main"]

# What `echoic[cli]` brings, by the names they are imported with.
EXTRA = ("typer", "rich", "tomli")


def main() -> None:
    """Run the command line."""
    try:
        from echoic.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        sys.exit(
            f"echoic: the command line needs {error.name}, which is not installed. "
            "Get it with: pip install 'echoic[cli]'"
        )
    # Also when it was started as `python -m echoic`: completion goes by this name.
    app(prog_name="echoic")
