"""Call a server in graphs of TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import WaitTimeoutError
from echoic.reverb import _nest, _signature, _tensorflow, pybind, replay_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TFClient"]


def _text(value: Any) -> str:
    """Return the text of a tensor's value, which is an array if TensorFlow is eager."""
    text = np.asarray(value, object).item()
    return text.decode() if isinstance(text, bytes) else str(text)


class TFClient:
    """Connect to the server at an address, for operations of TensorFlow.

    Each method returns what a session runs, or does it at once if TensorFlow is eager. Errors are
    TensorFlow's: of a table that does not exist ``NotFoundError`` if eager, ``UnknownError`` in a
    graph.

    Args:
        server_address: As of :class:`Client`.
        shared_name: Unused.
        name: A prefix of the operations' names.

    Raises:
        ImportError: If TensorFlow is not installed.
    """

    def __init__(
        self, server_address: str, shared_name: str | None = None, name: str = "reverb"
    ) -> None:
        del shared_name
        if _tensorflow.tensorflow() is None:
            raise ImportError("TFClient needs TensorFlow: pip install 'echoic[tensorflow]'")
        self._server_address = server_address
        self._client = pybind.Client(server_address)
        self._name = name
        _tensorflow.calls.watch()

    @property
    def server_address(self) -> str:
        """The address as it was given."""
        return self._server_address

    def _call(
        self, function: Callable[..., Any], inputs: Sequence[Any], dtypes: Any, name: str
    ) -> Any:
        tf = _tensorflow.tensorflow()

        def call(*values: Any) -> Any:
            with _tensorflow.calls:
                if not eager:
                    return function(*values)
                try:
                    return function(*values)
                except (TypeError, ValueError) as error:
                    raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
                except RuntimeError as error:
                    missing = "was not found" in str(error)
                    kind = tf.errors.NotFoundError if missing else tf.errors.UnknownError
                    raise kind(None, None, str(error)) from error

        eager = tf.executing_eagerly()
        made = tf.numpy_function(call, inputs, dtypes, name=name)
        return made if dtypes or not eager else None

    def sample(
        self, table: str, data_dtypes: Any, name: str | None = None
    ) -> replay_sample.ReplaySample:
        """Sample an item, and return its first step.

        Args:
            table: The table's name, or a tensor of it.
            data_dtypes: A nest like the steps, of dtypes.
            name: A name for the operation.
        """
        tf = _tensorflow.tensorflow()
        wanted = [tf.as_dtype(dtype) for dtype in _nest.flatten(data_dtypes)]
        columns = [(_signature.TensorSpec((), dtype).dtype, None) for dtype in wanted]
        info = replay_sample.SampleInfo.tf_dtypes()

        def sample(table: bytes) -> list[Any]:
            sampler = self._client.NewSampler(_text(table), 1, timeout=_tensorflow.POLL)
            noticed = _tensorflow.calls.noticed()
            while True:
                try:
                    numbers_and_columns = sampler.GetNextTrajectory()
                    break
                except WaitTimeoutError:
                    noticed = _tensorflow.calls.check(noticed)
            got = numbers_and_columns[len(info) :]
            if len(got) != len(columns):
                raise ValueError(
                    "Number of tensors in the replay sample did not match the expected count. Got "
                    f"{len(numbers_and_columns)} but wanted {len(info) + len(columns)}"
                )
            if len({leaf.shape[:1] or None for leaf in got} | {None}) != 2:
                raise ValueError("Sampled trajectory cannot be decomposed into timesteps.")
            for leaf, column in zip(got, columns, strict=True):
                if not _signature.fits(column, leaf.dtype, leaf.shape):
                    expected = _signature.dtype_name(column[0])
                    actual = _signature.dtype_name(leaf.dtype)
                    raise ValueError(f"Type mismatch: actual {actual} vs. expect {expected}")
            numbers = zip(numbers_and_columns, info, strict=False)
            return [
                *(np.asarray(number, dtype) for number, dtype in numbers),
                *(np.asarray(leaf[0], leaf.dtype) for leaf in got),
            ]

        dtypes = [*map(tf.as_dtype, info), *wanted]
        flat = self._call(sample, [table], dtypes, name or f"{self._name}_sample")
        for number in flat[: len(info)]:
            number.set_shape(())
        return replay_sample.ReplaySample(
            replay_sample.SampleInfo(*flat[: len(info)]),
            _nest.unflatten_as(data_dtypes, flat[len(info) :]),
        )

    def insert(
        self, data: Sequence[Any], tables: Any, priorities: Any, name: str | None = None
    ) -> Any:
        """Insert an item of one step into tables, and wait until it is there.

        Args:
            data: Tensors.
            tables: A tensor of names, of rank 1.
            priorities: A tensor of the item's priority in each table, of dtype float64.
            name: A name for the operation.

        Raises:
            ValueError: If tables or priorities have another rank or dtype, or differ in length.
        """
        tf = _tensorflow.tensorflow()
        if tables.dtype != tf.string or tables.shape.rank != 1:
            raise ValueError("tables must be a string tensor of rank 1")
        if priorities.dtype != tf.float64 or priorities.shape.rank != 1:
            raise ValueError("priorities must be a float64 tensor of rank 1")
        if not tables.shape.is_compatible_with(priorities.shape):
            raise ValueError("priorities and tables must have the same shape")

        def insert(tables: Any, priorities: Any, *data: Any) -> list[Any]:
            names = [_text(table) for table in tables]
            self._client.Insert(list(data), dict(zip(names, priorities.tolist(), strict=True)))
            return []

        inputs = [tables, priorities, *data]
        return self._call(insert, inputs, [], name or f"{self._name}_insert")

    def update_priorities(
        self, table: str, keys: Any, priorities: Any, name: str | None = None
    ) -> Any:
        """Change priorities. Keys of missing items are ignored.

        Args:
            table: The table's name, or a tensor of it.
            keys: A tensor of the items' keys.
            priorities: A tensor of their new priorities.
            name: A name for the operation.
        """

        def update(table: bytes, keys: Any, priorities: Any) -> list[Any]:
            if keys.shape != priorities.shape:
                raise ValueError(
                    "Tensors `keys` and `priorities` do not match in shape "
                    f"({list(keys.shape)} vs. {list(priorities.shape)})"
                )
            updates = list(zip(keys.ravel().tolist(), priorities.ravel().tolist(), strict=True))
            self._client.MutatePriorities(_text(table), updates, [])
            return []

        inputs = [table, keys, priorities]
        return self._call(update, inputs, [], name or f"{self._name}_update_priorities")
