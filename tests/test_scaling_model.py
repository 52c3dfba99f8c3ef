"""The model of scaling: documentation follows from it, and it agrees with formulas and runs."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from echoic import Server, Table, connect

from benchmarks.scaling_model import fleet, parts, setups, simulation, tables
from benchmarks.scaling_model.costs import COMMITTED, Costs, Line, about
from benchmarks.scaling_model.predict import Job, Setup, busiest, loads, rate
from benchmarks.scaling_model.simulation import Flow, broadcast, herd
from benchmarks.usage import CALL, busy_seconds, spent, thread_seconds

MACHINES = fleet.Machines()
# How many of the committed comparisons may be off.
MOST_OFF = 3
TRANSITIONS, IMAGES, ROLLOUTS = fleet.WORKLOADS


@pytest.fixture(scope="module")
def costs() -> Costs:
    return Costs.read()


# Documentation.


def test_page_has_the_tables_of_the_model() -> None:
    text = tables.PAGE.read_text()
    assert tables.written(text) == text, "python -m benchmarks.scaling_model tables"


def test_page_has_every_table_of_the_model_once() -> None:
    text = tables.PAGE.read_text()
    names = {*tables.NAMES, *(f"shards:{workload.name}" for workload in fleet.WORKLOADS)}
    for name in names:
        assert text.count(f"<!-- model: {name} -->") == 1, name


def test_other_costs_make_other_tables(costs: Costs, tmp_path) -> None:
    kept = about(COMMITTED)
    dearer = replace(costs, insert={name: Line(1.0, 0.0) for name in costs.insert})
    path = tmp_path / "costs.json"
    dearer.write(path, machine=kept["machine"], versions=kept["versions"], checks=kept["checks"])
    text = tables.written("<!-- model: parts -->\n<!-- end of parts -->")
    assert "| an item inserted, TCP |" in text
    assert tables.written(text) == text
    assert tables.written(text, path) != text


# Predictions.


def test_committed_predictions_are_within_the_margin() -> None:
    off = {
        one["setup"]: one["measured"] / one["predicted"]
        for one in about(COMMITTED)["checks"]
        if not setups.is_within(one["measured"] / one["predicted"])
    }
    # The machine of the committed run did other work as well, which had its caches meanwhile.
    assert len(off) <= MOST_OFF, off


def test_every_setup_was_compared() -> None:
    compared = {one["setup"] for one in about(COMMITTED)["checks"]}
    assert compared == {setup.name for setup in setups.setups()}


def test_no_setup_is_a_part_that_was_measured() -> None:
    """Parts of a stream have nobody at the other end; those of tables have other sizes."""
    for setup in setups.setups():
        alone = len(setup.jobs) == 1 and setup.jobs[0].do != "send"
        assert not (alone and setup.jobs[0].nbytes in parts.RING), setup.name


def test_rate_is_that_of_the_busiest_thread_or_of_all_processors(costs: Costs) -> None:
    threads = {CALL: Line(2e-6, 0), "io_thread": Line(1e-6, 0), "event_loop": Line(1e-6, 0)}
    known = replace(costs, insert=threads, crowding=1.0, cores=2)
    one = Setup("one", "", (Job("insert", 100),))
    assert rate(known, one) == pytest.approx(1 / 2e-6)
    many = Setup("many", "", tuple(Job("insert", 100, client, share=1 / 4) for client in range(4)))
    # Calls are shared by four threads, and one listener has them all; 4 µs on two cores are most.
    assert loads(known, many)["server", 0, "event_loop"] == pytest.approx(1e-6)
    assert rate(known, many) == pytest.approx(1 / 2e-6)
    assert busiest(known, many) == "all processors"
    assert rate(known, many, processors=1.0) == pytest.approx(1 / 4e-6)


def test_costs_that_are_kept_are_read_as_they_were(costs: Costs, tmp_path) -> None:
    costs.write(tmp_path / "costs.json", machine={})
    assert Costs.read(tmp_path / "costs.json") == costs


def test_line_goes_through_both_points_and_never_below_nothing() -> None:
    line = Line.through((20, 3.0), (120, 5.0))
    assert line.at(20) == pytest.approx(3.0)
    assert line.at(120) == pytest.approx(5.0)
    assert Line.through((20, 3.0), (120, 1.0)) == Line(3.0, 0.0)


def test_time_of_threads_is_that_of_the_process() -> None:
    before, processor, machine = thread_seconds(), time.process_time(), busy_seconds()
    sum(range(3_000_000))
    used = sum(spent(before, thread_seconds()).values())
    assert used == pytest.approx(time.process_time() - processor, rel=0.2, abs=0.01)
    assert busy_seconds() >= machine


# Fleets.


def test_shards_share_what_is_inserted(costs: Costs) -> None:
    one = fleet.shard(costs, MACHINES, IMAGES, 1000, 1)
    ten = fleet.shard(costs, MACHINES, IMAGES, 1000, 10)
    for name in ("event loops", "network in", "network out", "connections"):
        assert ten[name] == pytest.approx(one[name] / 10)
    assert one["network in"] == pytest.approx(
        1000 * 15 * (28_236 + costs.wire["insert"]) / MACHINES.nic
    )


def test_only_affine_workers_are_shared_by_shards(costs: Costs) -> None:
    each = costs.connect["of_a_client"]
    assert fleet.connections(costs, 10_000, 100, affine=False) == 10_000 * each
    assert fleet.connections(costs, 10_000, 100, affine=True) == 100 * each


def test_enough_shards_are_the_fewest_that_are_comfortable(costs: Costs) -> None:
    least = fleet.enough(costs, MACHINES, IMAGES, 10_000)
    assert least is not None
    assert least > 1
    busy = [fleet.shard(costs, MACHINES, IMAGES, 10_000, shards) for shards in (least - 1, least)]
    assert fleet.worst(busy[0])[1] > fleet.COMFORT >= fleet.worst(busy[1])[1]


def test_idle_connection_has_less_memory_than_was_aimed_at(costs: Costs) -> None:
    assert 0 < costs.idle["table"] < 32 << 10
    assert 0 < costs.idle["stream"] < 32 << 10


# The simulation.


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_queue_of_ten_thousand_workers_waits_as_long_as_the_formula_says(load: float) -> None:
    service, workers = 50e-6, 10_000
    seen = Flow(workers, rate=load / service / workers, service=service).run(2.0)
    assert seen.loops == pytest.approx(load, rel=0.05)
    assert seen.waits == pytest.approx(service * load / (2 * (1 - load)), rel=0.15)
    assert seen.percentile(0.99) > seen.percentile(0.5) >= service
    assert seen.held == 0


def test_stations_are_as_busy_as_what_they_serve_takes() -> None:
    seen = Flow(1000, rate=10, service=40e-6, loops=2, transfer=20e-6).run(2.0)
    assert seen.network == pytest.approx(10_000 * 20e-6, rel=0.05)
    assert seen.loops == pytest.approx(10_000 * 40e-6 / 2, rel=0.05)


def test_limiter_holds_workers_and_lets_no_queue_grow() -> None:
    workers, window = 1000, 2
    slow = Flow(workers, rate=20, service=1e-6, learner=5000, ahead=100, window=window).run(2.0)
    # 20,000 a second would come; the learner lets 5,000 in.
    assert slow.stored == pytest.approx(100 + 2 * 5000, rel=0.02)
    assert 0.5 < slow.held < 0.9
    assert slow.longest <= workers * window


def test_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[float]:
        return Flow(50, rate=20, service=1e-3, seed=seed).run(0.5).delays

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_simulated_clients_and_transports_have_the_settings_of_the_real_ones() -> None:
    source = Path(__file__).resolve().parents[1] / "crates" / "net" / "src"
    reconnector = (source / "client" / "reconnector.rs").read_text()
    assert (
        f"FIRST_BACKOFF: Duration = Duration::from_millis({simulation.FIRST_PAUSE * 1e3:.0f})"
        in reconnector
    )
    assert (
        f"LAST_BACKOFF: Duration = Duration::from_secs({simulation.LAST_PAUSE:.0f})" in reconnector
    )
    assert f"ATTEMPT: Duration = Duration::from_secs({simulation.ATTEMPT:.0f})" in reconnector
    transports = (source / "transport" / "mod.rs").read_text()
    assert f"BACKLOG: i32 = {simulation.BACKLOG};" in transports


def test_ten_thousand_clients_are_back_within_seconds_because_their_pauses_differ() -> None:
    options = {"connect": 130e-6, "loops": 4, "away": 1.0}
    crowd = herd(10_000, **options)
    assert len(crowd.times) == 10_000
    assert crowd.times[-1] < 1.5
    assert crowd.dropped == crowd.given_up == 0
    alike = herd(10_000, jitter=False, **options)
    assert alike.most_at_once > 10 * crowd.most_at_once
    assert alike.dropped > 0
    assert alike.times[-1] > 2 * crowd.times[-1]
    short = herd(10_000, jitter=False, backlog=1024, **options)
    assert short.times[-1] > alike.times[-1]


def test_crowd_takes_at_least_as_long_as_its_handshakes() -> None:
    crowd = herd(2000, connect=1e-3, loops=2, away=0.0)
    assert crowd.times[-1] >= 2000 * 1e-3 / 2


@pytest.mark.parametrize(("fan", "depth"), [(2, 3), (3, 2), (5, 1)])
def test_last_of_a_full_tree_has_weights_after_all_copies_on_its_way(fan: int, depth: int) -> None:
    followers = sum(fan**level for level in range(1, depth + 1))
    last = broadcast(followers, fan=fan, first=2.0, later=3.0)
    assert last == pytest.approx(fan * 2.0 + (depth - 1) * fan * 3.0)


def test_tree_is_faster_than_a_learner_that_sends_to_all() -> None:
    hosts = fleet.hosts(ROLLOUTS, 10**5)
    direct = fleet.direct_seconds(MACHINES, ROLLOUTS.weights, hosts)
    fan, depth, tree = fleet.relay(MACHINES, ROLLOUTS.weights, hosts)
    assert tree < direct / 10
    assert depth <= math.ceil(math.log(hosts, fan)) + 1


def test_clients_come_back_to_a_real_server_as_soon_as_in_the_simulation(costs: Costs) -> None:
    count, away = 24, 0.5
    example = {"reward": np.float32(0)}

    def serve(port: int) -> Server:
        table = Table("replay", example, capacity=1000)
        return Server(table, listen=f"tcp://127.0.0.1:{port}").start()

    server = serve(0)
    port = int(server.address.rpartition(":")[2])
    clients = [connect(f"tcp://127.0.0.1:{port}") for _ in range(count)]
    for client in clients:
        client.table("replay").add(example)
        client.flush()
    server.close()
    time.sleep(away)
    server = serve(port)
    back = time.monotonic()
    for client in clients:
        client.table("replay").add(example)
        client.flush(timeout=30)
    took = time.monotonic() - back
    for client in clients:
        client.close()
    server.close()
    each = round(costs.connect["of_a_client"])
    crowd = herd(count * each, connect=costs.connect["server"], loops=1, away=away)
    # The clock of a busy machine may add a second or two, and no retransmission adds more.
    assert took < crowd.times[-1] + 3
