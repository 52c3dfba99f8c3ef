"""The shortest program: a server, a client, two items in, two samples out.

Run ``python -m examples.reverb.quickstart`` from the root of the project.
"""

from __future__ import annotations

import echoic.reverb as reverb


def main() -> None:
    """Insert an item of one step and an item of three, and look at what is sampled."""
    server = reverb.Server(
        tables=[
            reverb.Table(
                name="my_table",
                sampler=reverb.selectors.Fifo(),
                remover=reverb.selectors.Fifo(),
                max_size=100,
                rate_limiter=reverb.rate_limiters.MinSize(1),
            )
        ]
    )
    client = reverb.Client(f"localhost:{server.port}")
    for name, info in client.server_info().items():
        print(f"{name}: {info.current_size} of {info.max_size} items")

    # A single step, and an item that is this step.
    client.insert([0, 1], priorities={"my_table": 1.0})
    [[step]] = client.sample("my_table")
    print(f"in one go: {[int(leaf) for leaf in step.data]}, sampled {step.info.times_sampled} time")
    client.reset("my_table")

    # Three steps, and one item that is all of them.
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        writer.append({"a": 2, "b": 12})
        writer.append({"a": 3, "b": 13})
        writer.append({"a": 4, "b": 14})
        writer.create_item(
            table="my_table",
            priority=1.0,
            trajectory={"a": writer.history["a"][:], "b": writer.history["b"][:]},
        )
        # Returns when the item is in the table.
        writer.flush()

    # A table without a signature does not know the names: leaves come in their sorted order.
    [steps] = client.sample("my_table")
    print(f"step by step: {[[int(leaf) for leaf in step.data] for step in steps]}")
    [whole] = client.sample("my_table", emit_timesteps=False)
    print(f"as a whole: {[leaf.tolist() for leaf in whole.data]}")
    server.stop()


if __name__ == "__main__":
    main()
