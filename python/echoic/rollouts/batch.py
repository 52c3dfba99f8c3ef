"""What a learner gets: whole groups, and how old everything in them is."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import EchoicError, LeaseError
from echoic.rollouts.blobs import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from echoic._native import RolloutBatch as NativeBatch
    from echoic._native import RolloutTable as NativeTable
    from echoic.rollouts.blobs import Blob

    Array = np.ndarray[Any, Any]

__all__ = ["RolloutBatch"]


class RolloutBatch:
    """A batch, or one rank's share of it.

    Columns are arrays of tokens: of one axis when they lie *flat*, of rows when they are *padded*
    (a row for each item) or *packed* (several items in a row). Items of a group follow each other.

    Versions are the learner's. With t = :attr:`target`, the version that this batch will update, a
    group's lags are, in versions:

    ================  ==============================================================
    ``lag_oldest``    t − version of its oldest token: what ``max_lag`` bounds
    ``lag_newest``    t − version of its youngest token
    ``span``          youngest − oldest: how many updates came in between
    ``lag_dispatch``  t − version that its producer had when it reserved the group; it is the sum of
    ``publish_lag``   learner's version at the reservation − the producer's,
    ``in_flight``     learner's version when it was complete − when it was reserved, and
    ``in_queue``      t − learner's version when it was complete
    ================  ==============================================================

    A batch that was sampled with a lease is the consumer's until it says :meth:`ack`; as a context
    manager it does so at the end of the block, and :meth:`nack` after an exception. The arrays stay
    valid whatever becomes of the lease.
    """

    def __init__(self, table: NativeTable | None, native: NativeBatch, form: str) -> None:
        """Be made by a table, or by its history, which has none."""
        self._lender = table
        self._native = native
        # Whether the consumer has said what became of it.
        self._is_over = False
        #: ``"flat"``, ``"padded"`` or ``"packed"``.
        self.form = form
        #: The version of the policy that this batch will update: t.
        self.target: int = native.target
        #: The batch, the rank, and how often this share was delivered.
        self.lease: tuple[int, int, int] = native.lease
        #: For how many seconds it is the consumer's; ``None`` without a lease.
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

    @property
    def is_over(self) -> bool:
        """Whether there is no lease, or the consumer has said what became of it."""
        return self.lease_seconds is None or self._is_over

    @property
    def number(self) -> int:
        """Which batch of the table it is, from 1 on."""
        return self.lease[0]

    def _numbers(self, name: str) -> Array:
        array: Array = self._native.numbers[name]
        return array

    @property
    def group_ids(self) -> Array:
        """The number of each group; lower ones were reserved before."""
        return self._numbers("group_ids")

    @property
    def group_sizes(self) -> Array:
        """How many items each group has."""
        return self._numbers("group_sizes")

    @property
    def keys(self) -> list[str]:
        """What its producer calls each group."""
        return self._native.keys

    @property
    def sources(self) -> list[str]:
        """Who made each group."""
        return self._native.sources

    @property
    def group(self) -> Array:
        """The place of each item's group in this batch, from 0 on."""
        return self._numbers("group")

    @property
    def index(self) -> Array:
        """The place of each item in its group."""
        return self._numbers("index")

    @property
    def lengths(self) -> Array:
        """How many tokens each item has."""
        return self._numbers("lengths")

    @cached_property
    def offsets(self) -> Array:
        """Where each item begins when all lie flat, and where the last one ends: ``cu_seqlens``."""
        offsets = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets

    @property
    def starts(self) -> Array:
        """The first cell of each item: row × width + column, as the tokens lie."""
        return self._numbers("starts")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the columns."""
        column = next(iter(self.columns.values()))
        return tuple(column.shape)

    @property
    def tokens(self) -> int:
        """How many tokens there are, without those that fill rows up."""
        return int(self.lengths.sum())

    def cells(self, item: int) -> slice:
        """Return where an item's tokens are: in ``column.reshape(-1)[cells]``."""
        start = int(self.starts[item])
        return slice(start, start + int(self.lengths[item]))

    def item(self, item: int) -> dict[str, Array]:
        """Return the tokens of one item by column, as views."""
        cells = self.cells(item)
        return {name: column.reshape(-1)[cells] for name, column in self.columns.items()}

    def blobs(self, item: int) -> dict[str, Blob]:
        """Return what an item carries beside its tokens."""
        return {name: unpack(blob) for name, blob in self.packed_blobs(item).items()}

    def packed_blobs(self, item: int) -> dict[str, bytes]:
        """Return what an item carries, as it is stored."""
        return self._native.blobs.get(item, {})

    def _spread(self, values: Array, fill: int) -> Array:
        """Give each cell its item's value out of a flat array."""
        if self.form == "flat":
            return values
        out = np.full(self.shape, fill, values.dtype)
        flat = out.reshape(-1)
        flat[self._token_cells] = values
        return out

    @cached_property
    def _token_cells(self) -> Array:
        """The cell of each token, item after item."""
        shift = np.repeat(self.starts - self.offsets[:-1], self.lengths)
        cells: Array = np.arange(self.tokens) + shift
        return cells

    @cached_property
    def versions(self) -> Array:
        """The version that made each token; -1 in cells without one."""
        made = np.repeat(self._numbers("run_versions"), self._numbers("run_lengths"))
        return self._spread(made, -1)

    @cached_property
    def items_of_cells(self) -> Array:
        """The item of each cell; -1 in cells without one."""
        return self._spread(np.repeat(np.arange(len(self)), self.lengths), -1)

    @cached_property
    def positions(self) -> Array:
        """The place of each token in its item, from 0 on; 0 in cells without one."""
        places = np.arange(self.tokens) - np.repeat(self.offsets[:-1], self.lengths)
        return self._spread(places, 0)

    @cached_property
    def is_token(self) -> Array:
        """Whether each cell has a token."""
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
        """How many versions lie between the oldest and the youngest token of each group."""
        return self._numbers("newest") - self._numbers("oldest")

    @property
    def publish_lag(self) -> Array:
        """How far each group's producer was behind the learner when it reserved the group."""
        return self._numbers("reserved") - self._numbers("dispatched")

    @property
    def in_flight(self) -> Array:
        """How many versions were published while each group was made."""
        return self._numbers("completed") - self._numbers("reserved")

    @property
    def in_queue(self) -> Array:
        """How many versions each group waited for this batch, once it was complete."""
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
        if self._lender is None:
            raise LeaseError("a batch of the past has no lease")
        return self._lender

    def ack(self) -> None:
        """Say that the batch was learned from, so that it is not delivered again.

        Without a lease there is nothing to say: it was used up when it was sampled.

        Raises:
            LeaseError: The lease was over, and somebody else has the batch now.
        """
        if self.lease_seconds is None:
            return
        self._table.ack(self.lease)
        self._is_over = True

    def nack(self) -> None:
        """Give the batch back unused.

        Raises:
            LeaseError: The lease was over, or there was none.
        """
        self._table.nack(self.lease)
        self._is_over = True

    def extend(self, seconds: float) -> None:
        """Keep the batch for so many seconds from now on."""
        self._table.extend(self.lease, seconds)

    def __enter__(self) -> Self:
        """Return the batch."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Say what became of the batch, if it was sampled with a lease."""
        if self.is_over:
            return
        if kind is None:
            self.ack()
        else:
            # What ended the block matters more than that the lease is over.
            with contextlib.suppress(EchoicError):
                self.nack()

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Go through the items."""
        return (self.item(item) for item in range(len(self)))

    def __repr__(self) -> str:
        """Say how large it is."""
        return (
            f"RolloutBatch(number={self.number}, groups={len(self.group_ids)}, items={len(self)}, "
            f"tokens={self.tokens}, form={self.form!r}, target={self.target})"
        )

    def _repr_html_(self) -> str:
        """Show the batch in a notebook."""
        from echoic.views.notebook import batch_html

        return batch_html(self)
