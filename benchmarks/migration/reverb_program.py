"""A program written for Reverb that times what programs do.

It is called as ``reverb_program.py MODULE PLACE COUNT``. MODULE is what it imports as reverb, and
all that differs between the two sides. PLACE says where the server is: ``here``, in this process,
or ``elsewhere``, in another. The program checks what it got before it prints its rates, as one JSON
object.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

reverb: Any = importlib.import_module(sys.argv[1])

LENGTH = 5
BATCH = 256
# As many items as are on their way at most.
AHEAD = 50


def table(name: str) -> Any:
    """A table of uniform replay."""
    return reverb.Table(
        name=name,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=1_000_000,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


def serve() -> Any:
    """A server of the tables that the workloads use."""
    names = ("inserted", "steps", "sequences", "patterns")
    return reverb.Server([table(name) for name in names])


def step(number: int) -> dict[str, Any]:
    """A step of 48 bytes, which tells its number."""
    return {
        "action": np.int64(number),
        "obs": np.full(8, number, np.float32),
        "reward": np.float64(number),
    }


def insert(client: Any, count: int) -> None:
    """Items one by one, each waited for."""
    for number in range(count):
        client.insert(step(number), {"inserted": 1.0})


def write_steps(client: Any, count: int) -> None:
    """Items of one step."""
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for number in range(count):
            writer.append(step(number))
            history = writer.history
            writer.create_item("steps", 1.0, {key: history[key][-1] for key in history})
            writer.flush(AHEAD)


def write_sequences(client: Any, count: int) -> None:
    """Items of the last five steps."""
    with client.trajectory_writer(num_keep_alive_refs=LENGTH) as writer:
        for number in range(count):
            writer.append(step(number))
            if number >= LENGTH - 1:
                history = writer.history
                columns = {key: history[key][-LENGTH:] for key in history}
                writer.create_item("sequences", 1.0, columns)
                writer.flush(AHEAD)


def write_patterns(client: Any, count: int) -> None:
    """The same by a pattern."""
    structured = reverb.structured
    example = step(0)
    pattern = structured.pattern_from_transform(
        example, lambda reference: {key: reference[key][-LENGTH:] for key in example}
    )
    writer = client.structured_writer([structured.create_config(pattern, "patterns")])
    for number in range(count):
        writer.append(step(number))
        writer.flush(AHEAD)
    writer.flush()


def is_step(data: Any, number: int) -> bool:
    """Whether leaves in the order of their keys are those of a step."""
    action, obs, reward = data
    return bool(action == number and np.all(obs == number) and reward == number)


def sample(client: Any, count: int) -> None:
    """Items one by one."""
    for item in client.sample("steps", num_samples=count, emit_timesteps=False):
        if not is_step(item.data, int(item.data[0])):
            raise AssertionError(f"not an item: {item}")


def sample_batches(address: str, count: int) -> None:
    """Items in batches, from a dataset."""
    example = step(0)
    dataset = reverb.TrajectoryDataset(
        address,
        "steps",
        dtypes={key: dtype(leaf) for key, leaf in example.items()},
        shapes={key: shape(leaf) for key, leaf in example.items()},
        max_in_flight_samples_per_worker=2 * BATCH,
    )
    for batch in dataset.batch(BATCH).take(-(-count // BATCH)).as_numpy_iterator():
        data = batch.data
        if not (data["obs"] == data["action"][:, None]).all():
            raise AssertionError("a batch has other items")


def dtype(leaf: Any) -> Any:
    """What a dataset calls the dtype of a leaf: upstream's are TensorFlow's."""
    if sys.argv[1] != "reverb":
        return leaf.dtype
    return importlib.import_module("tensorflow").as_dtype(leaf.dtype)


def shape(leaf: Any) -> Any:
    """What a dataset calls the shape of a leaf."""
    if sys.argv[1] != "reverb":
        return leaf.shape
    return importlib.import_module("tensorflow").TensorShape(leaf.shape)


def update(client: Any, count: int) -> None:
    """New priorities for batches of items."""
    keys = [item.info.key for item in client.sample("steps", BATCH, emit_timesteps=False)]
    for number in range(-(-count // BATCH)):
        client.mutate_priorities("steps", updates=dict.fromkeys(keys, 1.0 + number))


def check(client: Any, count: int) -> None:
    """Look at one item that each way of writing has made."""
    [[inserted]] = client.sample("inserted")
    [steps] = client.sample("steps", emit_timesteps=False)
    sequences = [
        next(client.sample(name, emit_timesteps=False)) for name in ("sequences", "patterns")
    ]
    right = is_step(inserted.data, int(inserted.data[0])) and is_step(
        steps.data, int(steps.data[0])
    )
    for item in sequences:
        first = int(item.data[0][0])
        rows = zip(*item.data, strict=True)
        right = right and all(is_step(row, first + at) for at, row in enumerate(rows))
        right = right and len(item.data[0]) == LENGTH
    sizes = {name: info.current_size for name, info in client.server_info().items()}
    written = count - LENGTH + 1
    expected = {"inserted": count, "steps": count, "sequences": written, "patterns": written}
    if not right or sizes["steps"] % count or any(size < expected[k] for k, size in sizes.items()):
        raise AssertionError(f"other items than were written: {sizes}")


def rates(address: str, count: int) -> Iterator[tuple[str, float]]:
    """How much of each there is in a second."""
    client = reverb.Client(address)
    workloads: dict[str, Callable[[int], None]] = {
        "client.insert, items": lambda n: insert(client, n),
        "trajectory_writer, items of one step": lambda n: write_steps(client, n),
        "trajectory_writer, items of the last 5 steps": lambda n: write_sequences(client, n),
        "structured_writer, items of the last 5 steps": lambda n: write_patterns(client, n),
        "client.sample, items": lambda n: sample(client, n),
        "TrajectoryDataset.batch(256), items": lambda n: sample_batches(address, 20 * n),
        "mutate_priorities of 256, keys": lambda n: update(client, 20 * n),
    }
    for name, work in workloads.items():
        done = 20 * count if name.startswith(("TrajectoryDataset", "mutate")) else count
        # The first time something is set up, which counts for little in a long run.
        work(max(LENGTH, count // 10))
        start = time.perf_counter()
        work(count)
        yield name, done / (time.perf_counter() - start)
    check(client, max(LENGTH, count // 10))


def main() -> None:
    """Time everything."""
    _, module, place, number = sys.argv
    if place == "serve":
        server = serve()
        print(server.port, flush=True)
        sys.stdin.read()
        server.stop()
    elif place == "here":
        server = serve()
        print(json.dumps(dict(rates(f"localhost:{server.port}", int(number)))))
        server.stop()
    else:
        command = [sys.executable, __file__, module, "serve", number]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            port = child.stdout.readline() if child.stdout is not None else ""
            address = f"localhost:{port.strip()}"
            print(json.dumps(dict(rates(address, int(number)))))


if __name__ == "__main__":
    main()
