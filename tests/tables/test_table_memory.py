"""Memory: what small items take, and that nothing grows with time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
from echoic import selectors
from echoic._native import allocation_count

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(110)

MakeTable = Callable[..., echoic.Table]

ITEM = {"action": np.int64(0), "obs": np.zeros(8, np.float32), "reward": 0.0}
ITEM_BYTES = 48
ITEMS = 1_000_000

# In a process of its own: only there is the memory all the table's.
FILL = f"""
import numpy as np, echoic, gc
from echoic import Table, selectors

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def table(capacity):
    item = {{"obs": np.zeros(8, np.float32), "action": np.int64(0), "reward": 0.0}}
    sampler = selectors.Prioritized(0.6)
    return Table("t", item, sampler=sampler, remover=selectors.Fifo(), capacity=capacity, seed=1)

rows = {{
    "obs": np.ones((1000, 8), np.float32),
    "action": np.arange(1000),
    "reward": np.ones(1000),
}}
priorities = np.linspace(0.1, 2, 1000)

def use(table, items):
    for number in range(items // 1000):
        table.extend(rows, priorities)
        if number % 10 == 0:
            batch = table.sample(256)
            table.update_priorities(batch.keys, batch.info.priorities + 0.1)

use(table(5_000), 10_000)
before = resident()
full = table({ITEMS})
assert full.spec.nbytes == {ITEM_BYTES}
use(full, {ITEMS})
filled = resident()
use(full, {ITEMS} // 2)
print(filled - before, resident() - filled, full.stats().size, full.stats().memory_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_small_items_take_little_more_than_their_bytes(run_script: Callable[..., Any]) -> None:
    ended = run_script(FILL)
    assert ended.returncode == 0, ended.stderr
    taken, later, size, rows = map(int, ended.stdout.split())
    assert size == ITEMS
    assert taken >= ITEMS * ITEM_BYTES
    assert taken <= ITEMS * (1.15 * ITEM_BYTES + 64), f"{taken / ITEMS:.0f} bytes an item"
    # Items that come and go when it is full are free, but for the rows in between.
    assert later <= 0.01 * taken, f"{later} bytes more"
    assert ITEMS * ITEM_BYTES <= rows <= 1.01 * ITEMS * ITEM_BYTES


# Steps of 48 bytes, and an item of each: appended here, or by a process that connects.
APPENDED = 200_000
APPEND = f"""
import subprocess, sys
import numpy as np, echoic, gc

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def append(client, items):
    step = {{"obs": np.zeros(8, np.float32), "action": np.int64(0), "reward": 0.0}}
    with client.trajectory_writer(num_keep_alive_refs=256) as writer:
        for _ in range(items):
            writer.append(step)
            writer.create_item("t", 1.0)

if len(sys.argv) > 2:
    with echoic.connect(sys.argv[1]) as client:
        append(client, int(sys.argv[2]))
    sys.exit()

table = echoic.Table("t", capacity=1_000_000)
with echoic.Server(table, listen="tcp://127.0.0.1:0") as server:
    def fill(items):
        if sys.argv[1] == "here":
            append(echoic.connect(server), items)
        else:
            address = server.address
            subprocess.run([sys.executable, __file__, address, str(items)], check=True)

    fill(20_000)
    before = resident()
    fill({APPENDED})
    print(resident() - before, table.stats().size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_small_items_of_a_writer_share_all_but_where_they_begin(tmp_path: Path, where: str) -> None:
    script = tmp_path / "append.py"
    script.write_text(APPEND)
    command = [sys.executable, str(script), where]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    taken, size = map(int, ended.stdout.split())
    assert size == APPENDED + 20_000
    assert taken <= 130 * APPENDED, f"{taken / APPENDED:.0f} bytes an item"


def rounds(table: echoic.Table, item: Any, count: int) -> int:
    """Allocations of Rust in rounds of all that learners and actors do."""
    before = allocation_count()
    for _ in range(count):
        for _ in range(4):
            table.add(item, priority=2.0)
        batch = table.sample(16)
        table.update_priorities(batch.keys, batch.info.priorities)
        table.remove(batch.keys[:1])
    return allocation_count() - before


@pytest.mark.parametrize("with_spec", [True, False], ids=["spec", "any form"])
def test_every_round_allocates_as_little_as_the_first(
    make_table: MakeTable, selector: selectors.Selector, with_spec: bool
) -> None:
    spec = ITEM if with_spec else None
    table = make_table(spec, sampler=selector, remover=selector, capacity=50)
    rounds(table, ITEM, 200)
    first = rounds(table, ITEM, 300)
    # A vector may grow once more, and a thread that an earlier test has left may allocate. What
    # grew with the number of rounds would show a hundredfold, in each of them.
    assert min(rounds(table, ITEM, 300) for _ in range(3)) <= first + 10


def test_inserting_into_a_full_table_hardly_allocates(make_table: MakeTable) -> None:
    table = make_table(ITEM, sampler=selectors.Prioritized(), capacity=10_000)
    for _ in range(11_000):
        table.add(ITEM)
    before = allocation_count()
    for _ in range(5_000):
        table.add(ITEM)
    # Lists of the rows that went, one list for hundreds of them.
    assert allocation_count() - before <= 250


def test_appending_steps_and_items_of_them_hardly_allocates(make_table: MakeTable) -> None:
    table = make_table(None, capacity=5_000)
    writer = echoic.TrajectoryWriter([table], num_keep_alive_refs=256)
    counts = []
    for _ in range(3):
        before = allocation_count()
        for _ in range(5_000):
            writer.append(ITEM)
            writer.create_item(table.name, 1.0)
            writer.create_item(table.name, 1.0, last=1)
        counts.append(allocation_count() - before)
    # A few for each chunk, and for the items that name it: none for most items.
    assert min(counts) <= 5_000 * 0.2
