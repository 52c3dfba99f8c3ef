"""Start the shards of a cluster on Ray, add some, drain one, and stop them all."""

from __future__ import annotations

import logging
import re
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from echoic.errors import (
    ArgumentError,
    ClosedError,
    DisconnectedError,
    EchoicError,
    WaitTimeoutError,
)
from echoic.integrations.ray import manifest
from echoic.integrations.ray.client import Client
from echoic.integrations.ray.registry import MAX_SHARDS, ClusterState, Registry, shard_name
from echoic.integrations.ray.shard import Shard, ShardSettings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

    from echoic.rollouts import RolloutTable
    from echoic.table import Table

__all__ = ["ReplayCluster", "actor_options"]

_log = logging.getLogger(__name__)

_PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
# It is part of the name of a socket's file, which may have 108 bytes.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
# Ray's names of resources in actor options, and in bundles of a placement group.
_BUNDLE = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
# A placement group, and the index of one of its bundles.
_Bundle = tuple[Any, int]
# A shard reports its address while it moves items or writes a checkpoint.
_THREADS = 8
# Seconds that a shard that stops leaves clients to receive acknowledgements.
_GRACE = 1.0
_PAUSE = 0.2
# Seconds that the registry and the shards may take to answer a request that costs little.
_PATIENCE = 30.0
# Seconds that a task of ours may take on the node of a shard, where it may need a new process.
_TASK_PATIENCE = 90.0


def actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return Ray's options of an actor for resources by name, which may be the user's own."""
    named = {name: amount for name, amount in resources.items() if name in _BUNDLE}
    own = {name: amount for name, amount in resources.items() if name not in _BUNDLE}
    return {"num_cpus": 0, **named, "resources": own or None}


class _Limit:
    """A timeout that began with this object."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._deadline = time.monotonic() + timeout

    def left(self, least: float = 0.1) -> float:
        """Return the seconds that are left, or a least number of them."""
        return max(least, self._deadline - time.monotonic())

    def late(self, what: str) -> WaitTimeoutError:
        """Return the error that says what was not done in time."""
        return WaitTimeoutError(f"timed out: {what} within {self.timeout} s")


