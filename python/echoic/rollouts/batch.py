"""Batches of complete groups, with the age of each token, item and group."""

from __future__ import annotations

import contextlib
import copy
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import EchoicError, LeaseError
from echoic.rollouts.blobs import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from typing_extensions import Self

    from echoic._native import RolloutBatch as NativeBatch
    from echoic._native import RolloutTable as NativeTable
    from echoic.rollouts.blobs import Blob

    Array = np.ndarray[Any, Any]

__all__ = ["RolloutBatch"]


class RolloutBatch:
    """A batch of groups, or one rank's share of it.

    Columns are arrays of tokens: with one axis if the form is *flat*, with rows if it is *padded*
    (a row for each item) or *packed* (several items in a row). The axes of a column with a shape
    follow. Items of a group are adjacent.

    Versions are the learner's. With t = :attr:`target`, the version that this batch will update,
    the lags of a group are, in versions:

    ================  ==============================================================
    ``lag_oldest``    t − version of its oldest token: bounded by ``max_lag``
    ``lag_newest``    t − version of its youngest token
    ``span``          youngest − oldest: the number of updates in between
    ``lag_dispatch``  t − version that its producer had when it reserved the group; the sum of
    ``publish_lag``   learner's version at the reservation − the producer's,
    ``in_flight``     learner's version when it was complete − when it was reserved, and
    ``in_queue``      t − learner's version when it was complete
    ================  ==============================================================

    A batch that was sampled with a lease has to be acknowledged by :meth:`ack`. As a context
    manager it does that at the end of the block, or calls :meth:`nack` after an exception. Its
    arrays stay valid when the lease ends.
    """

    def __init__(self, table: NativeTable | None, native: NativeBatch, form: str) -> None:
        # `None` for a batch of a history.
        self._source = table
        self._native = native
        # Shared with what `as_torch` returns, as the lease is.
        self._end = SimpleNamespace(is_over=False)
        self._tensor: Callable[[Array], Any] | None = None
        #: ``"flat"``, ``"padded"`` or ``"packed"``.
        self.form = form
        #: The version of the policy that this batch will update: t.
        self.target: int = native.target
        #: The number of the batch, the rank, and the number of this delivery: 1, or higher if the
        #: share was delivered before or its table was opened again.
        self.lease: tuple[int, int, int] = native.lease
        #: Length of the lease in seconds; ``None`` without a lease.
        self.lease_seconds: float | None = native.lease_seconds
        columns = native.columns
        #: The arrays of tokens, by the names of the table's columns.
        self.columns: dict[str, Array] = (
            {name: array[0] for name, array in columns.items()} if form == "flat" else columns
        )
        #: The arrays of the table's fields: a value for each item.
        self.fields: dict[str, Array] = native.fields

    def __getitem__(self, name: str) -> Array:
        """Return a column or a field by its name."""
        found = self.columns.get(name)
        if found is None:
            found = self.fields.get(name)
        if found is None:
            known = ", ".join(repr(name) for name in (*self.columns, *self.fields))
            raise KeyError(f"the batch has no {name!r}; it has {known}")
        return found

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.lengths)

    def as_torch(self, device: Any = None) -> Self:
        """Return this batch with tensors of PyTorch in place of arrays.

        These are the columns, the fields and the arrays with a value for each token, such as
        :attr:`versions`. All others stay numpy arrays. The lease is the same.

        Args:
            device: A ``torch.device`` or its name; the CPU when ``None``, whose tensors share the
                memory of the arrays.

        Raises:
            ImportError: If PyTorch is not installed.
        """
        from echoic.tensors import tensors_on

        convert = tensors_on(device)
        found = copy.copy(self)
        for name in ("versions", "items_of_cells", "positions", "is_token"):
            vars(found).pop(name, None)
        found._tensor = lambda array: convert([array])[0]
        # All at once.
        tensors = iter(convert([*self.columns.values(), *self.fields.values()]))
        found.columns = {name: next(tensors) for name in self.columns}
        found.fields = {name: next(tensors) for name in self.fields}
        return found

    @property
    def is_over(self) -> bool:
        """Whether there is no lease, or :meth:`ack` or :meth:`nack` was called."""
        return self.lease_seconds is None or bool(self._end.is_over)

    @property
    def number(self) -> int:
        """The number of the batch in its table, from 1 on."""
        return self.lease[0]

    def _numbers(self, name: str) -> Array:
        array: Array = self._native.numbers[name]
        return array

    @property
    def group_ids(self) -> Array:
        """The number of each group, in the order of their reservations."""
        return self._numbers("group_ids")

    @property
    def group_sizes(self) -> Array:
        """The number of items of each group."""
        return self._numbers("group_sizes")

    @property
    def keys(self) -> list[str]:
        """The producers' name for each group."""
        return self._native.keys

    @property
    def sources(self) -> list[str]:
        """The name of the producer of each group."""
        return self._native.sources

    @property
    def group(self) -> Array:
        """The index of each item's group in this batch, from 0 on."""
        return self._numbers("group")

    @property
    def index(self) -> Array:
        """The index of each item in its group."""
        return self._numbers("index")

    @property
    def lengths(self) -> Array:
        """The number of tokens of each item."""
        return self._numbers("lengths")

    @cached_property
    def offsets(self) -> Array:
        """Offsets of the items in flat tokens, and the end of the last one: ``cu_seqlens``."""
        offsets = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets

    @property
    def starts(self) -> Array:
        """The flat index of each item's first token: row × width + column."""
        return self._numbers("starts")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the columns, without the axes of those whose values have a shape."""
        column = next(iter(self.columns.values()))
        return tuple(column.shape[: self._axes])

    @property
    def tokens(self) -> int:
        """The number of tokens, without padding."""
        return int(self.lengths.sum())

    def cells(self, item: int) -> slice:
        """Return the slice of an item's tokens in ``column.reshape(-1)``.

        Of a column whose values have a shape, in ``column.reshape(-1, *shape)``.
        """
        start = int(self.starts[item])
        return slice(start, start + int(self.lengths[item]))

    def item(self, item: int) -> dict[str, Array]:
        """Return the tokens of one item by column, as views."""
        cells = self.cells(item)
        return {name: self._in_one_row(column)[cells] for name, column in self.columns.items()}

    @property
    def _axes(self) -> int:
        """The number of axes of tokens."""
        return 1 if self.form == "flat" else 2

    def _in_one_row(self, column: Array) -> Array:
        """Return a column with one axis of tokens."""
        return column.reshape(-1, *column.shape[self._axes :])

    def blobs(self, item: int) -> dict[str, Blob]:
        """Return the blobs of an item: bytes, text and arrays by name."""
        return {name: unpack(blob) for name, blob in self.packed_blobs(item).items()}

    def packed_blobs(self, item: int) -> dict[str, bytes]:
        """Return the blobs of an item as the bytes that are stored."""
        return self._native.blobs.get(item, {})

    def _spread(self, values: Array, fill: int) -> Array:
        """Put a flat array of token values into the form of the columns."""
        if self.form == "flat":
            out = values
        else:
            out = np.full(self.shape, fill, values.dtype)
            flat = out.reshape(-1)
            flat[self._token_cells] = values
        return out if self._tensor is None else self._tensor(out)

    @cached_property
    def _token_cells(self) -> Array:
        """The flat index of each token, item after item."""
        shift = np.repeat(self.starts - self.offsets[:-1], self.lengths)
        cells: Array = np.arange(self.tokens) + shift
        return cells

    @cached_property
    def versions(self) -> Array:
        """The policy version that made each token; -1 for padding."""
        made = np.repeat(self._numbers("run_versions"), self._numbers("run_lengths"))
        return self._spread(made, -1)

    @cached_property
    def items_of_cells(self) -> Array:
        """The item of each token; -1 for padding."""
        return self._spread(np.repeat(np.arange(len(self)), self.lengths), -1)

    @cached_property
    def positions(self) -> Array:
        """The index of each token in its item, from 0 on; 0 for padding."""
        places = np.arange(self.tokens) - np.repeat(self.offsets[:-1], self.lengths)
        return self._spread(places, 0)

    @cached_property
    def is_token(self) -> Array:
        """Whether each element is a token and not padding."""
        return self._spread(np.ones(self.tokens, np.bool_), 0)

    @property
    def lag_oldest(self) -> Array:
        """T − the version of each group's oldest token."""
        return self.target - self._numbers("oldest")

    @property
    def lag_newest(self) -> Array:
        """T − the version of each group's youngest token."""
        return self.target - self._numbers("newest")

    @property
    def lag_dispatch(self) -> Array:
        """T − the version that each group's producer had when it reserved the group."""
        return self.target - self._numbers("dispatched")

    @property
    def span(self) -> Array:
        """The difference of the youngest and the oldest version of each group."""
        return self._numbers("newest") - self._numbers("oldest")

    @property
    def publish_lag(self) -> Array:
        """Versions that each producer was behind the learner when it reserved the group."""
        return self._numbers("reserved") - self._numbers("dispatched")

    @property
    def in_flight(self) -> Array:
        """Versions that were published while each group was made."""
        return self._numbers("completed") - self._numbers("reserved")

    @property
    def in_queue(self) -> Array:
        """Versions for which each complete group waited for this batch."""
        return self.target - self._numbers("completed")

    @property
    def item_lag_oldest(self) -> Array:
        """T − the version of each item's oldest token."""
        return self.target - self._numbers("item_oldest")

    @property
    def item_lag_newest(self) -> Array:
        """T − the version of each item's youngest token."""
        return self.target - self._numbers("item_newest")

    @property
    def _table(self) -> NativeTable:
        if self._source is None:
            raise LeaseError("a batch of a history has no lease")
        return self._source

    def ack(self) -> None:
        """Acknowledge the batch, so that it is not delivered again.

        Does nothing for a batch without a lease, which was acknowledged when it was sampled.

        Raises:
            LeaseError: If the lease has ended; the batch may have been delivered again.
        """
        if self.lease_seconds is None:
            return
        self._table.ack(self.lease)
        self._end.is_over = True

    def nack(self) -> None:
        """Return the batch unused.

        Raises:
            LeaseError: If the lease has ended, or the batch has none.
        """
        self._table.nack(self.lease)
        self._end.is_over = True

    def extend(self, seconds: float) -> None:
        """Extend the lease to this many seconds from now."""
        self._table.extend(self.lease, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Acknowledge the batch, or return it unused after an exception."""
        if self.is_over:
            return
        if kind is None:
            self.ack()
        else:
            # The exception that ended the block must not be replaced by another.
            with contextlib.suppress(EchoicError):
                self.nack()

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Yield the columns of each item."""
        return (self.item(item) for item in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"RolloutBatch(number={self.number}, groups={len(self.group_ids)}, items={len(self)}, "
            f"tokens={self.tokens}, form={self.form!r}, target={self.target})"
        )

    def _repr_html_(self) -> str:
        """Show the batch in a notebook."""
        from echoic.views.notebook import batch_html

        return batch_html(self)
