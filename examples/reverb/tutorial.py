"""What Reverb's tutorial shows, section by section, each with a server of its own.

Run ``python -m examples.reverb.tutorial`` from the root of the project. Every function is a
section; what it prints is what it then insists on.
"""

from __future__ import annotations

import threading

import echoic.reverb as reverb
import numpy as np

OBSERVATION = reverb.TensorSpec((10, 10), np.uint8)
ACTION = reverb.TensorSpec((2,), np.float32)
RNG = np.random.default_rng(0)


def environment_step() -> np.ndarray:
    """Stand in for an environment: any picture."""
    return RNG.integers(256, size=OBSERVATION.shape, dtype=np.uint8)


def agent_step() -> np.ndarray:
    """Stand in for a policy: any of four actions."""
    return RNG.integers(2, size=ACTION.shape).astype(np.float32)


def prioritized(name: str, min_size: int, signature: object = None) -> reverb.Table:
    """Make the table that most sections have."""
    return reverb.Table(
        name=name,
        sampler=reverb.selectors.Prioritized(priority_exponent=0.8),
        remover=reverb.selectors.Fifo(),
        max_size=1_000_000,
        rate_limiter=reverb.rate_limiters.MinSize(min_size),
        signature=signature,
    )


def sizes(client: reverb.Client) -> dict[str, int]:
    """How many items are in each table."""
    return {name: info.current_size for name, info in client.server_info().items()}


def overlapping_trajectories() -> None:
    """Items of three steps, one beginning at each step, sampled as a dataset in batches of two."""
    signature = {
        # An item is three steps, hence the first axis.
        "actions": reverb.TensorSpec((3, *ACTION.shape), ACTION.dtype),
        "observations": reverb.TensorSpec((3, *OBSERVATION.shape), OBSERVATION.dtype),
    }
    server = reverb.Server([prioritized("my_table", 2, signature)], port=None)
    client = reverb.Client(f"localhost:{server.port}")
    pictures = []
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for step in range(4):
            pictures.append(environment_step())
            writer.append({"action": agent_step(), "observation": pictures[-1]})
            if step >= 2:
                writer.create_item(
                    table="my_table",
                    priority=1.5,
                    trajectory={
                        "actions": writer.history["action"][-3:],
                        "observations": writer.history["observation"][-3:],
                    },
                )

    dataset = reverb.TrajectoryDataset.from_table_signature(
        server_address=f"localhost:{server.port}",
        table="my_table",
        max_in_flight_samples_per_worker=10,
    )
    [batch] = dataset.batch(2).take(1).as_numpy_iterator()
    print(f"observations {batch.data['observations'].shape}, actions {batch.data['actions'].shape}")
    assert batch.info.key.shape == batch.info.probability.shape == (2,)
    assert batch.data["actions"].dtype == np.float32
    for item in batch.data["observations"]:
        begins_with = [(item[0] == picture).all() for picture in pictures]
        start = begins_with.index(True)
        assert start in {0, 1}
        np.testing.assert_array_equal(item, pictures[start : start + 3])
    # Equal priorities are equal probabilities.
    np.testing.assert_allclose(batch.info.probability, 0.5)
    server.stop()


