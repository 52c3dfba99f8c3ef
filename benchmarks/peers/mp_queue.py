"""A `multiprocessing.Queue` of groups, each a dict of arrays.

This is what a team without a framework writes. Its feeder thread pickles a group, a pipe carries
it, and the learner stacks the arrays of a batch itself, as the others give it one array for each
column. It bounds how many groups wait, knows no versions and leases nothing: what a learner that
dies had taken is lost.

Its users get it as an argument of a process that they start. Those of the suite are started
otherwise, so they get it from a file, pickled as it would be for them.
"""

from __future__ import annotations

import multiprocessing
import pickle
import queue as queues
import secrets
import shutil
import tempfile
from multiprocessing import context, reduction, resource_sharer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.rollouts.engine import PATIENCE, Host, Learner, Plan, Producer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.payload import Array


class MpQueue:
    """The peer."""

    name = "mp.Queue"

    def serve(self, plan: Plan) -> Host:
        """Make the queue, and a file of it for each producer and for the learner."""
        word = secrets.token_bytes(32)
        multiprocessing.current_process().authkey = word
        queue = multiprocessing.get_context("spawn").Queue(plan.room)
        folder = Path(tempfile.mkdtemp(prefix="mp-queue-"))
        (folder / "word").write_bytes(word)
        for number in range(plan.producers + 1):
            context.set_spawning_popen(_Handed())
            try:
                (folder / f"{number}.queue").write_bytes(reduction.ForkingPickler.dumps(queue))
            finally:
                context.set_spawning_popen(None)

        def close() -> None:
            queue.close()
            shutil.rmtree(folder)

        return Host(str(folder), close)

    def produce(self, address: str, _plan: Plan) -> Producer:
        """Take a file of the queue."""
        return Sender(_taken(address))

    def learn(self, address: str, plan: Plan) -> Learner:
        """Take a file of the queue."""
        return Taker(_taken(address), plan.batch_groups)


class _Handed:
    """Has descriptors of what is pickled handed over by a socket."""

    DupFd = staticmethod(resource_sharer.DupFd)

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor


def _taken(address: str) -> Any:
    folder = Path(address)
    multiprocessing.current_process().authkey = (folder / "word").read_bytes()
    file = min(folder.glob("*.queue"))
    queue = pickle.loads(file.read_bytes())
    file.unlink()
    return queue


class Sender:
    """A producer."""

    def __init__(self, queue: Any) -> None:
        """Have the queue."""
        self._queue = queue

    def put(self, columns: Mapping[str, Array], rewards: Array) -> None:
        """Queue the group."""
        self._queue.put({**columns, "reward": rewards})

    def flush(self) -> None:
        """Do nothing: the feeder sends what there is, and the learner counts it."""

    def close(self) -> None:
        """Leave, without what no learner wants."""
        self._queue.cancel_join_thread()
        self._queue.close()


class Taker:
    """The learner."""

    def __init__(self, queue: Any, batch: int) -> None:
        """Have the queue."""
        self._queue, self._batch = queue, batch
        self.close = queue.close

    def take(self) -> Mapping[str, Array]:
        """Get a batch's groups, and stack them."""
        try:
            groups = [self._queue.get(timeout=PATIENCE) for _ in range(self._batch)]
        except queues.Empty as error:
            raise TimeoutError(f"no batch within {PATIENCE:.0f} s") from error
        return {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}

    def done(self) -> None:
        """Do nothing: a group is gone when it is taken."""


ENGINE = MpQueue()
