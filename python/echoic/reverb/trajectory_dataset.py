"""Iterate over whole items, and share the fetching with the datasets of their steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import WaitTimeoutError
from echoic.reverb import _nest, _signature, _tensorflow, replay_sample
from echoic.reverb import client as reverb_client
from echoic.reverb._dataset import Dataset, lists_as_tuples, specs_of, stack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from echoic.reverb._engine.sampler import Items

__all__ = ["TrajectoryDataset"]


class SampledDataset(Dataset):
    """Base of datasets that sample a table; subclasses convert its items."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make a dataset of TensorFlow where it is installed."""
        kind: Any = cls
        made: Self = object.__new__(_tensorflow.kind_of(kind))
        return made

    def __init__(
        self,
        server_address: str,
        table: str,
        dtypes: Any,
        shapes: Any,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
    ) -> None:
        data = specs_of(lists_as_tuples(dtypes), lists_as_tuples(shapes))
        for name, number, more in (
            ("max_in_flight_samples_per_worker", max_in_flight_samples_per_worker, ""),
            ("num_workers_per_iterator", num_workers_per_iterator, " or -1"),
            ("max_samples_per_stream", max_samples_per_stream, " or -1"),
            ("max_samples", max_samples, " or -1"),
        ):
            if number < 1 and not (more and number == -1):
                raise ValueError(f"{name} ({number}) must be a positive integer{more}")
        if rate_limiter_timeout_ms < -1:
            raise ValueError(
                f"rate_limiter_timeout_ms ({rate_limiter_timeout_ms}) must be an integer >= -1"
            )
        scalars = (
            _signature.TensorSpec((), dtype) for dtype in replay_sample.SampleInfo.tf_dtypes()
        )
        info = replay_sample.SampleInfo(*scalars)
        super().__init__(self._elements, replay_sample.ReplaySample(info, data))
        self._address = server_address
        self._table = table
        self._data = data
        self._columns = _signature.flat_columns(data)
        self._most = max_in_flight_samples_per_worker
        self._max_samples = max_samples
        self._timeout = None if rate_limiter_timeout_ms < 0 else rate_limiter_timeout_ms / 1000

    @classmethod
    def from_table_signature(
        cls,
        server_address: str,
        table: str,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        get_signature_timeout_secs: int | None = None,
        max_samples: int = -1,
    ) -> Self:
        """Make a dataset from the signature of a table.

        It waits ``get_signature_timeout_secs`` seconds for the server, for ever if ``None``. The
        other arguments are those of the class.

        Raises:
            ValueError: If there is no such table, or it has no signature.
            DeadlineExceededError: If the server did not answer in time.
        """
        infos = reverb_client.Client(server_address).server_info(get_signature_timeout_secs)
        if table not in infos:
            raise ValueError(
                f"Server at {server_address} does not contain any table named {table}. "
                f"Found: {', '.join(sorted(infos))}."
            )
        signature = infos[table].signature
        if signature is None:
            raise ValueError(f"Table {table} at {server_address} does not have a signature.")
        return cls(
            server_address,
            table,
            _nest.map_leaves(lambda leaf: leaf.dtype, signature),
            _nest.map_leaves(lambda leaf: leaf.shape, signature),
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
        )

    def _check(self, signature: Sequence[_signature.Column]) -> None:
        """Raise an error if the table's signature does not match the requested columns."""
        got = self._columns
        if len(got) != len(signature):
            raise ValueError(
                f"Inconsistent number of tensors requested from table '{self._table}'.  Requested "
                f"{len(got)} tensors, but table signature shows {len(signature)} tensors.  Table "
                f"signature: {_signature.columns_text(signature)}"
            )
        for index, (wanted, known) in enumerate(zip(got, signature, strict=True)):
            if wanted[0] != known[0] or not _signature.overlap(wanted[1], known[1]):
                raise ValueError(
                    f"Requested incompatible tensor at flattened index {index} from table "
                    f"'{self._table}'.  Requested (dtype, shape): "
                    f"({_signature.dtype_name(wanted[0])}, {_signature.shape_text(wanted[1])}).  "
                    f"Signature (dtype, shape): ({_signature.dtype_name(known[0])}, "
                    f"{_signature.shape_text(known[1])}).  Table signature: "
                    f"{_signature.columns_text(signature)}"
                )

    def _fits(self, leaves: Sequence[np.ndarray[Any, Any]], axes: int) -> None:
        """Raise an error if leaves, after the leading axes, are not as requested."""
        if len(leaves) != len(self._columns):
            raise ValueError(
                f"Expected items of {len(self._columns)} tensors from table '{self._table}', got "
                f"{len(leaves)}."
            )
        for index, (column, leaf) in enumerate(zip(self._columns, leaves, strict=True)):
            if not _signature.fits(column, leaf.dtype, leaf.shape[axes:]):
                raise ValueError(
                    f"Received incompatible tensor at flattened index {index} from table "
                    f"'{self._table}'.  Specification has (dtype, shape): "
                    f"({_signature.dtype_name(column[0])}, {_signature.shape_text(column[1])}).  "
                    f"Tensor has (dtype, shape): ({_signature.dtype_name(leaf.dtype)}, "
                    f"{_signature.shape_text(leaf.shape[axes:])})."
                )

    def _fetches(self, count: int, poll: float | None = None) -> Iterator[Any]:
        """Fetch items, in groups that end at multiples of ``count``, until none come in time.

        With ``poll``, yield ``None`` whenever none came for this many seconds.
        """
        client = reverb_client.Client(self._address)._client
        client.check_stopped()
        while poll is not None and not client.is_reached(10 * poll):
            yield None
        signature = client.signatures().get(self._table)
        if signature is not None:
            self._check(signature)
        waits = [seconds for seconds in (self._timeout, poll) if seconds is not None]
        settings = (self._max_samples, self._most, min(waits, default=None))
        sampler = client.NewSampler(self._table, *settings)
        missing = ask = count
        began = time.monotonic()
        while True:
            try:
                items = sampler.fetch(min(ask, missing))
            except StopIteration:
                return
            except WaitTimeoutError:
                if poll is None or (
                    self._timeout is not None and time.monotonic() - began >= self._timeout
                ):
                    return
                yield None
                continue
            missing = missing - len(items) or count
            # After waiting for one item, ask for as many as there probably are now.
            ask = count if missing == count else 2 * len(items)
            yield items
            began = time.monotonic()

    def _elements(self) -> Iterator[replay_sample.ReplaySample]:
        for items in self._fetches(self._most):
            for group in self._groups(items):
                for row in zip(*group, strict=True):
                    info = replay_sample.SampleInfo(*row[:5])
                    data = _nest.unflatten_as(self._data, row[5:])
                    yield replay_sample.ReplaySample(info, data)

    def _groups(self, items: Items) -> Iterator[list[np.ndarray[Any, Any]]]:
        """Yield groups of elements: the numbers and the columns, each with a leading axis."""
        infos, columns = self._infos(items), items.columns
        if columns is not None:
            yield self._group(infos, columns)
            return
        for at in range(len(items)):
            leaves = [leaf[None] for leaf in items.leaves(at)]
            yield self._group([numbers[at : at + 1] for numbers in infos], leaves)

    def _group(
        self, infos: Sequence[np.ndarray[Any, Any]], leaves: Sequence[np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]]:
        """Check the columns of items of one form, and return a group."""
        self._fits(leaves, 1)
        return [*infos, *leaves]

    def _flat(self, count: int = 0, drop_remainder: bool = False) -> Any:
        """Make a dataset of TensorFlow of flat elements, or batches of ``count``."""

        def make(address: bytes, table: bytes) -> Iterator[Any]:
            # In a graph their values are known only now.
            dataset = object.__new__(type(self))
            values = {"_address": address.decode(), "_table": table.decode()}
            vars(dataset).update(vars(self), **values)
            if count:
                for batch in dataset._whole(count, drop_remainder, _tensorflow.POLL):
                    yield None if batch is None else [leaf[None] for leaf in batch]
            else:
                for items in dataset._fetches(self._most, _tensorflow.POLL):
                    yield from [None] if items is None else dataset._groups(items)

        spec = self.batch(count, drop_remainder).element_spec if count else self._spec
        inputs = (self._address, self._table)
        return _tensorflow.source(make, _nest.flatten(spec), int(self._most > 1), *inputs)

    def _whole(self, count: int, drop_remainder: bool, poll: float | None = None) -> Iterator[Any]:
        """Yield the numbers and columns of batches; ``None`` as :meth:`_fetches` does."""
        raise NotImplementedError

    @staticmethod
    def _infos(items: Items) -> replay_sample.SampleInfo:
        """Return the metadata of items, as arrays."""
        times_sampled = items.numbers[-1].astype(np.int32)
        return replay_sample.SampleInfo(*items.numbers)._replace(times_sampled=times_sampled)


