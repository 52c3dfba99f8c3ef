"""Run workers on a Ray cluster that step environments and insert the experience."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from echoic._links import link_options
from echoic.collectors._gymnasium_worker import by_value
from echoic.errors import ArgumentError, ClosedError, CollectorError, WaitTimeoutError
from echoic.integrations.ray.cluster import actor_options
from echoic.integrations.ray.envs import transitions
from echoic.integrations.ray.registry import restarts_of
from echoic.integrations.ray.stream_client import StreamClient
from echoic.integrations.ray.worker import Task, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

__all__ = ["Collectors"]

# Seconds that a worker may take to answer; one that is being restarted does not.
_PATIENCE = 2.0
_COUNTS = ("steps", "episodes", "items")


class Collectors:
    """Workers, each an actor of Ray, that step environments and insert into a table or a stream.

    Each makes a rollout of ``num_steps`` steps in its environments, makes items of it, inserts
    them, and begins the next rollout when the servers have acknowledged them. So the table's
    limiter, or a stream's learner, sets their pace. If a worker or its node dies, Ray restarts it,
    there or elsewhere: its environments start again with other random numbers, and its unfinished
    rollout is lost.

    Args:
        env: The id of a Gymnasium environment, or a function that makes one, without arguments;
            :func:`agent_environment` makes one for environments of agents. With ``native``, the id
            of an environment of :class:`~echoic.collectors.VectorEnv`.
        policy: ``policy(weights, observations, rng)`` returns the actions for all environments of a
            worker, or ``(actions, extras)`` with a dict of more arrays to put into items. ``None``
            draws from the action space.
        client: Where items go: a cluster's client, or the address of a server or several; or a
            :class:`StreamClient`.
        table: The name of the table; ``None`` for a stream.
        num_workers: How many workers there are.
        envs_per_worker: How many environments each has.
        num_steps: How many steps of each environment are inserted together.
        native: Whether the environments are native ones.
        items: Makes the items of a rollout: a function that gets a dict of arrays with an axis of
            steps and one of environments, and returns a tree of arrays with one of items.
            :func:`transitions` makes one of each step, :func:`segments` one of each environment.
        weights: The source of the policy's weights: the address of a server, or ``True`` for the
            cluster of ``client``. Workers wait for the first ones, and take the latest before each
            rollout. With ``None`` the policy gets ``None``.
        resources: What each worker needs, by the names of Ray's actor options (``num_cpus``,
            ``num_gpus``, ``memory``) or of resources of your own. By default one CPU.
        placement: Ray's scheduling strategy for them.
        seed: Seed of environments and policies; random if ``None``.
        max_restarts: How many times Ray restarts each worker; -1 means without limit.
        timeout: Seconds to wait until Ray has started them.
        **options: Options of the connection to an address, such as ``token``.

    Raises:
        ArgumentError: If an argument is invalid, or Ray is not initialized.
        WaitTimeoutError: If Ray has not started them in time; none is left running.
        CollectorError: If one died while it was starting.

    Examples:
        With a :class:`ReplayCluster`::

            with Collectors("CartPole-v1", act, cluster.client(), "replay", num_workers=8) as crew:
                while training:
                    crew.check()
                    try:
                        batch = replay.sample(256, timeout=5.0)
                    except WaitTimeoutError:
                        continue
                    learn(batch)
    """

    def __init__(
        self,
        env: str | Callable[[], Any],
        policy: Callable[[Any, Any, Any], Any] | None,
        client: Any,
        table: str | None = None,
        *,
        num_workers: int = 2,
        envs_per_worker: int = 1,
        num_steps: int = 64,
        native: bool = False,
        items: Callable[[dict[str, Any]], Any] = transitions,
        weights: str | bool | None = None,
        resources: Mapping[str, float] | None = None,
        placement: Any = "SPREAD",
        seed: int | None = None,
        max_restarts: int = -1,
        timeout: float = 60.0,
        **options: Any,
    ) -> None:
        counts = {
            "num_workers": num_workers,
            "envs_per_worker": envs_per_worker,
            "num_steps": num_steps,
        }
        for name, count in counts.items():
            if count < 1:
                raise ArgumentError(f"{name} must be at least 1, got {count}")
        if max_restarts < -1:
            raise ArgumentError(f"max_restarts must be at least 0, or -1, got {max_restarts}")
        if native and not isinstance(env, str):
            raise ArgumentError(f"env: expected the name of a native one, got {type(env).__name__}")
        if weights is True and not hasattr(client, "weights"):
            raise ArgumentError(
                "weights=True takes them from the client's cluster, and a "
                f"{type(client).__name__} has none: give the address of their server"
            )
        if (table is None) != isinstance(client, StreamClient):
            raise ArgumentError(
                "expected the name of a table, or a StreamClient and none, got "
                f"{type(client).__name__} as client and {table!r} as table"
            )
        link_options(**options)  # Report a wrong one here, not in the workers.
        if not ray.is_initialized():
            raise ArgumentError("Collectors are actors of Ray: call ray.init() first")
        task = Task(
            env=by_value(env),
            policy=by_value(policy),
            items=by_value(items),
            client=client,
            table=table,
            weights=weights or False,
            envs=envs_per_worker,
            steps=num_steps,
            native=native,
            seed=secrets.randbits(64) if seed is None else seed,
            options=options,
        )
        resources = {"num_cpus": 1} if resources is None else resources
        remote = ray.remote(Worker).options(
            max_restarts=max_restarts,
            # `run` is called again after a restart; its errors are no reason for another call.
            max_task_retries=-1,
            max_concurrency=2,
            scheduling_strategy=placement,
            **actor_options(resources),
        )
        self._closed = False
        self._workers = [remote.remote(task, number) for number in range(num_workers)]
        # The counts of each worker's earlier processes, as last reported, and its last report.
        self._before = [dict.fromkeys(_COUNTS, 0) for _ in self._workers]
        self._reports: list[dict[str, Any]] = [{} for _ in self._workers]
        try:
            ray.get([worker.ready.remote() for worker in self._workers], timeout=timeout)
        except BaseException as error:
            self._kill()
            if isinstance(error, RayActorError):
                raise CollectorError(f"a worker could not be started: {error}") from error
            if not isinstance(error, GetTimeoutError):
                raise
            what = f"{num_workers} workers with {resources} each"
            raise WaitTimeoutError(
                f"timed out: {what} were not started within {timeout} s: {error}"
            ) from error
        self._running = [worker.run.remote() for worker in self._workers]

    @property
    def restarts(self) -> int:
        """The number of restarts of workers."""
        self._check_open()
        return sum(map(restarts_of, self._workers))

    def check(self) -> None:
        """Raise the error that ended a worker, if any; cheap enough for every step of a learner.

        Raises:
            CollectorError: If an environment or the policy raised, with the worker's traceback; or
                a worker died and is not restarted.
            ClosedError: If the collectors were closed, or a worker found the table closed.
        """
        self._check_open()
        ended, _ = ray.wait(self._running, num_returns=1, timeout=0)
        if not ended:
            return
        number = self._running.index(ended[0])
        try:
            ray.get(ended[0])
        except RayTaskError as error:
            raise CollectorError(f"worker {number} failed:\n{error}") from error
        except RayError as error:
            raise CollectorError(f"worker {number} is gone for good: {error}") from error
        raise ClosedError(f"worker {number} found the table closed, and has ended")

    def stats(self) -> dict[str, Any]:
        """Return the numbers of all workers.

        The keys are ``steps``, ``episodes`` and ``items`` (acknowledged ones), of all workers and
        their earlier processes, as last reported. ``mean_return`` is that of up to 100 latest
        episodes of each worker, ``None`` before one has ended; ``restarts`` is how many times
        workers were restarted. ``workers`` has the report of each: those counts for its present
        process, ``version`` of its weights, the seconds that it ``waited`` for the table, its
        ``pid`` and ``node``, the ``transports`` by which it reaches the shards, and whether it is
        ``there``.
        """
        self._check_open()
        asked = [worker.stats.remote() for worker in self._workers]
        ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE)
        for number, answer in enumerate(asked):
            self._hear(number, answer)
        means = [one["mean_return"] for one in self._reports if one.get("mean_return") is not None]
        return {
            **{
                name: sum(one.get(name, 0) for one in (*self._reports, *self._before))
                for name in _COUNTS
            },
            "mean_return": sum(means) / len(means) if means else None,
            "restarts": self.restarts,
            "workers": [dict(one) for one in self._reports],
        }

    def _hear(self, number: int, answer: Any) -> None:
        last = self._reports[number]
        try:
            report = ray.get(answer, timeout=0)
        except (RayError, GetTimeoutError):
            # It is being restarted.
            last["there"] = False
            return
        if last and (last.get("pid"), last.get("node")) != (report["pid"], report["node"]):
            for name in _COUNTS:
                self._before[number][name] += last.get(name, 0)
        self._reports[number] = {**report, "there": True}

    def close(self, timeout: float = 10.0) -> None:
        """Stop the workers; each delivers what it has if the table accepts it.

        After ``ray.shutdown()`` this does nothing.

        Args:
            timeout: Seconds after which workers that have not stopped are killed.
        """
        if self._closed:
            return
        if not ray.is_initialized():
            self._closed = True
            return
        deadline = time.monotonic() + timeout
        stopped = [worker.stop.remote() for worker in self._workers]
        with contextlib.suppress(RayError):
            ray.wait(stopped, num_returns=len(stopped), timeout=timeout)
            left = max(0.0, deadline - time.monotonic())
            ray.wait(self._running, num_returns=len(self._running), timeout=left)
        self._kill()

    def _kill(self) -> None:
        self._closed = True
        for worker in self._workers:
            ray.kill(worker)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the collectors are closed")

    def __len__(self) -> int:
        return len(self._workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Collectors({len(self._workers)} workers{state})"
