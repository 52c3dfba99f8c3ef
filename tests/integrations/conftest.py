"""A batch of answers to prompts, in every form; and nodes of Ray on this machine."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from echoic.rollouts import RolloutTable
from rollout_answers import COLUMNS, FIELDS, add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echoic.rollouts import RolloutBatch


@pytest.fixture(autouse=True)
def own_ctrl_c() -> Iterator[None]:
    """Ray's Train and Tune take Ctrl-C for themselves and do not give it back to later tests."""
    ours = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, ours)


@pytest.fixture
def table() -> Iterator[RolloutTable]:
    """A table of groups of two, two in a batch."""
    with RolloutTable("math", COLUMNS, FIELDS, group_size=2, batch_groups=2, max_tokens=8) as table:
        yield table


@pytest.fixture(params=["flat", "padded", "left", "packed"])
def batch(request: pytest.FixtureRequest, table: RolloutTable) -> RolloutBatch:
    """The four answers; what adapters make of them does not depend on the form."""
    add(table, [0, 1])
    add(table, [2, 3])
    if request.param == "packed":
        return table.sample(form="packed", width=8)
    is_left = request.param == "left"
    return table.sample(form="padded" if is_left else request.param, left=is_left)


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[Any]:
    """Two nodes of Ray with three CPUs each, and a head where only this program is.

    They have ``add_node`` and ``remove_node``. Nothing is sent to anybody about their use.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A busy machine needs longer to start Ray's agents than a node waits for them.
    os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - where there is Ray

    nodes = Cluster()

    def start(**settings: Any) -> None:
        # Ray gives a node thirty seconds, and a busy machine may need more.
        for attempt in range(3):
            try:
                nodes.add_node(**settings)
            except Exception:
                if attempt == 2:
                    raise
            else:
                return

    try:
        start(num_cpus=0, include_dashboard=False)
        for _ in range(2):
            start(num_cpus=3)
        ray.init(address=nodes.address, namespace="tests", log_to_driver=False)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
