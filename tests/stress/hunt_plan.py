"""What a seed stands for: a table or stream, where it is, who uses it and what happens to it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import echoic
import numpy as np
from echoic import limiters, selectors

NAME = "hunted"


@dataclass
class Plan:
    """One combination."""

    seed: int
    # "table", "stream" or "rollouts".
    target: str
    # Where the server is: "process" (this one), "shm", "tcp", "unix" (of rollouts) or, for tables,
    # "sharded" over TCP.
    reach: str
    # What items are: "rows" (a spec), "windows" (trajectories) or "typed" (trajectories, declared).
    kind: str = "rows"
    sampler: str = "uniform"
    limiter: str = "min"
    capacity: int = 0
    max_times: int = 0
    filling: int = 8
    durability: str = "none"
    # "none", "called" (by server or client) or "every" (by the Checkpointer's schedule).
    checkpoints: str = "none"
    batch: int = 8
    seconds: float = 1.0
    inserters: list[str] = field(default_factory=list)
    samplers: list[str] = field(default_factory=list)
    chores: bool = False
    deletes: bool = False
    shared_client: bool = False
    # Whether inserters make no pauses.
    eager: bool = False
    # How many client processes there are to be killed.
    victims: int = 0
    # In order, evenly over the seconds.
    events: list[str] = field(default_factory=list)
    # Whether groups of producers that die are gone on with.
    suspends: bool = False
    # Whether calls are still being made when the table is closed.
    abrupt: bool = False

    @property
    def fills_up(self) -> bool:
        """Whether the table is made full at the start, and items are evicted."""
        return self.target == "table" and self.sampler in EVICTING and self.capacity <= 8192

    @property
    def keeps_all(self) -> bool:
        """Whether no item leaves the table but by a delete, while there are not too many."""
        return self.target == "table" and self.capacity > 8192 and not self.max_times

    def __str__(self) -> str:
        """Say what is combined, on one line."""
        parts = [self.target, self.reach]
        parts += ["suspends"] * self.suspends
        if self.target == "rollouts":
            parts += [f"durability={self.durability}"] * (self.durability != "none")
        if self.target == "table":
            times = f"x{self.max_times}" if self.max_times else ""
            parts += [f"{self.kind}/{self.sampler}{times}/{self.limiter}", f"size={self.capacity}"]
            parts += [f"durability={self.durability}"] * (self.durability != "none")
        parts += [f"checkpoints={self.checkpoints}"] * (self.checkpoints != "none")
        parts.append("+".join(self.inserters + self.samplers))
        flags = ("chores", "deletes", "shared_client", "eager", "abrupt")
        parts += [name for name in flags if getattr(self, name)]
        parts += [f"victims={self.victims}"] * bool(self.victims)
        return " ".join([*parts, ">".join(self.events) or "undisturbed"])

    def example(self) -> dict[str, np.ndarray]:
        """A row, a step or a sample as all others are."""
        return {"at": np.int64(0), "filling": np.zeros(self.filling, np.uint8)}

    def table(self) -> echoic.Table:
        """Make the table."""
        if self.sampler in ("queue", "stack"):
            make = getattr(echoic.Table, self.sampler)
            return make(NAME, **self._form(), capacity=self.capacity, durability=self.durability)
        return echoic.Table(
            NAME,
            **self._form(),
            sampler=EVICTING[self.sampler],
            capacity=self.capacity,
            max_times_sampled=self.max_times or None,
            durability=self.durability,
            seed=self.seed,
        )

    def _form(self) -> dict[str, object]:
        if self.kind == "rows":
            return {"spec": self.example()}
        if self.kind == "typed":
            window = {"at": np.zeros(2, np.int64), "filling": np.zeros((2, self.filling), np.uint8)}
            return {"trajectories": window}
        return {}

    def final_limiter(self) -> limiters.Limiter | None:
        """Return the limiter that counts once the table is full, if it is another than at first."""
        if self.limiter != "ratio":
            return None
        rng = random.Random(self.seed + 1)
        per_insert = rng.choice([0.5, 1.0, 3.0])
        buffer = 2.0 * self.batch + 2 * per_insert + rng.choice([0, 10, 100])
        return limiters.SampleToInsertRatio(per_insert, self.batch, buffer)


EVICTING = {
    "uniform": selectors.Uniform(),
    "prioritized": selectors.Prioritized(0.6),
    "fifo": selectors.Fifo(),
    "max-heap": selectors.MaxHeap(),
    "epoch": selectors.Epoch(),
}


def make_plan(seed: int) -> Plan:
    """Return what the seed stands for, always the same."""
    rng = random.Random(seed)
    target = rng.random()
    if target < 0.15:
        return _stream(seed, rng)
    if target > 0.85:
        return _rollouts(seed, rng)
    return _table(seed, rng)


# What happens to rollouts.
ROLLOUT_EVENTS = (
    "kill producer",
    "kill learner",
    "kill server",
    "restart server",
    "pause",
    "checkpoint",
)


def _rollouts(seed: int, rng: random.Random) -> Plan:
    plan = Plan(seed, "rollouts", rng.choice(["unix", "shm", "tcp"]))
    plan.durability = rng.choice(["none", "async", "async"])
    plan.inserters = ["produce"] * rng.randint(1, 3)
    plan.samplers = ["learn"] * rng.randint(1, 2)
    plan.suspends = rng.random() < 0.4
    plan.events = rng.choices(ROLLOUT_EVENTS, k=rng.randint(0, 4))
    plan.seconds = rng.uniform(0.5, 1.5)
    return plan


def _stream(seed: int, rng: random.Random) -> Plan:
    plan = Plan(seed, "stream", rng.choice(["process", "shm", "tcp"]))
    plan.batch = rng.choice([1, 4, 64])
    plan.capacity = plan.batch * rng.choice([2, 4])
    plan.filling = rng.choice([8, 1000])
    plan.inserters = rng.choices(["submit", "submit_batch"], k=rng.randint(1, 3))
    plan.samplers = ["take"] * rng.randint(1, 2)
    plan.abrupt = rng.random() < 0.5
    if plan.reach != "process" and rng.random() < 0.4:
        plan.victims = 1
        plan.events = ["kill client"] * rng.randint(1, 2)
    return plan


def _table(seed: int, rng: random.Random) -> Plan:
    plan = Plan(seed, "table", rng.choices(["process", "shm", "tcp", "sharded"], [4, 3, 4, 1])[0])
    plan.kind = rng.choices(["rows", "windows", "typed"], [3, 1, 1])[0]
    plan.batch = rng.choice([1, 8, 32])
    plan.filling = rng.choice([8, 1000])
    plan.sampler = rng.choice(["queue", "stack", *EVICTING, "uniform", "prioritized"])
    if plan.sampler in ("queue", "stack"):
        plan.limiter, plan.max_times = "queue", 1
        plan.capacity = rng.choice([plan.batch, 100, 3000])
    else:
        plan.limiter = rng.choice(["min", "ratio"])
        plan.capacity = rng.choice([500, 5000, 1_000_000])
        plan.max_times = rng.choice([0, 0, 0, 3])
    if plan.reach != "sharded":
        plan.durability = rng.choice(["none", "none", "async", "sync"])
        plan.checkpoints = rng.choices(["none", "called", "every"], [1, 3, 2])[0]
    ways = ["add", "extend", "writer"] if plan.kind == "rows" else ["writer", "structured"]
    if plan.kind == "windows" and rng.random() < 0.2:
        # Items that no writer made are of another form, and can't be in a batch with others.
        ways = ["add"]
    plan.inserters = rng.choices(ways, k=rng.randint(1, 3))
    # Without a sampler an inserter depends on nobody, and hides nobody's lost wake-up.
    plan.samplers = rng.choices(["sample", "batches"], k=rng.choice([0, 1, 1, 2]))
    plan.chores = rng.random() < 0.5
    plan.deletes = plan.chores and rng.random() < 0.5
    plan.shared_client = rng.random() < 0.5
    plan.eager = plan.fills_up and plan.kind == "rows" and rng.random() < 0.7
    plan.abrupt = rng.random() < 0.5
    events = ["pause"] * (rng.random() < 0.4)
    if plan.checkpoints == "called":
        events += rng.choices(["checkpoint", "client checkpoint"], k=rng.randint(1, 4))
    if plan.reach in ("shm", "tcp"):
        if rng.random() < 0.35:
            events += ["kill server"] * rng.randint(1, 2)
        if rng.random() < 0.35:
            plan.victims = 1
            events += ["kill client"] * rng.randint(1, 2)
    rng.shuffle(events)
    plan.events = events
    plan.seconds = rng.uniform(0.5, 1.5)
    if plan.reach != "sharded" and rng.random() < 0.12:
        _squeeze(plan, rng)
    return plan


def _squeeze(plan: Plan, rng: random.Random) -> None:
    """Have inserters wait for nothing but the rows that a checkpoint withholds."""
    plan.kind, plan.filling, plan.capacity = "rows", 1000, 5000
    plan.sampler, plan.limiter, plan.max_times = rng.choice(list(EVICTING)), "min", 0
    plan.inserters, plan.samplers = ["extend"] * rng.randint(1, 2), []
    plan.eager, plan.chores, plan.deletes, plan.victims = True, False, False, 0
    plan.checkpoints = "called"
    plan.events = rng.choices(["checkpoint", "client checkpoint"], k=3)
