"""The command `echoic`.

`main` runs it. The commands need typer and rich (``pip install 'echoic[cli]'``), which only this
package imports. If one is missing, the command prints how to install it.
"""

import sys

__all__ = ["main"]

# The packages of `echoic[cli]`, by the names they are imported with.
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
    # Also for `python -m echoic`: shell completion uses this name.
    app(prog_name="echoic")
