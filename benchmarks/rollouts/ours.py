"""Echoic's rollout tables, with the defaults of everything that is not the workload's.

A producer looks at what came of a group when it has brought [`AHEAD`] more, as the peers' producers
do.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.engine import Echoic
from benchmarks.rollouts.engine import (
    AHEAD,
    PATIENCE,
    Host,
    Learner,
    Plan,
    Producer,
    Transport,
)
from benchmarks.rollouts.groups import COLUMNS, FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.payload import Array

_TABLE = "rollouts"
# Reservations that are asked for at once.
_RESERVE = 64
_LEASE = 60.0


class EchoicRollouts(Echoic):
    """The project itself."""

    def __init__(self) -> None:
        """Have no table in this process yet."""
        self._here: dict[str, Any] = {}

    def serve(self, plan: Plan) -> Host:
        """Open a table, and a server with it unless it is for this process."""
        import echoic

        name = f"echoic-bench-{os.getpid()}-{next(_numbers)}"
        table = _table(plan)
        if plan.transport == "local":
            self._here[name] = table
            return Host(name, table.close)
        server = echoic.Server(table, listen=listen_at(plan.transport, name)).start()
        return Host(server.address, server.close)

    def produce(self, address: str, plan: Plan) -> Producer:
        """Connect with the defaults."""
        kind = Waiter if plan.calls == "waited" else Worker
        return kind(*self._reached(address, plan))

    def learn(self, address: str, plan: Plan) -> Learner:
        """Connect with the defaults."""
        return Trainer(*self._reached(address, plan))

    def crowd(self, plan: Plan, live: int) -> Crowd:
        """Open a table in this process for many small groups."""
        return Crowd(plan, live)

    def _reached(self, address: str, plan: Plan) -> tuple[Any, Any]:
        """Return a table, and what is to be closed of it."""
        from echoic import connect

        if plan.transport == "local":
            return self._here[address], lambda: None
        client = connect(address)
        return client.rollouts(_TABLE), client.close


def listen_at(transport: Transport, name: str) -> str:
    """Return an address of this machine."""
    return {
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"unix://{tempfile.gettempdir()}/{name}.sock",
        "shm": f"shm://{name}",
    }[transport]


def _table(plan: Plan) -> Any:
    from echoic.rollouts import RolloutTable

    # What is too old is delivered all the same, so that a producer which the machine leaves waiting
    # changes no number of groups.
    return RolloutTable(
        _TABLE,
        COLUMNS,
        FIELDS,
        group_size=plan.items,
        batch_groups=plan.batch_groups,
        max_lag=plan.max_lag,
        max_tokens=plan.tokens,
        on_stale="keep",
    )


class Worker:
    """A producer that holds some reservations, and brings a group with each."""

    def __init__(self, table: Any, close: Any) -> None:
        """Have no reservation yet."""
        self.close = close
        self._table = table
        self._reservations: deque[Any] = deque()
        self._ahead: deque[Any] = deque()

    def put(self, columns: Mapping[str, Array], rewards: Array) -> None:
        """Bring it with the next reservation, and look at what came of an earlier one."""
        if not self._reservations:
            self._reservations.extend(self._table.reserve_many(_RESERVE, timeout=PATIENCE))
        reservation = self._reservations.popleft()
        _add(reservation, columns, rewards, wait=False)
        self._ahead.append(reservation)
        if len(self._ahead) > AHEAD:
            self._settle(self._ahead.popleft())

    def flush(self) -> None:
        """Look at what came of all, and give reservations back."""
        while self._ahead:
            self._settle(self._ahead.popleft())
        while self._reservations:
            self._reservations.popleft().fail()

    def _settle(self, reservation: Any) -> None:
        if reservation.status != "complete":
            raise RuntimeError(f"a group was not complete but {reservation.status}")


class Waiter:
    """A producer that waits for the answer to each call: a reservation, and its group."""

    def __init__(self, table: Any, close: Any) -> None:
        """Have nothing on its way."""
        self.close = close
        self._table = table

    def put(self, columns: Mapping[str, Array], rewards: Array) -> None:
        """Reserve a group and bring it."""
        _add(self._table.reserve(timeout=PATIENCE), columns, rewards, wait=True)

    def flush(self) -> None:
        """Do nothing: all is there."""


def _add(reservation: Any, columns: Mapping[str, Array], rewards: Array, *, wait: bool) -> None:
    lengths = np.full(len(rewards), columns["ids"].shape[1])
    flat = {name: column.reshape(-1) for name, column in columns.items()}
    reservation.add_items(lengths, flat, {"reward": rewards}, wait=wait)


class Trainer:
    """The learner: every batch makes a version."""

    def __init__(self, table: Any, close: Any) -> None:
        """Have no batch yet."""
        self.close = close
        self._table = table
        self._batch: Any = None

    def take(self) -> Mapping[str, Array]:
        """Lease a batch."""
        self._batch = self._table.sample(lease=_LEASE, timeout=PATIENCE)
        return {**self._batch.columns, **self._batch.fields}

    def done(self) -> None:
        """Acknowledge it."""
        self._batch.ack()
        self._table.publish_version(self._batch.target + 1)
        self._batch = None


class Crowd:
    """A table in this process with very many groups of one short item."""

    def __init__(self, plan: Plan, live: int) -> None:
        """Open it; versions pace nobody."""
        from echoic.rollouts import RolloutTable

        self._table = RolloutTable(
            _TABLE,
            COLUMNS,
            FIELDS,
            batch_groups=plan.batch_groups,
            max_running=live,
            capacity=3 * live,
            max_lag=2 * live // plan.batch_groups,
        )
        self.close = self._table.close
        self._columns = {name: np.ones(plan.tokens, dtype) for name, dtype in COLUMNS.items()}
        self._rewards = np.ones(1, np.float32)
        self._lengths = np.full(1, plan.tokens)
        self._reservations: list[Any] = []
        self._batch: Any = None

    def fill(self, live: int) -> None:
        """Complete so many groups."""
        done = 0
        while done < live:
            self.reserve(min(1024, live - done))
            done += len(self._reservations)
            self.complete()

    def reserve(self, count: int) -> None:
        """Ask for reservations."""
        self._reservations = self._table.reserve_many(count, timeout=0)

    def complete(self) -> None:
        """Complete the groups of all reservations."""
        for reservation in self._reservations:
            reservation.add_items(self._lengths, self._columns, {"reward": self._rewards})

    def deliver(self) -> Array:
        """Lease a batch; the numbers of its groups."""
        self._batch = self._table.sample(lease=_LEASE, timeout=0)
        ids: Array = self._batch.group_ids
        return ids

    def acknowledge(self) -> None:
        """Say that the batch was used, and publish a version."""
        self._batch.ack()
        self._table.publish_version(self._batch.target + 1)
        self._batch = None

    def live(self) -> int:
        """How many groups are there."""
        stats = self._table.stats()
        return stats.running + stats.queued + stats.leased


ENGINE = EchoicRollouts()

_numbers = itertools.count()
