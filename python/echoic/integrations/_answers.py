"""Split a batch into rows of prompts and answers, as trainers of other libraries expect.

An item's *prompt* is what precedes the first token that its policy made, according to the mask
column; the rest is its *answer*. Prompts are padded on the left and answers on the right, so that
they meet. The axes of a column whose values have a shape follow. Works for every form of a batch,
and needs numpy only.
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
    """A batch, split where answers begin.

    Args:
        batch: A batch of any form.
        mask: The column that is not zero where the policy made a token; without it, prompts are
            empty.
    """

    def __init__(self, batch: RolloutBatch, mask: str | None) -> None:
        lengths, offsets = batch.lengths, batch.offsets
        self._batch = batch
        self._items = np.repeat(np.arange(len(batch)), lengths)
        # The position of each token in its item.
        self._places = np.arange(batch.tokens) - np.repeat(offsets[:-1], lengths)
        self._cells = np.repeat(batch.starts, lengths) + self._places
        made = np.ones(batch.tokens, np.bool_) if mask is None else self._flat(batch[mask]) != 0
        #: The number of tokens of each prompt.
        self.prompt_lengths = lengths.copy()
        np.minimum.at(self.prompt_lengths, self._items[made], self._places[made])
        #: The number of tokens of each answer.
        self.lengths = lengths - self.prompt_lengths
        self._made = made

    def _flat(self, column: Array) -> Array:
        """Return a column with all tokens in one row, item after item."""
        shape = self._batch.shape
        if column.shape[: len(shape)] != shape:
            raise RolloutError(
                f"expected a column of the batch, of shape {shape}, got an array of "
                f"shape {column.shape}: a field has a value for each item, not for each token"
            )
        flat: Array = column.reshape(-1, *column.shape[len(shape) :])[self._cells]
        return flat

    def _rows(self, values: Array, is_prompt: bool, fill: Any, dtype: Any) -> Array:
        before = self.prompt_lengths[self._items]
        chosen = (self._places < before) == is_prompt
        items, places = self._items[chosen], self._places[chosen]
        widths = self.prompt_lengths if is_prompt else self.lengths
        width = int(widths.max(initial=0))
        columns = places + (width - before[chosen] if is_prompt else -before[chosen])
        rows = np.full((len(self._batch), width, *values.shape[1:]), fill, dtype)
        rows[items, columns] = values[chosen]
        return rows

    def prompts(self, column: Array, fill: Any, dtype: Any) -> Array:
        """Return a column's part before the answers: (items, longest, ...), padded on the left."""
        return self._rows(self._flat(column), True, fill, dtype)

    def answers(self, column: Array, fill: Any, dtype: Any) -> Array:
        """Return a column's part from the answers on: (items, longest, ...), padded at the end."""
        return self._rows(self._flat(column), False, fill, dtype)

    def is_prompt(self) -> Array:
        """Return where prompts have tokens, as 0 and 1."""
        return self._rows(np.ones(len(self._items), np.int64), True, 0, np.int64)

    def is_answer(self) -> Array:
        """Return where answers have tokens, as 0 and 1."""
        return self._rows(np.ones(len(self._items), np.int64), False, 0, np.int64)

    def is_made(self) -> Array:
        """Return where the policy, not a tool or environment, made a token, as 0 and 1."""
        return self._rows(self._made, False, 0, np.int64)
