"""Draw numbers as rows of block characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["bar", "chart", "sparkline"]

BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = len(BLOCKS) - 1


def bar(share: float, width: int) -> str:
    """Draw a share from 0 to 1 as a bar of `width` characters."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    # Only 0 is drawn as empty, and only 1 as full.
    if 0 < share < 1:
        filled = min(max(filled, 1), max(width - 1, 1))
    return "█" * filled + "░" * (width - filled)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the last values in a line, a character each, the newest at the right end."""
    return chart(values[-width:], width, 1)[0] if width > 0 else ""


def chart(values: Sequence[float], width: int, height: int, most: int = 0) -> list[str]:
    """Draw values as columns, the newest at the right end.

    The bottom is 0 and the top is the highest value: textual's own sparkline begins at the lowest
    value, where noise looks like a crash.

    Args:
        values: The values. Those that share a column are averaged.
        width: Characters in a line.
        height: Lines.
        most: The number of values that must fit, so that the scale of time stays as values are
            added.
    """
    each = max(-(-max(len(values), most) // width), 1)
    columns = [values[max(end - each, 0) : end] for end in range(len(values), 0, -each)]
    means = [sum(column) / len(column) for column in reversed(columns)]
    top = max(means, default=0.0)
    eighths = []
    for mean in means:
        share = mean / top if top > 0 else 0.0
        # Zero is drawn as a low block, unlike a missing value.
        eighths.append(max(round(share * EIGHTHS * height), 2 if mean > 0 else 1))
    lines = []
    for line in reversed(range(height)):
        drawn = (min(max(many - line * EIGHTHS, 0), EIGHTHS) for many in eighths)
        lines.append("".join(BLOCKS[level] for level in drawn).rjust(width))
    return lines
