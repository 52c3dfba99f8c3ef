"""A live view of a language model's training: rewards, ages of answers, reuse, tokens a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["View", "curve"]

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


def curve(values: list[float], width: int = _WIDTH) -> str:
    """Draw the last values as blocks, from the lowest to the highest of them.

    >>> curve([0.0, 0.5, 1.0])
    '▁▄█'
    """
    shown = values[-width:]
    low, high = min(shown), max(shown)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[int((value - low) * scale)] for value in shown)


class View:
    """Shows a run in a terminal as it learns; elsewhere, a line for each update.

    Args:
        name: What is trained.
        steps: Updates of the run.
        rows: Updates so far; the trainer adds to them.
    """

    def __init__(self, name: str, steps: int, rows: list[dict[str, Any]]) -> None:
        self._name, self._steps, self._rows = name, steps, rows
        self._evaluation: dict[str, Any] | None = None
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False)

    def show(self, kind: str, row: dict[str, Any]) -> None:
        """Show an update or an evaluation."""
        if kind == "evaluation":
            self._evaluation = row
        if self._console.is_terminal:
            self._live.update(self._render(), refresh=True)
        elif kind == "evaluation":
            self._print(self._evaluated())
        else:
            numbers = ", ".join(f"{word} {row[name]:.3g}" for name, word in _SHOWN.items())
            self._print(f"update {row['step']}: {numbers}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def _evaluated(self) -> str:
        row = self._evaluation
        if row is None:
            return ""
        return (
            f"held out, after update {row['step']}: success {row['success_rate']:.2f}, "
            f"reward {row['avg_reward']:.2f} in {len(row['rewards'])} prompts"
        )

    def _render(self) -> Group:
        if not self._rows:
            return Group(Text(self._evaluated()))
        table = Table.grid(padding=(0, 3))
        table.add_row(*(Text(word, style="dim") for word in _SHOWN.values()))
        table.add_row(*(f"{self._rows[-1][name]:.3g}" for name in _SHOWN))
        rewards = [row["reward"] for row in self._rows]
        return Group(
            Text(f"{self._name}: update {self._rows[-1]['step']} of {self._steps}", style="bold"),
            Text(f"{curve(rewards)}  {min(rewards):.2f} to {max(rewards):.2f}", style="green"),
            table,
            Text(self._evaluated(), style="cyan"),
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()
