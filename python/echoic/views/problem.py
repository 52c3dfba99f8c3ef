"""Something that is wrong, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """Something that keeps somebody waiting, or went wrong.

    Attributes:
        level: ``"stuck"`` when somebody waits because of it and nothing moved of late, ``"slow"``
            when somebody waits though things move, ``"note"`` when it is good to know.
        subject: What it is about: a table's name in quotes, ``"the stream"`` or ``"connections"``.
        reason: The same as in metrics and errors, such as ``"RATIO"``.
        text: What happens.
        advice: What helps.
    """

    level: Literal["stuck", "slow", "note"]
    subject: str
    reason: str
    text: str
    advice: str
