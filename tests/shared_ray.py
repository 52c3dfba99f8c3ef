"""One Ray for all tests that need one, as a plugin of pytest.

To start nodes takes half a minute of processor time, so the modules whose names begin with
`test_ray_` share the nodes of the fixture `ray_nodes`. What a test makes there has a name that no
other test uses. A test that adds or removes nodes asks for `changing_nodes`, and one that begins a
Ray itself for `no_shared_ray`.

The nodes end after the last test of these modules, and not with the run: Ray leaves sockets and
files to the garbage collector, and in other modules such a warning fails a test. pytest-xdist with
`--dist loadfile` gives all these modules to one process.
"""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Ray's processes find the modules of these tests, whose environments and functions they use, and
# what those import.
FOLDER = Path(__file__).with_name("integrations")
# What tests may count on: so many nodes beside the head, with so many CPUs each.
NODES, CPUS = 2, 3


def shares_ray(nodeid: str) -> bool:
    """Return whether a test is in one of the modules that share a Ray."""
    return Path(nodeid.partition("::")[0]).name.startswith("test_ray_")


class SharedNodes:
    """Two nodes of Ray with three CPUs each, and a head where only this program is."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        self._plain: list[Any] = []

    @property
    def address(self) -> str:
        """Where other programs reach this Ray."""
        return str(self._cluster.address)

    @property
    def workers(self) -> list[Any]:
        """The nodes beside the head."""
        return list(self._cluster.worker_nodes)

    def begin(self) -> None:
        """Start the nodes, and connect this program."""
        import ray

        # Its processes cost as much as those of a test: nobody reads logs here, or adds machines.
        self.add(num_cpus=0, include_dashboard=False, include_log_monitor=False, no_monitor=True)
        self.restore()
        ray.init(address=self.address, namespace="tests", log_to_driver=False)

    def add(self, **settings: Any) -> Any:
        """Start a node, and return it."""
        # Ray gives a node thirty seconds, and a busy machine may need more.
        for _ in range(2):
            try:
                return self._cluster.add_node(**settings)
            except Exception:  # the last attempt raises
                continue
        return self._cluster.add_node(**settings)

    def add_plain(self) -> None:
        """Start a node like those that tests count on."""
        self._plain.append(self.add(num_cpus=CPUS))

    def remove(self, node: Any) -> None:
        """End a node as a failure of its machine would."""
        self._cluster.remove_node(node, allow_graceful=False)

    def restore(self) -> None:
        """Have the nodes that tests count on, and no others."""
        there = self.workers
        self._plain = [node for node in self._plain if node in there]
        for node in [node for node in there if node not in self._plain[:NODES]]:
            self.remove(node)
        for _ in range(len(self._plain), NODES):
            self.add_plain()

    def end(self) -> None:
        """Disconnect this program, and end the nodes."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


class SharedRay:
    """Keeps the nodes from the first test that asks for them until the last one that may."""

    def __init__(self) -> None:
        self._nodes: SharedNodes | None = None
        self._settings = pytest.MonkeyPatch()

    def nodes(self) -> SharedNodes:
        """Return the nodes, started if they are not there."""
        if self._nodes is None:
            # Ray's processes get the environment of the one that starts them.
            folders = f"{FOLDER}{os.pathsep}{FOLDER.parent}"
            self._settings.setenv("PYTHONPATH", folders, prepend=os.pathsep)
            # Nothing is sent to anybody about their use.
            self._settings.setenv("RAY_USAGE_STATS_ENABLED", "0")
            # A busy machine needs longer to start Ray's agents than a node waits for them.
            self._settings.setenv("RAY_agent_register_timeout_ms", "120000")
            self._nodes = SharedNodes()
            try:
                self._nodes.begin()
            except BaseException:
                self.end()
                raise
        return self._nodes

    def end(self) -> None:
        """End the nodes, if they are there."""
        nodes, self._nodes = self._nodes, None
        if nodes is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                nodes.end()
                gc.collect()
        self._settings.undo()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        try:
            # Fixtures come first, which may need Ray.
            return (yield)
        finally:
            if shares_ray(item.nodeid) and not (nextitem and shares_ray(nextitem.nodeid)):
                self.end()


@pytest.fixture(scope="session")
def shared_ray(pytestconfig: pytest.Config) -> SharedRay:
    """What keeps the nodes."""
    found = pytestconfig.pluginmanager.get_plugin("shared-ray")
    assert isinstance(found, SharedRay)
    return found


@pytest.fixture(scope="module")
def ray_nodes(shared_ray: SharedRay) -> SharedNodes:
    """The nodes of Ray that tests share."""
    pytest.importorskip("ray")
    return shared_ray.nodes()


@pytest.fixture
def changing_nodes(ray_nodes: SharedNodes) -> Iterator[SharedNodes]:
    """The nodes, for a test that adds and removes some: those that others count on come back."""
    yield ray_nodes
    ray_nodes.restore()


@pytest.fixture
def no_shared_ray(shared_ray: SharedRay) -> None:
    """No nodes, for a test that begins a Ray of its own in this process."""
    shared_ray.end()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SharedRay(), "shared-ray")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have one process of pytest-xdist run all modules that share a Ray."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "ray" if shares_ray(nodeid) else str(super()._split_scope(nodeid))

    return Scheduling(config, log)
