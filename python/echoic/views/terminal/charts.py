"""Numbers as rows of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["bar", "chart", "sparkline"]

BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = len(BLOCKS) - 1


def bar(share: float, width: int) -> str:
    """Draw a share from 0 to 1 as a bar of so many characters."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    # Neither an empty thing nor a full one looks like one that is nearly so.
    if 0 < share < 1:
        filled = min(max(filled, 1), max(width - 1, 1))
    return "█" * filled + "░" * (width - filled)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the last values in one line, a character each, the newest at the right end."""
    return chart(values[-width:], width, 1)[0] if width > 0 else ""


def chart(values: Sequence[float], width: int, height: int, most: int = 0) -> list[str]:
    """Draw values as columns, the newest at the right end.

    The bottom is 0 and the top is the highest value: textual's own sparkline begins at the lowest
    one, so that there noise looks like a crash.

    Args:
        values: What to draw. Several that share a column are averaged.
        width: How many characters a line has.
        height: How many lines there are.
        most: For how many values there must be room, so that time does not change its scale while
            they become more.
    """
    each = max(-(-max(len(values), most) // width), 1)
    columns = [values[max(end - each, 0) : end] for end in range(len(values), 0, -each)]
    means = [sum(column) / len(column) for column in reversed(columns)]
    top = max(means, default=0.0)
    eighths = []
    for mean in means:
        share = mean / top if top > 0 else 0.0
        # Zero has a line of its own: no value at all looks different.
        eighths.append(max(round(share * EIGHTHS * height), 2 if mean > 0 else 1))
    lines = []
    for line in reversed(range(height)):
        drawn = (min(max(many - line * EIGHTHS, 0), EIGHTHS) for many in eighths)
        lines.append("".join(BLOCKS[level] for level in drawn).rjust(width))
    return lines