class TrajectoryDataset(SampledDataset):
    """Iterate over items of a table, each a :class:`ReplaySample`.

    It is a ``tf.data.Dataset`` where TensorFlow is installed, and else an iterable of numpy arrays.
    :meth:`batch` fetches whole batches, which is faster than items one by one.

    Args:
        server_address: As of :class:`Client`.
        table: The table's name.
        dtypes: A nest like the items, of dtypes.
        shapes: A nest like the items, of shapes, in which an axis may be ``None``.
        max_in_flight_samples_per_worker: How many items to fetch at once if they are taken one by
            one.
        num_workers_per_iterator: Unused: one fetch has as many items as are needed.
        max_samples_per_stream: Unused.
        rate_limiter_timeout_ms: The dataset ends if no item could be sampled for this long; -1
            means never.
        max_samples: How many items there are; -1 means no limit.

    Raises:
        ValueError: If there is not a shape for each dtype, or a number is out of range.

    Examples:
        >>> import numpy as np
        >>> import echoic.reverb as reverb
        >>> signature = {"obs": reverb.TensorSpec((2,), np.float32)}
        >>> table = reverb.Table.queue("q", max_size=10, signature=signature)
        >>> server = reverb.Server(tables=[table])
        >>> with server.localhost_client().trajectory_writer(2) as writer:
        ...     for step in range(4):
        ...         writer.append({"obs": np.float32(step)})
        ...         if step % 2:
        ...             writer.create_item("q", 1.0, {"obs": writer.history["obs"][-2:]})
        >>> dataset = reverb.TrajectoryDataset.from_table_signature(
        ...     f"localhost:{server.port}", "q", max_in_flight_samples_per_worker=2
        ... )
        >>> next(iter(dataset.batch(2))).data["obs"].tolist()
        [[0.0, 1.0], [2.0, 3.0]]
        >>> server.stop()
    """

    def _batches(self, batch_size: int, drop_remainder: bool) -> Iterator[Any]:
        for batch in self._whole(batch_size, drop_remainder):
            yield _nest.unflatten_as(self._spec, batch)

    def _flat_batches(self, batch_size: Any, drop_remainder: Any) -> Any:
        fixed = isinstance(batch_size, int) and isinstance(drop_remainder, bool)
        return self._flat(batch_size, drop_remainder) if fixed else None

    def _whole(self, count: int, drop_remainder: bool, poll: float | None = None) -> Iterator[Any]:
        parts: list[list[np.ndarray[Any, Any]]] = []
        missing = count
        for items in self._fetches(count, poll):
            if items is None:
                yield None
                continue
            columns = items.columns
            if columns is None:
                columns = stack([items.leaves(at) for at in range(len(items))])
            parts.append(self._group(self._infos(items), columns))
            missing -= len(items)
            if missing == 0:
                yield _joined(parts)
                parts, missing = [], count
        if parts and not drop_remainder:
            yield _joined(parts)


def _joined(parts: list[list[np.ndarray[Any, Any]]]) -> list[np.ndarray[Any, Any]]:
    if len(parts) == 1:
        return parts[0]
    return [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
