"""Make tables and serve them."""

from __future__ import annotations

import abc
import collections
from typing import TYPE_CHECKING

from echoic.reverb import (
    _nest,
    _signature,
    client,
    item_selectors,
    pybind,
    rate_limiters,
    reverb_types,
)
from echoic.reverb._engine.values import positive
from echoic.reverb.platform.default import checkpointers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["Server", "Table", "TableExtensionBase"]


class TableExtensionBase(metaclass=abc.ABCMeta):
    """Base of table extensions, which are not supported: they are C++ objects of Reverb."""

    @abc.abstractmethod
    def build_internal_extensions(self, table_name: str) -> Sequence[Any]:
        """Return the extensions of a table."""


class Table:
    """A table of items, sampled as a selector chooses and a limiter allows.

    Args:
        name: Unique in a server.
        sampler: Selects the items to sample.
        remover: Selects the item to remove when the table is full, after the new one was added.
        max_size: How many items fit.
        rate_limiter: Blocks inserts or samples.
        max_times_sampled: Remove an item after it was sampled this many times. Below 1 means never.
        extensions: Not supported.
        signature: The form of items: a nest of anything with a shape and a dtype. Writers check
            their items against it.

    Raises:
        ValueError: If the name is empty, ``max_size`` is not positive, or a leaf of the signature
            has no shape and dtype.

    Examples:
        >>> import echoic.reverb as reverb
        >>> table = reverb.Table(
        ...     name="replay",
        ...     sampler=reverb.selectors.Prioritized(0.6),
        ...     remover=reverb.selectors.Fifo(),
        ...     max_size=1000,
        ...     rate_limiter=reverb.rate_limiters.MinSize(10),
        ... )
        >>> table.can_sample(1), table.can_insert(1)
        (False, True)
    """

    def __init__(
        self,
        name: str,
        sampler: reverb_types.SelectorType,
        remover: reverb_types.SelectorType,
        max_size: int,
        rate_limiter: rate_limiters.RateLimiter,
        max_times_sampled: int = 0,
        extensions: Sequence[TableExtensionBase] = (),
        signature: reverb_types.SpecNest | None = None,
    ) -> None:
        if not name:
            raise ValueError("name must be nonempty")
        positive(max_size=max_size)
        if signature is not None:
            signature = _signature.normalize(signature) if _nest.flatten(signature) else None
        self._extensions = extensions
        self._signature = signature
        built = [one for each in extensions for one in each.build_internal_extensions(name)]
        self.internal_table = pybind.Table(
            name=name,
            sampler=sampler,
            remover=remover,
            max_size=max_size,
            max_times_sampled=max_times_sampled,
            rate_limiter=rate_limiter.internal_limiter,
            extensions=built,
            signature=signature,
        )

    @classmethod
    def queue(
        cls,
        name: str,
        max_size: int,
        extensions: Sequence[TableExtensionBase] = (),
        signature: reverb_types.SpecNest | None = None,
    ) -> Table:
        """Make a table that yields each item once, the oldest first; inserts wait for room."""
        both, limiter = item_selectors.Fifo(), rate_limiters.Queue(max_size)
        return cls(name, both, both, max_size, limiter, 1, extensions, signature)

    @classmethod
    def stack(
        cls,
        name: str,
        max_size: int,
        extensions: Sequence[TableExtensionBase] = (),
        signature: reverb_types.SpecNest | None = None,
    ) -> Table:
        """Make a table that yields each item once, the newest first; inserts wait for room."""
        both, limiter = item_selectors.Lifo(), rate_limiters.Stack(max_size)
        return cls(name, both, both, max_size, limiter, 1, extensions, signature)

    @property
    def name(self) -> str:
        """The table's name."""
        return self.internal_table.name()

    @property
    def info(self) -> reverb_types.TableInfo:
        """A snapshot of the table."""
        return reverb_types.TableInfo.from_serialized_proto(self.internal_table.info())

    def can_sample(self, num_samples: int) -> bool:
        """Return whether this many items could be sampled now without waiting."""
        return self.internal_table.can_sample(num_samples)

    def can_insert(self, num_inserts: int) -> bool:
        """Return whether this many items could be inserted now without waiting."""
        return self.internal_table.can_insert(num_inserts)

    def replace(
        self,
        name: str | None = None,
        sampler: reverb_types.SelectorType | None = None,
        remover: reverb_types.SelectorType | None = None,
        max_size: int | None = None,
        rate_limiter: rate_limiters.RateLimiter | None = None,
        max_times_sampled: int | None = None,
        extensions: Sequence[TableExtensionBase] | None = None,
        signature: reverb_types.SpecNest | None = None,
    ) -> Table:
        """Make an empty table with the same settings, except for those given."""
        info = self.info
        return Table(
            name=self.name if name is None else name,
            sampler=sampler or pybind.selector_from_proto(info.sampler_options),
            remover=remover or pybind.selector_from_proto(info.remover_options),
            max_size=info.max_size if max_size is None else max_size,
            rate_limiter=rate_limiter
            or rate_limiters.rate_limiter_from_proto(info.rate_limiter_info),
            max_times_sampled=(
                info.max_times_sampled if max_times_sampled is None else max_times_sampled
            ),
            extensions=self._extensions if extensions is None else extensions,
            signature=self._signature if signature is None else signature,
        )

    def __repr__(self) -> str:
        return repr(self.internal_table)


class Server:
    """Serve tables to clients of this and other processes.

    By default only processes on the same machine can connect. ``ECHOIC_REVERB_HOST`` and
    ``ECHOIC_REVERB_TOKEN`` change that: see the guide "From Reverb".

    Args:
        tables: At least one, with different names.
        port: The port; a free one if ``None``.
        checkpointer: Where checkpoints are written, and which one the tables start from; a new
            temporary directory if ``None``.

    Raises:
        ValueError: If there are no tables, or two with one name.

    Examples:
        >>> import echoic.reverb as reverb
        >>> server = reverb.Server(tables=[reverb.Table.queue("q", max_size=10)])
        >>> client = reverb.Client(f"localhost:{server.port}")
        >>> client.insert([0, 1], priorities={"q": 1.0})
        >>> [step.data for step in next(client.sample("q"))]
        [[array(0), array(1)]]
        >>> server.stop()
    """

    def __init__(
        self,
        tables: Sequence[Table] | None = None,
        port: int | None = None,
        checkpointer: checkpointers.CheckpointerBase | None = None,
    ) -> None:
        if not tables:
            raise ValueError("At least one table must be provided")
        names = collections.Counter(table.name for table in tables)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"Multiple items in tables have the same name: {', '.join(twice)}")
        if checkpointer is None:
            checkpointer = checkpointers.default_checkpointer()
        self._server = pybind.Server(
            [table.internal_table for table in tables],
            0 if port is None else port,
            checkpointer.internal_checkpointer(),
        )

    def __del__(self) -> None:
        if hasattr(self, "_server"):
            self.stop()

    def __repr__(self) -> str:
        return repr(self._server)

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._server.port

    def stop(self) -> None:
        """Stop the server. Calls that sample raise an error; writers wait for it to come back."""
        self._server.Stop()

    def wait(self) -> None:
        """Wait until the server is stopped.

        Raises:
            KeyboardInterrupt: If Ctrl-C was pressed.
        """
        if self._server.Wait():
            raise KeyboardInterrupt

    def localhost_client(self) -> client.Client:
        """Make a client of this server."""
        return client.Client(f"localhost:{self.port}")