class ReplayCluster:
    """Tables on several servers, which are actors of Ray: it places and restarts them.

    Each shard is a native server in an actor of its own, to which clients connect directly: no
    sample passes through Ray. If the process or node of a shard dies, Ray restarts it, on the same
    node or another; with a ``directory`` it restores its items.

    Args:
        tables: Makes the tables of one shard, a list of :class:`~echoic.Table`. It is called in
            each shard, and again after each restart. Sizes are those of one shard.
        num_shards: How many servers, 256 at most. If the directory has shards, all of them are
            started, and new ones if there are fewer than this.
        name: The name by which clients find the cluster: letters, digits, ``-``, ``_`` and ``.``.
        namespace: Ray's namespace of the name; that of this program if ``None``.
        resources: What each shard needs, by the names of Ray's actor options (``num_cpus``,
            ``num_gpus``, ``memory``) or of resources of your own. By default one CPU.
        placement: Ray's strategy: ``"SPREAD"`` over nodes as far as possible, ``"STRICT_SPREAD"``
            on a node each, or ``"PACK"`` and ``"STRICT_PACK"`` on few or one.
        directory: Where the shards store checkpoints and journals, in a folder each, and a manifest
            of the shards. All nodes with shards must see the same directory. A restarted shard
            waits until the directory is there; without a directory, it is empty.
        checkpoint_every: Seconds between two checkpoints of a shard. ``None``: only :meth:`close`
            and ``client.checkpoint()`` make them.
        rollouts: Makes rollout tables, given the folder where they may store data, or ``None``.
            They are on shard 0, since each has one ledger.
        weights: Whether shard 0 has weights, which learners publish through ``client.weights()``.
        threads: How many event loops each transport of a shard has; if ``None``, half the cores, at
            most 4.
        timeout: Seconds to wait until Ray has placed the shards and they serve.

    Raises:
        ArgumentError: If an argument is invalid, Ray is not initialized, or a shard could not be
            made; the message says why.
        StorageError: If the directory has shards and no manifest, the manifest is damaged, or the
            folder of one of its shards is missing or belongs to another cluster.
        WaitTimeoutError: If Ray has no room for the shards; the message has what was requested and
            what the nodes have. Nothing is left running.

    Examples:
        A cluster lives as long as this object, or as the program that made it::

            ray.init()
            with ReplayCluster(make_tables, num_shards=4, directory="/shared/replay") as cluster:
                client = cluster.client()
                ray.get([work.remote(client) for _ in range(100)])
    """

    def __init__(
        self,
        tables: Callable[[], Sequence[Table]],
        num_shards: int = 2,
        *,
        name: str = "echoic",
        namespace: str | None = None,
        resources: Mapping[str, float] | None = None,
        placement: Literal["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"] = "SPREAD",
        directory: str | os.PathLike[str] | None = None,
        checkpoint_every: float | None = 300.0,
        rollouts: Callable[[Path | None], Sequence[RolloutTable]] | None = None,
        weights: bool = False,
        threads: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        _check(tables, num_shards, name, placement)
        if not ray.is_initialized():
            raise ArgumentError("a ReplayCluster is on Ray: call ray.init() first")
        #: The name by which clients find the cluster.
        self.name = name
        #: Ray's namespace of the name.
        self.namespace: str = namespace or ray.get_runtime_context().namespace
        self._resources = dict({"num_cpus": 1} if resources is None else resources)
        self._placement = placement
        self._settings = ShardSettings(
            name=name,
            namespace=self.namespace,
            identity=secrets.token_hex(4),
            token=secrets.token_hex(16),
            tables=tables,
            directory=None if directory is None else Path(directory).absolute(),
            checkpoint_every=checkpoint_every,
            rollouts=rollouts,
            weights=weights,
            threads=threads,
        )
        # Without removed shards.
        self._shards: dict[int, Any] = {}
        self._bundles: dict[int, _Bundle] = {}
        # Bundles of removed shards, in groups that other shards still use.
        self._free: list[_Bundle] = []
        self._count = 0
        self._session = _session()
        self._registry = self._start_registry()
        try:
            self._start_shards(num_shards, _Limit(timeout), is_first=True)
        except BaseException:
            self._end_actors()
            raise

    def _start_registry(self) -> Any:
        # It dies with the node of this program if possible, and then it is not needed.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        options = ray.remote(Registry).options(
            name=self.name,
            namespace=self.namespace,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=3,
            scheduling_strategy=here,
        )
        try:
            return options.remote(self.name, self.namespace, self._settings.token)
        except ValueError as error:
            raise ArgumentError(
                f"expected a name that is free, got {self.name!r}: {error}"
            ) from error

    def _start_shards(self, count: int, limit: _Limit, *, is_first: bool = False) -> list[int]:
        """Place and start more shards, at first also the directory's; return their numbers."""
        bundles = self._free[:count]
        started: dict[int, Any] = {}
        try:
            bundles += self._reserve(count - len(bundles), limit)
            numbers: list[int] = []
            first_new = self._count
            if is_first and self._settings.directory is not None:
                kept = self._open_directory(self._settings.directory, bundles[0])
                numbers += kept.shards
                first_new = kept.count
                bundles += self._reserve(len(numbers) - count, limit)
            new = range(first_new, first_new + len(bundles) - len(numbers))
            if new:
                _check_count(len(new), first_new)
            numbers += new
            used = dict(zip(numbers, bundles, strict=True))
            for number, bundle in used.items():
                started[number] = self._start_shard(number, bundle)
            for number, shard in started.items():
                self._wait_until_it_serves(number, shard, limit)
            if new:
                self._change_manifest(used[new[0]], manifest.add_shards, new)
            total = first_new + len(new)
            self._ask_registry("grow", total, [*self._shards, *started])
        except BaseException:
            for shard in started.values():
                ray.kill(shard)
            self._give_up(bundles)
            raise
        self._count = total
        self._shards.update(started)
        self._bundles.update(used)
        self._free = [bundle for bundle in self._free if bundle not in bundles]
        return numbers

    def _reserve(self, count: int, limit: _Limit) -> list[_Bundle]:
        """Reserve bundles for this many shards, placed together."""
        if count <= 0:
            return []
        bundle = {_BUNDLE.get(name, name): amount for name, amount in self._resources.items()}
        group = placement_group([bundle] * count, strategy=self._placement)
        try:
            if not group.wait(limit.left()):
                late = limit.late(
                    f"{count} shards with {self._resources} each could not be placed with "
                    f"{self._placement!r}"
                )
                raise WaitTimeoutError(f"{late}; Ray's nodes have {_nodes()}")
        except BaseException:
            remove_placement_group(group)
            raise
        return [(group, place) for place in range(count)]

    def _give_up(self, bundles: Sequence[_Bundle]) -> None:
        """Keep bundles for other shards, and remove groups that have no shards.

        Ray's groups can't be made smaller.
        """
        free = {*self._free, *bundles}
        used = {group for group, _ in self._bundles.values()}
        for group in {group for group, _ in free} - used:
            remove_placement_group(group)
        self._free = [bundle for bundle in free if bundle[0] in used]

    def _open_directory(self, directory: Path, bundle: _Bundle) -> manifest.Manifest:
        kept: manifest.Manifest = self._run_at(bundle, manifest.open_directory, directory)
        self._settings = replace(self._settings, directory_identity=kept.identity)
        if self._needs_first and 0 in kept.removed:
            raise ArgumentError(
                "rollout tables and weights are on shard 0, which was removed from "
                f"{directory}: give another directory"
            )
        return kept

    @property
    def _needs_first(self) -> bool:
        """Whether shard 0 has what no other has."""
        return self._settings.rollouts is not None or self._settings.weights

    def _change_manifest(self, bundle: _Bundle, change: Callable[..., None], about: object) -> None:
        settings = self._settings
        if settings.directory is not None:
            self._run_at(bundle, change, settings.directory, settings.directory_identity, about)

    def _run_at(self, bundle: _Bundle, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the node of a shard, which sees the directory if this one does not."""
        where = PlacementGroupSchedulingStrategy(*bundle)
        task = ray.remote(function).options(num_cpus=0, max_retries=3, scheduling_strategy=where)
        try:
            return ray.get(task.remote(*arguments), timeout=_TASK_PATIENCE)
        except RayTaskError as error:
            if isinstance(error.cause, EchoicError):
                raise error.cause from error
            raise
        except RayError as error:
            raise DisconnectedError(
                f"the manifest of {self.name!r} in {self._settings.directory} could not be read "
                f"or changed on the node of a shard: {error}"
            ) from error

    def _ask_registry(self, method: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(self._registry, method).remote(*arguments), timeout=_PATIENCE)
        except RayError as error:
            raise DisconnectedError(
                f"the registry of the cluster {self.name!r} did not answer {method!r} within "
                f"{_PATIENCE} s: {error}"
            ) from error

    def _start_shard(self, number: int, bundle: _Bundle) -> Any:
        options = ray.remote(Shard).options(
            name=shard_name(self.name, number),
            namespace=self.namespace,
            max_restarts=-1,
            max_concurrency=_THREADS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(*bundle),
            **actor_options(self._resources),
        )
        return options.remote(self._settings, number)

    def _wait_until_it_serves(self, number: int, shard: Any, limit: _Limit) -> None:
        try:
            ray.get(shard.report.remote(), timeout=limit.left())
        except GetTimeoutError as error:
            raise limit.late(f"shard {number} was placed and did not serve") from error
        except RayActorError as error:
            raise ArgumentError(f"shard {number} could not be made: {error}") from error

    @property
    def addresses(self) -> list[str]:
        """The addresses of the shards on the network, by number.

        A removed shard's is empty. Clients need :attr:`token`.
        """
        entries = self._state().shards
        return ["" if entry.addresses is None else entry.addresses.tcp for entry in entries]

    @property
    def token(self) -> str:
        """The secret that shards require from clients that do not come through Ray."""
        return self._settings.token

    @property
    def shards(self) -> list[int]:
        """The numbers of the shards."""
        return sorted(self._shards)

    def _state(self) -> ClusterState:
        self._check_open()
        state: ClusterState = self._ask_registry("state")
        return state

    def client(self, **options: Any) -> Client:
        """Return a client of the tables, which can be given to any task or actor.

        Args:
            **options: Options of :class:`Client`.
        """
        self._check_open()
        return Client(self.name, self.namespace, **options)

    def processes(self, timeout: float = _PATIENCE) -> dict[int, dict[str, Any]]:
        """Return the ``pid``, Ray's ``node`` and the start time of each shard.

        Waits for those that are being restarted.

        Raises:
            WaitTimeoutError: If a shard did not answer in time.
            DisconnectedError: If a shard has ended for good.
        """
        self._check_open()
        limit = _Limit(timeout)
        return {number: self._call(number, "process", limit) for number in self.shards}

    def add_shards(self, count: int = 1, *, timeout: float = 60.0) -> list[int]:
        """Start more shards; return their numbers.

        Clients learn of them within a few seconds. New items go to all shards alike; existing ones
        stay where they are. New shards use the bundles of removed ones first; the others are placed
        by the strategy among themselves.

        Raises:
            ArgumentError: If there would be more than 256, removed ones included.
            WaitTimeoutError: If Ray has no room for them. The others keep running.
        """
        self._check_open()
        _check_count(count, self._count)
        return self._start_shards(count, _Limit(timeout))

    def drain_shard(
        self, number: int, *, move: bool = True, timeout: float = 300.0
    ) -> dict[str, int]:
        """Empty a shard and remove it, while the others keep running.

        Nothing new goes there once clients have learned of it, which takes a few seconds. Its items
        are sampled until the end, with correct probabilities.

        Args:
            number: Which one. Its number is not used again, and its files are deleted. Its
                resources are kept for the next shard that is added, and returned to Ray once all
                shards that were started together are removed.
            move: Whether to move its items to the other shards. They keep their priorities and
                versions, and are new items otherwise: with other keys, and not sampled yet. If
                false, it waits until they are used up, as those of a queue are, and then moves what
                came last.
            timeout: Seconds until the call gives up. The shard is still being drained then, and a
                second call continues. If its process dies meanwhile, items may be on two shards
                afterwards.

        Returns:
            How many items of each table were moved.

        Raises:
            ArgumentError: If there is no such shard, it is the last one, or it has rollout tables
                or weights.
            WaitTimeoutError: If it was not empty in time.
            DisconnectedError: If it has ended for good.
        """
        self._check_open()
        limit = _Limit(timeout)
        if number not in self._shards:
            raise ArgumentError(f"expected one of the shards {self.shards}, got {number}")
        if len(self._shards) == 1:
            raise ArgumentError(f"can't drain shard {number}: it is the last one")
        if number == 0 and self._needs_first:
            raise ArgumentError("can't drain shard 0: it has the rollout tables and weights")
        self._ask_registry("drain", number)
        self._call(number, "drain", limit)
        if move:
            moved = self._move(number, "move_items", limit)
        else:
            moved = self._wait_until_used_up(number, limit)
        rest = self._move(number, "finish", limit, _GRACE)
        # Only then may its files be deleted.
        for other in self.shards:
            if other != number:
                self._call(other, "secure", limit)
        bundle = self._bundles[number]
        self._change_manifest(bundle, manifest.remove_shard, number)
        self._ask_registry("remove", number)
        ray.kill(self._shards.pop(number))
        if self._settings.directory is not None:
            try:
                self._run_at(bundle, manifest.clear_shard, self._settings.directory, number)
            except (EchoicError, RayError) as error:
                # The next start of the directory deletes it.
                _log.warning("the folder of removed shard %d is left: %s", number, error)
        self._give_up([self._bundles.pop(number)])
        return {name: count + rest[name] for name, count in moved.items()}

    def _move(self, number: int, how: str, limit: _Limit, *more: float) -> dict[str, int]:
        others = [
            entry.addresses
            for other, entry in enumerate(self._state().shards)
            if other != number and entry.addresses is not None and not entry.draining
        ]
        if not others:
            raise ArgumentError(f"there is no shard that the items of shard {number} could go to")
        moved: dict[str, int] = self._call(number, how, limit, others, *more, limit.left(1.0))
        return moved

    def _wait_until_used_up(self, number: int, limit: _Limit) -> dict[str, int]:
        while any((sizes := self._call(number, "sizes", limit)).values()):
            if not limit.left(0.0):
                raise WaitTimeoutError(
                    f"timed out: shard {number} still has {sizes} items after {limit.timeout} s"
                )
            time.sleep(_PAUSE)
        return dict.fromkeys(sizes, 0)

    def _call(self, number: int, method: str, limit: _Limit, *arguments: Any) -> Any:
        """Call a shard, and again if it died meanwhile and Ray restarts it."""
        while True:
            try:
                answer = getattr(self._shards[number], method).remote(*arguments)
                return ray.get(answer, timeout=limit.left())
            except GetTimeoutError as error:
                raise limit.late(f"shard {number} did not answer {method!r}") from error
            except RayActorError as error:
                if not self._is_there(number):
                    raise DisconnectedError(
                        f"shard {number} of {self.name!r} has ended, and Ray does not restart it: "
                        f"close the cluster and make it again; {error}"
                    ) from error
                if not limit.left(0.0):
                    what = f"shard {number} is being restarted and did not answer {method!r}"
                    raise WaitTimeoutError(f"{limit.late(what)}: {error}") from error
                time.sleep(_PAUSE)

    def _is_there(self, number: int) -> bool:
        """Return whether Ray has the actor of a shard, or is restarting it."""
        try:
            ray.get_actor(shard_name(self.name, number), self.namespace)
        except ValueError:
            return False
        return True

    def close(self, drain: float = 1.0) -> None:
        """Stop all shards, with a last checkpoint if they have a directory.

        After ``ray.shutdown()`` this does nothing: that stopped them, without a checkpoint.

        Args:
            drain: Seconds that clients have to deliver what they have.
        """
        if self._registry is None:
            return
        if not self._is_connected():
            self._registry = None
            return
        limit = _Limit(drain + _PATIENCE)
        closing = {number: shard.close.remote(drain) for number, shard in self._shards.items()}
        for number, ended in closing.items():
            try:
                ray.get(ended, timeout=limit.left(0.0))
            except RayError as error:
                _log.warning("shard %d of %r was not closed: %s", number, self.name, error)
        self._end_actors()

    def _end_actors(self) -> None:
        for shard in self._shards.values():
            ray.kill(shard)
        self._shards.clear()
        for group in {group for group, _ in self._bundles.values()}:
            remove_placement_group(group)
        self._bundles.clear()
        self._free.clear()
        registry, self._registry = self._registry, None
        ray.kill(registry)

    def _is_connected(self) -> bool:
        """Return whether this program is still connected to Ray as when it made the cluster."""
        return ray.is_initialized() and _session() == self._session

    def _check_open(self) -> None:
        if self._registry is None:
            raise ClosedError(f"the cluster {self.name!r} is closed")
        if not self._is_connected():
            raise ClosedError(
                f"the cluster {self.name!r} has ended with this program's connection to Ray: make "
                "it again after ray.init()"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ReplayCluster({self.name!r}, shards={self.shards})"


def _check(tables: object, num_shards: int, name: str, placement: str) -> None:
    if not callable(tables):
        raise ArgumentError(
            "tables must be a function without arguments that returns a list of echoic.Table, for "
            f"each shard makes its own, got a {type(tables).__name__}"
        )
    _check_count(num_shards, 0)
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"name must be 1 to 40 letters, digits, '-', '_' and '.', got {name!r}")
    if placement not in _PLACEMENTS:
        raise ArgumentError(f"placement must be one of {_PLACEMENTS}, got {placement!r}")


def _check_count(count: int, before: int) -> None:
    if not 1 <= count <= MAX_SHARDS - before:
        raise ArgumentError(
            f"expected 1 to {MAX_SHARDS - before} shards in addition to {before}, got {count}"
        )


def _session() -> tuple[str, str]:
    """Return what identifies this connection to Ray: its node and its job."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def _nodes() -> list[dict[str, float]]:
    """Return the resources of the nodes that are alive, without Ray's names of the nodes."""
    return [
        {
            name: amount
            for name, amount in node["Resources"].items()
            if not name.startswith(("node:", "object_store"))
        }
        for node in ray.nodes()
        if node["Alive"]
    ]
