"""Assemble the commands, each from its own module, into one typer application."""

import json
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Annotated

import numpy as np
import typer

from echoic.cli.bench import bench
from echoic.cli.benchmark import benchmark
from echoic.cli.dashboard import dashboard
from echoic.cli.demo import demo
from echoic.cli.options import AsJson
from echoic.cli.ping import ping
from echoic.cli.replay import replay
from echoic.cli.serve import serve
from echoic.cli.tables import export, inspect, verify
from echoic.cli.top import top
from echoic.cli.train import train

__all__ = ["app"]

app = typer.Typer(
    name="echoic",
    no_args_is_help=True,
    # Expected failures print one line; an unexpected one prints its traceback for a bug report.
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


# Optional dependencies and packages often used together; bugs depend on their versions.
NEIGHBOURS = ("optree", "typer", "rich", "textual", "pyarrow", "gymnasium", "torch", "jax")


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


def examples(*lines: str) -> str:
    """Return the end of a command's help: one example a line."""
    return "\n\n".join(["**Examples**", *(f"- `{line}`" for line in lines)])


def say_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"echoic {version_of('echoic')}")
        raise typer.Exit


@app.callback(
    epilog=examples(
        "echoic demo",
        "echoic serve --config tables.toml",
        "echoic top tcp://127.0.0.1:5555",
        "echoic serve --help",
    )
)
def echoic(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=say_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Experience replay and data transport for reinforcement learning."""


app.command(
    epilog=examples(
        "echoic serve --spec 'obs=float32[4],reward=float32'",
        "echoic serve --spec 'obs/image=uint8[84,84,4],action=int32' --save batches",
        "echoic serve --spec 'x=float32' --address tcp://0.0.0.0:5555 --token-file secret",
        "echoic serve --spec 'x=float32' --address shm://robots --address tcp://127.0.0.1:5555",
        "echoic serve --config tables.toml",
    )
)(serve)
app.command(
    epilog=examples(
        "echoic ping tcp://127.0.0.1:5555",
        "echoic ping shm://robots --count 1000",
        "echoic ping tls://learner:5555 --ca ca.pem --token-file secret",
        "echoic ping tcp://learner:5555 --spec 'obs=float32[4],reward=float32'",
    )
)(ping)
app.command(
    epilog=examples(
        "echoic bench tcp://127.0.0.1:5555",
        "echoic bench shm://robots --clients 4 --seconds 30",
        "echoic bench tcp://learner:5555 --batch 256 --token-file secret",
        "echoic bench tcp://learner:5555 --rate 10000 --json",
    )
)(bench)
app.command(
    epilog=examples(
        "echoic replay runs/math/rollouts",
        "echoic replay runs/math/rollouts --at 100 --most 3 --json",
    )
)(replay)
app.command(
    epilog=examples(
        "echoic inspect tcp://127.0.0.1:5555",
        "echoic inspect checkpoints --items 10",
    )
)(inspect)
app.command(epilog=examples("echoic verify checkpoints"))(verify)
app.command(
    epilog=examples(
        "echoic export checkpoints replay replay.npz",
        "echoic export checkpoints/checkpoint-0000000007 replay replay.parquet",
    )
)(export)
app.command(
    epilog=examples(
        "echoic dashboard tcp://127.0.0.1:5555",
        "echoic dashboard tls://learner:5555 --ca ca.pem --token-file secret --port 8080 --open",
    )
)(dashboard)
app.command(
    epilog=examples(
        "echoic top tcp://127.0.0.1:5555",
        "echoic top tls://learner:5555 --ca ca.pem --token-file secret",
        "echoic top shm://robots --once",
        "echoic top tcp://learner:5555 --json --interval 5",
    )
)(top)
app.command(epilog=examples("echoic demo", "echoic demo --workers 8 --seed 1"))(demo)
app.command(
    epilog=examples(
        "echoic train --task minigrid --timesteps 50000 --num-actors 32",
        "echoic train --task minigrid --task-setting grid_size=6 --setting evaluation_episodes=50",
        "echoic train --task webshop --method rlaif --backbone smollm2",
    )
)(train)
app.command(
    epilog=examples(
        "echoic benchmark --tasks minigrid --baselines impala --num-seeds 5 --timesteps 50000",
        "echoic benchmark --tasks cruxeval --backbones gpt-4o,smollm2 --baselines react,tot",
        "echoic benchmark --import my_tasks --tasks my_task --baselines my_method",
    )
)(benchmark)
app.command(epilog=examples("echoic version", "echoic version --json"))(version)
