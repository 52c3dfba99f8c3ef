"""Ctrl-C ends every wait of clients and servers at once, and more of them the whole process."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import echoic
import pytest
from content import FRAME, assert_exactly, by_producer, pairs, sample

pytestmark = pytest.mark.timeout(40)

# Also on a machine that does other things. Clients that may deliver at the end take five seconds.
AT_ONCE = 4.0

# The server's ring and the client's window are full, and nobody takes.
CLIENT = """
import sys
sys.path.insert(0, {folder!r})
import echoic
from content import FRAME, example, rows
client = echoic.connect({address!r}, window_bytes=1 << 20, reconnect=None).stream(example(FRAME))
many = rows(0, 0, 50, FRAME)
one = {{name: leaf[0] for name, leaf in many.items()}}
try:
    while True:
        client.add(one, timeout=0.5)
except echoic.errors.WaitTimeoutError:
    pass
print("waiting", flush=True)
try:
    {call}
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""

SERVER = """
import numpy as np, echoic
stream = echoic.Stream(np.int64(0), batch_size=2)
with echoic.Server(stream, listen="tcp://127.0.0.1:0") as server:
    client = echoic.connect(server.address).stream(np.int64(0))
    print("waiting", flush=True)
    try:
        {call}
        print("not interrupted", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
"""

LOST = """
import numpy as np, echoic
stream = echoic.Stream(np.int64(0), batch_size=2)
with echoic.Server(stream, listen="tcp://127.0.0.1:0") as server:
    client = echoic.connect(server.address, reconnect=None).stream(np.int64(0))
client.add(1)
print("waiting", flush=True)
try:
    {call}
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""

CONNECTING = """
import numpy as np, echoic
print("waiting", flush=True)
try:
    {call}
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""

PUBLISHING = """
import numpy as np
import echoic
client = echoic.connect({address!r}).weights()
print("waiting", flush=True)
try:
    client.publish({{"w": np.zeros(4)}}, version=1)
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


def assert_ends_at_once(process: Any) -> None:
    process.wait_for("waiting")
    # Time to really wait; the test is right without, but shows less.
    time.sleep(0.1)
    start = time.monotonic()
    process.signal(signal.SIGINT)
    process.wait_for("interrupted")
    # Otherwise it would be a minute, or for ever.
    assert time.monotonic() - start < AT_ONCE
    # A process that ends gives its clients some time to deliver, unless the user has none; one that
    # is about to end may not listen yet.
    while process.popen.poll() is None:
        process.signal(signal.SIGINT)
        time.sleep(0.02)
    process.join()
    assert time.monotonic() - start < AT_ONCE
    assert "not interrupted" not in process.lines
    assert process.popen.returncode == -signal.SIGINT


def assert_client_ends_at_once(transport: Any, processes: Any, call: str) -> None:
    server = transport.open(FRAME, batch_size=4, capacity=8)
    folder = str(Path(__file__).parent)
    source = CLIENT.format(folder=folder, address=server.address, call=call)
    assert_ends_at_once(processes.script(source))
    # It goes on for others, once there is room.
    for _ in range(2):
        assert len(server.stream.sample(timeout=10)) == 4


@pytest.mark.parametrize(
    "call", ["client.add(one)", "client.add(one, timeout=60)", "client.extend(many)"]
)
def test_a_send_to_a_server_without_room(transport: Any, processes: Any, call: str) -> None:
    assert_client_ends_at_once(transport, processes, call)


@pytest.mark.parametrize("call", ["client.flush()", "client.flush(timeout=60)", "client.close()"])
def test_a_flush_to_a_server_without_room(socket_transport: Any, processes: Any, call: str) -> None:
    assert_client_ends_at_once(socket_transport, processes, call)


@pytest.mark.parametrize("call", ["client.flush()", "client.close()"])
def test_a_client_whose_server_is_gone(processes: Any, call: str) -> None:
    assert_ends_at_once(processes.script(LOST.format(call=call)))


@pytest.mark.parametrize(
    "call", ["stream.sample()", "stream.sample(timeout=60)", "next(stream.batches())"]
)
def test_a_server_that_waits_for_samples(processes: Any, call: str) -> None:
    assert_ends_at_once(processes.script(SERVER.format(call=call)))


@pytest.mark.parametrize(
    "call",
    [
        "echoic.connect('tcp://127.0.0.1:{0}', timeout=60.0).stream(np.int64(0))",
        "echoic.connect('tcp://127.0.0.1:{0}').server_stats(60.0)",
        "echoic.connect(['tcp://127.0.0.1:{0}', 'tcp://localhost:{0}']).server_stats(60.0)",
        "echoic._native.ping('tcp://127.0.0.1:{0}', dict(), 60.0)",
    ],
)
def test_a_client_whose_server_does_not_answer(processes: Any, call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        call = call.format(listener.getsockname()[1])
        assert_ends_at_once(processes.script(CONNECTING.format(call=call)))


def test_a_publisher_whose_server_does_not_answer(processes: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert_ends_at_once(processes.script(PUBLISHING.format(address=address)))


def test_an_interrupted_send_leaves_a_client_that_goes_on(transport: Any, connect: Any) -> None:
    class Interrupt(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    server = transport.open(FRAME, batch_size=4, capacity=8)
    client = connect(server, FRAME, window_bytes=1 << 20)
    sent = 0
    with contextlib.suppress(echoic.errors.WaitTimeoutError):
        while True:
            client.add(sample(0, sent, FRAME), timeout=0.3)
            sent += 1
    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Interrupt):
            client.add(sample(0, sent, FRAME), timeout=20)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    # Nothing of the interrupted sample was kept, so it can be sent now.
    came = [pairs(server.stream.sample(timeout=10).data) for _ in range(sent // 4)]
    client.add(sample(0, sent, FRAME), timeout=10)
    client.flush(timeout=10)
    client.close(timeout=10)
    server.close()
    came += [pairs(taken.data) for taken in server.stream.batches()]
    rest = server.stream.rest()
    came += [] if rest is None else [pairs(rest.data)]
    assert_exactly(by_producer(came)[0], sent + 1)
