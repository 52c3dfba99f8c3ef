"""Connect to a server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.reverb import _nest, errors, pybind, replay_sample, reverb_types
from echoic.reverb import structured_writer as structured_writer_lib
from echoic.reverb import trajectory_writer as trajectory_writer_lib
from echoic.reverb._engine.client import TimeoutExceeded
from echoic.reverb._engine.values import positive

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from typing_extensions import Self

__all__ = ["Client", "Writer"]

_log = logging.getLogger(__name__)

# More items than a program has in flight.
_UNLIMITED = 1_000_000


class Writer:
    """Append steps, and make items of the last ones; ``client.writer`` makes one."""

    def __init__(self, internal_writer: pybind.Writer) -> None:
        self._writer = internal_writer
        self._closed = False

    def __enter__(self) -> Self:
        if self._closed:
            raise ValueError("Cannot reuse already closed Writer")
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            _log.warning("Writer-object deleted without calling .close explicitly.")
            self.close()

    def __repr__(self) -> str:
        return f"{self._writer!r}, closed: {self._closed}"

    def append(self, data: Any) -> None:
        """Append a step, which later items may include."""
        self._writer.Append(_nest.flatten(data))

    def append_sequence(self, sequence: Any) -> None:
        """Append steps, given as leaves with a leading axis."""
        self._writer.AppendSequence(_nest.flatten(sequence))

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Make an item of the last steps. It may reach its table as late as :meth:`flush`.

        Raises:
            ValueError: If there are fewer steps, or they do not match the table's signature.
        """
        if num_timesteps < 1:
            raise ValueError(f"num_timesteps ({num_timesteps}) must be a positive integer")
        self._writer.CreateItem(table, num_timesteps, priority)

    def flush(self) -> None:
        """Wait until all items are in their tables."""
        self._writer.Flush()

    def close(self, retry_on_unavailable: bool = True) -> None:
        """Wait until all items are in their tables, and close.

        Args:
            retry_on_unavailable: Whether to wait for a server that is away.

        Raises:
            ValueError: If the writer was closed before.
        """
        if self._closed:
            raise ValueError("close() has already been called on Writer.")
        self._closed = True
        self._writer.Close(retry_on_unavailable)


