"""The suite of replay tables measures a naive table, and refuses one that is wrong in any way.

The table is of numpy arrays in this process; no test here looks at a speed.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks.content import ContentError
from benchmarks.peers import PEERS, Peer, environment
from benchmarks.tables import probes, sessions
from benchmarks.tables.draws import Draws
from benchmarks.tables.engine import EXPONENT, Plan, TableServer
from benchmarks.tables.items import Items
from benchmarks.tables.suite import workloads
from benchmarks.timing import UnavailableError, interleave

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Naive:
    """A table of lists, which is engine, server and client in one; ``fault`` spoils it."""

    fault: str = ""
    plan: Plan = field(default_factory=lambda: Plan("transition", 1))
    rows: list[Any] = field(default_factory=list)
    priorities: list[float] = field(default_factory=list)
    first: int = 0

    def serve(self, plan: Plan) -> TableServer:
        self.plan = plan
        return TableServer("", lambda: self, self.close)

    def dial(self, _address: str, plan: Plan) -> Naive:
        self.plan, self.rows, self.priorities, self.first = plan, [], [], 0
        return self

    def insert(self, tree: Any, priority: float) -> None:
        assert priority == 1.0
        if self.fault == "loses an item" and len(self.rows) == 7:
            self.fault = "has lost an item"
            return
        if len(self.rows) == self.plan.capacity:
            del self.rows[0], self.priorities[0]
            self.first += 1
        self.rows.append(tree)
        self.priorities.append(1.0)

    def append(self, tree: Any) -> None:
        self.insert(tree, 1.0)

    def fill(self, columns: Any) -> None:
        for row in zip(*columns.values(), strict=True):
            self.append(dict(zip(columns, row, strict=True)))

    def flush(self) -> None:
        pass

    def sample(self, size: int) -> Any:
        priorities = np.array(self.priorities)
        weights = priorities ** (EXPONENT if self.plan.sampler == "prioritized" else 0)
        probabilities = weights / weights.sum()
        generator = np.random.default_rng(
            len(self.rows) if self.fault == "repeats itself" else None
        )
        index = generator.choice(len(self.rows), size, p=probabilities)
        data = {
            name: np.stack([self.rows[i][name] for i in index])[:, None] for name in self.rows[0]
        }
        if self.fault == "a flipped bit":
            next(reversed(data.values()))[-1:].reshape(-1).view(np.uint8)[-1] ^= 1
        if self.fault == "a short batch":
            data = {name: column[:-1] for name, column in data.items()}
        info = SimpleNamespace(
            probabilities=probabilities[index]
            * (1.001 if self.fault == "a wrong probability" else 1),
            priorities=priorities[index],
            table_size=len(self.rows),
        )
        keys = (index + self.first).astype(np.uint64) + np.uint64(1 << 63)
        return SimpleNamespace(data=data, keys=keys, info=info)

    def batches(self, size: int) -> Iterator[Any]:
        return (self.sample(size) for _ in itertools.count())

    def update(self, keys: Any, priorities: Any) -> None:
        if self.fault == "forgets updates":
            return
        for key, priority in zip(keys, priorities, strict=True):
            self.priorities[int(key - np.uint64(1 << 63)) - self.first] = float(priority)

    post = update

    def close(self) -> None:
        pass


@contextlib.contextmanager
def naive_server(_engine: Any, _plan: Plan) -> Iterator[Any]:
    sizes = itertools.count(1)
    yield SimpleNamespace(
        address="", usage=lambda: {"cpu": 0.0, "peak": 1.0, "resident": next(sizes) << 20}
    )


NAMES = [workload.name for workload in workloads(quick=True)]


def measured(monkeypatch: pytest.MonkeyPatch, name: str, engine: Naive) -> Any:
    monkeypatch.setattr(sessions, "ServerProcess", naive_server)
    (workload,) = [workload for workload in workloads(quick=True) if workload.name == name]
    return interleave({"naive": lambda: workload.session(engine)}, repeats=1)


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_measures_a_table_that_is_right(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (value,) = measured(monkeypatch, name, Naive()).values("naive")
    assert value > 0


@pytest.mark.parametrize(
    ("fault", "spoils"),
    [
        ("loses an item", NAMES),
        ("a flipped bit", NAMES),
        ("a short batch", NAMES),
        ("a wrong probability", [name for name in NAMES if "sample" in name or "prior" in name]),
        ("repeats itself", ["sampler_small_tcp", "sample_small_tcp", "sample_small_local"]),
        (
            "forgets updates",
            ["update_priorities_tcp", "post_priorities_tcp", "prioritized_small_local"],
        ),
    ],
)
def test_a_table_that_is_wrong_gives_no_number(
    monkeypatch: pytest.MonkeyPatch, fault: str, spoils: list[str]
) -> None:
    for name in spoils:
        with pytest.raises(ContentError):
            measured(monkeypatch, name, Naive(fault))


@pytest.mark.parametrize(("kind", "nbytes"), [("transition", 48), ("frame", 28_224)])
def test_items_tell_the_number_of_each_row(kind: str, nbytes: int) -> None:
    items = Items(kind)
    numbers = np.array([0, 5, 99_999, 62, 61])
    columns = items.columns(numbers)
    assert items.nbytes == nbytes
    assert np.array_equal(items.check(columns, 5), numbers)
    timed = {name: column[:, None] for name, column in columns.items()}
    assert np.array_equal(items.check(timed, 5), numbers)


@pytest.mark.parametrize("kind", ["transition", "frame"])
def test_items_name_the_column_and_row_of_one_changed_bit(kind: str) -> None:
    items = Items(kind)
    for name in items.example:
        columns = items.columns(np.arange(20))
        columns[name][17:18].reshape(-1).view(np.uint8)[-1] ^= 1
        with pytest.raises(ContentError, match=r"column \w+, row 17: "):
            items.check(columns, 20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda columns: columns.pop("obs"), "expected the columns"),
        (lambda columns: columns.update(obs=columns["obs"][:-1]), "column obs: expected 9 rows"),
        (lambda columns: columns.update(obs=columns["obs"].astype("f8")), "got .* float64"),
    ],
)
def test_items_refuse_another_form(change: Any, message: str) -> None:
    items = Items("transition")
    columns = items.columns(np.arange(9))
    change(columns)
    with pytest.raises(ContentError, match=message):
        items.check(columns, 9)


def test_a_sampler_that_prefers_new_items_is_not_uniform() -> None:
    items, size = Items("transition"), 1000
    draws = Draws(items, size)
    numbers = np.random.default_rng(1).integers(100, size, 4096)
    info = SimpleNamespace(table_size=size, probabilities=np.full(4096, 1 / size))
    draws.check(SimpleNamespace(data=items.columns(numbers), info=info), 4096)
    with pytest.raises(ContentError, match="not uniform"):
        draws.check_distribution()


def test_bounds_check_what_they_move() -> None:
    with probes.gather(Items("transition"), rows=999, batch=64, seconds=0.01) as measure:
        result = measure()
        assert result.value > 0
        assert result.extras.keys() == {"columns_us", "indices_us"}
    with probes.round_trips(request=100, reply=3000, seconds=0.02, scale=256) as measure:
        assert measure().value > 0
        # The count of requests goes on in the next repeat.
        assert measure().value > 0


def test_a_peer_without_a_python_that_it_supports_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path / "envs")
    monkeypatch.setenv("PATH", str(tmp_path))
    peer = Peer("old", "1.0", "module", ("tables",), pythons=("2.6",))
    with pytest.raises(UnavailableError, match=r"old==1.0 does not install: no Python .*: 2.6"):
        environment.interpreter(peer)


def test_every_peer_of_the_suite_is_the_one_of_the_targets() -> None:
    peers = {peer.name for peer in PEERS if "tables" in peer.kinds}
    asked = {target.peer for work in workloads(quick=True) for target in work.targets}
    assert asked - {None} <= peers