def complete_episodes() -> None:
    """Each item is an episode, with one observation more than it has actions."""
    length, episodes = 15, 10
    signature = {
        "actions": reverb.TensorSpec((length, *ACTION.shape), ACTION.dtype),
        "observations": reverb.TensorSpec((length + 1, *OBSERVATION.shape), OBSERVATION.dtype),
    }
    server = reverb.Server([prioritized("my_table", 2, signature)])
    client = reverb.Client(f"localhost:{server.port}")
    with client.trajectory_writer(num_keep_alive_refs=length + 1) as writer:
        for _ in range(episodes):
            for _ in range(length):
                writer.append({"action": agent_step(), "observation": environment_step()})
            # Nothing is done at the last observation: the column of actions has a gap there, which
            # an item must leave out.
            writer.append({"observation": environment_step()})
            writer.create_item(
                table="my_table",
                priority=1.5,
                trajectory={
                    "actions": writer.history["action"][:-1],
                    "observations": writer.history["observation"][:],
                },
            )
            # Waits for the item, and forgets the steps.
            writer.end_episode(timeout_ms=10_000)
            assert len(writer.history["action"]) == len(writer.history["observation"]) == 0
    assert sizes(client) == {"my_table": episodes}

    dataset = reverb.TrajectoryDataset.from_table_signature(
        server_address=f"localhost:{server.port}",
        table="my_table",
        max_in_flight_samples_per_worker=10,
        rate_limiter_timeout_ms=1_000,
    )
    [batch] = dataset.batch(32).take(1).as_numpy_iterator()
    print(f"observations {batch.data['observations'].shape}, actions {batch.data['actions'].shape}")
    assert batch.data["observations"].shape == (32, length + 1, 10, 10)
    assert batch.data["actions"].shape == (32, length, 2)
    server.stop()


def variable_lengths() -> None:
    """Lengths that differ from item to item are a ``None`` in the signature."""
    server = reverb.Server(
        [
            reverb.Table(
                name="my_table",
                sampler=reverb.selectors.Fifo(),
                remover=reverb.selectors.Fifo(),
                max_size=10,
                max_times_sampled=1,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature={"x": reverb.TensorSpec((None,), np.int64)},
            )
        ]
    )
    client = server.localhost_client()
    with client.trajectory_writer(num_keep_alive_refs=5) as writer:
        for length in (2, 5, 3):
            for step in range(length):
                writer.append({"x": np.int64(step)})
            writer.create_item("my_table", 1.0, {"x": writer.history["x"][:]})
            writer.end_episode()

    # Items of several lengths do not stack: a dataset of them gives one at a time.
    dataset = reverb.TrajectoryDataset.from_table_signature(
        server_address=f"localhost:{server.port}",
        table="my_table",
        max_in_flight_samples_per_worker=1,
        # More than one would race, and with that mix up the order of a queue.
        num_workers_per_iterator=1,
        max_samples=3,
    )
    items = [sample.data["x"].tolist() for sample in dataset.as_numpy_iterator()]
    print(f"lengths {[len(item) for item in items]}")
    assert items == [[0, 1], [0, 1, 2, 3, 4], [0, 1, 2]]
    # Each was sampled as often as the table allows.
    assert sizes(client) == {"my_table": 0}
    server.stop()


def tables_that_share_steps() -> None:
    """Pairs go into one table and triples into another; each step is sent and stored once."""
    server = reverb.Server([prioritized("triples", 1), prioritized("pairs", 1)])
    client = reverb.Client(f"localhost:{server.port}")
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for step in range(4):
            writer.append({"picture": environment_step()})
            picture = writer.history["picture"]
            if step >= 1:
                writer.create_item("pairs", priority=4 - step, trajectory=picture[-2:])
            if step >= 2:
                writer.create_item("triples", priority=4 - step, trajectory=picture[-3:])
    print(f"items {sizes(client)}")
    assert sizes(client) == {"pairs": 3, "triples": 2}
    [triple] = client.sample("triples", emit_timesteps=False)
    assert triple.data[0].shape == (3, 10, 10)
    # Of one step each; the list has as many as the item.
    [pair] = client.sample("pairs")
    assert [step.data[0].shape for step in pair] == [(10, 10)] * 2
    assert pair[0].info.key == pair[1].info.key
    server.stop()


