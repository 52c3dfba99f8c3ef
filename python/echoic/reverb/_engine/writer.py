"""Write items of the last steps, with the older interface."""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, Any, TypeAlias

from echoic.errors import EchoicError
from echoic.reverb import _signature
from echoic.reverb._engine import values
from echoic.reverb._engine.errors import as_reverb
from echoic.reverb._engine.values import array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from echoic import Connection, TrajectoryWriter
    from echoic.trajectory_writer import Encoding

__all__ = ["Writer", "check_signature"]

# Seconds that a writer may take to send its items when no call waits for them.
_GRACE = 0.05

# Dtype and shape of each leaf of a step.
Form: TypeAlias = "tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]"


def check_signature(
    signatures: Mapping[str, Sequence[_signature.Column] | None], table: str, steps: Sequence[Form]
) -> None:
    """Check the steps of an item, the newest first, against the table's signature.

    A column's signature describes either each step, or all steps with their leading axis.

    Raises:
        ValueError: If they differ, or there is no such table.
    """
    if table not in signatures:
        names = ", ".join(f"'{name}'" for name in sorted(signatures))
        raise ValueError(
            f"Unable to find signatures for table '{table}' in signature cache.  "
            f"Available tables: [{names}]."
        )
    expected = signatures[table]
    if expected is None:
        return
    for offset, step in enumerate(steps):
        if len(step) != len(expected):
            raise ValueError(
                f"Unable to CreateItem in table '{table}' because Append was called with a tensor "
                "signature inconsistent with table signature.  Append for timestep offset "
                f"{offset} was called with {len(step)} tensors, but table requires {len(expected)} "
                f"tensors per entry.  Table signature: {_signature.columns_text(expected)}, data "
                f"signature: {_signature.columns_text(step)}."
            )
        for index, (column, (dtype, shape)) in enumerate(zip(expected, step, strict=True)):
            of_item = (len(steps), *shape)
            if not any(_signature.fits(column, dtype, form) for form in (shape, of_item)):
                raise ValueError(
                    f"Unable to CreateItem in table '{table}' because Append was called with a "
                    f"tensor signature inconsistent with the table signature. At timestep offset "
                    f"{offset}, flattened index {index}, saw a tensor of dtype "
                    f"{_signature.dtype_name(dtype)}, shape {_signature.shape_text(shape)}, but "
                    f"expected tensor '{index}' of dtype {_signature.dtype_name(column[0])} and "
                    f"shape compatible with {_signature.shape_text(column[1])}.  (Flattened) table "
                    f"signature: {_signature.columns_text(expected)}, data signature: "
                    f"{_signature.columns_text(step)}."
                )


