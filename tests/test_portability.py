"""What needs no Linux works without what only Linux has."""

import subprocess
import sys

_PROGRAM = """
import os, select, signal, sys

for module, names in {
    os: "memfd_create eventfd pidfd_open sched_getaffinity sched_setaffinity posix_fallocate",
    signal: "pidfd_send_signal pthread_sigmask sigwaitinfo sigtimedwait",
    select: "epoll",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.modules["resource"] = None
import asyncio, selectors, tempfile  # Of the interpreter, which knows its system.

LINUX = ("/proc/", "/sys/", "/dev/shm/")


def refuse(event, arguments):
    if event == "open" and str(arguments[0]).startswith(LINUX) and "echoic" in str(
        sys._getframe(1).f_globals.get("__name__")
    ):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


sys.addaudithook(refuse)

import numpy as np

import echoic
from echoic import ReplayBuffer, Server, Stream, Table, WeightStore, connect
from echoic.cli.serve import report_process

example = {"obs": np.zeros(3, np.float32), "action": np.int64(0)}
row = {"obs": np.ones(3, np.float32), "action": np.int64(1)}

buffer = ReplayBuffer(example, 10)
buffer.add(row)
assert buffer.sample(2).data["action"].tolist() == [1, 1]

stream, weights = Stream(example, batch_size=2), WeightStore()
table = Table("steps", example, capacity=10)
folder = tempfile.mkdtemp()
listen = ["tcp://127.0.0.1:0", f"unix://{folder}/socket"]
with Server(stream, table, weights, listen=listen) as server:
    report_process(server)
    weights.publish({"w": np.arange(3.0)}, version=1)
    for address in server.addresses:
        with connect(address) as connection:
            with connection.stream(example) as worker:
                worker.add(row)
                worker.add(row)
            assert stream.sample(timeout=30).data["action"].tolist() == [1, 1]
            remote = connection.table("steps")
            remote.add(row)
            connection.flush()
            assert remote.sample(1).data["action"].tolist() == [1]
            assert connection.weights().subscribe().wait(timeout=30).version == 1
print("done")
"""


def test_the_package_works_over_sockets_without_what_only_linux_has() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM], check=False, capture_output=True, text=True, timeout=120
    )
    assert (ran.stdout, ran.returncode) == ("done\n", 0), ran.stderr
