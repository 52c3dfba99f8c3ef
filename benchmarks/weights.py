"""Weights on their way from a learner to subscribers in processes of their own.

Run it with ``python -m benchmarks.weights``. One publication of ``--megabytes`` goes to
``--subscribers`` processes over each kind of address. What is timed is from the call of ``publish``
until the last of them has all of it: mapped, and one element of every page of it read and checked.
In the same run each subscriber copies as many bytes once, all at the same time, into memory that it
has: the copy that each would need at least if nothing were shared. Both take turns, and the medians
are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from echoic import Server, ShmTransport, TcpTransport, UnixTransport
from echoic.weights import WeightClient, WeightStore

LEAVES = 64
PAGE = 1024  # float32 of a page


def weights(megabytes: int, value: float) -> dict[str, Any]:
    """Return a policy of this size, whose every number is its version."""
    count = megabytes * (1 << 20) // 4 // LEAVES
    return {f"layer{number:02}": np.full(count, value, np.float32) for number in range(LEAVES)}


def subscriber(address: str, megabytes: int) -> None:
    """Answer questions: wait for a version, or copy as many bytes."""
    source = np.ones(megabytes << 18, np.float32)
    target = np.empty_like(source)
    target[:] = source
    with WeightClient(address) as client:
        subscription = client.subscribe()
        print("ready", flush=True)
        for line in sys.stdin:
            word, _, number = line.strip().partition(" ")
            if word == "copy":
                started = time.perf_counter()
                np.copyto(target, source)
                print(time.perf_counter() - started, flush=True)
                continue
            publication = subscription.wait(newer_than=int(number) - 1, timeout=60)
            arrays = publication.tree.values()
            right = all((array[::PAGE] == publication.version).all() for array in arrays)
            del arrays
            ended = time.perf_counter()
            if not right or publication.version != int(number):
                raise SystemExit(f"expected version {number}, got {publication} or other bytes")
            # The clock is the machine's, so the parent may subtract its own times from it.
            print(ended, flush=True)


def measure(kind: str, megabytes: int, subscribers: int, rounds: int) -> dict[str, Any]:
    """Take turns with publishing and copying, over one kind of address."""
    folder = tempfile.mkdtemp(prefix="echoic-")
    transport = {
        "tcp": TcpTransport(port=0),
        "unix": UnixTransport(f"{folder}/weights"),
        "shm": ShmTransport(f"echoic-benchmark-{os.getpid()}"),
    }[kind]
    store = WeightStore()
    with Server(weights=store, transport=transport) as server:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.weights", "--serve", server.addresses[0],
                 "--megabytes", str(megabytes)],
                cwd=Path(__file__).resolve().parent.parent,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for _ in range(subscribers)
        ]  # fmt: skip

        def ask(question: str) -> None:
            for process in processes:
                process.stdin.write(f"{question}\n")
                process.stdin.flush()

        def hear() -> list[str]:
            return [process.stdout.readline().strip() for process in processes]

        try:
            if hear() != ["ready"] * subscribers:
                raise SystemExit("a subscriber did not start")
            published, reached, copied, alone = [], [], [], []
            source, target = (np.ones(megabytes << 18, np.float32) for _ in range(2))
            for version in range(1, rounds + 4):
                tree = weights(megabytes, version)
                ask(f"wait {version}")
                time.sleep(0.05)
                started = time.perf_counter()
                store.publish(tree, version)
                ended = time.perf_counter()
                last = max(float(answer) for answer in hear())
                ask("copy")
                copies = [float(answer) for answer in hear()]
                before = time.perf_counter()
                np.copyto(target, source)
                single = time.perf_counter() - before
                # The first take memory from the system, which later ones use again.
                if version > 3:
                    published.append(ended - started)
                    reached.append(last - started)
                    copied.append(max(copies))
                    alone.append(single)
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    median = statistics.median
    return {
        "door": kind,
        "publish_ms": median(published) * 1e3,
        "reached_ms": median(reached) * 1e3,
        "reached_ms_least_most": [min(reached) * 1e3, max(reached) * 1e3],
        "copy_each_ms": median(copied) * 1e3,
        "copy_alone_ms": median(alone) * 1e3,
        "ratio_to_copy_each": median(reached) / median(copied),
        "ratio_to_one_copy": median(reached) / median(alone),
    }


def main() -> None:
    """Measure, and print a line of JSON for each kind of address."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--subscribers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--doors", nargs="+", default=["shm", "unix", "tcp"])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        subscriber(arguments.serve, arguments.megabytes)
        return
    about = {"machine": platform.machine(), "cores": os.cpu_count(), "numpy": np.__version__}
    settings = {"megabytes": arguments.megabytes, "subscribers": arguments.subscribers}
    print(json.dumps({**about, **settings, "rounds": arguments.rounds}))
    for door in arguments.doors:
        found = measure(door, arguments.megabytes, arguments.subscribers, arguments.rounds)
        print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in found.items()}))


if __name__ == "__main__":
    main()
