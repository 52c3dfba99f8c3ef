"""Connect to a cluster by its name, wherever its shards are."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray.exceptions import RayError

from echoic.client import _options as link_options
from echoic.errors import ArgumentError, DisconnectedError, EchoicError
from echoic.integrations.ray.addresses import nearest
from echoic.sharded import ShardedClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.integrations.ray.registry import ClusterState, Entry
    from echoic.rollouts import RolloutClient, RolloutTable
    from echoic.sharded.places import Named
    from echoic.weights import WeightClient

__all__ = ["Client"]

# Seconds that the registry may take to answer: Ray may be restarting it.
_PATIENCE = 15.0
# Seconds between two requests while the cluster is starting.
_PAUSE = 0.1
# Attributes that exist once there is a connection.
_MADE = frozenset({"_connection", "_options", "_settings", "_shards", "_tables", "_where"})


class Client(ShardedClient):
    """Insert into the tables of a cluster, and sample from them as if it were one server.

    The methods are those of :class:`~echoic.ShardedClient`. Make one with ``cluster.client()``, or
    with the cluster's name. It can be given to any task or actor: only the name is sent. It
    connects when it is first used, to each shard at the nearest address: shared memory on the same
    machine, TCP otherwise. When Ray restarts a shard, the client follows it.

    Args:
        name: The cluster's name.
        namespace: Ray's namespace of the cluster; that of this process if ``None``.
        transport: ``"nearest"``, the default, or ``"tcp"`` to use no shared memory.
        deadline: Seconds that a call waits while it needs a shard that is away; ``None`` waits for
            ever.
        seed: Seed of the choice of shards when sampling; random if ``None``.
        refresh: Seconds between two requests for the shards' addresses; ``None`` asks only while
            one is away.
        **options: Options of :class:`~echoic.Client`, such as ``window_bytes``.

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
        deadline: float | None = 60.0,
        seed: int | None = None,
        refresh: float | None = 5.0,
        **options: Any,
    ) -> None:
        """Keep the name; see the class for the arguments."""
        if transport not in {"nearest", "tcp"}:
            raise ArgumentError(f"transport must be 'nearest' or 'tcp', got {transport!r}")
        link_options(**options)  # Report a wrong one here, not at the first use.
        self._name = name
        self._namespace = namespace
        named = {"deadline": deadline, "seed": seed, "refresh": refresh}
        self._given = {"transport": transport, **named, **options}
        self._connecting = threading.RLock()
        self._token = ""
        # The chosen addresses, by the shards' numbers.
        self._addresses: dict[int, str] = {}
        self._rollout_client: RolloutClient | None = None

    def __getattr__(self, name: str) -> Any:
        """Connect when an attribute that only a connection has is first used."""
        if name not in _MADE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self._connecting:
            if "_shards" not in self.__dict__:
                self._connect()
        return self.__dict__[name]

    def _connect(self) -> None:
        options = dict(self._given)
        del options["transport"]
        named = {key: options.pop(key) for key in ("deadline", "seed", "refresh")}
        state = self._wait_until_open(options.get("connect_timeout", 10.0))
        self._token = state.token
        known = link_options(token=state.token, **options)
        super().__init__(self._locate, known, **named)

    def _wait_until_open(self, timeout: float) -> ClusterState:
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
                    f"expected the cluster {self._name!r} to be there within {timeout} s: {what}"
                )
            time.sleep(_PAUSE)

    def _ask(self) -> ClusterState:
        """Ask the registry for the addresses of the shards."""
        if not ray.is_initialized():
            raise DisconnectedError(
                f"the cluster {self._name!r} is found through Ray, to which this process is not "
                "connected: call ray.init(address=...) first"
            )
        try:
            registry = ray.get_actor(self._name, self._namespace)
        except ValueError as error:
            where = "this namespace" if self._namespace is None else f"namespace {self._namespace}"
            raise DisconnectedError(
                f"there is no ReplayCluster {self._name!r} in {where} of Ray"
            ) from error
        try:
            state: ClusterState = ray.get(registry.state.remote(), timeout=_PATIENCE)
        except (RayError, TimeoutError) as error:
            raise DisconnectedError(
                f"the registry of the cluster {self._name!r} did not answer within {_PATIENCE} s: "
                f"{error}"
            ) from error
        return state

    def _locate(self) -> list[Named]:
        """Return the addresses now; called when the client connects, and at intervals."""
        state = self._ask()
        return [self._place(number, entry) for number, entry in enumerate(state.shards)]

    def _place(self, number: int, entry: Entry) -> Named:
        """Return the address of a shard for this process, as a sharded client takes it."""
        if entry.removed:
            return None
        used, offered = self._addresses.get(number), entry.addresses
        # A chosen address is kept while the shard still has it.
        if offered is not None and used not in {offered.tcp, offered.shm}:
            is_near = self._given["transport"] == "nearest"
            used = nearest(offered, self._token) if is_near else offered.tcp
            self._addresses[number] = used
        if used is None:
            raise DisconnectedError(f"shard {number} of {self._name!r} has reported no address")
        return (used, "draining") if entry.draining else used

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._name

    @property
    def is_connected(self) -> bool:
        """Whether it was used, and so has connections."""
        return "_shards" in self.__dict__

    def rollouts(self, name: str) -> RolloutTable:
        """Return a rollout table of the cluster; those are all on shard 0.

        When that shard has moved, call this again: the table is connected to the old place.

        Raises:
            TableNotFoundError: If the cluster has no rollout table of this name.
        """
        from echoic.rollouts import connect

        address = self.addresses[0]
        with self._connecting:
            held = self._rollout_client
            if held is None or held.address != address:
                if held is not None:
                    with contextlib.suppress(EchoicError):
                        held.close(0.0)
                held = self._rollout_client = connect(address, token=self._token)
        return held[name]

    def weights(self) -> WeightClient:
        """Return a client of the cluster's weights, which are on shard 0; close it when done.

        When that shard has moved, call this again. A restarted shard has no weights until the
        learner publishes some.
        """
        from echoic.weights import WeightClient

        return WeightClient(self.addresses[0], token=self._token)

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is left, and close; does nothing if the client was never used."""
        with self._connecting:
            held, self._rollout_client = self._rollout_client, None
        if held is not None:
            held.close(timeout)
        if self.is_connected:
            super().close(timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name and the options: the copy finds the shards again where it is used."""
        return _found_by_name, (self._name, self._namespace, self._given)

    def __repr__(self) -> str:
        """Return the cluster's name and namespace."""
        return f"Client({self._name!r}, namespace={self._namespace!r})"


def _found_by_name(name: str, namespace: str | None, given: Mapping[str, Any]) -> Client:
    return Client(name, namespace, **given)
