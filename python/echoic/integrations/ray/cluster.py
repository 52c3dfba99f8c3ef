"""A cluster of shards on Ray: who starts them, adds some, empties one, and ends them all."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from echoic.errors import ArgumentError, ClosedError, WaitTimeoutError
from echoic.integrations.ray.client import Client
from echoic.integrations.ray.roster import MAX_SHARDS, Roster, Sheet, shard_name
from echoic.integrations.ray.shard import Shard, ShardSettings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

    from echoic.rollouts import RolloutTable
    from echoic.table import Table

__all__ = ["ReplayCluster"]

_PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
# It is part of the name of a socket's file, which may be 108 bytes long.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
# Ray's own names of what its actors ask for, and what bundles of a placement group call it.
_BUNDLE = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
# A shard answers where it is while it moves items or writes a checkpoint.
_THREADS = 8
# For how many seconds a shard that ends lets clients hear that what they sent has arrived.
_GRACE = 1.0
_PAUSE = 0.2
# How long the roster and the shards may take to answer what costs nothing.
_PATIENCE = 30.0


class ReplayCluster:
    """Tables on several servers, which are actors of Ray: it places them and starts them anew.

    Each shard is a native server in an actor of its own, to which clients connect directly: no
    sample goes through Ray. A shard whose process or node dies is started anew by Ray, on the same
    node or another; with a ``directory`` it has its items again.

    Args:
        tables: Makes the tables of one shard, a list of :class:`~echoic.Table`; it is called in
            each, and again in each of their lives. What size it gives them is that of one shard.
        num_shards: How many servers, 256 at most.
        name: How clients find the cluster. Letters, digits, ``-``, ``_`` and ``.``.
        namespace: Ray's namespace that the name is in; that of this program when ``None``.
        resources: What each shard takes, by the names of Ray's actor options (``num_cpus``,
            ``num_gpus``, ``memory``) or of resources of your own. One CPU at first.
        placement: Ray's strategy: ``"SPREAD"`` over nodes as far as possible, ``"STRICT_SPREAD"``
            on a node each, or ``"PACK"`` and ``"STRICT_PACK"`` on few or one.
        directory: Where the shards keep checkpoints and journals, in a folder each. For shards that
            may come back on other nodes, it must be one that all nodes see. Without one, a shard
            that is started anew is empty.
        checkpoint_every: Seconds between two checkpoints of a shard; only :meth:`close` and
            ``client.checkpoint()`` make them when ``None``.
        rollouts: Makes rollout tables, given the folder where they may keep themselves or ``None``.
            They are on shard 0, for each has one ledger.
        weights: Whether shard 0 has weights, which learners publish through ``client.weights()``.
        threads: How many event loops each door of a shard has; half the cores, at most 4, when
            ``None``.
        timeout: For how many seconds to wait until Ray has placed the shards and they serve.

    Raises:
        ArgumentError: An argument makes no sense, Ray is not initialized, or a shard could not be
            made; the message has why.
        WaitTimeoutError: Ray has no place for the shards; the message has what was asked for and
            what the nodes have. Nothing is left behind.

    Examples:
        A cluster lives as long as this object, or as the program that made it::

            ray.init()
            with ReplayCluster(make_tables, num_shards=4, directory="/shared/replay") as cluster:
                client = cluster.client()
                ray.get([work.remote(client) for _ in range(100)])
    """

    def __init__(  # noqa: PLR0913 - one argument for each option
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
        """Place and start the shards, and wait until they serve; see the class."""
        _check(tables, num_shards, name, placement)
        if not ray.is_initialized():
            raise ArgumentError("a ReplayCluster is on Ray: call ray.init() first")
        self._name = name
        self._namespace: str = namespace or ray.get_runtime_context().namespace
        self._resources = dict({"num_cpus": 1} if resources is None else resources)
        self._placement = placement
        self._settings = ShardSettings(
            name=name,
            namespace=self._namespace,
            identity=secrets.token_hex(4),
            token=secrets.token_hex(16),
            tables=tables,
            directory=None if directory is None else Path(directory).absolute(),
            checkpoint_every=checkpoint_every,
            rollouts=rollouts,
            weights=weights,
            threads=threads,
        )
        # By number; of one that was removed, nothing.
        self._shards: dict[int, Any] = {}
        self._groups: list[Any] = []
        self._count = 0
        self._roster = self._start_roster()
        try:
            self._start_shards(num_shards, timeout)
        except BaseException:
            self._end_actors()
            raise

    def _start_roster(self) -> Any:
        # It dies with the node of this program if it can, and then nobody misses it.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        options = ray.remote(Roster).options(
            name=self._name,
            namespace=self._namespace,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=3,
            scheduling_strategy=here,
        )
        try:
            return options.remote(self._name, self._namespace, self._settings.token)
        except ValueError as error:
            raise ArgumentError(
                f"expected a name that is free, got {self._name!r}: {error}"
            ) from error

    def _start_shards(self, count: int, timeout: float) -> list[int]:
        """Place and start so many more shards; their numbers."""
        deadline = time.monotonic() + timeout
        bundle = {_BUNDLE.get(name, name): amount for name, amount in self._resources.items()}
        group = placement_group([bundle] * count, strategy=self._placement)
        self._groups.append(group)
        started: dict[int, Any] = {}
        try:
            if not group.wait(timeout):
                raise WaitTimeoutError(  # noqa: TRY301 - the place is given up below
                    f"timed out: {count} shards with {self._resources} each could not be placed "
                    f"with {self._placement!r} within {timeout} s; Ray's nodes have {_nodes()}"
                )
            for place in range(count):
                number = self._count + place
                started[number] = self._start_shard(number, group, place)
            self._wait_until_they_serve(started, deadline, timeout)
            there = [*self._shards, *started]
            ray.get(self._roster.grow.remote(self._count + count, there), timeout=_PATIENCE)
        except BaseException:
            for shard in started.values():
                ray.kill(shard)
            self._groups.remove(group)
            remove_placement_group(group)
            raise
        self._count += count
        self._shards.update(started)
        return list(started)

    def _start_shard(self, number: int, group: Any, place: int) -> Any:
        resources = dict(self._resources)
        named = {key: resources.pop(key) for key in _BUNDLE if key in resources}
        return (
            ray.remote(Shard)
            .options(
                name=shard_name(self._name, number),
                namespace=self._namespace,
                max_restarts=-1,
                max_concurrency=_THREADS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, place),
                **{"num_cpus": 0, **named},
                resources=resources or None,
            )
            .remote(self._settings, number)
        )

    def _wait_until_they_serve(
        self, shards: Mapping[int, Any], deadline: float, timeout: float
    ) -> None:
        for number, shard in shards.items():
            left = max(0.1, deadline - time.monotonic())
            try:
                ray.get(shard.tell.remote(), timeout=left)
            except GetTimeoutError as error:
                raise WaitTimeoutError(
                    f"timed out: shard {number} was placed and did not serve within {timeout} s"
                ) from error
            except RayActorError as error:
                raise ArgumentError(f"shard {number} could not be made: {error}") from error

    @property
    def name(self) -> str:
        """How clients find it."""
        return self._name

    @property
    def namespace(self) -> str:
        """The namespace of Ray that the name is in."""
        return self._namespace

    @property
    def addresses(self) -> list[str]:
        """Where the shards are on the network, in the order of their numbers.

        It is empty of one that was removed. :attr:`token` is what they ask for.
        """
        entries = self._sheet().shards
        return ["" if entry.doors is None else entry.doors.tcp for entry in entries]

    @property
    def token(self) -> str:
        """What shards ask clients for that do not come through Ray."""
        return self._settings.token

    @property
    def shards(self) -> list[int]:
        """The numbers of the shards that there are."""
        return sorted(self._shards)

    def _sheet(self) -> Sheet:
        self._check_open()
        sheet: Sheet = ray.get(self._roster.state.remote(), timeout=_PATIENCE)
        return sheet

    def client(self, **options: Any) -> Client:
        """Return a client of the tables, which can be given to any task or actor.

        Args:
            **options: Those of :class:`Client`.
        """
        self._check_open()
        return Client(self._name, self._namespace, **options)

    def processes(self, timeout: float = _PATIENCE) -> dict[int, dict[str, Any]]:
        """Return the ``pid``, the ``node`` of Ray and the time of the start of each shard.

        It waits for those that are being started anew.
        """
        self._check_open()
        deadline = time.monotonic() + timeout
        return {number: self._call(number, "process", deadline, timeout) for number in self.shards}

    def add_shards(self, count: int = 1, *, timeout: float = 60.0) -> list[int]:
        """Start more shards; returns their numbers.

        Clients hear of them within a few seconds. New items go to all alike; those that are there
        stay where they are. The new ones are placed by the strategy among themselves.

        Raises:
            ArgumentError: There would be more than 256, removed ones included.
            WaitTimeoutError: Ray has no place for them. The others go on.
        """
        self._check_open()
        _check_count(count, self._count)
        return self._start_shards(count, timeout)

    def drain_shard(
        self, number: int, *, move: bool = True, timeout: float = 300.0
    ) -> dict[str, int]:
        """Empty a shard and remove it, while others go on.

        From now on nothing new goes there, as soon as clients have heard of it, which takes a few
        seconds. What is there is sampled until the end, with true probabilities.

        Args:
            number: Which one. Its number is not used again.
            move: Whether to move its items to the other shards, with their priorities and versions
                and as new items otherwise: with other keys, and not sampled yet. Else it waits
                until they are used up, as those of a queue are, before it moves what came last.
            timeout: Seconds until it is given up. The shard is still being emptied then, and a
                second call goes on. If its process dies while it is emptied, items may be at two
                shards afterwards.

        Returns:
            How many items of each table were moved.

        Raises:
            ArgumentError: There is no such shard, it is the last one, or it has rollout tables or
                weights.
            WaitTimeoutError: It was not empty in time.
        """
        self._check_open()
        deadline = time.monotonic() + timeout
        self._check_drain(number)
        ray.get(self._roster.drain.remote(number), timeout=_PATIENCE)
        self._call(number, "drain", deadline, timeout)
        if move:
            moved = self._move(number, "move_items", deadline, timeout)
        else:
            moved = self._wait_until_used_up(number, deadline, timeout)
        rest = self._move(number, "finish", deadline, timeout, _GRACE)
        ray.get(self._roster.remove.remote(number), timeout=_PATIENCE)
        ray.kill(self._shards.pop(number))
        return {name: count + rest[name] for name, count in moved.items()}

    def _check_drain(self, number: int) -> None:
        if number not in self._shards:
            raise ArgumentError(f"expected one of the shards {self.shards}, got {number}")
        if len(self._shards) == 1:
            raise ArgumentError(f"shard {number} is the last one")
        if number == 0 and (self._settings.rollouts is not None or self._settings.weights):
            raise ArgumentError("shard 0 has the rollout tables and weights, which are on no other")

    def _move(
        self, number: int, how: str, deadline: float, timeout: float, *more: float
    ) -> dict[str, int]:
        others = self._others(number)
        if not others:
            raise ArgumentError(f"there is no shard that the items of shard {number} could go to")
        left = max(1.0, deadline - time.monotonic())
        moved: dict[str, int] = self._call(number, how, deadline, timeout, others, *more, left)
        return moved

    def _wait_until_used_up(self, number: int, deadline: float, timeout: float) -> dict[str, int]:
        while any((sizes := self._call(number, "sizes", deadline, timeout)).values()):
            if time.monotonic() >= deadline:
                raise WaitTimeoutError(
                    f"timed out: shard {number} still has {sizes} items after {timeout} s"
                )
            time.sleep(_PAUSE)
        return dict.fromkeys(sizes, 0)

    def _others(self, number: int) -> list[Any]:
        entries = self._sheet().shards
        return [
            entry.doors
            for other, entry in enumerate(entries)
            if other != number and entry.doors is not None and not entry.draining
        ]

    def _call(
        self, number: int, method: str, deadline: float, timeout: float, *arguments: Any
    ) -> Any:
        """Call a shard, again when it died meanwhile: Ray starts it anew."""
        while True:
            left = max(0.1, deadline - time.monotonic())
            try:
                answer = getattr(self._shards[number], method).remote(*arguments)
                return ray.get(answer, timeout=left)
            except GetTimeoutError as error:
                raise WaitTimeoutError(
                    f"timed out: shard {number} did not answer {method!r} within {timeout} s"
                ) from error
            except RayActorError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE)

    def close(self, drain: float = 1.0) -> None:
        """End all shards, with a last checkpoint if they have a directory.

        Args:
            drain: For how many seconds clients may go on to deliver what they have.
        """
        if self._roster is None:
            return
        deadline = time.monotonic() + drain + _PATIENCE
        with contextlib.suppress(RayError):
            ray.wait(
                [shard.close.remote(drain) for shard in self._shards.values()],
                num_returns=len(self._shards),
                timeout=deadline - time.monotonic(),
            )
        self._end_actors()

    def _end_actors(self) -> None:
        for shard in self._shards.values():
            ray.kill(shard)
        self._shards.clear()
        for group in self._groups:
            remove_placement_group(group)
        self._groups.clear()
        roster, self._roster = self._roster, None
        ray.kill(roster)

    def _check_open(self) -> None:
        if self._roster is None:
            raise ClosedError(f"the cluster {self._name!r} is closed")

    def __enter__(self) -> Self:
        """Return the cluster."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the cluster."""
        self.close()

    def __repr__(self) -> str:
        """Name it, and say how many shards it has."""
        return f"ReplayCluster({self._name!r}, shards={self.shards})"


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
            f"expected 1 to {MAX_SHARDS - before} shards beside {before}, got {count}"
        )


def _nodes() -> list[dict[str, float]]:
    """What the nodes that are alive have, without Ray's names of the nodes themselves."""
    return [
        {
            name: amount
            for name, amount in node["Resources"].items()
            if not name.startswith(("node:", "object_store"))
        }
        for node in ray.nodes()
        if node["Alive"]
    ]