def prioritized_replay() -> None:
    """The learner says what an item is worth from now on, or that it is worth nothing."""
    server = reverb.Server([prioritized("my_table", 1)])
    client = reverb.Client(f"localhost:{server.port}")
    for name, priority in enumerate([1.0, 4.0, 2.0]):
        client.insert([np.int64(name)], {"my_table": priority})

    seen = {
        int(sample.data[0][0]): sample.info
        for sample in client.sample("my_table", 200, emit_timesteps=False)
    }
    weights = np.array([1.0, 4.0, 2.0]) ** 0.8
    for name, info in sorted(seen.items()):
        print(f"item {name} of priority {info.priority}: probability {info.probability:.3f}")
        np.testing.assert_allclose(info.probability, weights[name] / weights.sum(), rtol=1e-6)
    assert len(seen) == 3

    # A key that is not there is no mistake: the item may just have been evicted.
    client.mutate_priorities(
        "my_table", updates={seen[0].key: 0.0, seen[2].key: 5.0, 12345: 1.0}, deletes=[seen[1].key]
    )
    for sample in client.sample("my_table", 20, emit_timesteps=False):
        assert sample.data[0][0] == 2
        assert sample.info.priority == 5
        assert sample.info.probability == 1
    assert sizes(client) == {"my_table": 2}
    server.stop()


def best_first() -> None:
    """Heaps as sampler and remover: the best item comes first, the worst one goes first."""
    server = reverb.Server(
        [
            reverb.Table(
                name="my_priority_queue",
                sampler=reverb.selectors.MaxHeap(),
                remover=reverb.selectors.MinHeap(),
                max_size=3,
                max_times_sampled=1,
                rate_limiter=reverb.rate_limiters.MinSize(1),
            )
        ]
    )
    client = reverb.Client(f"localhost:{server.port}")
    for priority in [3, 1, 5, 2, 4]:
        client.insert([priority], {"my_priority_queue": priority})
    got = [int(step.data[0]) for [step] in client.sample("my_priority_queue", 3)]
    print(f"got {got}")
    assert got == [5, 4, 3]
    server.stop()


def queue() -> None:
    """Writing to a full queue waits, and so does reading from an empty one."""
    server = reverb.Server([reverb.Table.queue(name="my_queue", max_size=3)])
    client = reverb.Client(f"localhost:{server.port}")

    def produce() -> None:
        for number in range(10):
            client.insert([number], {"my_queue": 1.0})

    producer = threading.Thread(target=produce)
    producer.start()
    got = [int(step.data[0]) for [step] in client.sample("my_queue", 10)]
    producer.join()
    print(f"got {got}")
    # Each once, and in order.
    assert got == list(range(10))
    assert sizes(client) == {"my_queue": 0}
    server.stop()


def samples_per_insert() -> None:
    """A limiter keeps actors and learner together, whichever is the faster one."""
    table = reverb.Table(
        name="my_table",
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=1_000,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert=3.0, min_size_to_sample=3, error_buffer=3.0
        ),
    )
    server = reverb.Server([table])
    client = reverb.Client(f"localhost:{server.port}")
    inserts = 50

    def insert() -> None:
        for number in range(inserts):
            # In one thread with the samples, this would wait for ever.
            client.insert([number], {"my_table": 1.0})

    actor = threading.Thread(target=insert)
    actor.start()
    # The limiter stays away from the last ones: more inserts may come, which are to be sampled too.
    for _ in client.sample("my_table", 3 * inserts - 6):
        pass
    actor.join()
    info = client.server_info()["my_table"].rate_limiter_info
    samples = info.sample_stats.completed
    print(f"{samples} samples of {info.insert_stats.completed} inserts")
    assert info.insert_stats.completed == inserts
    assert samples == 3 * inserts - 6
    server.stop()


SECTIONS = [
    overlapping_trajectories,
    complete_episodes,
    variable_lengths,
    tables_that_share_steps,
    prioritized_replay,
    best_first,
    queue,
    samples_per_insert,
]


def main() -> None:
    """Run all sections."""
    for section in SECTIONS:
        print(f"\n{section.__name__}: {section.__doc__}")
        section()


if __name__ == "__main__":
    main()
