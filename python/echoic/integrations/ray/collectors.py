"""Workers on a Ray cluster that play and insert: who starts, watches and ends them."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from echoic.client import _options as link_options
from echoic.collectors._gymnasium_process import by_value
from echoic.errors import ArgumentError, ClosedError, CollectorError, WaitTimeoutError
from echoic.integrations.ray.envs import transitions
from echoic.integrations.ray.roster import restarts_of
from echoic.integrations.ray.stream_client import StreamClient
from echoic.integrations.ray.worker import Task, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

__all__ = ["Collectors"]

# How long a worker may take to answer; one that is being started anew does not.
_PATIENCE = 2.0
_COUNTS = ("steps", "episodes", "items")
_OWN_OPTIONS = ("num_cpus", "num_gpus", "memory")


class Collectors:
    """Workers, each an actor of Ray, that step environments and insert into a table or a stream.

    Each makes a rollout of ``num_steps`` steps in its environments, makes items of it, inserts
    them, and begins the next rollout when the servers have acknowledged them. So they keep the pace
    that the table's limiter sets, or a stream's learner. A worker that dies, or whose node does, is
    started anew by Ray, there or elsewhere: its environments begin anew, draw otherwise, and the
    rollout that it was at is lost.

    Args:
        env: The id of a Gymnasium environment, or a function that makes one, without arguments;
            :func:`agent_environment` makes one for environments of agents. With ``native``, the id
            of an environment of :class:`~echoic.collectors.VectorEnv`.
        policy: ``policy(weights, observations, rng)`` returns the actions for all environments of a
            worker, or ``(actions, extras)`` with a dict of more arrays that items are to have.
            ``None`` draws from the action space.
        client: Where items go: a cluster's client, or the address of a server or several; or a
            :class:`StreamClient`.
        table: The name of the table; ``None`` for a stream.
        num_workers: How many workers there are.
        envs_per_worker: How many environments each has.
        num_steps: How many steps of each environment are inserted together.
        native: Whether the environments are native ones.
        items: What items a rollout becomes: a function that gets a dict of arrays with an axis of
            steps and one of environments, and returns a tree of arrays with one of items.
            :func:`transitions` makes one of each step, :func:`segments` one of each environment.
        weights: Where the policy's weights come from: the address of a server, or ``True`` for the
            cluster of ``client``. Workers wait for the first ones, and take the latest before each
            rollout. With ``None`` the policy gets ``None``.
        resources: What each worker takes, by the names of Ray's actor options (``num_cpus``,
            ``num_gpus``, ``memory``) or of resources of your own. One CPU at first.
        placement: Ray's scheduling strategy for them.
        seed: Of environments and policies; random when ``None``.
        max_restarts: How often Ray starts each worker anew; without an end when -1.
        timeout: For how many seconds to wait until Ray has started them.
        **options: How a server is reached that is given by its address, such as ``token``.

    Raises:
        ArgumentError: An argument makes no sense, or Ray is not initialized.
        WaitTimeoutError: Ray has not started them in time; none is left behind.
        CollectorError: One died while it was started.

    Examples:
        With a :class:`ReplayCluster`::

            with Collectors("CartPole-v1", act, cluster.client(), "replay", num_workers=8) as crew:
                while training:
                    crew.check()
                    try:
                        batch = client.sample("replay", 256, timeout=5.0)
                    except WaitTimeoutError:
                        continue
                    learn(batch)
    """

    def __init__(  # noqa: PLR0913 - one argument for each option
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
        """Start the workers; see the class."""
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
            raise ArgumentError(f"native environments have names, got {type(env).__name__} as env")
        if weights is True and not hasattr(client, "weights"):
            raise ArgumentError(
                "weights=True takes them from the client's cluster, and a "
                f"{type(client).__name__} has none: give the address of their server"
            )
        _check_target(client, table)
        link_options(**options)  # A wrong one is told where it is written.
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
        asked = dict({"num_cpus": 1} if resources is None else resources)
        named = {"num_cpus": 0.0} | {key: asked.pop(key) for key in _OWN_OPTIONS if key in asked}
        remote = ray.remote(Worker).options(
            max_restarts=max_restarts,
            # `run` goes on in each new life; its errors are no reason to begin it again.
            max_task_retries=-1,
            max_concurrency=2,
            scheduling_strategy=placement,
            resources=asked or None,
            **named,
        )
        self._closed = False
        self._workers = [remote.remote(task, number) for number in range(num_workers)]
        # The counts of each worker's earlier lives, as far as they were heard of, and what was
        # heard of it last.
        self._before = [dict.fromkeys(_COUNTS, 0) for _ in self._workers]
        self._heard: list[dict[str, Any]] = [{} for _ in self._workers]
        try:
            ray.get([worker.ready.remote() for worker in self._workers], timeout=timeout)
        except RayActorError as error:
            self._kill()
            raise CollectorError(f"a worker could not be started: {error}") from error
        except GetTimeoutError as error:
            self._kill()
            what = f"{num_workers} workers with {resources or {'num_cpus': 1}} each"
            raise WaitTimeoutError(
                f"timed out: {what} were not started within {timeout} s: {error}"
            ) from error
        except BaseException:
            self._kill()
            raise
        self._running = [worker.run.remote() for worker in self._workers]

    @property
    def restarts(self) -> int:
        """How often workers were started anew."""
        self._check_open()
        return sum(map(restarts_of, self._workers))

    def check(self) -> None:
        """Raise what a worker ended with, if one did; cheap enough for every step of a learner.

        Raises:
            CollectorError: An environment or the policy raised, with the worker's traceback; or a
                worker died and is not started anew any more.
            ClosedError: The collectors were closed, or a worker found the table closed.
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
        """Return how it goes.

        The keys are ``steps``, ``episodes`` and ``items`` (acknowledged ones), of all workers and
        lives; of a life that ended, what was heard of it last. ``mean_return`` is that of up to 100
        latest episodes of each worker, ``None`` before one has ended; ``restarts`` is how often
        workers were started anew. ``workers`` has what each says: those counts of this life,
        ``version`` of its weights, the seconds that it ``waited`` for the table, its ``pid`` and
        ``node``, by which ``doors`` it reaches the shards, and whether it is ``there``.
        """
        self._check_open()
        asked = [worker.stats.remote() for worker in self._workers]
        ray.wait(asked, num_returns=len(asked), timeout=_PATIENCE)
        for number, answer in enumerate(asked):
            self._hear(number, answer)
        means = [one["mean_return"] for one in self._heard if one.get("mean_return") is not None]
        return {
            **{
                name: sum(one.get(name, 0) for one in (*self._heard, *self._before))
                for name in _COUNTS
            },
            "mean_return": sum(means) / len(means) if means else None,
            "restarts": self.restarts,
            "workers": [dict(one) for one in self._heard],
        }

    def _hear(self, number: int, answer: Any) -> None:
        last = self._heard[number]
        try:
            told = ray.get(answer, timeout=0)
        except (RayError, GetTimeoutError):
            # It is being started anew.
            last["there"] = False
            return
        if last and (last.get("pid"), last.get("node")) != (told["pid"], told["node"]):
            for name in _COUNTS:
                self._before[number][name] += last.get(name, 0)
        self._heard[number] = {**told, "there": True}

    def close(self, timeout: float = 10.0) -> None:
        """End the workers; each delivers what it has if the table takes it.

        After ``ray.shutdown()`` there is nothing left to end.

        Args:
            timeout: After how many seconds those are killed that have not ended.
        """
        if self._closed:
            return
        if not ray.is_initialized():
            self._closed = True
            return
        deadline = time.monotonic() + timeout
        told = [worker.stop.remote() for worker in self._workers]
        with contextlib.suppress(RayError):
            ray.wait(told, num_returns=len(told), timeout=timeout)
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
        """How many workers there are."""
        return len(self._workers)

    def __enter__(self) -> Self:
        """Return the collectors."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close them."""
        self.close()

    def __repr__(self) -> str:
        """Say how many there are."""
        state = ", closed" if self._closed else ""
        return f"Collectors({len(self._workers)} workers{state})"


def _check_target(client: object, table: str | None) -> None:
    if (table is None) != isinstance(client, StreamClient):
        raise ArgumentError(
            "expected the name of a table, or a StreamClient and none, got "
            f"{type(client).__name__} as client and {table!r} as table"
        )
