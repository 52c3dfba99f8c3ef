"""The loops of `echoic.rl` as its guide has them, and the agents that wait for admission.

The learner is a `Run`, so table and server are in its process. Nothing is tuned: a producer goes
through `worker.groups` with `for` or `async for`, and writes each item by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.engine import Echoic
from benchmarks.rollouts.engine import PATIENCE, Host, Learner, Plan, Sender
from benchmarks.rollouts.groups import COLUMNS, FIELDS
from benchmarks.rollouts.ours import listen_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.payload import Array
    from benchmarks.rollouts.groups import Groups

# Agents of one process that wait for admission at the same time.
AGENTS = 256


class EchoicRuns(Echoic):
    """The project itself."""

    # Its table is in the learner's process.
    by_learner = True

    def serve(self, plan: Plan) -> Host:
        """Open a run."""
        import echoic.rl

        self._run = echoic.rl.Run(
            COLUMNS,
            FIELDS,
            listen=listen_at(plan.transport, f"echoic-run-{os.getpid()}-{next(_numbers)}"),
            group=plan.items,
            batch=plan.batch_groups,
            max_lag=plan.max_lag,
            max_tokens=plan.tokens,
            # As in `benchmarks.rollouts.ours`.
            on_stale="keep",
        )
        return Host(self._run.address, self._run.close)

    def produce(self, address: str, plan: Plan) -> Sender:
        """Join with the defaults."""
        kinds = {"loop": Loop, "async": AsyncLoop, "agents": Agents, "threads": Threads}
        return kinds[plan.calls](address)

    def learn(self, _address: str, _plan: Plan) -> Learner:
        """Learn from the run of this process."""
        return Trainer(self._run)


class Trainer:
    """The learner: every batch makes a version."""

    def __init__(self, run: Any) -> None:
        """Have no batch yet."""
        self._run = run
        self._batches: Any = run.batches(timeout=PATIENCE)

    def take(self) -> Mapping[str, Array]:
        """Get the next batch, which acknowledges the one before."""
        batch = next(self._batches)
        return {**batch.columns, **batch.fields}

    def done(self) -> None:
        """Publish a version; its weights would go another way."""
        self._run.publish()

    def close(self) -> None:
        """Leave the loop, as its end does."""
        self._batches = None


class Loop:
    """A producer that waits in a `for` loop."""

    def __init__(self, address: str) -> None:
        """Join the run."""
        import echoic.rl

        self._worker = echoic.rl.join(address)
        self.close = self._worker.close

    def send(self, groups: Groups, first: int, count: int) -> None:
        """Go through the groups."""
        serials = range(first, first + count)
        for group in self._worker.groups(serials):
            with group:
                _write(group, groups, group.prompt)
        self._worker.flush()


class AsyncLoop(Loop):
    """A producer that waits in an `async for` loop, of a loop of asyncio that stays."""

    def __init__(self, address: str) -> None:
        """Join the run."""
        super().__init__(address)
        self._runner = asyncio.Runner() if hasattr(asyncio, "Runner") else None

    def send(self, groups: Groups, first: int, count: int) -> None:
        """Go through the groups."""
        sending = self._send(groups, range(first, first + count))
        if self._runner is None:
            asyncio.run(sending)
        else:
            self._runner.run(sending)

    async def _send(self, groups: Groups, serials: range) -> None:
        async for group in self._worker.groups(serials):
            async with group:
                _write(group, groups, group.prompt)
        await self._worker.aflush()


class Agents(AsyncLoop):
    """Agents that are tasks of one loop, and wait for a group each."""

    async def _send(self, groups: Groups, serials: range) -> None:
        left = iter(serials)
        await asyncio.gather(*(self._act(groups, left) for _ in range(AGENTS)))
        await self._worker.aflush()

    async def _act(self, groups: Groups, left: Iterable[int]) -> None:
        for serial in left:
            async with self._worker.group(serial) as group:
                _write(group, groups, serial)


class Threads:
    """The same agents as threads, which the calls of the table itself hold up."""

    def __init__(self, address: str) -> None:
        """Connect, once for all of them."""
        from echoic import connect

        self._client = connect(address)
        self._table = self._client.rollouts()
        self._threads = ThreadPoolExecutor(AGENTS)

    def send(self, groups: Groups, first: int, count: int) -> None:
        """Have the threads make the groups."""
        left = iter(range(first, first + count))
        for agent in [self._threads.submit(self._act, groups, left) for _ in range(AGENTS)]:
            agent.result()
        self._table.flush()

    def _act(self, groups: Groups, left: Iterable[int]) -> None:
        lengths = np.full(groups.items, groups.tokens)
        for serial in left:
            flat = {name: column.reshape(-1) for name, column in groups.entry(serial).items()}
            reservation = self._table.reserve(timeout=PATIENCE)
            reservation.add_items(lengths, flat, {"reward": groups.rewards(serial)}, wait=False)

    def close(self) -> None:
        """Leave."""
        self._threads.shutdown()
        self._client.close()


def _write(group: Any, groups: Groups, serial: int) -> None:
    for item, columns in zip(group, groups.rows(serial), strict=True):
        item.write(**columns)
        item.done(reward=serial)


ENGINE = EchoicRuns()

_numbers = itertools.count()
