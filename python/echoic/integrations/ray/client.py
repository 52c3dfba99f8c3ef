"""Connect to a cluster by its name, wherever its shards are."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray.exceptions import RayError

from echoic._links import link_options
from echoic.connection import Connection
from echoic.errors import ArgumentError, DisconnectedError
from echoic.integrations.ray.addresses import nearest

if TYPE_CHECKING:
    from echoic.integrations.ray.registry import ClusterState, Entry
    from echoic.sharded.places import Named

__all__ = ["Client"]

# Seconds that the registry may take to answer: Ray may be restarting it.
_PATIENCE = 15.0
# Seconds between two requests while the cluster is starting.
_PAUSE = 0.1


@dataclass
class _Places:
    """Where the shards of a cluster are: a function that asks the registry."""

    name: str
    namespace: str | None
    transport: str
    token: str = field(default="", repr=False)  # The secret of the shards, once they were asked.
    used: dict[int, str] = field(default_factory=dict)  # The chosen addresses, by number.

    def wait_until_open(self, timeout: float) -> ClusterState:
        """Ask until the address of every shard is known."""
        deadline = time.monotonic() + timeout
        while True:
            state = self._ask()
            silent = [
                number
                for number, entry in enumerate(state.shards)
                if entry.addresses is None and not entry.removed
            ]
            if state.shards and not silent:
                return state
            if time.monotonic() >= deadline:
                what = f"its shards {silent} have not reported an address" if silent else "no shard"
                raise DisconnectedError(
                    f"expected the cluster {self.name!r} to be there within {timeout} s: {what}"
                )
            time.sleep(_PAUSE)

    def _ask(self) -> ClusterState:
        """Ask the registry for the addresses of the shards."""
        if not ray.is_initialized():
            raise DisconnectedError(
                f"the cluster {self.name!r} is found through Ray, to which this process is not "
                "connected: call ray.init(address=...) first"
            )
        try:
            registry = ray.get_actor(self.name, self.namespace)
        except ValueError as error:
            where = "this namespace" if self.namespace is None else f"namespace {self.namespace}"
            raise DisconnectedError(
                f"there is no ReplayCluster {self.name!r} in {where} of Ray"
            ) from error
        try:
            state: ClusterState = ray.get(registry.state.remote(), timeout=_PATIENCE)
        except (RayError, TimeoutError) as error:
            raise DisconnectedError(
                f"the registry of the cluster {self.name!r} did not answer within {_PATIENCE} s: "
                f"{error}"
            ) from error
        return state

    def __call__(self) -> list[Named]:
        """Return the addresses now."""
        return [self._place(number, entry) for number, entry in enumerate(self._ask().shards)]

    def _place(self, number: int, entry: Entry) -> Named:
        """Return the address of a shard for this process."""
        if entry.removed:
            return None
        used, offered = self.used.get(number), entry.addresses
        # A chosen address is kept while the shard still has it.
        if offered is not None and used not in {offered.tcp, offered.shm}:
            used = nearest(offered, self.token) if self.transport == "nearest" else offered.tcp
            self.used[number] = used
        if used is None:
            raise DisconnectedError(f"shard {number} of {self.name!r} has reported no address")
        return (used, "draining") if entry.draining else used


class Client(Connection):
    """A :class:`~echoic.Connection` to the shards of a cluster, as if it were one server.

    Make one with ``cluster.client()``, or with the cluster's name. It can be given to any task or
    actor: only the name is sent. It connects when it is first used, to each shard at the nearest
    address: shared memory on the same machine, TCP otherwise. When Ray restarts a shard, it follows
    the shard. Rollout tables and weights are those of shard 0; when that has moved, ask for them
    again. A restarted shard has no weights until the learner publishes some.

    Args:
        name: The cluster's name.
        namespace: Ray's namespace of the cluster; that of this process if ``None``.
        transport: ``"nearest"``, the default, or ``"tcp"`` to use no shared memory.
        seed: Seed of the choice of shards when sampling; random if ``None``.
        refresh: Seconds between two requests for the shards' addresses; ``None`` asks only while
            one is away.
        **options: Options of :func:`echoic.connect`, such as ``window_bytes``.

    Raises:
        DisconnectedError: On first use, if there is no cluster of this name, or none of its shards
            was there in time.
    """

    def __init__(
        self,
        name: str = "echoic",
        namespace: str | None = None,
        *,
        transport: Literal["nearest", "tcp"] = "nearest",
        seed: int | None = None,
        refresh: float | None = 5.0,
        **options: Any,
    ) -> None:
        if transport not in {"nearest", "tcp"}:
            raise ArgumentError(f"transport must be 'nearest' or 'tcp', got {transport!r}")
        places = _Places(name, namespace, transport)
        super().__init__(places, link_options(**options), seed, refresh)
        self._given = {"transport": transport, "seed": seed, "refresh": refresh, **options}

    def _opened(self) -> dict[str, Any]:
        """Return the tables by name; find the shards first, if that was not done yet."""
        with self._lock:
            if not self.is_connected and not self._closed:
                state = self._to.wait_until_open(self._options["timeout"])
                self._to.token, self._options["token"] = state.token, state.token.encode()
            return super()._opened()

    def _one(self, purpose: str) -> str:
        return self.addresses[0]

    @property
    def addresses(self) -> list[str]:
        """The addresses of the shards, by number; ``""`` for one that was removed."""
        self._opened()
        return super().addresses

    @property
    def name(self) -> str:
        """The cluster's name."""
        name: str = self._to.name
        return name

    @property
    def is_connected(self) -> bool:
        """Whether it was used, and so has connections."""
        return self._tables is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name and the options: the copy finds the shards again where it is used."""
        return partial(Client, self.name, self._to.namespace, **self._given), ()

    def __repr__(self) -> str:
        return f"Client({self.name!r}, namespace={self._to.namespace!r})"
