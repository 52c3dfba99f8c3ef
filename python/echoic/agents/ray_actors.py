"""Workers of a training run as actors of Ray."""

from __future__ import annotations

import importlib
import secrets
from typing import TYPE_CHECKING, Any

from echoic.errors import ArgumentError, CollectorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from echoic import Server

__all__ = ["RayActors"]


class RayActors:
    """Workers on the nodes of Ray, which restarts them when they die.

    They reach the server by shared memory on this machine, and by TCP from the others. If no Ray
    is running here, one is started, and shut down by :meth:`close`.

    Args:
        server: Server of the run.
        work: Function at the top of a module. Each actor calls it with its task, the server's
            address and token, and the number of times that it was restarted before.
        tasks: One for each actor.
        max_restarts: How often each may be restarted.
    """

    def __init__(
        self,
        server: Server,
        work: Callable[[Any, str, str, int], None],
        tasks: Iterable[Any],
        max_restarts: int,
    ) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ArgumentError('backend="ray" needs Ray: pip install "echoic[ray]"') from error
        self._ray = ray
        self._started = not ray.is_initialized()
        self._actors: list[Any] = []
        self._running: list[Any] = []
        if self._started:
            ray.init(include_dashboard=False, log_to_driver=False)
        try:
            from echoic.integrations.ray.addresses import open_transports

            name, token = f"agents-{secrets.token_hex(8)}", secrets.token_hex(16)
            addresses = open_transports(server, name, token=token, threads=None, before=None)
            # Two threads: one works, the other answers Ray meanwhile.
            remote = ray.remote(
                num_cpus=1,
                max_restarts=max_restarts,
                max_task_retries=-1,
                max_concurrency=2,
                scheduling_strategy="SPREAD",
            )(_Actor)
            for task in tasks:
                self._actors.append(remote.remote())
                self._running.append(self._actors[-1].work.remote(work, task, addresses, token))
        except BaseException:
            self.close()
            raise

    @property
    def restarts(self) -> int:
        """How many restarts there were."""
        from echoic.integrations.ray.registry import restarts_of

        return sum(map(restarts_of, self._actors))

    def check(self) -> None:
        """Raise the error of a worker that ended.

        Raises:
            CollectorError: If one did.
        """
        ended, _ = self._ray.wait(self._running, num_returns=1, timeout=0)
        if not ended:
            return
        try:
            self._ray.get(ended)
        except self._ray.exceptions.RayError as error:
            raise CollectorError(f"a worker of Ray failed: {error}") from error
        raise CollectorError("a worker of Ray ended by itself")

    def close(self) -> None:
        """End all workers."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()


class _Actor:
    def work(
        self, work: Callable[[Any, str, str, int], None], task: Any, addresses: Any, token: str
    ) -> None:
        from echoic.integrations.ray.addresses import nearest
        from echoic.integrations.ray.registry import own_restarts

        work(task, nearest(addresses, token), token, own_restarts())
