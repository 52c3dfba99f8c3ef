"""The transitions that are stored, each of which follows from its number.

`benchmarks.tables.items` has the reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.tables.items import Items, frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.payload import Array, Tree

#: The columns of a batch, as all engines are asked for them.
NAMES = ("obs", "actions", "rewards", "terminated", "truncated", "next_obs")

# What a frame's number is moved by, to make the frame that follows.
_NEXT = 1_000_003


def small(numbers: Array) -> Tree:
    """42 bytes, all that moves being floats of 32 bits: the form of the call with dimensions."""
    obs = (4 * numbers[:, None] + np.arange(4)) % (1 << 20)
    return {
        "obs": obs.astype(np.float32),
        # The number itself, which such floats hold exactly up to 16 million.
        "actions": numbers[:, None].astype(np.float32),
        **_rest(numbers),
        "next_obs": (obs + 0.5).astype(np.float32),
    }


def steps(numbers: Array) -> Tree:
    """The same in episodes of 500 steps."""
    none = np.zeros(len(numbers), np.bool_)
    return {**small(numbers), "terminated": numbers % 500 == 499, "truncated": none}


def image(numbers: Array) -> Tree:
    """56 kB: a stack of four frames, what came of an action, and the stack after it."""
    return {
        "obs": frame(numbers)["frame"],
        "actions": (numbers % 18)[:, None].astype(np.int64),
        **_rest(numbers),
        "next_obs": frame(numbers + _NEXT)["frame"],
    }


def _rest(numbers: Array) -> Tree:
    return {
        "rewards": (numbers % 1009).astype(np.float32),
        "terminated": numbers % 7 == 0,
        "truncated": numbers % 11 == 0,
    }


_KINDS: dict[str, Callable[[Array], Tree]] = {"small": small, "steps": steps, "image": image}


class Rows(Items):
    """The transitions of a kind: ``small``, ``steps`` or ``image``."""

    def columns(self, numbers: Array) -> Tree:
        """Return the transitions with these numbers."""
        return _KINDS[self.kind](numbers)

    def numbers(self, data: Tree) -> Array:
        """Read the number of every row."""
        if self.kind != "image":
            return np.asarray(data["actions"]).reshape(-1).astype(np.int64)
        heads = np.asarray(data["obs"]).reshape(len(data["obs"]), -1)[:, :8]
        return np.ascontiguousarray(heads).view(np.int64).reshape(-1)

    def pushes(self, count: int) -> list[tuple[Any, ...]]:
        """Return the arguments of so many pushes, in the order that all engines take them."""
        columns = self.columns(np.arange(count))
        return [
            (
                columns["obs"][i],
                columns["actions"][i],
                float(columns["rewards"][i]),
                bool(columns["terminated"][i]),
                bool(columns["truncated"][i]),
                columns["next_obs"][i],
            )
            for i in range(count)
        ]