class Writer:
    """A writer of items of the last steps, which may change their dtypes and shapes."""

    def __init__(
        self,
        tables: Connection,
        signatures: Mapping[str, Sequence[_signature.Column] | None],
        chunk_length: int,
        max_timesteps: int,
        delta_encoded: bool,
        max_in_flight_items: int,
    ) -> None:
        self._tables = tables
        self._signatures = signatures
        self._chunk_length = chunk_length
        self._max_timesteps = max_timesteps
        self._delta_encoded = delta_encoded
        self._max_in_flight = max_in_flight_items
        # The writer for the present form of steps; others had earlier forms.
        self._native = self._new()
        self._older: list[TrajectoryWriter] = []
        # The forms of the steps that items may have, the newest last.
        self._forms: list[Form] = []
        # How many steps the open chunk has.
        self._in_chunk = 0
        self._unconfirmed = 0
        self._closed = False

    def _new(self) -> TrajectoryWriter:
        encoding: Encoding = "delta+lz4" if self._delta_encoded else "auto"
        return self._tables.trajectory_writer(
            self._max_timesteps, chunk_length=self._chunk_length, encoding=encoding
        )

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise RuntimeError(f"Calling method {method} after Close has been called")

    def Append(self, data: Sequence[Any]) -> None:
        """Append a step, given as its leaves."""
        self._check_open("Append")
        step = tuple(array(leaf) for leaf in data)
        form: Form = tuple((leaf.dtype, leaf.shape) for leaf in step)
        if self._forms and self._forms[-1] != form:
            before = len(self._forms[-1])
            if before != len(step):
                raise ValueError(
                    f"Number of tensors per timestep was inconsistent. Previously it was {before}, "
                    f"but is now {len(step)}."
                )
            if self._in_chunk > 0:
                raise ValueError(
                    "steps that are stored together can't differ in dtypes or shapes: got "
                    f"{_signature.columns_text(form)} after "
                    f"{_signature.columns_text(self._forms[-1])}"
                )
            self._older.append(self._native)
            self._native = self._new()
        with as_reverb():
            self._native.append(step)
        self._in_chunk = (self._in_chunk + 1) % self._chunk_length
        self._forms.append(form)
        if len(self._forms) > self._max_timesteps:
            del self._forms[0]

    def AppendSequence(self, sequence: Sequence[Any]) -> None:
        """Append steps, given as leaves with a leading axis."""
        self._check_open("Append")
        if not sequence:
            raise ValueError("AppendSequence called with empty data.")
        leaves = [array(leaf) for leaf in sequence]
        for index, leaf in enumerate(leaves):
            if leaf.ndim == 0:
                raise ValueError(f"AppendSequence called with scalar tensor at index {index}.")
            if len(leaf) != len(leaves[0]):
                columns = [(leaf.dtype, leaf.shape) for leaf in leaves]
                raise ValueError(
                    "AppendSequence called with tensors of non equal batch dimension: "
                    f"{_signature.columns_text(columns)}."
                )
        for at in range(len(leaves[0])):
            self.Append([leaf[at] for leaf in leaves])

    def CreateItem(self, table: str, num_timesteps: int, priority: float) -> None:
        """Make an item of the last ``num_timesteps`` steps."""
        self._check_open("CreateItem")
        values.name(table)
        number = values.priority(priority)
        steps = operator.index(num_timesteps)
        if steps > len(self._forms):
            if len(self._forms) == self._max_timesteps:
                raise ValueError("`num_timesteps` must be <= `max_timesteps`")
            raise ValueError(
                "Argument `num_timesteps` is larger than number of buffered timesteps."
            )
        forms = self._forms[: -steps - 1 : -1]
        check_signature(self._signatures, table, forms)
        if any(form != forms[0] for form in forms):
            raise ValueError(
                f"the last {steps} steps are no item, since they differ in dtypes or shapes: "
                f"{'; '.join(_signature.columns_text(form) for form in reversed(forms))}"
            )
        with as_reverb(table):
            self._hand_over()
            self._native.create_item(table, number, last=steps)
            self._unconfirmed += 1
            if self._unconfirmed > self._max_in_flight:
                self._native.flush(self._max_in_flight)
                self._unconfirmed = self._max_in_flight

    def _hand_over(self) -> None:
        """Flush items of older forms, so that they come before later ones."""
        while self._older:
            self._older[0].flush()
            del self._older[0]

    def Flush(self) -> None:
        """Wait until all items are in their tables."""
        self._check_open("Flush")
        with as_reverb():
            self._hand_over()
            self._native.flush()
        self._unconfirmed = self._in_chunk = 0

    def Close(self, retry_on_unavailable: bool = True) -> None:
        """Wait until all items are in their tables, and close; without a retry, if connected."""
        self._check_open("Close")
        self._closed = True
        with as_reverb():
            if retry_on_unavailable or self._tables.stats().connected == 1:
                self._hand_over()
                self._native.flush()
            self._native.close()
            with contextlib.suppress(EchoicError):
                self._tables.close(_GRACE)

    def __repr__(self) -> str:
        return (
            f"Writer(chunk_length={self._chunk_length}, max_timesteps={self._max_timesteps}, "
            f"delta_encoded={int(self._delta_encoded)}, max_in_flight_items={self._max_in_flight}, "
            f"index_within_episode={self._native.episode_steps}, closed={int(self._closed)})"
        )
