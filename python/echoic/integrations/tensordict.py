"""Convert batches to tensordicts.

Neither torch nor tensordict is imported before a batch is converted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.integrations._answers import Answers

if TYPE_CHECKING:
    from echoic.rollouts import RolloutBatch

__all__ = ["to_tensordict"]


def to_tensordict(batch: RolloutBatch) -> Any:
    """Return a ``TensorDict`` with a row for each item.

    Its ``batch_size`` is the number of items. It has the table's columns, padded with zeros on the
    right, and fields; ``is_token`` and ``versions`` (-1 where there is no token); ``length``,
    ``group`` (the number of its group), ``lag_oldest`` and ``lag_newest`` for each item.

    If items have blobs, ``found["blobs", name]`` has the values of each name as they were added,
    one for each item; ``None`` for an item without it.

    Args:
        batch: A batch of any form.
    """
    from tensordict import NonTensorData, NonTensorStack, TensorDict

    from echoic.integrations.torch import as_tensors

    found = TensorDict(as_tensors(rows(batch)), batch_size=[len(batch)])
    blobs = [batch.blobs(item) for item in range(len(batch))]
    for name in sorted({name for of_item in blobs for name in of_item}):
        values = (NonTensorData(of_item.get(name)) for of_item in blobs)
        found["blobs", name] = NonTensorStack(*values)
    return found


def rows(batch: RolloutBatch) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of :func:`to_tensordict`."""
    # Without a mask all tokens belong to the answer.
    whole = Answers(batch, None)
    columns = batch.columns.items()
    return {
        **{name: whole.answers(column, 0, column.dtype) for name, column in columns},
        **batch.fields,
        "is_token": whole.is_answer().astype(np.bool_),
        "versions": whole.answers(batch.versions, -1, np.int64),
        "length": batch.lengths,
        "group": batch.group_ids[batch.group],
        "lag_oldest": batch.item_lag_oldest,
        "lag_newest": batch.item_lag_newest,
    }
