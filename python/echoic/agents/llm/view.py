"""A live view of a language model's training: rewards, ages of answers, reuse, tokens a second."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["live_view"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_SHOWN = {
    "reward": "reward",
    "success": "success",
    "lag_max": "lag",
    "kv_reuse_rate": "KV reuse",
    "tokens_per_second": "tokens/s",
    "answer_seconds": "waited s",
    "learner_seconds": "learned s",
    "seconds": "in all s",
}


@contextlib.contextmanager
def live_view(
    name: str, steps: int, rows: list[dict[str, Any]]
) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Show a run in a terminal as it learns; elsewhere, a line for each update.

    Args:
        name: What is trained.
        steps: Updates of the run.
        rows: Updates so far; the trainer adds to them.

    Yields:
        A function that is called with ``"update"`` or ``"evaluation"`` and its row.
    """
    console, held_out = Console(stderr=True), ""
    is_live = console.is_terminal

    def show(kind: str, row: dict[str, Any]) -> None:
        nonlocal held_out
        line = f"update {row['step']}: "
        if kind == "update":
            line += ", ".join(f"{word} {row[key]:.3g}" for key, word in _SHOWN.items())
        else:
            line = held_out = (
                f"held out, after update {row['step']}: success {row['success_rate']:.2f}, "
                f"reward {row['avg_reward']:.2f} in {len(row['rewards'])} prompts"
            )
        if not is_live:
            console.print(line, highlight=False, soft_wrap=True)
            return
        title = f"{name}: update {rows[-1]['step'] if rows else 0} of {steps}"
        live.update(_picture(title, rows, held_out), refresh=True)

    live = Live(console=console, auto_refresh=False)
    with live if is_live else contextlib.nullcontext():
        yield show


def _picture(title: str, rows: list[dict[str, Any]], held_out: str) -> Group:
    shown = [Text(title, style="bold")]
    table = Table.grid(padding=(0, 3))
    if rows:
        rewards = [row["reward"] for row in rows]
        low, high = min(rewards), max(rewards)
        shown.append(Text(f"{curve(rewards[-_WIDTH:])}  {low:.2f} to {high:.2f}", style="green"))
        table.add_row(*(Text(word, style="dim") for word in _SHOWN.values()))
        table.add_row(*(f"{rows[-1][key]:.3g}" for key in _SHOWN))
    return Group(*shown, table, Text(held_out, style="cyan"))


def curve(values: list[float]) -> str:
    """Draw values as blocks, from the lowest to the highest of them.

    >>> curve([0.0, 0.5, 1.0])
    '▁▄█'
    """
    low, high = min(values), max(values)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[int((value - low) * scale)] for value in values)
