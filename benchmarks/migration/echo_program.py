"""A program written for echo that times what programs do: ``echo_program.py MODULE PLACE COUNT``.

MODULE is what it imports as echo, and all that differs between the two sides. PLACE says where the
workers are: ``here``, in the learner's process, or ``elsewhere``, in another one, over TCP. The
program checks what it got before it prints its rates, as one JSON object.
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
    from collections.abc import Iterator

echo: Any = importlib.import_module(sys.argv[1])

# Of samples that are on their way to the batch that a round begins with.
WARM = 20
BATCH = 50
STEPS = 100
EXAMPLES: dict[str, dict[str, Any]] = {
    "samples of 20 bytes": {"obs": np.zeros(4, np.float32), "reward": np.zeros(1, np.float32)},
    "samples of 28 KB": {"obs": np.zeros((84, 84, 4), np.uint8), "reward": np.zeros(1, np.float32)},
}
# How many of them there are for each one of COUNT.
MANY = {"samples of 20 bytes": 100, "samples of 28 KB": 10}


def sample_of(name: str, number: int) -> dict[str, Any]:
    """A sample that tells its number."""
    sample = {key: leaf.copy() for key, leaf in EXAMPLES[name].items()}
    sample["reward"][0] = number
    return sample


def batches(name: str, count: int) -> int:
    """How many batches a round has."""
    return WARM + max(10, count * MANY[name] // BATCH)


def work(port: int, name: str, count: int) -> None:
    """Send a round."""
    client = echo.TcpClient("127.0.0.1", port, EXAMPLES[name])
    samples = [sample_of(name, number) for number in range(BATCH)]
    for _ in range(batches(name, count)):
        for sample in samples:
            client.send(sample)
    client.wait()
    # Echo's server may forget what it has acknowledged and not stored when a connection ends.
    sys.stdin.read()
    client.close()


def check(batch: dict[str, Any]) -> None:
    """See whether a batch is the one that is sent over and over."""
    if not (batch["reward"][:, 0] == np.arange(BATCH)).all():
        raise AssertionError("a batch has other samples")


def elsewhere(count: int) -> Iterator[tuple[str, float]]:
    """Samples that come from another process in a second."""
    for name, example in EXAMPLES.items():
        server = echo.Server(example, BATCH, echo.TcpTransport(port=0), num_buffers=8)
        server.start()
        command = [sys.executable, __file__, sys.argv[1], name, str(count), str(server.port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as worker:
            for _ in range(WARM):
                check(server.sample().batch)
            start = time.perf_counter()
            for _ in range(batches(name, count) - WARM):
                check(server.sample().batch)
            seconds = time.perf_counter() - start
        if worker.returncode:
            raise RuntimeError("the worker failed")
        server.close()
        yield f"client.send over TCP, {name}", (batches(name, count) - WARM) * BATCH / seconds


def here(count: int) -> Iterator[tuple[str, float]]:
    """Samples and steps of this process in a second."""
    for name, example in EXAMPLES.items():
        server = echo.Server(example, BATCH, num_buffers=8)
        samples = [sample_of(name, number) for number in range(BATCH)]
        start = time.perf_counter()
        for _ in range(batches(name, count)):
            for sample in samples:
                server.submit(sample)
            check(server.sample().batch)
        seconds = time.perf_counter() - start
        server.close()
        yield f"server.submit and sample, {name}", batches(name, count) * BATCH / seconds
    steps = {"obs": np.zeros((STEPS, 8), np.float32), "reward": np.zeros(STEPS, np.float32)}
    accumulator = echo.TrajectoryAccumulator({"step": steps})
    step = {"obs": np.ones(8, np.float32), "reward": np.array(2, np.float32)}
    start = time.perf_counter()
    for _ in range(count):
        for _ in range(STEPS):
            accumulator.add("step", step)
        if accumulator.build()["step"]["reward"][-1] != 2:
            raise AssertionError("a trajectory has other steps")
    seconds = time.perf_counter() - start
    yield "accumulator.add, steps of two leaves", count * STEPS / seconds


def main() -> None:
    """Time everything, or send for the learner."""
    _, _, place, count, *port = sys.argv
    if port:
        work(int(port[0]), place, int(count))
        return
    print(json.dumps(dict({"here": here, "elsewhere": elsewhere}[place](int(count)))))


if __name__ == "__main__":
    main()
