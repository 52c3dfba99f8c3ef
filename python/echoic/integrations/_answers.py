"""Prompts and answers of a batch as rows: the shape in which trainers of other libraries want them.

An item's *prompt* is what comes before the first token that its policy made, which the mask column
tells; the rest is its *answer*. Prompts are filled up on the left and answers on the right, so that
they meet. Works for every form of a batch. Knows numpy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import RolloutError

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch

    Array = np.ndarray[Any, Any]

__all__ = ["Answers"]


class Answers:
    """A batch, cut where answers begin.

    Args:
        batch: Of any form.
        mask: The column that is not zero where the policy made a token; without it, prompts are
            empty.
    """

    def __init__(self, batch: RolloutBatch, mask: str | None) -> None:
        lengths, offsets = batch.lengths, batch.offsets
        self._batch = batch
        self._items = np.repeat(np.arange(len(batch)), lengths)
        # Where each token is in its item, and in a column.
        self._places = np.arange(batch.tokens) - np.repeat(offsets[:-1], lengths)
        self._cells = np.repeat(batch.starts, lengths) + self._places
        made = np.ones(batch.tokens, np.bool_) if mask is None else self._flat(batch[mask]) != 0
        #: Tokens of each prompt.
        self.prompt_lengths = lengths.copy()
        np.minimum.at(self.prompt_lengths, self._items[made], self._places[made])
        #: Tokens of each answer.
        self.lengths = lengths - self.prompt_lengths
        self._made = made

    def _flat(self, column: Array) -> Array:
        """Return a column with all tokens in one row, item after item."""
        if column.shape != self._batch.shape:
            raise RolloutError(
                f"expected a column of the batch, of shape {self._batch.shape}, got an array of "
                f"shape {column.shape}: a field has a value for each item, not for each token"
            )
        flat: Array = column.reshape(-1)[self._cells]
        return flat

    def _rows(self, values: Array, is_prompt: bool, fill: Any, dtype: Any) -> Array:
        before = self.prompt_lengths[self._items]
        chosen = (self._places < before) == is_prompt
        items, places = self._items[chosen], self._places[chosen]
        widths = self.prompt_lengths if is_prompt else self.lengths
        width = int(widths.max(initial=0))
        columns = places + (width - before[chosen] if is_prompt else -before[chosen])
        rows = np.full((len(self._batch), width), fill, dtype)
        rows[items, columns] = values[chosen]
        return rows

    def prompts(self, column: Array, fill: Any, dtype: Any) -> Array:
        """Return a column's part before the answers: (items, longest), filled up on the left."""
        return self._rows(self._flat(column), True, fill, dtype)

    def answers(self, column: Array, fill: Any, dtype: Any) -> Array:
        """Return a column's part from the answers on: (items, longest), filled up on the right."""
        return self._rows(self._flat(column), False, fill, dtype)

    def is_prompt(self) -> Array:
        """Where prompts have tokens, as 0 and 1."""
        return self._rows(np.ones(len(self._items), np.int64), True, 0, np.int64)

    def is_answer(self) -> Array:
        """Where answers have tokens, as 0 and 1."""
        return self._rows(np.ones(len(self._items), np.int64), False, 0, np.int64)

    def is_made(self) -> Array:
        """Where the policy made a token of the answer, and no tool or environment: as 0 and 1."""
        return self._rows(self._made, False, 0, np.int64)