class Client:
    """Connect to the server at an address.

    It connects when it is first used, and then waits for the server. A client can be pickled; the
    copy makes its own connection.

    Args:
        server_address: ``host:port``, or an address as :func:`echoic.connect` takes it.
    """

    def __init__(self, server_address: str) -> None:
        self._server_address = server_address
        self._client = pybind.Client(server_address)
        self._signature_cache: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self._server_address,)

    def __repr__(self) -> str:
        return f"Client, server_address={self._server_address}"

    @property
    def server_address(self) -> str:
        """The address as it was given."""
        return self._server_address

    def insert(self, data: Any, priorities: Mapping[str, float]) -> None:
        """Insert an item of one step into tables, and wait until it is there.

        Args:
            data: Any nest of arrays, numbers or texts. It is stored once for all tables.
            priorities: The item's priority in each table that gets it.

        Raises:
            ValueError: If there are no priorities, one is not a finite number >= 0, a table does
                not exist, or the data does not match its signature.
        """
        if not priorities:
            raise ValueError("priorities must contain at least one item")
        self._client.Insert(_nest.flatten(data), priorities)

    def writer(
        self,
        max_sequence_length: int,
        delta_encoded: bool = False,
        chunk_length: int | None = None,
        max_in_flight_items: int | None = 25,
    ) -> Writer:
        """Make a writer of items of the last steps.

        Args:
            max_sequence_length: How many steps an item may have.
            delta_encoded: Whether to store differences between steps, for steps that are similar.
            chunk_length: How many steps are stored together; if ``None``, at most 10.
            max_in_flight_items: How many items may be unacknowledged before ``create_item`` waits;
                ``None`` means any number.

        Raises:
            ValueError: If a number is not positive, or ``chunk_length`` is above
                ``max_sequence_length``.
        """
        positive(max_sequence_length=max_sequence_length)
        if chunk_length is None:
            chunk_length = min(10, max_sequence_length)
        if not 1 <= chunk_length <= max_sequence_length:
            raise ValueError(
                f"chunk_length ({chunk_length}) must be a positive integer le to "
                f"max_sequence_length ({max_sequence_length})"
            )
        if max_in_flight_items is None:
            max_in_flight_items = _UNLIMITED
        positive(max_in_flight_items=max_in_flight_items)
        settings = (chunk_length, max_sequence_length, delta_encoded, max_in_flight_items)
        return Writer(self._client.NewWriter(*settings))

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
    ) -> Generator[Any, None, None]:
        """Sample items one after the other, each as soon as the table allows it.

        Args:
            table: The table's name.
            num_samples: How many items.
            emit_timesteps: Whether an item comes as the list of its steps, or as a whole.
            unpack_as_table_signature: Whether data is nested as the table's signature, if it has
                one; it is a flat list otherwise.

        Yields:
            A :class:`ReplaySample`, or a list of them.

        Raises:
            ValueError: If the columns of an item differ in length, so that it has no steps; or the
                signature is needed and there is no such table.
            RuntimeError: If there is no such table, or the server is gone.
        """
        sampler = self._client.NewSampler(table, num_samples, 1)
        signature = self._get_signature_for_table(table) if unpack_as_table_signature else None

        def nested(data: list[Any]) -> Any:
            return data if signature is None else _nest.unflatten_as(signature, data)

        for _ in range(num_samples):
            row = sampler.GetNextTrajectory()
            info, data = replay_sample.SampleInfo(*row[:5]), row[5:]
            if not emit_timesteps:
                yield replay_sample.ReplaySample(info, nested(data))
                continue
            if len({len(column) for column in data}) != 1:
                raise ValueError("Can't split non timestep trajectory into timesteps.")
            yield [
                replay_sample.ReplaySample(
                    info, nested([np.asarray(column[at], column.dtype) for column in data])
                )
                for at in range(len(data[0]))
            ]

    def mutate_priorities(
        self,
        table: str,
        updates: Mapping[int, float] | None = None,
        deletes: Iterable[int] | None = None,
    ) -> None:
        """Change priorities and remove items. Keys of missing items are ignored.

        Args:
            table: The table's name.
            updates: The new priority of each key.
            deletes: Keys of items to remove.

        Raises:
            ValueError: If a priority is not a finite number >= 0; nothing is changed.
            RuntimeError: If there is no such table.
        """
        changes = [] if updates is None else list(updates.items())
        self._client.MutatePriorities(table, changes, [] if deletes is None else list(deletes))

    def reset(self, table: str) -> None:
        """Remove all items of a table, and reset its limiter's counts."""
        self._client.Reset(table)

    def server_info(self, timeout: int | None = None) -> dict[str, reverb_types.TableInfo]:
        """Return the settings and numbers of each table.

        Args:
            timeout: Seconds to wait for the server; ``None`` waits for ever.

        Raises:
            DeadlineExceededError: If it did not answer in time.
        """
        try:
            answers = self._client.ServerInfo(timeout or 0)
        except TimeoutExceeded:
            raise errors.DeadlineExceededError(
                f"ServerInfo call did not complete within provided timeout of {timeout}s"
            ) from None
        tables = map(reverb_types.TableInfo.from_serialized_proto, answers)
        infos = {info.name: info for info in tables}
        if not self._signature_cache:
            self._signature_cache = {name: info.signature for name, info in infos.items()}
        return infos

    def checkpoint(self) -> str:
        """Write a checkpoint on the server; return its absolute path on that machine."""
        return self._client.Checkpoint()

    def trajectory_writer(
        self,
        num_keep_alive_refs: int,
        *,
        validate_items: bool = True,
        get_signature_timeout_ms: int | None = 3000,
    ) -> trajectory_writer_lib.TrajectoryWriter:
        """Make a writer of items that refer to any of the last steps.

        Args:
            num_keep_alive_refs: How many of the latest values of each column items may refer to.
            validate_items: Whether to compare items with the signature of their table.
            get_signature_timeout_ms: For programs of older versions, such as Acme: ``None`` means
                the same as ``validate_items=False``.

        Raises:
            ValueError: If ``num_keep_alive_refs`` is not positive.
        """
        positive(num_keep_alive_refs=num_keep_alive_refs)
        options = pybind.AutoTunedChunkerOptions(num_keep_alive_refs, 1.0)
        validated = validate_items and get_signature_timeout_ms is not None
        writer = self._client.NewTrajectoryWriter(options, validated)
        return trajectory_writer_lib.TrajectoryWriter(writer)

    def structured_writer(
        self, configs: Sequence[structured_writer_lib.Config]
    ) -> structured_writer_lib.StructuredWriter:
        """Make a writer that makes items by patterns.

        Raises:
            ValueError: If there are no patterns, or one is malformed.
        """
        if not configs:
            raise ValueError("At least one config must be provided.")
        return structured_writer_lib.StructuredWriter(self._client.NewStructuredWriter(configs))

    def _get_signature_for_table(self, table: str) -> Any:
        if not self._signature_cache:
            self.server_info()
        if table not in self._signature_cache:
            raise ValueError(
                f'Could not find table "{table}". The following tables exists: '
                f"{', '.join(self._signature_cache)}."
            )
        return self._signature_cache[table]
