"""Types of the native core. The classes are documented here; the core is in `crates/python`."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, final, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, disjoint_base

from echoic.remote_stream import RemoteStreamStats
from echoic.table_stats import TableStats
from echoic.trajectory_writer import ChunkLength, Encoding

__all__ = [
    "Batch",
    "BatchInfo",
    "Collector",
    "ColumnHistory",
    "EMAPlanTracker",
    "Environments",
    "Histogram",
    "LeafSpec",
    "MmapReplayBuffer",
    "OfflineDataset",
    "PendingBatch",
    "PrioritizedReplayBuffer",
    "Publication",
    "RemoteStream",
    "RemoteTable",
    "RemoteWeightStore",
    "ReplayBuffer",
    "RolloutBatch",
    "RolloutCall",
    "RolloutHistory",
    "RolloutLink",
    "RolloutTable",
    "RunningStats",
    "RunningStatsVec",
    "Server",
    "Shards",
    "Spec",
    "Steps",
    "Stream",
    "StreamStats",
    "StructuredWriter",
    "Subscription",
    "SurpriseReplay",
    "Table",
    "Tables",
    "TrajectoryAccumulator",
    "TrajectoryWriter",
    "VectorWriter",
    "Watcher",
    "WeightStore",
    "__version__",
    "allocation_count",
    "attention_bandwidth_cost",
    "attention_bandwidth_cost_batch",
    "balance_sequences",
    "bandwidth_aware_priorities",
    "bandwidth_efficiency",
    "compute_batch_group_advantages",
    "compute_batch_token_kl",
    "compute_batch_token_kl_schulman",
    "compute_categorical_kl",
    "compute_discounted_sums",
    "compute_effective_sample_size",
    "compute_gae",
    "compute_gae_batched",
    "compute_gae_batched_f32",
    "compute_group_advantages",
    "compute_importance_weights",
    "compute_lambda_returns",
    "compute_n_step_returns",
    "compute_retrace",
    "compute_token_kl",
    "compute_token_kl_schulman",
    "compute_upgo",
    "compute_vtrace",
    "connect_rollouts",
    "connect_tables",
    "effective_bandwidth_cost",
    "effective_bandwidth_cost_batch",
    "empty_call",
    "list_checkpoints",
    "open_checkpoint",
    "pack_sequences",
    "ping",
    "plan_micro_batches",
    "plan_packing",
    "plan_surprise",
    "plan_surprise_batch",
    "prefix_match",
    "prefix_match_batch",
    "priority_sample",
    "schedule_priorities",
    "set_log_level",
    "state_hash",
    "state_hash_batch",
    "take_logs",
    "temporal_kl",
    "temporal_kl_batch",
    "verify_checkpoint",
]

__version__: str

def allocation_count() -> int:
    """How often Rust code of this module has allocated memory since it was loaded."""

def list_checkpoints(root: str | os.PathLike[str]) -> list[Path]:
    """Return the checkpoints of a directory, the oldest first; none when it is not there."""

def open_checkpoint(path: str | os.PathLike[str]) -> list[Table]:
    """Make the tables of a checkpoint, without a server that has them: to look at what is in it.

    Raises:
        CheckpointError: It is damaged, or not one of Echoic's.
        OSError: It can't be read.
    """

def verify_checkpoint(
    path: str | os.PathLike[str], progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]:
    """Read every byte of a checkpoint and compare all checksums; what is known about it.

    Args:
        path: A checkpoint, or a directory of them: then the newest.
        progress: Called now and then with how many bytes of how many were read.

    Raises:
        CheckpointError: What is wrong, in which file.
        OSError: It can't be read.
    """

def empty_call(tree: Any) -> None:
    """Do nothing with the argument: the cost of a call into this module, for benchmarks."""

def ping(
    address: str, options: dict[str, Any], timeout: float = 5.0, count: int = 4
) -> dict[str, Any]:
    """Ask a server what it is, without sending it a sample.

    Returns:
        ``server_version``, ``protocol``, ``spec`` (path, dtype and shape of each leaf; ``None`` of
        a server of tables alone), ``tables`` (the names of such a server's) and ``rtt`` (seconds
        that each of ``count`` pings took).
    """

def set_log_level(level: int) -> None:
    """Listen to the core from this level of :mod:`logging` on; 0 for not at all."""

def take_logs(timeout: float) -> tuple[list[tuple[int, str, str]], int]:
    """Wait for records of level, target and text; also how many were dropped."""

@final
class Watcher:
    """A connection that asks a server for its state."""

    def __new__(cls, address: str, options: dict[str, Any], timeout: float) -> Self: ...
    @property
    def release(self) -> str:
        """Which release the server is."""

    def look(
        self, timeout: float
    ) -> tuple[
        int,
        float,
        list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]],
        list[dict[str, Any]],
    ]:
        """Return the server's incarnation and age, its numbers by family, and its connections."""

@disjoint_base
class RemoteStream:
    """The native part of ``echoic.remote_stream.RemoteStream``: everything that runs per sample."""

    def __new__(cls, address: str, example: Any, options: dict[str, Any]) -> Self: ...
    def add(self, x: Any, *, timeout: float | None = None) -> None:
        """Send one sample.

        Its bytes are copied before this returns; they are delivered in the background, or, over
        ``shm://``, stored already. Waits, without the GIL, while the window (over ``shm://``: the
        server's ring) is full.

        Args:
            x: A sample like the example; the rules are those of ``Stream.add``.
            timeout: Seconds to wait for room; ``None`` waits for ever, 0 not at all.

        Raises:
            SpecError: The sample does not fit. Nothing of it is sent.
            WaitTimeoutError: There was no room in time; ``reason`` says why.
            ClosedError: The client is closed.
            DisconnectedError: The client has given up; ``undelivered`` says how many samples it
                has.
        """

    def extend(self, xs: Any, *, timeout: float | None = None) -> None:
        """Send many samples, given as leaves with a leading axis.

        Args:
            xs: Like the example, each leaf with the same leading axis.
            timeout: Seconds to wait for room in total; ``None`` waits for ever.

        Raises:
            SpecError: A leaf does not fit. Nothing is sent.
            WaitTimeoutError: Not all samples had room in time; ``stored`` says how many had.
            ClosedError: The client is closed; ``stored`` says how many samples came before.
            DisconnectedError: The client has given up.
        """

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was sent before is stored in the server's ring.

        Raises:
            WaitTimeoutError: It was not in time; ``reason`` says why. It is still being delivered.
            DisconnectedError: The client has given up.
        """

    def close(self, timeout: float | None = None) -> None:
        """Take no more samples, deliver those that are left, and end.

        May be called again after it timed out. In a forked child it does nothing: the client is the
        parent's.

        Raises:
            WaitTimeoutError: Not everything was delivered in time; it still is being delivered.
            DisconnectedError: The client has given up; :meth:`undelivered` returns what is left.
        """

    def undelivered(self) -> Any:
        """Return what was not acknowledged, once the client is closed or has given up.

        The last of these may be stored all the same: the server had taken them, and the connection
        broke before it could say so. Sent again by another client, they may thus come twice.

        Returns:
            A tree like the example with a leading axis, or ``None`` when everything was delivered.
        """

    def stats(self) -> RemoteStreamStats:
        """Return the numbers of this end; it sends no request to the server."""

    def _example(self) -> Any: ...
    def _give_up(self) -> None: ...
    @property
    def closed(self) -> bool:
        """Whether it takes no more samples."""

    @property
    def address(self) -> str:
        """Where the server is."""

    @property
    def producer(self) -> bytes:
        """The number that the server knows this client by."""

    @property
    def spec(self) -> Spec:
        """What samples look like."""

@disjoint_base
class Server:
    """The native part of :class:`echoic.Server`."""

    def __new__(
        cls,
        stream: Stream | None,
        shared: bool,
        tables: list[Table],
        checkpoints: tuple[str | os.PathLike[str], int] | None,
        weights: WeightStore | None = None,
        rollouts: Sequence[RolloutTable] | None = None,
    ) -> Self: ...
    def open_listener(
        self,
        address: str,
        *,
        token: bytes | None = None,
        insecure: bool = False,
        max_connections: int = 4096,
        heartbeat: float = 5.0,
        threads: int | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        client_ca: str | os.PathLike[str] | None = None,
    ) -> str:
        """Let other processes push to this server, for transports; returns the address.

        Raises:
            OSError: The address can't be had.
            ValueError: If the address is not valid, or needs a token.
        """

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where other processes connect to, once the server was started."""

    def _stats(
        self,
    ) -> tuple[
        int,
        float,
        list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]],
        list[dict[str, Any]],
    ]: ...
    def connections(self) -> list[dict[str, Any]]:
        """Return what is known of each connection.

        ``address`` (of the server), ``id``, ``peer``, ``name`` (what the client calls itself),
        ``purpose``, ``age`` (seconds), ``samples``, ``bytes``, ``receive_calls``, ``duplicates``,
        ``blocked_time`` (seconds) and ``blocked_by`` (``"CAPACITY"``, ``"LEASED"`` or nothing).
        """

    def metrics(self) -> dict[str, float]:
        """Return every number by name: those of the stream, refusals by reason, those of tables.

        A name is of the form ``table_items.NAME``; the guide to metrics has them all.
        """

    def set_gauge(self, name: str, value: float | None) -> None:
        """Show a number of this program beside the server's own, as ``echoic_gauge``.

        It replaces the number of this name; ``None`` removes it. There may be 256 names of at most
        128 bytes.

        Raises:
            ValueError: If there are too many, or the name is empty or too long.

        Example:
            >>> import echoic
            >>> server = echoic.Server(echoic.Table("replay", capacity=100))
            >>> server.set_gauge("success_rate", 0.75)
            >>> server.metrics()["gauge.success_rate"]
            0.75
        """

    def serve_metrics(
        self, address: str = "127.0.0.1:0", *, token: bytes | None = None, insecure: bool = False
    ) -> str:
        """Let Prometheus and its like read all numbers over HTTP, until the server is closed.

        Two threads of their own answer, which never need the GIL.

        Args:
            address: ``host:port`` to listen at; port 0 is any free one.
            token: What readers must send, as ``Authorization: Bearer …``.
            insecure: Allows an address that other machines can reach without a token.

        Returns:
            The URL of the numbers.

        Raises:
            OSError: The address can't be had.
            ValueError: If the address is not valid, or needs a token.
            ClosedError: The server is closed.

        Example:
            >>> import urllib.request
            >>> import echoic
            >>> server = echoic.Server(echoic.Table("replay", capacity=100))
            >>> with server, urllib.request.urlopen(server.serve_metrics()) as answer:
            ...     lines = answer.read().decode().splitlines()
            >>> 'echoic_table_capacity{table="replay"} 100' in lines
            True
        """

    def checkpoint(self) -> Path:
        """Write a checkpoint, and remove those that are older than the ones to be kept.

        It has all tables, each as it was at one moment, and the samples of the
        stream that were not taken yet.

        Returns:
            Where the checkpoint is.

        Raises:
            TypeError: The server has no checkpointer.
            OSError: The disk does not take it, or another process writes there. Nothing is lost.
            CheckpointError: The directory has something else in it.
        """

    def _load(self, path: str | os.PathLike[str]) -> dict[str, int]: ...
    def _recover(
        self,
        journal: str | os.PathLike[str],
        checkpoint: str | os.PathLike[str] | None,
    ) -> dict[str, tuple[int, tuple[int, str, int] | None]]: ...
    def close(self, drain: float = 1.0, restart: bool | None = None) -> None:
        """Close the listeners, then the stores, and wake all waiting calls.

        Complete batches of the stream can still be taken, and batches already taken stay valid.
        Calls that wait for a table end with a :class:`~echoic.errors.ClosedError`.

        Args:
            drain: For how many seconds clients may finish what they are sending. What is not stored
                by then stays with them, for a server that comes later.
            restart: Whether another server takes over the rollout tables. If not, their clients
                get a :class:`~echoic.errors.ClosedError` at once; else they wait for it for their
                ``reconnect``. By default tables with a directory are taken over, others are not.
                Clients of streams, tables and weights wait in any case.
        """

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""

@disjoint_base
class Stream:
    """The native part of :class:`echoic.Stream`: everything that runs per sample."""

    def __new__(
        cls, example: Any, batch_size: int, capacity: int | None, held_warning_after: float
    ) -> Self: ...
    def add(self, x: Any, *, timeout: float | None = None) -> None:
        """Store one sample.

        Its bytes are copied before this returns. Waits, without the GIL, while the ring is full.

        Args:
            x: A sample like the example. dtypes must match exactly; Python numbers fit any dtype
                of their kind; arrays that are not contiguous or have another byte order are
                converted.
            timeout: Seconds to wait for room; ``None`` waits for ever, 0 not at all.

        Raises:
            SpecError: The sample does not fit. Nothing of it is stored.
            WaitTimeoutError: There was no room in time; ``reason`` says why.
            ClosedError: The stream is closed.
        """

    def extend(self, xs: Any, *, timeout: float | None = None) -> None:
        """Store many samples, given as leaves with a leading axis.

        The axis may be longer than a batch, or than the whole ring: this returns when all samples
        are stored.

        Args:
            xs: Like the example, each leaf with the same leading axis.
            timeout: Seconds to wait for room in total; ``None`` waits for ever.

        Raises:
            SpecError: A leaf does not fit. Nothing is stored.
            WaitTimeoutError: Not all samples had room in time; ``stored`` says how many had.
            ClosedError: The stream is closed; ``stored`` says how many samples came before.
        """

    def sample(self, timeout: float | None = None, *, device: Any = None) -> Batch:
        """Take the next batch, waiting for it without the GIL.

        After a close, the complete batches that are left can still be taken.

        Args:
            timeout: Seconds to wait; ``None`` waits for ever.
            device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
                numpy arrays when ``None``.

        Raises:
            WaitTimeoutError: No batch was complete in time.
            ClosedError: The stream is closed and has no complete batch.
        """

    def rest(self, timeout: float | None = None) -> Batch | None:
        """Take the samples of a closed stream that do not fill a batch; ``None`` if there are none.

        Waits for calls of ``add`` that have not returned. Only the first call gets them.
        """

    def stats(self) -> StreamStats:
        """Return a snapshot of the numbers, without taking a batch."""

    def reset_histograms(self) -> None:
        """Begin the histograms of :meth:`stats` again; counters and gauges go on."""

    def flush(self, timeout: float | None = None) -> None:
        """Return at once: samples are stored when ``add`` returns.

        A stream of a server in another process delivers here what was added.
        """

    def close(self, timeout: float | None = None) -> None:
        """End intake and wake all waiting calls.

        Batches already taken stay valid, and complete ones can still be taken. ``timeout`` has no
        effect: there is nothing to deliver.
        """

    @property
    def closed(self) -> bool:
        """Whether the stream was closed."""

    @property
    def spec(self) -> Spec:
        """The structure, dtypes and shapes of samples."""

    @property
    def batch_size(self) -> int:
        """Samples per batch."""

    @property
    def capacity(self) -> int:
        """Samples that fit."""

    def __len__(self) -> int: ...

@disjoint_base
class Table:
    """The native part of :class:`echoic.Table`: everything that runs per item."""

    def __new__(
        cls,
        name: str,
        example: Any,
        sampler: tuple[str, list[float]],
        remover: tuple[str, list[float]],
        limiter: tuple[str, list[float]],
        capacity: int,
        max_times_sampled: int | None,
        seed: int,
        trajectories: Any = None,
        durability: str = "none",
        metadata: bytes | None = None,
    ) -> Self: ...
    def add(
        self,
        x: Any,
        priority: float = 1.0,
        version: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Add one item.

        Its bytes are copied before this returns. Waits, without the GIL, while the limiter says so.
        When there are more than ``capacity`` items then, the remover says which goes.

        Args:
            x: An item like the spec; the rules are those of ``Stream.add``.
            priority: Finite and not negative.
            version: The policy version that made the item; the table's when ``None``.
            timeout: Seconds to wait; ``None`` waits for ever, 0 not at all.

        Raises:
            SpecError: The item does not fit.
            PriorityError: If the priority is not a finite number >= 0.
            WaitTimeoutError: The limiter did not allow it in time; ``reason`` says why.
            ClosedError: The table is closed.
            OSError: The table's journal takes nothing more. The table can still be sampled.
        """

    def extend(
        self,
        xs: Any,
        priorities: Any = None,
        version: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Add many items, given as leaves with a leading axis.

        Args:
            xs: Like the spec, each leaf with the same leading axis.
            priorities: One for each item; 1 when ``None``.
            version: The policy version that made the items; the table's when ``None``.
            timeout: Seconds to wait in total; ``None`` waits for ever.

        Raises:
            SpecError: A leaf does not fit, or the table has no spec. Nothing is inserted.
            PriorityError: If a priority is not a finite number >= 0. Nothing is added.
            WaitTimeoutError: Not all were allowed in time; ``stored`` says how many were.
            ClosedError: The table is closed.
        """

    def sample(
        self, n: int, timeout: float | None = None, beta: float = 1.0, *, device: Any = None
    ) -> Batch:
        """Draw a batch, all of it at one moment.

        The arrays belong to the batch and do not change later. Waits, without the GIL, while the
        limiter does not allow a sample.

        Args:
            n: How many items, at least 1.
            timeout: Seconds to wait; ``None`` waits for ever, 0 not at all.
            beta: The exponent of the importance weights ``batch.weights``: finite, at least 0.
            device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
                numpy arrays when ``None``.

        Raises:
            ValueError: ``n`` or ``beta`` is out of range. Nothing is drawn.
            WaitTimeoutError: The limiter did not allow it in time; ``reason`` says why.
            LimiterError: If the limiter can never allow ``n`` at once; the message has the
                arithmetic.
            ClosedError: The table is closed.
        """

    @overload
    def update_priorities(self, keys: Any, priorities: Any, wait: Literal[True] = True) -> int: ...
    @overload
    def update_priorities(self, keys: Any, priorities: Any, wait: bool) -> int | None:
        """Change priorities, all at one moment; returns how many keys named items that are there.

        Keys of items that have gone are passed over. Of a key that is there twice the last value
        counts.

        Args:
            keys: Which items.
            priorities: One for each.
            wait: Whether to wait for a server elsewhere to answer. ``False`` returns ``None`` at
                once: what is asked of the connection later comes after the update, an update that
                fails raises in a later call, and ``Connection.flush`` waits for all of them. For
                a table of this process only the result differs.

        Raises:
            PriorityError: A priority is negative, infinite or not a number. Nothing is changed.
            OSError: The table's journal takes nothing more; so do ``remove`` and ``clear``.
        """

    def items(self, limit: int | None = None) -> Batch:
        """List the items, or at most ``limit`` of them, without their data and without sampling.

        Returns:
            A batch whose ``data`` is ``None``.
        """

    def get(self, keys: Any) -> Batch:
        """Read the items of these names that are there; they do not count as sampled."""

    def remove(self, keys: Any) -> int:
        """Remove items; returns how many of them were there."""

    def clear(self) -> None:
        """Remove all items and count inserts, samples and deletions from zero."""

    def pause(self) -> None:
        """Let inserts and samples wait until :meth:`resume`."""

    def resume(self) -> None:
        """End a pause."""

    def publish_version(self, version: int) -> None:
        """Set the learner's policy version, which items added without a version get.

        It never falls: a lower version than the last one changes nothing.
        """

    def can_sample(self, n: int) -> bool:
        """Return whether a batch of ``n`` items could be sampled now without waiting.

        Raises:
            LimiterError: It never could; the message has the arithmetic.
        """

    def can_add(self, n: int = 1) -> bool:
        """Return whether ``n`` items could be added now without waiting."""

    def close(self) -> None:
        """End adds and samples, and wake all waiting calls.

        Priorities can still be changed: a learner need not know which of its batches was the last.
        """

    def _set_limiter(self, limiter: tuple[str, list[float]]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def name(self) -> str:
        """What the table is called."""

    @property
    def durability(self) -> str:
        """What acknowledged changes survive: ``"none"``, ``"async"`` or ``"sync"``."""

    @property
    def metadata(self) -> bytes:
        """What the program keeps with the table."""

    @property
    def spec(self) -> Spec | None:
        """What items look like; ``None`` when they may be of any form."""

    @property
    def capacity(self) -> int:
        """How many items there may be."""

    def stats(self) -> TableStats:
        """Return a snapshot of the table's numbers and settings."""

@disjoint_base
class RemoteTable(Table):
    """A table whose items are in another process."""

    def __new__(cls, link: Tables, number: int) -> Self: ...
    def _insert_part(
        self,
        tree: Any,
        priorities: Any,
        version: int | None,
        timeout: float | None,
        cut: tuple[int, int, int],
        skip: int,
    ) -> int: ...
    def start_sample(self, count: int) -> PendingBatch:
        """Ask for a batch, and go on; it counts as sampled when it is drawn."""

@final
class Tables:
    """A connection to the tables of a server."""

    def __len__(self) -> int: ...
    def flush(self, timeout: float | None = None) -> None:
        """Wait until what was inserted is in its table, and survives what that promises."""

    def checkpoint(self, timeout: float | None = None) -> Path:
        """Have the server write a checkpoint; see ``Connection.checkpoint``."""

    def close(self, timeout: float | None = None) -> None:
        """Deliver what was inserted, and end."""

    def stats(self) -> dict[str, float]:
        """Return the link's numbers by name."""

    @property
    def address(self) -> str:
        """Where the server is."""

    @property
    def connected(self) -> bool:
        """Whether the server is there now."""

    @property
    def over(self) -> bool:
        """Whether it has ended for good: it was closed, or gave up."""

    @property
    def incarnations(self) -> int:
        """How many restarts of the server the connection has seen."""

    @property
    def pending(self) -> int:
        """How many items are not known to be in their tables."""

    def wait_only_while_connected(self) -> None:
        """From now on, no request waits for a connection that is lost."""

    def redirect(self, address: str) -> None:
        """Find the server there from now on; what it has not acknowledged goes to there."""

    @property
    def arrived(self) -> bool:
        """Whether the server is there where it was said to be last."""

    @property
    def closed(self) -> bool:
        """Whether it is there, and a table that items wait for is closed."""

    @property
    def trouble(self) -> str | None:
        """Why there is no connection, if that will not pass by itself."""

@final
class PendingBatch:
    """A batch that a server was asked for; dropped before it was taken, it is given up."""

    def take(self, timeout: float | None, beta: float) -> Batch:
        """Wait for the batch; may be called again after it timed out."""

@final
class Shards:
    """Draws batches from one table on several servers, and knows whose items they were.

    Each call is given the servers: for each that is there its table, and the number of
    the first incarnation that its connection sees. New ones join at the end.
    """

    def __new__(cls, count: int, seed: int) -> Self: ...
    def check(self, tables: list[tuple[RemoteTable, int] | None]) -> None:
        """Refuse tables whose items differ."""

    def sample(
        self,
        tables: list[tuple[RemoteTable, int] | None],
        count: int,
        timeout: float | None,
        beta: float,
        device: Any,
    ) -> Batch:
        """Draw a batch; ends at once, with the reason ``"AWAY"``, when no server is there."""

    def items(self, tables: list[tuple[RemoteTable, int] | None], limit: int | None) -> Batch:
        """What is known about items of all servers."""

    def get(self, tables: list[tuple[RemoteTable, int] | None], keys: Any) -> Batch:
        """Read items, in the order of the servers."""

    def update_priorities(
        self, tables: list[tuple[RemoteTable, int] | None], keys: Any, priorities: Any
    ) -> tuple[int, int]:
        """Change priorities; how many items were there, and how many keys are of absent shards."""

    def remove(self, tables: list[tuple[RemoteTable, int] | None], keys: Any) -> tuple[int, int]:
        """Remove items; how many were there, and how many keys are of absent shards."""

def connect_tables(address: str, options: dict[str, Any]) -> Tables:
    """Connect to a server that has tables, for :func:`echoic.connect`."""

@disjoint_base
class TrajectoryWriter:
    """The native part of :class:`echoic.TrajectoryWriter`: everything that runs per step."""

    def __new__(
        cls,
        tables: list[Table],
        keep_alive: int,
        chunk_length: ChunkLength | None,
        encoding: Encoding,
    ) -> Self: ...
    def configure(
        self,
        path: str,
        keep_alive: int | None,
        chunk_length: ChunkLength | None,
        encoding: Encoding | None,
    ) -> None:
        """Give a column settings of its own."""

    def append(self, step: Any, partial: bool = False, timeout: float | None = None) -> None:
        """Append a step, or a part of one.

        Never waits, unless a thousand items wait for their tables.

        Args:
            step: A tree of arrays. Steps may differ in which leaves they have.
            partial: The step goes on: the next append adds other leaves to it.
            timeout: Seconds to wait where it must.

        Raises:
            SpecError: A leaf has another dtype or shape than in the steps before.
            TrajectoryError: A leaf was given twice in one step.
            WaitTimeoutError: The tables took no items in time. The step was appended.
        """

    def append_batch(self, steps: Any, timeout: float | None = None) -> None:
        """Append many consecutive steps, given as leaves with a leading axis."""

    def append_columns(self, values: list[Any], partial: bool = False) -> list[Steps | None]:
        """Append a step of columns that have numbers for names, and name what was appended.

        For layers above that keep a history of their own. A value that is ``None`` is left out.
        Never waits, however many items wait for their tables.
        """

    @property
    def history(self) -> Any:
        """What items are cut from: a tree like the steps, of :class:`ColumnHistory`."""

    def create_item(
        self, table: str, priority: float, trajectory: Any = None, *, last: int | None = None
    ) -> None:
        """Make an item of steps of the history. Never waits.

        Args:
            table: Where it goes.
            priority: Finite and not negative.
            trajectory: A tree whose leaves are parts of columns of the history: one step
                (``column[-1]``, which has no axis of time), a slice or a list of steps. Without it
                the item is the last step of the history, all of it: ``[-1]`` of every column.
            last: Instead of a trajectory: this number of last steps, ``[-last:]`` of every column.

        Raises:
            TableNotFoundError: There is no such table.
            PriorityError: If the priority is not a finite number >= 0.
            SpecError: The item is not like the table's spec.
            TrajectoryError: If there are fewer steps, one is gone, or a leaf is not of this
                writer's history.
        """

    def flush(self, block_until_num_items: int = 0, timeout: float | None = None) -> None:
        """Hand all items over to their tables, and wait until at most this many are on their way.

        With 0, those that are there then survive what their tables' durability says.

        Raises:
            WaitTimeoutError: The tables did not take them in time; they stay with the writer.
        """

    def end_episode(self, clear: bool = True, timeout: float | None = None) -> None:
        """Hand all items over and begin another episode.

        Args:
            clear: Items can no longer name steps of this episode.
            timeout: Seconds to wait for the tables.
        """

    def close(self) -> None:
        """Take nothing more; items that were not flushed are dropped."""

    @property
    def pending(self) -> int:
        """How many items were created and are in no table yet."""

    @property
    def episode_steps(self) -> int:
        """How many steps of this episode are complete."""

@disjoint_base
class VectorWriter:
    """The native part of :class:`echoic.VectorWriter`: everything that runs per step."""

    def __new__(
        cls,
        tables: list[Table],
        num_envs: int,
        keep_alive: int,
        chunk_length: ChunkLength | None,
        encoding: Encoding,
    ) -> Self: ...
    def configure(
        self,
        path: str,
        keep_alive: int | None,
        chunk_length: ChunkLength | None,
        encoding: Encoding | None,
    ) -> None:
        """Give a column settings of its own."""

    def append_batch(
        self,
        steps: Any,
        envs: Any = None,
        partial: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Append a step to each environment, or a part of one.

        Never waits, unless a thousand items wait for their tables, or eight of each environment.

        Args:
            steps: A tree of arrays with a leading axis of ``num_envs``.
            envs: Which environments have made a step: a mask of ``num_envs`` booleans, or indices;
                all when ``None``. The values of others are ignored.
            partial: The steps go on: the next append adds other leaves to them.
            timeout: Seconds to wait where it must.

        Raises:
            SpecError: A leaf has another dtype or shape than in the steps before, or not a row for
                each environment. Nothing was appended.
            TrajectoryError: A leaf was given twice in one step. Nothing was appended.
            WaitTimeoutError: The tables took no items in time. The steps were appended.
        """

    @property
    def history(self) -> Any:
        """What items are cut from: a tree like the steps.

        Its leaves are columns as those of :mod:`echoic.patterns`: an index or a slice
        counts from the newest step, which is -1, of each environment.
        """

    def create_items(
        self, table: str, priority: Any, trajectory: Any, envs: Any = None
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Make an item in each environment whose episode has all its steps. Never waits.

        Args:
            table: Where they go.
            priority: Finite and not negative: one number, or one for each environment.
            trajectory: A tree whose leaves are parts of columns of the history: one step
                (``column[-1]``, which has no axis of time) or a slice.
            envs: In which environments, as for ``append_batch``.

        Returns:
            A mask of those in which there is an item now.

        Raises:
            TableNotFoundError: There is no such table.
            PriorityError: If a priority is not a finite number >= 0. No item is made.
            SpecError: The items are not like the table's spec.
            TrajectoryError: A leaf is no part of a column of this writer.
        """

    def flush(self, block_until_num_items: int = 0, timeout: float | None = None) -> None:
        """Hand all items over to their tables, and wait until at most this many are on their way.

        Raises:
            WaitTimeoutError: The tables did not take them in time; they stay with the writer.
        """

    def end_episode(
        self, envs: Any = None, clear: bool = True, timeout: float | None = None
    ) -> None:
        """Begin another episode. Items of the old one are handed over, but not waited for.

        Args:
            envs: In which environments, as for ``append_batch``.
            clear: Items can no longer name steps of this episode.
            timeout: Seconds to wait where it must, as for ``append_batch``.
        """

    def close(self) -> None:
        """Take nothing more; items that were not flushed are dropped."""

    @property
    def num_envs(self) -> int:
        """How many environments there are."""

    @property
    def pending(self) -> int:
        """How many items were created and are in no table yet."""

    @property
    def episode_steps(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """How many steps of its episode are complete in each environment."""

@disjoint_base
class StructuredWriter:
    """The native part of :class:`echoic.StructuredWriter`: everything that runs per step."""

    def __new__(
        cls,
        tables: list[Table],
        configs: list[Any],
        chunk_length: ChunkLength | None,
        encoding: Encoding,
    ) -> Self: ...
    def append(self, step: Any, partial: bool = False, timeout: float | None = None) -> None:
        """Append a step, or a part of one, and make the items that are due.

        Never waits, unless a thousand items wait for their tables.

        Args:
            step: A tree of arrays. Steps may differ in which leaves they have.
            partial: The step goes on: the next append adds other leaves to it. A pattern is applied
                as soon as all that it needs is there, and at most once at a step.
            timeout: Seconds to wait where it must.

        Raises:
            SpecError: A leaf has another dtype or shape than in the steps before, or than a
                condition, a priority or a table's spec needs. The step was not appended.
            TrajectoryError: A leaf was given twice in one step. The step was not appended.
            PriorityError: A computed priority is negative or not finite. The step was appended, and
                all items but those were made.
            WaitTimeoutError: The tables took no items in time. The step was appended.
        """

    def append_batch(self, steps: Any, timeout: float | None = None) -> None:
        """Append many consecutive steps, given as leaves with a leading axis.

        Items are made at each of them.
        """

    def flush(self, block_until_num_items: int = 0, timeout: float | None = None) -> None:
        """Hand all items over to their tables, and wait until at most this many are on their way.

        With 0, those that are there then survive what their tables' durability says.

        Raises:
            WaitTimeoutError: The tables did not take them in time; they stay with the writer.
        """

    def end_episode(self, clear: bool = True, timeout: float | None = None) -> None:
        """Make the items that wait for the end, hand all over and begin another episode.

        Args:
            clear: Items no longer have steps of this episode.
            timeout: Seconds to wait for the tables.

        Raises:
            PriorityError: As for ``append``; the episode has ended all the same.
            WaitTimeoutError: The tables did not take the items in time; they stay with the writer,
                and the episode has ended.
        """

    def close(self) -> None:
        """Take nothing more; items that were not flushed are dropped."""

    @property
    def pending(self) -> int:
        """How many items were made and are in no table yet."""

    @property
    def episode_steps(self) -> int:
        """How many steps of this episode are complete."""

    @property
    def missing_columns(self) -> list[str]:
        """Columns that patterns name and that no step had so far: a typing error, if they stay."""

@final
class ColumnHistory:
    """The steps of one column that new items may still name, the newest last."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int | slice | list[int], /) -> Steps: ...
    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one step."""

@final
class Steps:
    """Some steps of a column. The bytes stay where they are; :meth:`numpy` copies them."""

    def __len__(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that this has in an item."""

    @property
    def expired(self) -> bool:
        """Whether a step is gone, so that no item can be made of these."""

    @staticmethod
    def join(steps: list[Steps], squeezed: bool) -> Steps:
        """Put steps one after the other; squeezed, take one step without an axis of time.

        Raises:
            ValueError: They are of different dtypes, shapes or writers, or none.
        """

    def numpy(self) -> np.ndarray[Any, Any]:
        """Copy the values.

        Raises:
            TrajectoryError: A step is gone.
        """

@final
class Publication:
    """A version, and the weights that belong to it.

    The arrays can't be written. They are there, and do not change, for as long as one of them or
    the publication is referred to: also when the store, the client or the server is closed.
    """

    @property
    def version(self) -> int:
        """Which version it is."""

    @property
    def tree(self) -> Any:
        """The weights as a tree of numpy views; ``None`` where only a version was published."""

    @property
    def nbytes(self) -> int:
        """How many bytes the weights have, those between leaves included."""

    @property
    def spec(self) -> Spec | None:
        """Path, dtype and shape of every leaf."""

@final
class Subscription:
    """A reader of publications: it gets the latest, and skips those between.

    Iterating yields publications as they come, until the store or the subscription is closed.
    """

    def latest(self) -> Publication | None:
        """Return the latest publication; ``None`` before there is one.

        Raises:
            ClosedError: The subscription is closed.
        """

    def wait(self, newer_than: int | None = None, timeout: float | None = None) -> Publication:
        """Wait, without the GIL, for a publication, and return the latest.

        Args:
            newer_than: Wait for a version above this; without it, for any publication that this
                subscription has not returned yet.
            timeout: Seconds to wait; ``None`` waits for ever, 0 not at all.

        Raises:
            WaitTimeoutError: If none came in time; ``reason`` says why: ``"EMPTY"`` or
                ``"AWAY"``, when there is no connection.
            ClosedError: The store, the client or the subscription is closed.
            DisconnectedError: The client has given up.
        """

    @property
    def version(self) -> int | None:
        """The latest version, without taking note of it."""

    @property
    def connected(self) -> bool:
        """Whether a connection to the server stands; in the learner's process, always."""

    @property
    def reconnects(self) -> int:
        """How often the connection came back."""

    @property
    def received_bytes(self) -> int:
        """How many bytes have come over connections."""

    def close(self) -> None:
        """Close the subscription, and wake its waiting calls. What it returned stays valid."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Publication: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@disjoint_base
class WeightStore:
    """The native part of :class:`echoic.weights.WeightStore`."""

    def __new__(cls, capacity: int) -> Self: ...
    def publish(self, tree: Any, version: int, *, timeout: float | None = None) -> None:
        """Make a tree the latest.

        Its leaves are copied before this returns, once, without the GIL.

        Args:
            tree: Nested dicts, tuples, lists and the like, with arrays, torch tensors on the CPU,
                or numbers as leaves. It may differ from the one before.
            version: Above the version before.
            timeout: Seconds to wait while all publications are held; ``None`` waits for ever.

        Raises:
            ValueError: The version is not above the latest.
            SpecError: A leaf can't be published, and why.
            WaitTimeoutError: All publications were held for too long.
            MemoryError: There is no memory for it.
            ClosedError: The store is closed.
        """

    def publish_version(self, version: int) -> None:
        """Publish a version alone, for programs that carry the weights by other means.

        Raises:
            ValueError: The version is not above the latest.
            ClosedError: The store is closed.
        """

    def latest(self) -> Publication | None:
        """Return the latest publication; ``None`` before there is one."""

    def subscribe(self) -> Subscription:
        """Return a new subscription in this process."""

    @property
    def version(self) -> int | None:
        """The latest version; ``None`` before there is one."""

    def metrics(self) -> dict[str, Any]:
        """Return its numbers by name: versions, bytes, subscribers and how far they are behind."""

    def close(self) -> None:
        """End publishing, and wake all waiting calls. What was returned stays valid."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

@disjoint_base
class RemoteWeightStore:
    """The native part of :class:`echoic.weights.RemoteWeightStore`."""

    def __new__(cls, address: str, capacity: int, options: dict[str, Any]) -> Self: ...
    def publish(self, tree: Any, version: int, *, timeout: float | None = None) -> None:
        """Make a tree the latest of the server, and wait until it is.

        Chunks that the server has already are not sent.

        Args:
            tree: As of :meth:`WeightStore.publish`.
            version: Above the version before.
            timeout: Seconds to wait for all of it; ``None`` waits for ever.

        Raises:
            ValueError: The version is not above the latest.
            SpecError: A leaf can't be published, and why.
            WaitTimeoutError: The server's publications were all held for too long.
            DisconnectedError: The server can't be reached.
            RefusedError: The server does not want us; ``code`` says why.
            ClosedError: The client or the server's store is closed.
        """

    def publish_version(self, version: int, *, timeout: float | None = None) -> None:
        """Publish a version alone at the server.

        Raises:
            As :meth:`publish`.
        """

    def subscribe(self) -> Subscription:
        """Return a new subscription; the first connects.

        Raises:
            DisconnectedError: The server can't be reached.
            RefusedError: The server does not want us; ``code`` says why.
            ClosedError: The client is closed.
        """

    @property
    def address(self) -> str:
        """Where the server is."""

    def close(self) -> None:
        """Close the connection, and wake all waiting calls. What was returned stays valid."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

@final
class Batch:
    """Rows that were drawn from a store.

    ``len(batch)`` is their number, and ``batch["obs"]`` is ``batch.data["obs"]``.
    The arrays of a stream's batch are views of the stream's own memory. They stay valid and
    unchanged for as long as any of them is alive; only then is the memory used again. Other batches
    have memory of their own.
    """
    @staticmethod
    def _of(data: dict[str, Any], n: int) -> Batch: ...
    def _with(self, data: Any, keys: Any, weights: Any) -> Batch: ...
    @property
    def data(self) -> Any:
        """A tree like the items, every leaf with a leading axis.

        A leaf of which the items have different lengths is a :class:`~echoic.Ragged`. Items of
        different forms, which a table without a spec may have, make a list of trees. It is ``None``
        in what ``table.items()`` returns.
        """
    @property
    def keys(self) -> Any:
        """Keys of the rows, for ``update_priorities``, ``get`` and ``remove``.

        ``None`` in a batch of a stream, or of a buffer without priorities.
        """
    @property
    def weights(self) -> Any:
        """Importance weights ``(size * probability) ** -beta``, the largest of which is 1.

        ``None`` in a batch of a stream.
        """
    @property
    def info(self) -> Any:
        """More about the rows and their store.

        A :class:`~echoic.batches.BatchInfo` of a table; the :class:`~echoic.batches.StreamStats` of
        a stream, as of the first time they are read; ``None`` of a local buffer.
        """
    def as_torch(self, device: Any = None) -> Batch:
        """Return the batch with ``data``, ``keys`` and ``weights`` as tensors of PyTorch.

        On the CPU they share the memory of the arrays. To a CUDA device they are copied through
        page-locked memory on the current stream, and this batch need not be kept for the copy.
        A :class:`~echoic.Ragged` gets tensors for its values and offsets.

        Args:
            device: A ``torch.device`` or its name. The CPU when ``None``.

        Raises:
            ImportError: If PyTorch is not installed.
        """
    def as_jax(self) -> Batch:
        """Return the batch with ``data`` and ``weights`` as arrays of JAX.

        They are on JAX's default device, and have 32 bits instead of 64 if JAX has no 64-bit types
        enabled. ``keys`` stay a numpy array, since they need all of their bits.

        Raises:
            ImportError: If JAX is not installed.
        """
    def __getitem__(self, key: Any, /) -> Any: ...
    def __len__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class BatchInfo:
    """More about the items of a table's batch; each array is made when it is first asked for."""

    @property
    def probabilities(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How likely it was to draw each item."""

    @property
    def priorities(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Priorities of the items."""

    @property
    def times_sampled(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """How often each item was sampled, this time included."""

    @property
    def versions(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """The policy versions that made the items."""

    @property
    def table_size(self) -> int:
        """How many items the table had."""

    @property
    def total_weight(self) -> float:
        """What its items weigh: ``sum(p**e)`` if the sampler is prioritized, else their number."""

    @property
    def beta(self) -> float:
        """The exponent of the weights."""

    def __len__(self) -> int: ...

@final
class RolloutBatch:
    """A share of a batch of rollouts; :class:`echoic.rollouts.RolloutBatch` is what users see."""

    @property
    def numbers(self) -> dict[str, Any]:
        """Arrays about groups, items and runs of tokens of one version, by name."""

    @property
    def fields(self) -> dict[str, Any]:
        """Arrays with a value of each item."""

    @property
    def columns(self) -> dict[str, Any]:
        """Arrays of tokens, each of rows and cells, then the axes of the column."""

    @property
    def blobs(self) -> dict[int, dict[str, bytes]]:
        """Blobs by name, of those items that have some, by their place."""

    @property
    def keys(self) -> list[str]:
        """What its producer calls each group."""

    @property
    def sources(self) -> list[str]:
        """The source of each group."""

    @property
    def lease(self) -> tuple[int, int, int]:
        """The batch, the rank, and how often it was delivered."""

    @property
    def lease_seconds(self) -> float | None:
        """For how long it is the consumer's."""

    @property
    def target(self) -> int:
        """The version that the batch will update."""

@final
class RolloutCall:
    """Tokens that are on their way to a server's table."""

    @property
    def is_ready(self) -> bool:
        """Whether the answer is there."""

    def wait(self) -> str:
        """Wait for the answer: where the group has come to."""

    def forget(self) -> None:
        """Keep its error from being raised by later calls."""

@final
class RolloutHistory:
    """The past of a rollout table; :class:`echoic.rollouts.History` is what users see."""

    def __new__(
        cls, directory: str | os.PathLike[str], at: tuple[str, int] | None = None
    ) -> Self: ...
    def next_batch(self, form: tuple[str, int, bool]) -> tuple[int, float, RolloutBatch] | None:
        """Go on to the next batch: its record, the time, and itself."""

    def at(self, what: str, value: int) -> bool:
        """Go on to a point; whether it is there."""

    def stats(self) -> dict[str, Any]:
        """Return what the table had counted."""

    @property
    def settings(self) -> dict[str, Any] | None:
        """The table's settings."""

    @property
    def record(self) -> int:
        """The number of the next record."""

    @property
    def end(self) -> int:
        """The number behind the last record."""

    @property
    def time(self) -> float:
        """The table's time, in seconds."""

@final
class RolloutLink:
    """A connection to the rollout tables of a server."""

    @property
    def address(self) -> str:
        """Where the server is."""

    @property
    def connected(self) -> bool:
        """Whether the server is there now."""

    @property
    def reconnects(self) -> int:
        """How often the connection came back."""

    def tables(self) -> list[RolloutTable]:
        """Return the tables."""

    def close(self, timeout: float | None = None) -> None:
        """End the connection."""

def connect_rollouts(address: str, options: dict[str, Any]) -> RolloutLink:
    """Connect to a server that has rollout tables."""

@disjoint_base
class RolloutTable:
    """A table of rollouts; :class:`echoic.rollouts.RolloutTable` is what users see."""

    def __new__(
        cls,
        settings: dict[str, Any],
        directory: str | os.PathLike[str] | None = None,
        durability: str = "async",
        history: bool = False,
    ) -> Self: ...
    def checkpoint(self) -> Path:
        """Write a checkpoint to its directory."""

    @property
    def dropped(self) -> tuple[int, str, int] | None:
        """Bytes dropped at the journal's end, why, and how many changes they may have held."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def settings(self) -> dict[str, Any]:
        """The table's settings."""

    def reserve(
        self,
        count: int,
        source: str,
        keys: Sequence[str],
        version: int | None,
        ttl: float | None,
        timeout: float | None,
    ) -> list[tuple[int, int, str, int, float]]:
        """Wait for reservations: group, attempt, key, version and seconds to live of each."""

    def resume_reservation(
        self, source: str, ttl: float | None, timeout: float | None
    ) -> tuple[tuple[int, int, str, int, float], list[tuple[int, int, int, bool, dict[str, Any]]]]:
        """Wait for a suspended group; place, segments, tokens, end and columns of items."""

    def append(
        self,
        hold: tuple[int, int],
        item: int,
        sequence: int,
        columns: dict[str, Any] | None,
        versions: Any,
        fields: dict[str, Any] | None,
        blobs: dict[str, bytes] | None,
        priority: float,
        wait: bool = True,
    ) -> str | RolloutCall:
        """Add tokens to an item, and its end if there are fields; where the group has come to."""

    def update(
        self,
        hold: tuple[int, int],
        item: int,
        columns: dict[str, Any] | None,
        fields: dict[str, Any] | None,
        wait: bool = True,
    ) -> str | RolloutCall:
        """Give values of whole columns and fields of an item; where the group has come to."""

    def append_flat(
        self,
        hold: tuple[int, int],
        first: int,
        lengths: Any,
        columns: dict[str, Any],
        versions: Any,
        fields: dict[str, Any],
        blobs: Sequence[dict[str, bytes] | None] | None,
        priority: float,
        wait: bool = True,
    ) -> str | RolloutCall:
        """Add whole items; where the group has come to."""

    def flush(self, timeout: float | None = None) -> None:
        """Wait for the answers of all calls of the connection."""

    def fail(self, reservations: Sequence[tuple[int, int]]) -> int:
        """Give groups up; how many there were."""

    def suspend(self, reservations: Sequence[tuple[int, int]]) -> int:
        """Suspend groups; how many there were."""

    def status(self, reservation: tuple[int, int]) -> tuple[str, dict[int, int]]:
        """Return the status of a group, and how many segments each item with tokens has."""

    def renew(self, reservations: Sequence[tuple[int, int]]) -> int:
        """Give a sign of life; how many reservations stand."""

    def publish_version(self, version: int) -> None:
        """Set the learner's version."""

    def restore(self, version: int) -> None:
        """Go on from a version."""

    def set_pipeline_depth(self, depth: int) -> None:
        """Set how many versions ahead groups may be reserved."""

    def remove(self, groups: Sequence[int]) -> int:
        """Remove complete groups; how many there were."""

    def update_priorities(self, groups: Any, priorities: Any) -> int:
        """Change priorities; of how many groups."""

    def sample(
        self,
        groups: int | None,
        tokens: int | None,
        rank: int,
        ranks: int,
        balance: str,
        lease: float | None,
        form: tuple[str, int, bool],
        timeout: float | None,
    ) -> RolloutBatch:
        """Wait for a share of a batch."""

    def ack(self, batch: tuple[int, int, int]) -> int:
        """Say that a share was used; how many groups it had."""

    def nack(self, batch: tuple[int, int, int]) -> None:
        """Give a share back."""

    def extend(self, batch: tuple[int, int, int], seconds: float) -> None:
        """Keep a share for longer."""

    def version(self) -> int:
        """Return the learner's version."""

    def wait_version(self, newer_than: int, timeout: float | None) -> int:
        """Wait for a later version."""

    def pause(self) -> None:
        """Reserve and deliver nothing."""

    def resume(self) -> None:
        """End a pause."""

    def close(self) -> None:
        """End it."""

    @property
    def closed(self) -> bool:
        """Whether it is closed."""

    def stats(self) -> dict[str, Any]:
        """Return its numbers."""

@final
class Histogram:
    """Durations in seconds, all zero while ``count`` is.

    Quantiles are within 1/16 of their value.
    """

    @property
    def count(self) -> int:
        """How many were recorded."""

    @property
    def min(self) -> float:
        """The shortest."""

    @property
    def mean(self) -> float:
        """Their mean."""

    @property
    def p50(self) -> float:
        """The median."""

    @property
    def p90(self) -> float:
        """Nine of ten are at most this long."""

    @property
    def p99(self) -> float:
        """99 of 100 are at most this long."""

    @property
    def max(self) -> float:
        """The longest."""

@final
class StreamStats:
    """A snapshot of a stream's numbers. Exact while nothing moves; times are in seconds."""

    @property
    def sequence(self) -> int:
        """Position of the batch that this came with, or of the next one."""

    @property
    def batch_size(self) -> int:
        """Samples per batch."""

    @property
    def capacity(self) -> int:
        """Samples that fit."""

    @property
    def store_size(self) -> int:
        """Samples stored and not yet taken."""

    @property
    def partial(self) -> int:
        """Samples in batches that are not complete."""

    @property
    def batches_ready(self) -> int:
        """Complete batches that wait for a consumer."""

    @property
    def batches_held(self) -> int:
        """Batches whose memory someone still holds."""

    @property
    def batches_free(self) -> int:
        """Buffers that are free."""

    @property
    def oldest_hold(self) -> float:
        """How long the batch that was taken first has been held."""

    @property
    def inserted_total(self) -> int:
        """Samples stored since the start."""

    @property
    def batches_total(self) -> int:
        """Batches completed since the start."""

    @property
    def delivered_total(self) -> int:
        """Complete batches taken since the start."""

    @property
    def blocked_pushes(self) -> int:
        """Times that a push had to wait for room, in this process or over a connection.

        Pushes that wait now are included. The waits of a ``shm://`` client are counted with its
        next report, as one.
        """

    @property
    def blocked_time(self) -> float:
        """How long pushes waited, in total; those that wait now included."""

    @property
    def sample_waits(self) -> int:
        """Calls of ``sample`` that had to wait."""

    @property
    def sample_wait_time(self) -> float:
        """How long they waited, in total."""

    @property
    def contention(self) -> int:
        """Times a producer looked again because another was opening a batch."""

    @property
    def aborted(self) -> int:
        """Reserved slots whose writer gave up; other samples filled them."""

    @property
    def refused(self) -> int:
        """Samples that were refused because they did not fit the example."""

    @property
    def bytes_per_sample(self) -> int:
        """Bytes of one sample."""

    @property
    def connections(self) -> int:
        """Clients that are connected."""

    @property
    def connections_accepted(self) -> int:
        """Connections since the start, refused ones included."""

    @property
    def connections_refused(self) -> int:
        """Connections that were refused; ``Server.metrics`` has them by reason."""

    @property
    def connections_malformed(self) -> int:
        """Connections closed because of bytes that made no sense."""

    @property
    def connections_silent(self) -> int:
        """Connections closed because nothing came for too long."""

    @property
    def accept_errors(self) -> int:
        """Times that the system did not let us accept: out of file descriptors, most likely."""

    @property
    def panics(self) -> int:
        """Connections closed because serving them panicked, a bug; the log has the message."""

    @property
    def reconnects(self) -> int:
        """Clients that came back."""

    @property
    def received_samples(self) -> int:
        """Samples stored for clients; those of ``shm://`` clients as of their last report."""

    @property
    def received_bytes(self) -> int:
        """Bytes received over sockets."""

    @property
    def receive_calls(self) -> int:
        """System calls that received them."""

    @property
    def received_duplicates(self) -> int:
        """Samples that came twice and were dropped."""

    @property
    def connections_blocked_time(self) -> float:
        """Seconds for which clients' samples waited for room, summed over clients."""

    @property
    def memory_bytes(self) -> int:
        """Bytes allocated for the ring."""

    @property
    def submit_to_available(self) -> Histogram:
        """From the call that adds a sample to the completion of its batch."""

    @property
    def copy_time(self) -> Histogram:
        """Copying one submitted run of samples into the ring."""

    @property
    def hold_time(self) -> Histogram:
        """From taking a batch to the end of its last view."""

    def as_dict(self) -> dict[str, int | float]:
        """All numbers by name; those of histograms have names such as ``copy_time.p99``."""

@final
class LeafSpec:
    """Path, dtype and shape of one leaf."""

    @property
    def path(self) -> str:
        """Keys joined by ``/``; empty for a sample that is a single leaf."""

    @property
    def dtype(self) -> str:
        """The dtype, by numpy's name for it."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """`None` for an axis of any length."""

    @property
    def nbytes(self) -> int:
        """Bytes of this leaf in one sample, or of one step where it may have any length."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Spec:
    """The leaves of a sample, in the order of their columns. ``str()`` gives a table."""

    @property
    def leaves(self) -> tuple[LeafSpec, ...]:
        """The leaves."""

    @property
    def nbytes(self) -> int:
        """Bytes of one sample; of leaves that may have any length, one step counts."""

    def __len__(self) -> int: ...

@final
class TrajectoryAccumulator:
    """Puts trajectories together step by step, in memory that is made once.

    The example has named parts. In each, a leaf whose values have the leaf's shape without its
    first axis is filled step by step along that axis; a leaf that gets values of its full shape is
    set as a whole. The first value of a trajectory decides which.

    Examples:
        >>> import numpy as np
        >>> from echoic.echo import TrajectoryAccumulator
        >>> steps = {"obs": np.zeros((3, 2), np.float32), "reward": np.zeros(3, np.float32)}
        >>> buf = TrajectoryAccumulator({"step": steps, "last_obs": np.zeros(2, np.float32)})
        >>> for t in range(3):
        ...     buf.add("step", {"obs": np.full(2, t, np.float32), "reward": float(t)})
        >>> buf.add("last_obs", np.full(2, 3, np.float32))
        >>> buf.fill
        {'step': (3, 3), 'last_obs': (1, 1)}
        >>> buf.build()["step"]["reward"]
        array([0., 1., 2.], dtype=float32)
    """

    def __new__(cls, example: dict[str, Any]) -> Self: ...
    def add(self, name: str, step: Any) -> None:
        """Add one step to a part, or set it.

        Raises:
            TrajectoryError: The part is full, or there is no such part.
            SpecError: The value does not fit. Nothing of it is kept.
        """

    def build(self) -> dict[str, Any]:
        """Hand out the finished trajectory, without copying it, and begin a new one.

        The arrays are the accumulator's own. Those that are kept stay unchanged: the next
        trajectory then goes into fresh memory, otherwise into the same.

        Raises:
            TrajectoryError: A part is not full; the message says which and by how much.
        """

    def reset(self) -> None:
        """Forget the steps of the unfinished trajectory."""

    @property
    def fill(self) -> dict[str, tuple[int, int | None]]:
        """For each part, how much it has of how much; ``None`` before its first value."""

    @property
    def is_full(self) -> bool:
        """Whether :meth:`build` would succeed."""

# Functions on arrays: crates/python/src/primitives.

def compute_discounted_sums(
    rewards: Any,
    dones: Any,
    gamma: float,
    last_value: Any = None,
    *,
    truncated: Any = None,
    final_values: Any = None,
    time_axis: int | None = None,
    offsets: Any = None,
) -> Any:
    """Discounted sums of rewards to go: ``G_t = r_t + γ G_{t+1}``.

    After a step that terminated an episode ``G_{t+1}`` is zero; after one that truncated it, it is
    ``final_values[t]``, and after the last step of a sequence ``last_value``.

    Args:
        rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
        dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
            or numbers (whatever is not zero is set), or ``None``.
        gamma: The discount.
        last_value: What comes after the last step is worth: a number, or one for each sequence.
            Nothing if left out.
        truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
            ``final_values``.
        final_values: What the observation after each truncated step is worth, in an array like
            ``rewards``; unused, and not looked at, where ``truncated`` is not set.
        time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
        offsets: For sequences of different lengths one after the other in 1-D arrays: where each
            begins, and where the last one ends.

    Returns:
        Sums, shaped like ``rewards``, in its dtype and of its kind.

    Raises:
        ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
            ``final_values``, or a number out of range. Nothing was computed.
        DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.

    Example:
        >>> from echoic.primitives import compute_discounted_sums
        >>> compute_discounted_sums([1.0, 1.0, 1.0], [False, True, False], 0.5)
        array([1.5, 1. , 1. ])
    """

def compute_gae(
    rewards: Any,
    values: Any,
    dones: Any,
    last_value: Any,
    gamma: float,
    lam: float,
    *,
    truncated: Any = None,
    final_values: Any = None,
    time_axis: int | None = None,
    offsets: Any = None,
) -> tuple[Any, Any]:
    """Advantages by GAE, and the λ-returns that they amount to.

    ``δ_t = r_t + γ v'_t - v_t``, ``A_t = δ_t + γ λ A_{t+1}``, ``G_t = A_t + v_t``

    (Schulman et al. 2016, arXiv:1506.02438). ``v'_t``, what the rest of the episode is worth after
    step ``t``, is zero if the step terminated the episode; else ``final_values[t]`` if it
    truncated it; else ``last_value`` at the end of the sequence; else ``values[t + 1]``. No
    advantage runs from an episode into the one before it.

    Args:
        rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
        values: The value of the observation that each step began with; shaped like ``rewards``.
        dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
            or numbers (whatever is not zero is set), or ``None``.
        last_value: The value of the observation after the last step: a number, or one for each
            sequence.
        gamma: The discount.
        lam: 0 for one-step errors, 1 for whole returns.
        truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
            ``final_values``.
        final_values: What the observation after each truncated step is worth, in an array like
            ``rewards``; unused, and not looked at, where ``truncated`` is not set.
        time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
        offsets: For sequences of different lengths one after the other in 1-D arrays: where each
            begins, and where the last one ends.

    Returns:
        Advantages and returns, shaped like ``rewards``, in its dtype and of its kind: numpy,
        PyTorch or JAX.

    Raises:
        ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
            ``final_values``, or a number out of range. Nothing was computed.
        DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.

    Example:
        >>> from echoic.primitives import compute_gae
        >>> advantages, returns = compute_gae([1.0, 1.0], [0.5, 0.25], [0, 1], 4.0, 1.0, 0.5)
        >>> advantages, returns
        (array([1.125, 0.75 ]), array([1.625, 1.   ]))
    """

def compute_gae_batched(
    rewards_flat: Any,
    values_flat: Any,
    dones_flat: Any,
    last_vals: Any,
    n_steps: int,
    gamma: float,
    lam: float,
    *,
    truncated: Any = None,
    final_values: Any = None,
) -> tuple[Any, Any]:
    """:func:`compute_gae` for several environments in flat arrays, one environment after the other.

    Args:
        rewards_flat: ``(N * n_steps,)``: all steps of the first environment, then of the second.
            From ``(N, T)`` this is ``.ravel()``; ``(T, N)`` would have to be transposed first, or
            goes to :func:`compute_gae` as it is.
        values_flat: The value of the observation that each step began with.
        dones_flat: Which steps terminated an episode.
        last_vals: ``(N,)``, the value of the observation after each environment's last step.
        n_steps: ``T``, the steps of each environment.
        gamma: The discount.
        lam: 0 for one-step errors, 1 for whole returns.
        truncated: Which steps truncated an episode. Needs ``final_values``.
        final_values: What the observation after each truncated step is worth.

    Returns:
        Advantages and returns, flat too, in the dtype of the rewards and of their kind.

    Raises:
        ArgumentError: Shapes differ, or ``n_steps`` does not divide them.
        DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.

    Example:
        >>> from echoic.primitives import compute_gae_batched
        >>> compute_gae_batched([1.0, 1.0, 2.0, 2.0], [0.0] * 4, None, [0.0, 8.0], 2, 0.5, 1)[0]
        array([1.5, 1. , 5. , 6. ])
    """

def compute_gae_batched_f32(
    rewards_flat: Any,
    values_flat: Any,
    dones_flat: Any,
    last_vals: Any,
    n_steps: int,
    gamma: float,
    lam: float,
    *,
    truncated: Any = None,
    final_values: Any = None,
) -> tuple[Any, Any]:
    """:func:`compute_gae_batched`, computed in ``float32`` whatever comes in.

    Args:
        rewards_flat: ``(N * n_steps,)``: all steps of the first environment, then of the second.
        values_flat: The value of the observation that each step began with.
        dones_flat: Which steps terminated an episode.
        last_vals: ``(N,)``, the value of the observation after each environment's last step.
        n_steps: ``T``, the steps of each environment.
        gamma: The discount.
        lam: 0 for one-step errors, 1 for whole returns.
        truncated: Which steps truncated an episode. Needs ``final_values``.
        final_values: What the observation after each truncated step is worth.

    Returns:
        Advantages and returns in ``float32``, flat too and of the rewards' kind.

    Raises:
        ArgumentError: Shapes differ, or ``n_steps`` does not divide them.
        DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.
    """

def compute_lambda_returns(
    rewards: Any,
    values: Any,
    dones: Any,
    last_value: Any,
    gamma: float,
    lam: float,
    *,
    truncated: Any = None,
    final_values: Any = None,
    time_axis: int | None = None,
    offsets: Any = None,
) -> Any:
    """λ-returns: all n-step returns, weighted by ``(1 - λ) λ^(n-1)``.

    ``G_t = r_t + γ ((1 - λ) v'_t + λ G_{t+1})``

    (Sutton and Barto, Reinforcement Learning, 12.1). ``v'_t``, what the rest of the episode is
    worth after step ``t``, is zero if the step terminated the episode; else ``final_values[t]`` if
    it truncated it; else ``last_value`` at the end of the sequence; else ``values[t + 1]``. At all
    but the last of these ``G_t = r_t + γ v'_t``.

    Args:
        rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
        values: The value of the observation that each step began with; shaped like ``rewards``.
        dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
            or numbers (whatever is not zero is set), or ``None``.
        last_value: The value of the observation after the last step: a number, or one for each
            sequence.
        gamma: The discount.
        lam: 0 for one-step returns, 1 for whole ones.
        truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
            ``final_values``.
        final_values: What the observation after each truncated step is worth, in an array like
            ``rewards``; unused, and not looked at, where ``truncated`` is not set.
        time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
        offsets: For sequences of different lengths one after the other in 1-D arrays: where each
            begins, and where the last one ends.

    Returns:
        Returns, shaped like ``rewards``, in its dtype and of its kind. They are the second result
        of :func:`compute_gae`.

    Raises:
        ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
            ``final_values``, or a number out of range. Nothing was computed.
        DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.

    Example:
        >>> from echoic.primitives import compute_lambda_returns
        >>> compute_lambda_returns([1.0, 1.0], [0.5, 0.25], [False, True], 4.0, 1.0, 0.5)
        array([1.625, 1.   ])
    """

def compute_n_step_returns(
    rewards: Any,
    values: Any,
    dones: Any,
    last_value: Any,
    n: int,
    gamma: float,
    *,
    truncated: Any = None,
    final_values: Any = None,
    time_axis: int | None = None,
    offsets: Any = None,
) -> Any:
    """The rewards of the next ``n`` steps, and what the rest of the episode is worth after them.

    ``G_t = r_t + γ r_{t+1} + … + γ^(m-1) r_{t+m-1} + γ^m v'_{t+m-1}``

    (Sutton and Barto, Reinforcement Learning, 7.1), where ``m`` is ``n``, or fewer if the episode
    or the sequence ends before. ``v'_t``, what the rest of the episode is worth after step ``t``,
    is zero if the step terminated the episode; else ``final_values[t]`` if it truncated it; else
    ``last_value`` at the end of the sequence; else ``values[t + 1]``.

    Args:
        rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
        values: The value of the observation that each step began with; shaped like ``rewards``.
        dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
            or numbers (whatever is not zero is set), or ``None``.
        last_value: The value of the observation after the last step: a number, or one for each
            sequence.
        n: How many steps, at least 1. Time grows with it; for whole returns
            :func:`compute_lambda_returns` with ``lam=1`` takes none of that.
        gamma: The discount.
        truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
            ``final_values``.
        final_values: What the observation after each truncated step is worth, in an array like
            ``rewards``; unused, and not looked at, where ``truncated`` is not set.
        time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
        offsets: For sequences of different lengths one after the other in 1-D arrays: where each
            begins, and where the last one ends.

    Returns:
        Returns, shaped like ``rewards``, in its dtype and of its kind.

    Raises:
        ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
            ``final_values``, or a number out of range. Nothing was computed.
        DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.

    Example:
        >>> from echoic.primitives import compute_n_step_returns
        >>> compute_n_step_returns([1.0, 1.0, 1.0], [0.0, 4.0, 8.0], None, 16.0, 2, 0.5)
        array([3.5, 5.5, 9. ])
    """

def compute_retrace(
    log_rhos: Any,
    rewards: Any,
    q_values: Any,
    values: Any,
    dones: Any,
    last_value: Any,
    gamma: float,
    lam: float = 1.0,
    *,
    truncated: Any = None,
    final_values: Any = None,
    time_axis: int | None = None,
    offsets: Any = None,
) -> Any:
    """Retrace(λ) targets for the values of the actions that were taken.

    With ``c_t = λ min(1, exp(log_rhos[t]))``

    ``δ_t = r_t + γ v'_t - q_t``, ``G_t - q_t = δ_t + γ c_{t+1} (G_{t+1} - q_{t+1})``

    (Munos et al. 2016, arXiv:1606.02647). ``v'_t``, what the rest of the episode is worth after
    step ``t``, is zero if the step terminated the episode; else ``final_values[t]`` if it
    truncated it; else ``last_value`` at the end of the sequence; else ``values[t + 1]``. No error
    runs from an episode into the one before it.

    Args:
        log_rhos: ``log π(a|s) - log μ(a|s)`` of the target policy and that which acted; shaped like
            ``rewards``.
        rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
        q_values: ``Q(s_t, a_t)``, of the actions taken.
        values: ``Σ_a π(a|s_t) Q(s_t, a)``, expected under the target policy.
        dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
            or numbers (whatever is not zero is set), or ``None``.
        last_value: The expected value after the last step: a number, or one for each sequence.
        gamma: The discount.
        lam: With which weights of later errors are multiplied.
        truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
            ``final_values``.
        final_values: What the observation after each truncated step is worth, in an array like
            ``rewards``; unused, and not looked at, where ``truncated`` is not set.
        time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
        offsets: For sequences of different lengths one after the other in 1-D arrays: where each
            begins, and where the last one ends.

    Returns:
        Targets for ``q_values``, shaped like ``rewards``, in its dtype and of its kind.

    Raises:
        ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
            ``final_values``, or a number out of range. Nothing was computed.
        DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.

    Example:
        >>> from echoic.primitives import compute_retrace
        >>> compute_retrace([0.0, 0.0], [1.0, 1.0], [0.0, 0.5], [0.0, 0.5], None, 2.0, 0.5)
        array([2., 2.])
    """

def compute_upgo(
    rewards: Any,
    values: Any,
    dones: Any,
    last_value: Any,
    gamma: float,
    *,
    truncated: Any = None,
    final_values: Any = None,
    time_axis: int | None = None,
    offsets: Any = None,
) -> tuple[Any, Any]:
    """Returns that follow what happened while it is at least as good as expected: UPGO.

    ``G_t = r_t + γ (G_{t+1} if r_{t+1} + γ v'_{t+1} >= v_{t+1} else v_{t+1})``, ``A_t = G_t - v_t``

    (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z). ``v'_t``, what the rest of the episode is
    worth after step ``t``, is zero if the step terminated the episode; else ``final_values[t]`` if
    it truncated it; else ``last_value`` at the end of the sequence; else ``values[t + 1]``. At the
    end of an episode or sequence ``G_t = r_t + γ v'_t``. For off-policy data multiply the
    advantages by clipped importance weights.

    Args:
        rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
        values: The value of the observation that each step began with; shaped like ``rewards``.
        dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
            or numbers (whatever is not zero is set), or ``None``.
        last_value: The value of the observation after the last step: a number, or one for each
            sequence.
        gamma: The discount.
        truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
            ``final_values``.
        final_values: What the observation after each truncated step is worth, in an array like
            ``rewards``; unused, and not looked at, where ``truncated`` is not set.
        time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
        offsets: For sequences of different lengths one after the other in 1-D arrays: where each
            begins, and where the last one ends.

    Returns:
        Returns and advantages, in this order, shaped like ``rewards``, in its dtype and of its
        kind.

    Raises:
        ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
            ``final_values``, or a number out of range. Nothing was computed.
        DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.

    Example:
        >>> from echoic.primitives import compute_upgo
        >>> compute_upgo([0.0, 1.0, 0.0], [0.0, 1.0, 2.0], None, 0.0, 1.0)
        (array([3., 3., 0.]), array([ 3.,  2., -2.]))
    """

def compute_vtrace(
    log_rhos: Any,
    rewards: Any,
    values: Any,
    dones: Any,
    bootstrap_value: Any,
    gamma: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    *,
    lam: float = 1.0,
    pg_rho_bar: float | None = None,
    truncated: Any = None,
    final_values: Any = None,
    time_axis: int | None = None,
    offsets: Any = None,
) -> tuple[Any, Any]:
    """V-trace targets, and advantages for the policy's gradient.

    With ``w_t = exp(log_rhos[t])``, ``ρ_t = min(ρ̄, w_t)`` and ``c_t = λ min(c̄, w_t)``

    ``δ_t = ρ_t (r_t + γ v'_t - v_t)``, ``vs_t - v_t = δ_t + γ c_t (vs_{t+1} - v_{t+1})``,
    ``A_t = min(ρ̄_A, w_t) (r_t + γ vs_{t+1} - v_t)``

    (Espeholt et al. 2018, arXiv:1802.01561). ``v'_t``, what the rest of the episode is worth after
    step ``t``, is zero if the step terminated the episode; else ``final_values[t]`` if it
    truncated it; else ``bootstrap_value`` at the end of the sequence; else ``values[t + 1]``. At
    all but the last of these ``vs_{t+1}`` is ``v'_t`` too, and no later error counts.

    Args:
        log_rhos: ``log π(a|s) - log μ(a|s)`` of the learner's policy and that which acted; shaped
            like ``rewards``.
        rewards: ``(T,)``, ``(T, N)`` or ``(N, T)``.
        values: The value of the observation that each step began with.
        dones: Which steps terminated an episode, the state after them being worth nothing. Booleans
            or numbers (whatever is not zero is set), or ``None``.
        bootstrap_value: The value of the observation after the last step: a number, or one for each
            sequence.
        gamma: The discount.
        rho_bar: The largest weight of a step's own error; infinity clips nothing.
        c_bar: The largest weight with which later errors count.
        lam: With which weights of later errors are multiplied.
        pg_rho_bar: The largest weight of an advantage, if not ``rho_bar``.
        truncated: Which steps truncated an episode: cut it off with a time limit, say. Needs
            ``final_values``.
        final_values: What the observation after each truncated step is worth, in an array like
            ``rewards``; unused, and not looked at, where ``truncated`` is not set.
        time_axis: For 2-D arrays, which axis is time: 0 for ``(T, N)``, 1 for ``(N, T)``.
        offsets: For sequences of different lengths one after the other in 1-D arrays: where each
            begins, and where the last one ends.

    Returns:
        Targets ``vs`` and advantages, shaped like ``rewards``, in its dtype and of its kind.

    Raises:
        ArgumentError: Shapes differ, a 2-D array without ``time_axis``, ``truncated`` without
            ``final_values``, or a number out of range. Nothing was computed.
        DtypeError: Something is no array of real numbers, requires a gradient, or is on a GPU.

    Example:
        >>> from echoic.primitives import compute_vtrace
        >>> compute_vtrace([0.0, 0.0], [1.0, 1.0], [0.5, 0.25], [False, True], 4.0, 0.5, 1.0, 1.0)
        (array([1.5, 1. ]), array([1.  , 0.75]))
    """

# Tokens, groups, packing and statistics: kl, groups, weights, packing and stats there.

def compute_token_kl(
    log_p: Any,
    log_q: Any,
    *,
    estimator: Literal["k1", "k2", "k3"] = "k1",
    mask: Any = None,
    reduction: Literal["sum", "mean", "none"] = "sum",
) -> Any:
    """KL divergence of two policies, estimated from tokens drawn from the first.

    With ``d = log_q - log_p`` for each token, drawn from ``p``, the terms are::

        k1 = -d                 no bias, high variance, may be negative
        k2 = d**2 / 2           small bias, low variance, never negative
        k3 = exp(d) - 1 - d     no bias, low variance, never negative

    (Schulman, 2020, "Approximating KL divergence"). The mean of k1 or of k3 over many tokens is
    ``KL(p || q)``. The terms are not weighted by ``p``: that a token was drawn from it is its
    weight. k3 keeps its digits where ``d`` is tiny.

    rlox 1.2 has two other formulas under this name and :func:`compute_token_kl_schulman`:
    ``sum(exp(log_p) * (log_p - log_q))``, which weights drawn tokens by their probability once more
    and estimates no divergence; and ``exp(-d) - 1 + d``, whose mean is ``KL(q || p)``, the other
    way round, if tokens are drawn from ``q``. For the whole vocabulary there is
    :func:`compute_categorical_kl`.

    Args:
        log_p: Log-probabilities of the tokens under the policy that drew them, of any shape.
        log_q: Those under the other policy (the reference), of the same shape.
        estimator: ``"k1"``, ``"k2"`` or ``"k3"``.
        mask: Which tokens count (not zero), of the same shape. The others may be anything, NaN too.
        reduction: ``"sum"`` of the terms, their ``"mean"`` (over what counts; 0 for no token), or
            ``"none"``: the terms, 0 where the mask is.

    Returns:
        A float; with ``"none"`` an array of the shape, dtype (shorter floats become float32, which
        they are computed in) and library of ``log_p``.

    Raises:
        ArgumentError: Shapes differ, or a name is unknown.
        DtypeError: Not real numbers, not on the CPU, or a tensor that requires a gradient.

    A NaN makes the result NaN. A token that ``q`` can't draw is infinitely far.

    Examples:
        >>> from echoic.primitives import compute_token_kl
        >>> import numpy as np
        >>> log_p, log_q = np.log([0.5, 0.2]), np.log([0.4, 0.3])
        >>> round(compute_token_kl(log_p, log_q), 4)
        -0.1823
        >>> compute_token_kl(log_p, log_q, estimator="k3", reduction="none").round(4)
        array([0.0231, 0.0945])
    """

def compute_token_kl_schulman(
    log_p: Any,
    log_q: Any,
    *,
    mask: Any = None,
    reduction: Literal["sum", "mean", "none"] = "sum",
) -> Any:
    """KL divergence of two policies by Schulman's estimator, from tokens drawn from the first.

    :func:`compute_token_kl` with ``estimator="k3"``: ``exp(d) - 1 - d`` with ``d = log_q - log_p``,
    for tokens drawn from ``p``. rlox 1.2 has the sign of ``d`` reversed.

    Examples:
        >>> from echoic.primitives import compute_token_kl_schulman
        >>> import numpy as np
        >>> round(compute_token_kl_schulman(np.log([0.5, 0.2]), np.log([0.4, 0.3])), 4)
        0.1177
    """

def compute_batch_token_kl(
    log_p: Any,
    log_q: Any,
    seq_len: int | None = None,
    *,
    estimator: Literal["k1", "k2", "k3"] = "k1",
    mask: Any = None,
    offsets: Any = None,
    reduction: Literal["sum", "mean", "none"] = "sum",
) -> Any:
    """KL divergence of two policies for each sequence of tokens drawn from the first.

    Formulas, and the difference to rlox, as in :func:`compute_token_kl`.

    Args:
        log_p: Log-probabilities under the policy that drew the tokens: ``(batch * seq_len,)``,
            ``(batch, seq_len)``, or sequences of any lengths one after the other, with ``offsets``.
        log_q: Those under the other policy, of the same shape.
        seq_len: Tokens of each sequence; not needed for two axes.
        estimator: ``"k1"``, ``"k2"`` or ``"k3"``.
        mask: Which tokens count (not zero), of the same shape.
        offsets: ``(batch + 1,)``: where each sequence begins and the last one ends.
        reduction: ``"sum"`` or ``"mean"`` over the tokens of each sequence; or ``"none"``.

    Returns:
        ``(batch,)``, in the dtype and library of ``log_p``; with ``"none"`` the terms, in the shape
        of ``log_p``. No sequence gives an empty array, a sequence without tokens 0.

    Raises:
        ArgumentError: Shapes differ, ``seq_len`` does not divide the number of tokens, or offsets
            do not begin with 0, fall, or end elsewhere.
        DtypeError: As in :func:`compute_token_kl`.

    Examples:
        >>> from echoic.primitives import compute_batch_token_kl
        >>> import numpy as np
        >>> log_p, log_q = np.log([0.5, 0.2, 0.3, 0.9]), np.log([0.4, 0.3, 0.3, 0.2])
        >>> compute_batch_token_kl(log_p, log_q, 2).round(4)
        array([-0.1823,  1.5041])
        >>> compute_batch_token_kl(log_p, log_q, offsets=[0, 1, 4], reduction="mean").round(4)
        array([0.2231, 0.3662])
    """

def compute_batch_token_kl_schulman(
    log_p: Any,
    log_q: Any,
    seq_len: int | None = None,
    *,
    mask: Any = None,
    offsets: Any = None,
    reduction: Literal["sum", "mean", "none"] = "sum",
) -> Any:
    """KL divergence of two policies by Schulman's estimator, for each sequence.

    :func:`compute_batch_token_kl` with ``estimator="k3"``.

    Examples:
        >>> from echoic.primitives import compute_batch_token_kl_schulman
        >>> import numpy as np
        >>> log_p, log_q = np.log([0.5, 0.2, 0.3, 0.9]), np.log([0.4, 0.3, 0.3, 0.2])
        >>> compute_batch_token_kl_schulman(log_p, log_q, 2).round(4)
        array([0.1177, 0.7263])
    """

def compute_categorical_kl(log_p: Any, log_q: Any) -> Any:
    """KL divergence of distributions over a whole vocabulary.

    ``sum over x of p(x) * (log p(x) - log q(x))``: the divergence itself, with nothing drawn and
    nothing estimated. What ``p`` never does counts as 0.

    Args:
        log_p: Log-probabilities ``(..., vocabulary)``.
        log_q: Those of the other distributions, of the same shape.

    Returns:
        ``(...)``, in the dtype and library of ``log_p``.

    Raises:
        ArgumentError: Shapes differ, or there is no vocabulary.
        DtypeError: As in :func:`compute_token_kl`.

    Examples:
        >>> from echoic.primitives import compute_categorical_kl
        >>> import numpy as np
        >>> compute_categorical_kl(np.log([[0.75, 0.25]]), np.log([[0.5, 0.5]])).round(4)
        array([0.1308])
    """

def compute_group_advantages(
    rewards: Any,
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["group", "batch", "none"] = "group",
    ddof: int = 0,
    min_std: float = 1e-8,
) -> Any:
    """Advantages of the answers to one prompt over each other.

    One group of :func:`compute_batch_group_advantages`.

    Examples:
        >>> from echoic.primitives import compute_group_advantages
        >>> compute_group_advantages([1.0, 2.0, 3.0, 4.0]).round(4)
        array([-1.3416, -0.4472,  0.4472,  1.3416])
        >>> compute_group_advantages([0.1, 0.1, 0.1])
        array([0., 0., 0.])
    """

def compute_batch_group_advantages(
    rewards: Any,
    group_size: int | None = None,
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["group", "batch", "none"] = "group",
    ddof: int = 0,
    min_std: float = 1e-8,
    offsets: Any = None,
) -> Any:
    """Advantages of answers over the others to the same prompt: ``(r_i - baseline_i) / scale``.

    - GRPO (Shao et al. 2024, arXiv:2402.03300): ``baseline="mean", scale="group"``.
    - Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): ``baseline="mean", scale="none"``.
    - RLOO (Ahmadian et al. 2024, arXiv:2402.14740): ``baseline="leave_one_out", scale="none"``.

    The standard deviation is that of the group itself (``ddof=0``), without anything added to it,
    as in rlox; TRL and verl use ``ddof=1``. A group without spread gives zeros: exactly, when its
    rewards are equal, whatever they are.

    Args:
        rewards: ``(n_prompts * group_size,)``, ``(n_prompts, group_size)``, or groups of any sizes
            one after the other, with ``offsets``.
        group_size: Answers to each prompt; not needed for two axes.
        baseline: ``"mean"`` of the group, or ``"leave_one_out"``: the mean of the others (its
            own reward, where a group has one answer).
        scale: The standard deviation of the ``"group"``, or that of all rewards of the ``"batch"``,
            or ``"none"``.
        ddof: 0 or 1: what the count is reduced by for a variance.
        min_std: Where the standard deviation is smaller, advantages are 0.
        offsets: ``(n_prompts + 1,)``: where each group begins and the last one ends.

    Returns:
        The shape, dtype and library of ``rewards``. A NaN makes its group NaN, and no other (but
        all, with ``scale="batch"``).

    Raises:
        ArgumentError: ``group_size`` does not divide the number of rewards, or does not fit their
            shape; or the offsets are not valid.
        DtypeError: Not real numbers, or not on the CPU.

    Examples:
        >>> from echoic.primitives import compute_batch_group_advantages
        >>> rewards = [1.0, 3.0, 5.0, 5.0]
        >>> compute_batch_group_advantages(rewards, 2)
        array([-1.,  1.,  0.,  0.])
        >>> compute_batch_group_advantages(
        ...     [0.0, 0.0, 3.0, 1.0], offsets=[0, 3, 4], baseline="leave_one_out", scale="none"
        ... )
        array([-1.5, -1.5,  3. ,  0. ])
    """

def compute_importance_weights(
    log_p_new: Any,
    log_p_old: Any,
    *,
    level: Literal["token", "sequence", "sequence_mean"] = "token",
    clip: float | tuple[float, float] | None = None,
    mask: Any = None,
    seq_len: int | None = None,
    offsets: Any = None,
) -> Any:
    """How much likelier actions are under one policy than under another.

    With ``r_t = log_p_new - log_p_old`` of each token::

        token           exp(r_t)
        sequence        exp(sum of r_t over the sequence)
        sequence_mean   exp(mean of r_t over the sequence)    GSPO, arXiv:2507.18071

    With ``clip`` these are truncated weights (Ionides, 2008): ``min(w, clip)``.

    Args:
        log_p_new: Log-probabilities under the policy that is wanted, of any shape for tokens; for
            sequences as in :func:`compute_batch_token_kl`.
        log_p_old: Those under the policy that acted, of the same shape.
        level: Whose weights: ``"token"``, ``"sequence"`` or ``"sequence_mean"``.
        clip: The largest weight, or the smallest and the largest.
        mask: Which tokens count (not zero), of the same shape; the others have the weight 0, and no
            part in that of their sequence.
        seq_len: Tokens of each sequence, for sequences in one axis.
        offsets: Where each sequence begins and the last one ends.

    Returns:
        The shape of ``log_p_new`` for tokens, ``(batch,)`` for sequences, in its dtype and library.
        A sequence without tokens has the weight 1. NaN stays NaN.

    Raises:
        ArgumentError: Shapes differ, sequences do not fit them, or not ``0 <= low <= high``.
        DtypeError: Not real numbers, or not on the CPU.

    Examples:
        >>> from echoic.primitives import compute_importance_weights
        >>> import numpy as np
        >>> new, old = np.log([[0.5, 0.4], [0.9, 0.2]]), np.log([[0.25, 0.4], [0.3, 0.2]])
        >>> compute_importance_weights(new, old, clip=2.5).round(4)
        array([[2. , 1. ],
               [2.5, 1. ]])
        >>> compute_importance_weights(new, old, level="sequence_mean").round(4)
        array([1.4142, 1.7321])
    """

def compute_effective_sample_size(weights: Any, *, log: bool = False) -> float:
    """The number of samples of equal weight that are worth as much.

    ``sum(w)**2 / sum(w**2)`` (Kish, 1965).

    Args:
        weights: Weights of any shape, at least 0 each.
        log: They are logarithms of weights, and their exponentials may be too large or too small
            for a number.

    Returns:
        From 1 to the number of weights; 0 where none is above 0; NaN where one is.

    Raises:
        ArgumentError: A weight is negative.
        DtypeError: Not real numbers, or not on the CPU.

    Examples:
        >>> from echoic.primitives import compute_effective_sample_size
        >>> compute_effective_sample_size([2.0, 2.0, 0.0, 2.0])
        3.0
        >>> compute_effective_sample_size([-1000.0, -1000.0], log=True)
        2.0
    """

def pack_sequences(
    sequences: Any,
    max_len: int,
    *,
    method: Literal["first_fit_decreasing", "first_fit", "next_fit"] = "first_fit_decreasing",
    segments: bool = False,
    pad_token: int = 0,
) -> tuple[Any, Any, Any]:
    """Put sequences of different lengths into rows of one length.

    Takes ``O(n log n)`` time to find the rows, however many there are.

    Args:
        sequences: A list of arrays of tokens (whole numbers), or the lengths of sequences.
        max_len: The length of a row.
        method: ``"first_fit_decreasing"``: the longest first, each into the first row with room.
            ``"first_fit"``: in the order given. ``"next_fit"``: in the order given, and never into
            an earlier row, so that rows keep the order.
        segments: ``masks`` number the sequences of each row (1, 2, ...; 0 is padding) instead of
            only saying where tokens are.
        pad_token: What is where no token is.

    Returns:
        ``(packed, masks, positions)``, each of shape ``(rows, max_len)``. ``packed`` has the
        tokens, in their dtype; for lengths it has, as int64, where each token is when the sequences
        lie one after the other, so that ``tokens[packed]`` packs them (0 where ``masks`` is zero).
        ``masks`` are booleans, or with ``segments`` int32. ``positions`` are int32, and begin with
        0 at every sequence. Arrays of PyTorch and JAX give theirs.

    Raises:
        ArgumentError: A sequence is longer than ``max_len`` (none is cut), or has not one axis.
        DtypeError: Tokens or lengths are not whole numbers.

    rlox 1.2 takes only lists of uint32 arrays and returns a dictionary for each row.

    Examples:
        >>> from echoic.primitives import pack_sequences
        >>> packed, masks, positions = pack_sequences([[7, 8, 9], [4, 5], [6]], 4, segments=True)
        >>> packed
        array([[7, 8, 9, 6],
               [4, 5, 0, 0]])
        >>> masks
        array([[1, 1, 1, 2],
               [1, 1, 0, 0]], dtype=int32)
        >>> positions
        array([[0, 1, 2, 0],
               [0, 1, 0, 0]], dtype=int32)
        >>> pack_sequences([3, 2, 1], 4)[0]
        array([[0, 1, 2, 5],
               [3, 4, 0, 0]])
    """

def plan_packing(
    lengths: Any,
    max_len: int,
    *,
    method: Literal["first_fit_decreasing", "first_fit", "next_fit"] = "first_fit_decreasing",
) -> tuple[Any, Any]:
    """Say which row each sequence goes to, and where it starts there.

    What :func:`pack_sequences` does before it writes anything.

    Returns:
        ``(rows, starts)``, int64, each as long as ``lengths``.

    Raises:
        ArgumentError: A sequence is longer than ``max_len``.
        DtypeError: Lengths are not whole numbers.

    Examples:
        >>> from echoic.primitives import plan_packing
        >>> plan_packing([3, 2, 1, 2], 4)
        (array([0, 1, 0, 1]), array([0, 0, 3, 2]))
    """

def balance_sequences(
    lengths: Any,
    n_ranks: int,
    *,
    cost: Literal["tokens", "squared"] = "tokens",
    equal_counts: bool = False,
) -> Any:
    """Spread sequences over ranks such that all have about the same to do.

    By the largest differencing method (Karmarkar and Karp, 1982), which is far closer to the best
    than giving each sequence to the rank that has least.

    Args:
        lengths: Tokens of each sequence.
        n_ranks: How many ranks there are.
        cost: What is made equal: the sums of ``"tokens"``, or of ``"squared"`` lengths, as
            attention costs.
        equal_counts: The numbers of sequences of two ranks differ by one at most.

    Returns:
        The rank of each sequence, int64.

    Raises:
        ArgumentError: There is no rank, or a length is negative.
        DtypeError: Lengths are not whole numbers.

    Examples:
        >>> from echoic.primitives import balance_sequences
        >>> import numpy as np
        >>> lengths = np.array([8, 7, 6, 5, 4])
        >>> ranks = balance_sequences(lengths, 2)
        >>> sorted(int(lengths[ranks == rank].sum()) for rank in range(2))
        [14, 16]
    """

def plan_micro_batches(
    lengths: Any,
    ranks: Any,
    n_ranks: int,
    max_tokens: int,
    *,
    cost: Literal["tokens", "squared"] = "tokens",
    allow_empty: bool = False,
) -> tuple[Any, int]:
    """Split the sequences of each rank into micro-batches, the same number on every rank.

    As few as the method finds: first fit decreasing says how many suffice, and the largest
    differencing method whether fewer do. The rank that needs most says how many all have. On each
    rank they cost about the same, and the dearest come first, so that ranks which wait for each
    other in every micro-batch wait for little.

    Args:
        lengths: Tokens of each sequence.
        ranks: The rank of each, as :func:`balance_sequences` gives it.
        n_ranks: How many ranks there are.
        max_tokens: How many tokens a micro-batch may have.
        cost: What is made equal: the sums of ``"tokens"``, or of ``"squared"`` lengths.
        allow_empty: A rank with fewer sequences than micro-batches gets one for each, and empty
            ones after them, instead of an error.

    Returns:
        ``(batches, count)``: the micro-batch of each sequence in its rank, int64, from 0 on; and
        how many micro-batches each rank has. The same input always gives the same result.

    Raises:
        ArgumentError: A sequence is longer than ``max_tokens``; a rank has fewer sequences than
            micro-batches; ``ranks`` has another length than ``lengths``, or one that is not there.
        DtypeError: Lengths or ranks are not whole numbers.

    Examples:
        >>> from echoic.primitives import plan_micro_batches
        >>> lengths, ranks = [6, 5, 4, 3, 2], [0, 1, 1, 0, 0]
        >>> plan_micro_batches(lengths, ranks, 2, 8)
        (array([0, 0, 1, 1, 1]), 2)
    """

@final
class RunningStats:
    """Count, mean and variance of numbers that went by, without keeping them.

    By the formulas of Welford (1962) and Chan, Golub and LeVeque (1983) in float64, so that nothing
    cancels however large the mean is. Safe to use from several threads; can be pickled and copied.

    What is not finite is refused, since statistics would never recover from it.

    Examples:
        >>> from echoic.primitives import RunningStats
        >>> stats = RunningStats()
        >>> stats.update(1.0)
        >>> stats.batch_update([2.0, 3.0])
        >>> stats.mean(), stats.count()
        (2.0, 3)
        >>> round(stats.normalize(3.0), 4)
        1.2247
    """

    def __new__(cls) -> Self: ...
    def update(self, value: float) -> None:
        """Take in a number.

        Raises:
            ArgumentError: It is not finite.
        """

    def batch_update(self, values: Any) -> None:
        """Take in the numbers of an array of any shape, all or none.

        Raises:
            ArgumentError: One of them is not finite.
            DtypeError: Not real numbers, or not on the CPU.
        """

    def merge(self, other: RunningStats) -> None:
        """Take in what another one was made of, as if its numbers had been seen here."""

    def count(self) -> int:
        """How many numbers there were."""

    def mean(self) -> float:
        """Their mean; 0 before the first."""

    def var(self, *, ddof: int = 0) -> float:
        """Their variance: the squares of differences from the mean by the count less ``ddof``.

        0 for too few.
        """

    def std(self, *, ddof: int = 0) -> float:
        """The root of the variance."""

    def normalize(self, values: Any, *, clip: float | None = None, min_std: float = 1e-8) -> Any:
        """``(values - mean) / std``, within ``-clip`` and ``clip``; 0 while ``std < min_std``.

        A Python number gives a float, an array one of its shape, dtype and library. NaN stays NaN
        unless there is no spread yet.

        Raises:
            ArgumentError: ``clip`` or ``min_std`` is negative.
            DtypeError: Not real numbers, or not on the CPU.
        """

    def reset(self) -> None:
        """Forget everything."""

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` takes: ``count``, ``mean`` and ``squares``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what :meth:`state_dict` was taken from.

        Raises:
            ArgumentError: A part is missing, has another shape, or can't be. Nothing changes then.
        """

@final
class RunningStatsVec:
    """Count, means and variances of arrays of one shape that went by, for each place of them.

    As :class:`RunningStats`, with arrays of float64 for floats.

    Args:
        shape: Of each array: a length, or several.

    Examples:
        >>> from echoic.primitives import RunningStatsVec
        >>> stats = RunningStatsVec(2)
        >>> stats.batch_update([[1.0, 10.0], [3.0, 30.0]])
        >>> stats.mean(), stats.std()
        (array([ 2., 20.]), array([ 1., 10.]))
        >>> stats.normalize([[3.0, 0.0]])
        array([[ 1., -2.]])
    """

    def __new__(cls, shape: int | tuple[int, ...]) -> Self: ...
    def update(self, values: Any) -> None:
        """Take in one array of our shape.

        Raises:
            ArgumentError: It has another shape, or one of its numbers is not finite.
            DtypeError: Not real numbers, or not on the CPU.
        """

    def batch_update(self, values: Any, batch_size: int | None = None) -> None:
        """Take in ``(n, *shape)``, or the numbers of ``batch_size`` arrays; all or none.

        Raises:
            ArgumentError: The shape is another, or a number is not finite.
            DtypeError: Not real numbers, or not on the CPU.
        """

    def merge(self, other: RunningStatsVec) -> None:
        """Take in what another one was made of, as if its arrays had been seen here.

        Raises:
            ArgumentError: It is of another shape.
        """

    def count(self) -> int:
        """How many arrays there were."""

    def dim(self) -> int:
        """How many numbers each of them has."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each of them."""

    def mean(self) -> Any:
        """Their means; 0 before the first."""

    def var(self, *, ddof: int = 0) -> Any:
        """Their variances; 0 for too few."""

    def std(self, *, ddof: int = 0) -> Any:
        """The roots of the variances."""

    def normalize(self, values: Any, *, clip: float | None = None, min_std: float = 1e-8) -> Any:
        """``(values - mean) / std`` of ``(..., *shape)``; 0 wherever ``std < min_std``.

        Raises:
            ArgumentError: The shape is another, or ``clip`` or ``min_std`` is negative.
            DtypeError: Not real numbers, or not on the CPU.
        """

    def normalize_batch(
        self,
        values: Any,
        batch_size: int | None = None,
        *,
        clip: float | None = None,
        min_std: float = 1e-8,
    ) -> Any:
        """The same for what :meth:`batch_update` takes."""

    def reset(self) -> None:
        """Forget everything."""

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` takes: ``count``, ``mean`` and ``squares``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what :meth:`state_dict` was taken from.

        Raises:
            ArgumentError: A part is missing, has another shape, or can't be. Nothing changes then.
        """

# Native environments and collectors: crates/python/src/collect.

@final
class Collector:
    """The thread behind :class:`echoic.collectors.CandleCollector`, which documents it."""

    def __new__(
        cls,
        env_id: str,
        n_envs: int,
        obs_dim: int,
        n_actions: int,
        n_steps: int,
        hidden: int,
        gamma: float,
        lam: float,
        seed: int,
        capacity: int,
    ) -> Self: ...
    def recv(self, timeout: float | None, min_version: int, flat: bool) -> dict[str, Any]:
        """Return the next rollout, waiting until it is complete."""

    def sync_weights(self, weights: npt.NDArray[np.float32]) -> int:
        """Give new weights; return their version."""

    def get_weights(self) -> npt.NDArray[np.float32]:
        """Return a copy of the weights that were given last."""

    def evaluate(
        self, observations: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the actor's outputs and the values of rows of observations."""

    @property
    def continuous(self) -> bool:
        """Whether actions are numbers with a fraction."""

    @property
    def stopped(self) -> bool:
        """Whether there will be no more rollouts."""

    def stop(self) -> None:
        """End the thread."""

@final
class Environments:
    """The environments behind :class:`echoic.collectors.VectorEnv`, which documents them."""

    def __new__(
        cls, env_id: str, num_envs: int, autoreset: str, max_episode_steps: int | None
    ) -> Self: ...
    @property
    def bounds(self) -> tuple[list[float], list[float]]:
        """The least and the most that each number of an observation can be."""

    @property
    def discrete(self) -> int | None:
        """How many actions there are, if they are counted."""

    @property
    def continuous(self) -> tuple[int, float, float] | None:
        """How many numbers an action has, and the least and the most of each, if it has any."""

    @property
    def start(self) -> list[tuple[float, float]]:
        """Where each number of a first state is drawn from."""

    @property
    def limit(self) -> int:
        """After how many steps an episode is cut off, if nothing else was said."""

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Have environments draw from the streams of these seeds, where they have one."""

    def reset(
        self,
        mask: Sequence[bool] | None,
        start: Sequence[tuple[float, float]] | None,
        states: Sequence[float] | None,
    ) -> npt.NDArray[np.float32]:
        """Begin episodes, with states or at random; return all observations."""

    def step(
        self, actions: npt.NDArray[Any]
    ) -> tuple[
        npt.NDArray[np.float32],
        npt.NDArray[np.float64],
        npt.NDArray[np.bool_],
        npt.NDArray[np.bool_],
        npt.NDArray[np.float32] | None,
    ]:
        """Go on by a step; return what it gave, and the last observations of ended episodes."""

    def states(self) -> npt.NDArray[np.float64]:
        """Return the states, a row for each environment."""

# Local buffers: crates/python/src/buffers.

@disjoint_base
class ReplayBuffer:
    """The native half of :class:`echoic.ReplayBuffer`, which says what it is."""

    def __new__(
        cls,
        capacity: int,
        obs_dim: int | None = None,
        act_dim: int | None = None,
        *,
        example: Any = None,
        seed: int,
        next_obs: str = "stored",
        stack: int | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        episodes: bool = False,
        cast: bool = True,
    ) -> Self: ...
    def add(self, x: dict[str, Any], *, env: int = 0) -> None:
        """Add one transition.

        Args:
            x: A dict with the fields of the example.
            env: The environment that it is of, where several take turns.

        Raises:
            SpecError: If a value does not fit its field. Nothing is stored then.
        """

    def extend(self, xs: dict[str, Any], *, env: Any = None) -> None:
        """Add many transitions.

        Args:
            xs: A dict with the fields of the example, as arrays with a leading axis of one length.
            env: One environment for all of them, or an array of one for each.

        Raises:
            SpecError: If a value does not fit its field. Nothing is stored then.
        """

    def sample(
        self,
        n: int,
        *,
        seed: int | None = None,
        out: Batch | dict[str, Any] | None = None,
        device: Any = None,
    ) -> Batch:
        """Draw transitions evenly, with replacement, each field as one array.

        A seed gives the same draws on every machine and in every release: position ``k`` of a batch
        is the row ``(word[k] * len) >> 64`` after the oldest, of the 64-bit words of xoshiro256++
        seeded with SplitMix64 (words that would make some rows likelier than others are skipped).

        Args:
            n: How many. May be more than there are.
            seed: Of this draw; the buffer's own stream goes on when ``None``.
            out: An earlier batch, which is returned, or a dict of arrays like its data, to be
                written into.
            device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
                numpy arrays when ``None``.

        Raises:
            ReplayError: If the buffer is empty, or ``n`` below 1.
        """

    def end_episode(self, env: int = 0) -> None:
        """Ends the episode of an environment, of which its last transition did not say so."""

    def clear(self) -> None:
        """Remove all transitions."""

    def __len__(self) -> int: ...
    @property
    def capacity(self) -> int:
        """How many transitions fit."""

    @property
    def num_episodes(self) -> int | None:
        """How many episodes have transitions here; ``None`` without ``episodes=True``."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that hold transitions."""

    def _push(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_obs: Any = None,
    ) -> None: ...
    def _sample_windows(
        self, n: int, length: int, seed: int | None, out: dict[str, Any] | None
    ) -> tuple[dict[str, Any], list[int]]: ...
    def _sample_goals(
        self, n: int, seed: int | None, strategy: str, share: float
    ) -> tuple[dict[str, Any], list[bool]]: ...
    @staticmethod
    def _rows(buffers: list[Any], owners: Any, positions: Any) -> dict[str, Any]: ...
    def _leaves(self) -> list[tuple[str, str, list[int]]]: ...
    def _state(self) -> dict[str, Any]: ...
    def _load(
        self,
        rows: list[Any],
        rng: Any,
        first: int,
        weights: Any = None,
        largest: float | None = None,
        envs: Any = None,
        ends: Any = None,
    ) -> None: ...

class PrioritizedReplayBuffer(ReplayBuffer):
    """The native half of :class:`echoic.PrioritizedReplayBuffer`, which says what it is."""

    def __new__(
        cls,
        capacity: int,
        obs_dim: int | None = None,
        act_dim: int | None = None,
        *,
        alpha: float,
        example: Any = None,
        seed: int,
        next_obs: str = "stored",
        stack: int | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        episodes: bool = False,
        cast: bool = True,
    ) -> Self: ...
    def add(self, x: dict[str, Any], *, priority: float | None = None, env: int = 0) -> None:
        """Add one transition.

        Args:
            x: A dict with the fields of the example.
            priority: A number >= 0; the largest that any transition ever had when ``None``.
            env: The environment that it is of, where several take turns.

        Raises:
            SpecError: If a value does not fit its field. Nothing is stored then.
            PriorityError: If the priority is not a finite number >= 0. Nothing is stored then.
        """

    def extend(self, xs: dict[str, Any], *, priorities: Any = None, env: Any = None) -> None:
        """Add many transitions.

        Args:
            xs: A dict with the fields of the example, as arrays with a leading axis of one length.
            priorities: One for each; the largest that any transition ever had when ``None``.
            env: One environment for all of them, or an array of one for each.

        Raises:
            SpecError: If a value does not fit its field. Nothing is stored then.
            PriorityError: If a priority is not a finite number >= 0. Nothing is stored then.
        """

    def sample(
        self,
        n: int,
        *,
        beta: float = 1.0,
        seed: int | None = None,
        stratified: bool = True,
        out: Batch | dict[str, Any] | None = None,
        device: Any = None,
    ) -> Batch:
        """Draw transitions in proportion to their priorities, with replacement.

        Args:
            n: How many.
            beta: The exponent of weights, from 0 to 1; 1 corrects all of the bias.
            seed: Of this draw; the buffer's own stream goes on when ``None``.
            stratified: Draw one from each of ``n`` equal parts of the sum of priorities, as the
                paper does, which varies less; else each from anywhere.
            out: An earlier batch to be written into and returned, or a dict of arrays like its
                data, and for ``keys`` and ``weights``.
            device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
                numpy arrays when ``None``.

        Raises:
            ReplayError: If the buffer is empty, ``n`` below 1, or ``beta`` not from 0 to 1.
        """

    def update_priorities(self, keys: Any, priorities: Any) -> int:
        """Set priorities of transitions: numbers >= 0, such as absolute errors.

        A key whose transition is not there any more is skipped. When one comes twice, the last
        counts. Returns how many were there.

        Raises:
            PriorityError: If a priority is not a finite number >= 0. None is changed then.
            ReplayError: If the lengths differ, or a key was never given. None is changed then.
        """

    def _push(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_obs: Any = None,
        priority: float | None = None,
    ) -> None: ...
    @property
    def alpha(self) -> float:
        """The exponent of priorities."""

# Data sets that do not change.

@disjoint_base
class OfflineDataset:
    """The native part of :class:`echoic.OfflineDataset`."""

    def __new__(
        cls,
        data: Any,
        step: Any,
        window: Any,
        *,
        normalize: bool,
        gamma: float,
        copied: bool,
        seed: int,
    ) -> Self: ...
    def sample(
        self,
        n: int,
        *,
        seed: int | None = None,
        out: Batch | dict[str, Any] | None = None,
        device: Any = None,
    ) -> Batch:
        """Draw steps, each from all of them, whatever was drawn before.

        Args:
            n: How many, also more than there are.
            seed: The same seed gives the same batch, on every machine and in every release: the
                numbers ``Rng(seed).below(len)`` of xoshiro256++. Without one the steps come from
                the buffer's own stream, which goes on with every call.
            out: An earlier batch, which is returned, or a dict of arrays like its data, to be
                written into.
            device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
                numpy arrays when ``None``.

        Returns:
            Arrays with ``n`` rows: ``obs``, ``next_obs``, ``actions``, ``rewards``, ``terminated``,
            ``truncated``, and the extras. They are the caller's to keep or change;
            their memory is used again once none of them is held.

        Raises:
            ReplayError: A number is out of range.
            SpecError: ``out`` is not like a batch.
        """

    def sample_trajectories(
        self,
        n: int,
        length: int,
        *,
        seed: int | None = None,
        padding: Literal["right", "left"] = "right",
        out: Batch | dict[str, Any] | None = None,
        device: Any = None,
    ) -> Batch:
        """Draw stretches of episodes, for models of sequences.

        A stretch begins at a step drawn as by :meth:`sample` and ends after ``length`` steps, or
        with its episode. What is missing then is zeros, in all columns.

        Args:
            n: How many stretches.
            length: How many steps of each.
            seed: As of :meth:`sample`.
            padding: Whether zeros stand behind the steps or before them.
            out: As of :meth:`sample`.
            device: As of :meth:`sample`.

        Returns:
            Arrays of shape ``(n, length, ...)``: ``obs``, ``actions``, ``rewards``,
            ``returns_to_go`` (the discounted sum of rewards to the end of the episode, also where
            the stretch ends before it), ``timesteps`` (int64, from the start of the episode),
            ``mask`` (whether there is a step), ``terminated``, ``truncated``, and the extras.

        Raises:
            ReplayError: A number is out of range.
            SpecError: ``out`` is not like a batch.
        """

    def _steps(self, first: int, n: int) -> dict[str, Any]: ...
    @property
    def num_episodes(self) -> int:
        """How many episodes there are, with one at the end that has no end."""

    def numbers(self) -> dict[str, Any]:
        """What is known about steps and episodes."""

    def moments(self) -> tuple[Any, Any, Any]:
        """Return mean, standard deviation and scale of observations, each like an observation."""

    def __len__(self) -> int: ...

@final
class SurpriseReplay:
    """The native part of :class:`echoic.agents.PrioritizedReplayBuffer`."""

    def __new__(
        cls,
        example: Any,
        mean: EMAPlanTracker,
        *,
        hot: int,
        cold: int,
        total: int,
        age_threshold: int,
        max_age: int,
        mode: str,
        mode_number: float,
        surprise_weight: float,
        reward_weight: float,
        mean_over_dims: bool,
        computes_scores: bool,
        moves_mean: bool,
        refresh: int,
        seed: int,
        path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> Self: ...
    def add(
        self, fields: dict[str, Any], *, many: bool, scores: Any | None = None
    ) -> npt.NDArray[np.int64]:
        """Add one experience or many, and give their indices."""

    def sample(
        self,
        batch_size: int,
        *,
        temperature: float,
        hot_ratio: float,
        beta: float,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """Draw a batch, hot experiences first, and compute its scores again."""

    def update_priorities(self, indices: Any, priorities: Any) -> int:
        """Give experiences scores, and say how many were there."""

    def tick(self, updates: int) -> tuple[int, int, int]:
        """Let experiences age: how many migrated, expired, and were scored again."""

    def effective_sizes(self, temperature: float, hot_ratio: float) -> tuple[float, float, float]:
        """Give the effective sample size over all, of hot and of cold experiences."""

    def statistics(self) -> dict[str, Any]:
        """Give sizes, what has happened, scores and bytes."""

    def leaves(self) -> list[tuple[str, str, list[int]]]:
        """Give path, dtype and shape of each leaf."""

    def state(self) -> dict[str, Any]:
        """Give all that the buffer holds, copied."""

    def load(self, state: dict[str, Any]) -> None:
        """Become what another buffer was."""

    def clear(self) -> None:
        """Forget all experiences."""

    def close(self) -> None:
        """Remove the file, if there is one."""

    def __len__(self) -> int: ...

@disjoint_base
class MmapReplayBuffer:
    """The native part of :class:`echoic.MmapReplayBuffer`."""

    def __new__(
        cls,
        cold_path: str | os.PathLike[str],
        hot_capacity: int | None = None,
        capacity: int | None = None,
        obs_dim: int | None = None,
        act_dim: int | None = None,
        *,
        example: Any | None = None,
        cast: bool = True,
        seed: int,
        keep: bool,
        overwrite: bool = False,
        preallocate: bool = False,
        reopen: bool = False,
    ) -> Self: ...
    def add(self, x: dict[str, Any], *, env: int = 0) -> None:
        """Add one transition.

        Args:
            x: A dict with the fields of the example.
            env: Changes nothing: every transition is drawn by itself.

        Raises:
            SpecError: If a value does not fit its field. Nothing is stored then.
            StorageError: If there is no room in memory, and the file can't be written. Nothing is
                stored then, and nothing lost.
            ClosedError: If the buffer is closed.
        """

    def extend(self, xs: dict[str, Any], *, env: Any = None) -> None:
        """Add many transitions.

        Args:
            xs: A dict with the fields of the example, as arrays with a leading axis of one length.
            env: Changes nothing, as in :meth:`add`.

        Raises:
            SpecError: If a value does not fit its field, or lengths differ. Nothing is stored then.
            StorageError: If the file can't be written. As many as its ``stored`` says are stored.
            ClosedError: If the buffer is closed.
        """

    def sample(
        self,
        n: int,
        *,
        seed: int | None = None,
        out: Batch | dict[str, Any] | None = None,
        device: Any = None,
    ) -> Batch:
        """Draw transitions evenly, with replacement.

        What is in the file is asked for all at once, and read in the order in which it lies there.
        The GIL is released while it is.

        Args:
            n: How many.
            seed: Of this draw; the buffer's own stream goes on when ``None``.
            out: An earlier batch of this size, which is written into.
            device: Where the batch gets tensors of PyTorch, see :meth:`echoic.Batch.as_torch`;
                numpy arrays when ``None``.

        Returns:
            Every field as an array with one row for each transition.

        Raises:
            ReplayError: The buffer is empty.
            StorageError: The file can't be read, or was changed by another program.
            ClosedError: The buffer is closed.
        """

    def clear(self) -> None:
        """Remove all transitions, also those in the file.

        Raises:
            StorageError: That can't be noted in the file. The buffer is empty nevertheless.
        """

    def flush(self) -> None:
        """Write all transitions to the file, and wait until they would survive a loss of power.

        Raises:
            StorageError: The file can't be written.
        """

    def close(self, *, keep: bool | None = None) -> None:
        """End the use of the buffer, and remove its file, or leave it there with all transitions.

        Batches that were drawn stay as they are. Closing again does nothing.

        Args:
            keep: Whether to leave the file; what the buffer was made with when ``None``.

        Raises:
            StorageError: The file can't be removed; or it is to be left and can't be written. Then
                the buffer is still open.
        """

    def __len__(self) -> int: ...
    def _push(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_obs: Any = None,
    ) -> None: ...
    @property
    def capacity(self) -> int:
        """How many transitions fit."""

    @property
    def hot_capacity(self) -> int:
        """How many transitions are in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that hold transitions."""

    @property
    def written(self) -> int:
        """How many of the transitions are in the file, and survive the end of the process."""

    @property
    def cold_path(self) -> Path:
        """Where the file is."""

    @property
    def keep(self) -> bool:
        """Whether closing leaves the file."""

    @property
    def closed(self) -> bool:
        """Whether the buffer was closed."""

@final
class EMAPlanTracker:
    """The exponential moving average of latent plans: ``ema = decay * ema + (1 - decay) * plan``.

    In float64, whatever plans are stored in. The first plan initialises it. Safe to use from
    several threads; can be pickled and copied.

    Args:
        dim: How long plans are.
        decay: How much of the average each plan leaves, from 0 to 1.

    Raises:
        ArgumentError: An argument is out of range.

    Examples:
        >>> from echoic.agents.kernels import EMAPlanTracker
        >>> tracker = EMAPlanTracker(2, decay=0.75)
        >>> tracker.update([1.0, 2.0])
        >>> tracker.update([5.0, 2.0])
        >>> tracker.get_ema()
        array([2., 2.])
    """

    def __new__(cls, dim: int, decay: float = 0.99) -> Self: ...
    @property
    def dim(self) -> int:
        """How long plans are."""

    @property
    def decay(self) -> float:
        """How much of the average each plan leaves."""

    @property
    def count(self) -> int:
        """How many plans went by."""

    @property
    def initialized(self) -> bool:
        """Whether there was a plan."""

    def update(self, plan: Any) -> None:
        """Take in a plan ``(dim,)``, or plans ``(n, dim)`` one after the other, all or none.

        Raises:
            ArgumentError: Another shape, or a number is not finite: the average would never
                recover.
            DtypeError: Not real numbers, not on the CPU, or a tensor that requires a gradient.
        """

    def get_ema(self) -> Any:
        """The average, a fresh array ``(dim,)`` of float64.

        Raises:
            ArgumentError: There was no plan yet.
        """

    def reset(self) -> None:
        """Forget everything but ``dim`` and ``decay``."""

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` takes: ``decay``, ``count`` and ``ema``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what :meth:`state_dict` was taken from.

        Raises:
            ArgumentError: It is of no tracker of this length.
        """

    def __getnewargs__(self) -> tuple[int]: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, state: dict[str, Any]) -> None: ...

def plan_surprise(
    plan: Any,
    ema_plan: Any,
    reward: float,
    surprise_weight: float = 1.0,
    reward_weight: float = 1.0,
) -> float:
    """How much there may be to learn from a step: an unusual plan, or a large reward.

    ``surprise_weight * |plan - ema_plan|**2 + reward_weight * |reward|``, in double precision.

    Args:
        plan: ``(dim,)``.
        ema_plan: What is usual, ``(dim,)``.
        reward: The reward of the step.
        surprise_weight: Of the squared distance, which grows with ``dim``.
        reward_weight: Of the reward's magnitude.

    Raises:
        ArgumentError: Shapes differ, or a weight is not finite.
        DtypeError: Not real numbers, not on the CPU, or a tensor that requires a gradient.

    A NaN makes the result NaN.

    Examples:
        >>> from echoic.agents.kernels import plan_surprise
        >>> plan_surprise([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], -0.5, 1.0, 0.1)
        14.05
    """

def plan_surprise_batch(
    plans: Any,
    ema_plan: Any,
    rewards: Any,
    surprise_weight: float = 1.0,
    reward_weight: float = 1.0,
) -> Any:
    """:func:`plan_surprise` of plans ``(n, dim)`` and rewards ``(n,)``: float64 ``(n,)``.

    Examples:
        >>> from echoic.agents.kernels import plan_surprise_batch
        >>> plan_surprise_batch([[1.0, 2.0], [0.0, 0.0]], [0.0, 0.0], [0.5, -2.0])
        array([5.5, 2. ])
    """

def temporal_kl(cur: Any, prev: Any, sigma_squared: float) -> float:
    """How far a plan moved: the KL divergence of two normal distributions of one variance.

    ``|cur - prev|**2 / (2 * sigma_squared)``, in double precision. It is a number without a
    gradient; :mod:`echoic.agents.plans` has the divergence that is learned from.

    Args:
        cur: A plan ``(dim,)``.
        prev: The plan before it.
        sigma_squared: The variance in every direction.

    Raises:
        ArgumentError: Shapes differ, or the variance is not above 0.
        DtypeError: As in :func:`plan_surprise`.

    Examples:
        >>> from echoic.agents.kernels import temporal_kl
        >>> temporal_kl([1.0, 0.0], [0.0, 0.0], 0.01)
        50.0
    """

def temporal_kl_batch(cur: Any, prev: Any, sigma_squared: float) -> Any:
    """:func:`temporal_kl` of plans ``(n, dim)``: float64 ``(n,)``.

    Examples:
        >>> from echoic.agents.kernels import temporal_kl_batch
        >>> temporal_kl_batch([[1.0, 0.0], [0.0, 3.0]], [[0.0, 0.0], [0.0, 1.0]], 0.01)
        array([ 50., 200.])
    """

def attention_bandwidth_cost(seq_len: int, scale: float = 1.0) -> float:
    """What it costs to read a sequence with attention: ``scale * seq_len * (seq_len + 1) / 2``.

    Pairs of tokens are counted in whole numbers, so the result is the number nearest to the exact
    one however long the sequence is.

    Args:
        seq_len: Tokens, at least 0.
        scale: What a pair of a token and one that it attends to costs, at least 0.

    Raises:
        ArgumentError: An argument is out of range.

    Examples:
        >>> from echoic.agents.kernels import attention_bandwidth_cost
        >>> attention_bandwidth_cost(10)
        55.0
        >>> attention_bandwidth_cost(100_001)
        5000150001.0
    """

def attention_bandwidth_cost_batch(seq_lengths: Any, scale: float = 1.0) -> Any:
    """:func:`attention_bandwidth_cost` of whole numbers of any shape: float64 of that shape.

    Examples:
        >>> from echoic.agents.kernels import attention_bandwidth_cost_batch
        >>> attention_bandwidth_cost_batch([3, 10])
        array([ 6., 55.])
    """

def effective_bandwidth_cost(seq_len: int, reuse_len: int = 0, scale: float = 1.0) -> float:
    """What a sequence costs whose first tokens a cache had: its cost less that of this beginning.

    Args:
        seq_len: Tokens, at least 0.
        reuse_len: How many of them a cache had; more than there are count as all of them.
        scale: As in :func:`attention_bandwidth_cost`.

    Raises:
        ArgumentError: An argument is out of range.

    Examples:
        >>> from echoic.agents.kernels import effective_bandwidth_cost
        >>> effective_bandwidth_cost(seq_len=128, reuse_len=96, scale=1.0)
        3600.0
    """

def effective_bandwidth_cost_batch(
    seq_lengths: Any, reuse_lengths: Any = None, scale: float = 1.0
) -> Any:
    """:func:`effective_bandwidth_cost` of whole numbers of any shape: float64 of that shape.

    Raises:
        ArgumentError: Shapes differ, or a number is negative.
        DtypeError: Lengths are not whole numbers.

    Examples:
        >>> from echoic.agents.kernels import effective_bandwidth_cost_batch
        >>> effective_bandwidth_cost_batch([10, 3], [5, 2])
        array([40.,  3.])
    """

def bandwidth_aware_priorities(
    rewards: Any,
    bandwidth_costs: Any,
    queue_times: Any,
    epsilon: float = 1e-6,
    *,
    bandwidth_weight: float = 1.0,
    queue_weight: float = 1.0,
) -> Any:
    """``reward / (w_b * cost + w_q * queue_time + epsilon)`` of each request: float64.

    The formula as it stands: a negative reward puts the dearest first, and a longer wait puts a
    request behind. :class:`echoic.agents.bandwidth.BandwidthAwareScheduler` guards against both.

    Args:
        rewards: What each request is expected to earn, of any shape.
        bandwidth_costs: What each costs, at least 0, of the same shape.
        queue_times: How long each has waited, at least 0, of the same shape.
        epsilon: Above 0, so that nothing is divided by 0.
        bandwidth_weight: ``w_b``, at least 0.
        queue_weight: ``w_q``, at least 0.

    Raises:
        ArgumentError: Shapes differ, or a number is not finite or out of range.
        DtypeError: Not real numbers, or not on the CPU.

    Examples:
        >>> from echoic.agents.kernels import bandwidth_aware_priorities
        >>> bandwidth_aware_priorities([1.0, 1.0], [3.0, 1.0], [1.0, 1.0], 1e-9).round(3)
        array([0.25, 0.5 ])
    """

def schedule_priorities(rewards: Any, queue_times: Any, epsilon: float = 1e-6) -> Any:
    """``reward / (queue_time + epsilon)`` of each request: float64, without its bandwidth.

    Examples:
        >>> from echoic.agents.kernels import schedule_priorities
        >>> schedule_priorities([1.0, 3.0], [1.0, 2.0], 1e-9).round(3)
        array([1. , 1.5])
    """

def bandwidth_efficiency(total_reward: float, rollout_cost: float, learner_cost: float) -> float:
    """``total_reward / (rollout_cost + learner_cost)``; 0 where at most ``1e-12`` was spent.

    The two costs have different units, so report them beside it, as
    :class:`echoic.agents.bandwidth.BandwidthMetrics` does.

    Raises:
        ArgumentError: A number is not finite, or a cost is negative.

    Examples:
        >>> from echoic.agents.kernels import bandwidth_efficiency
        >>> round(bandwidth_efficiency(0.5, 904.0, 0.02), 10)
        0.0005530851
    """

def state_hash(vec: Any) -> int:
    """FNV-1a in 64 bits over the numbers of an array, in C order.

    Numbers are hashed as float64, so equal numbers have one hash in whatever precision they are
    stored; so have both zeros, and all NaN. Shapes are not hashed.

    Hashes can collide: with a million of them, in one of 40 million cases. Compare what was hashed,
    too, before anything is taken for the same.

    Raises:
        DtypeError: Not real numbers, or not on the CPU.

    Examples:
        >>> import numpy as np
        >>> from echoic.agents.kernels import state_hash
        >>> state_hash([0.5, 1.0]) == state_hash(np.float32([0.5, 1.0]))
        True
    """

def state_hash_batch(states: Any) -> Any:
    """:func:`state_hash` of each row of ``(n, ...)``: uint64 ``(n,)``."""

def prefix_match(
    sequence_hashes: Any, cache_entries: Sequence[tuple[int, int]], min_prefix_len: int = 1
) -> tuple[int, int]:
    """The entry of a cache that has the longest beginning of a sequence, and how long that is.

    Of ``n`` steps at most ``n - 1`` are reused: the last has to be run to know what follows
    it. An entry that has the whole sequence therefore gives ``n - 1``.

    Args:
        sequence_hashes: ``sequence_hashes[i]`` is the hash of the first ``i + 1`` steps.
        cache_entries: Pairs of the hash of a beginning and the index of its entry. Of several with
            one hash, the first counts.
        min_prefix_len: Shorter beginnings are not worth it.

    Returns:
        ``(index, length)``, or ``(-1, 0)``.

    Raises:
        ArgumentError: ``min_prefix_len`` is below 1, or a hash negative.
        DtypeError: Hashes or entries are something else.

    Examples:
        >>> from echoic.agents.kernels import prefix_match
        >>> prefix_match([10, 20, 30], [(20, 0), (10, 1)])
        (0, 2)
    """

def prefix_match_batch(
    sequences: Any, cache_entries: Sequence[tuple[int, int]], min_prefix_len: int = 1
) -> tuple[Any, Any]:
    """:func:`prefix_match` of each of several sequences, in a cache that is read once.

    Returns:
        ``(indices, lengths)``, int64, each as long as ``sequences``.

    Examples:
        >>> from echoic.agents.kernels import prefix_match_batch
        >>> prefix_match_batch([[10, 20, 30], [7, 8]], [(20, 0), (10, 1)])
        (array([ 0, -1]), array([2, 0]))
    """

def priority_sample(
    priorities: Any,
    sample_size: int,
    temperature: float = 1.0,
    importance_beta: float = 0.4,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Draw items by the softmax of their priorities, with replacement.

    ``p_i = exp(priority_i / T) / sum_j exp(priority_j / T)``, ``w_i = (N * p_i)**-beta / max_j
    w_j``, the maximum being over what was drawn. The largest priority is subtracted first, so
    nothing overflows.

    Args:
        priorities: ``(N,)``. Minus infinity is never drawn.
        sample_size: How many to draw, at most ``N``.
        temperature: ``T``, above 0. The larger, the more evenly items are drawn.
        importance_beta: From 0 (no correction) to 1 (all of it).
        seed: Of the generator that all of Echoic uses. One seed gives the same draws everywhere,
            and so the same again and again: give every call another.

    Returns:
        ``(indices, weights)``, int64 and float32, ``min(sample_size, N)`` each.

    Raises:
        ArgumentError: A priority is NaN or infinitely large, none is above minus infinity, or an
            argument is out of range.
        DtypeError: Not real numbers, not on the CPU, or a tensor that requires a gradient.

    Examples:
        >>> from echoic.agents.kernels import priority_sample
        >>> indices, weights = priority_sample([0.0, 9.0, 0.0, 9.0], 4, importance_beta=1.0, seed=3)
        >>> sorted(indices.tolist()), weights.tolist()
        ([1, 3, 3, 3], [1.0, 1.0, 1.0, 1.0])
    """
