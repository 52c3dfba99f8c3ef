"""The programs that the tests of this folder start as processes of their own.

`send` is a producer and `serve` a learner. They say on stdout what was acknowledged or taken,
a line at a time, and end in order when stdin ends, also because the test is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import echoic
from content import SMALL, example, pairs, rows, sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from echoic.remote_stream import RemoteStream


def say(*words: object) -> None:
    """Print a line in one system call, so that a kill can't cut it."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def allow_files(count: int) -> None:
    """Allow this process so many file descriptors, or what the system allows."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = count if most == resource.RLIM_INFINITY else min(count, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))


def send_some(client: RemoteStream, producer: int, count: int) -> None:
    """Send with a client that came from another process."""
    with client:
        client.extend(rows(producer, 0, count, SMALL))


def send(arguments: argparse.Namespace) -> None:
    """Send samples, as many as asked for or until stdin ends."""
    client = echoic.connect(arguments.address, **json.loads(arguments.options)).stream(
        example(arguments.words)
    )
    say("ready")
    sent = calls = 0
    while sent != arguments.count:
        if arguments.rows:
            client.extend(rows(arguments.producer, sent, arguments.rows, arguments.words))
            sent += arguments.rows
        else:
            one = rows(arguments.producer, sent, 1, arguments.words)
            client.add({name: leaf[0] for name, leaf in one.items()})
            sent += 1
        calls += 1
        if calls % arguments.report == 0:
            if arguments.flush:
                client.flush()
                say("acked", sent)
            else:
                say("acked", int(client.stats().samples_acked))
            if arguments.pause:
                time.sleep(arguments.pause)
            if select.select([0], [], [], 0)[0]:
                break
    client.close()
    say("reconnects", int(client.stats().reconnects))
    say("done", sent)


def despair(arguments: argparse.Namespace) -> None:
    """Send until the client gives up, and say which samples it has left."""
    client = echoic.connect(arguments.address, **json.loads(arguments.options)).stream(
        example(arguments.words)
    )
    say("ready")
    sent = 0
    try:
        while True:
            client.add(sample(arguments.producer, sent, arguments.words))
            sent += 1
            say("acked", int(client.stats().samples_acked))
            time.sleep(arguments.pause)
    except echoic.errors.DisconnectedError as error:
        say("gave-up", error.undelivered, error)
    left = pairs(client.undelivered())
    say("left", *left[:, 1])
    say("done", sent)


def serve(arguments: argparse.Namespace) -> None:
    """Take batches, check them, and append producer and step of each sample to a file."""
    options = json.loads(arguments.options)
    stream = echoic.Stream(
        example(arguments.words), batch_size=arguments.batch_size, capacity=arguments.capacity
    )
    server = echoic.Server(stream, listen=arguments.address, **options)
    server.start()
    signal.signal(signal.SIGTERM, lambda *_: server.close(1.0))
    taking = threading.Event()
    taking.set()
    file = os.open(arguments.intake, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if arguments.files:
        allow_files(arguments.files)

    answers: dict[str, Callable[[], object]] = {
        "pause": taking.clear,
        "resume": taking.set,
        "inserted": lambda: stream.stats().inserted_total,
        "refused": lambda: int(server.metrics()["connections_refused"]),
    }

    def answer() -> None:
        for line in sys.stdin:
            say(line.strip(), answers[line.strip()]())
        server.close(5.0)

    threading.Thread(target=answer, daemon=True).start()
    say("ready", server.address)
    # In the main thread, so that signals find it where learners spend their time.
    for taken in stream.batches():
        taking.wait()
        os.write(file, pairs(taken.data).tobytes())
    rest = stream.rest()
    if rest is not None:
        os.write(file, pairs(rest.data).tobytes())
    say("done", stream.stats().inserted_total)


def keep(arguments: argparse.Namespace) -> None:
    """Serve a table, and write producer and step of each item to a file at the end."""
    table = echoic.Table("replay", example(arguments.words), capacity=10_000)
    options = json.loads(arguments.options)
    server = echoic.Server(table, listen=arguments.address, **options)
    server.start()
    say("ready", server.address)
    sys.stdin.read()
    server.close(5.0)
    keys = table.items().keys
    if len(keys):
        Path(arguments.intake).write_bytes(pairs(table.get(keys).data).tobytes())
    say("done", len(keys))


def insert(arguments: argparse.Namespace) -> None:
    """Insert into a table on several servers, and sample, until stdin ends; say what happens.

    When the servers are away for too long it says so, and tries again.
    """
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_, **__: say("warned", message)
    client = echoic.connect(arguments.address.split(","), **json.loads(arguments.options))
    say("ready")
    sent, calls, stop = 0, 0, False

    def patiently(call: Callable[[], object]) -> None:
        try:
            call()
        except echoic.errors.DisconnectedError as error:
            say("gave-up", error)
            time.sleep(0.2)
            patiently(call)

    while not stop:
        one = sample(arguments.producer, sent, arguments.words)
        before = time.monotonic()
        patiently(lambda one=one: client.table("replay").add(one))
        say("inserted", sent, round(time.monotonic() - before, 3))
        sent += 1
        if sent % arguments.report == 0:
            before = time.monotonic()
            patiently(lambda: pairs(client.table("replay").sample(32).data))
            calls += 1
            say("sampled", calls, round(time.monotonic() - before, 3))
        say("held", int(client.stats().held_bytes))
        say("acked", int(client.stats().items_acked))
        time.sleep(arguments.pause)
        stop = bool(select.select([0], [], [], 0)[0])
    patiently(client.flush)
    say("acked", int(client.stats().items_acked))
    client.close()
    say("reconnects", int(client.stats().reconnects))
    say("done", sent)


def crowd(arguments: argparse.Namespace) -> None:
    """Hold many connections at once, send through each, and say why the next one is refused."""
    allow_files(4 * arguments.connections + 200)
    clients = [
        echoic.connect(arguments.address, window_bytes=1 << 14).stream(example(arguments.words))
        for _ in range(arguments.connections)
    ]
    say("ready")
    try:
        echoic.connect(arguments.address, timeout=1.0).stream(example(arguments.words))
    except echoic.errors.RefusedError as error:
        say("refused", error.code, error)
    for producer, client in enumerate(clients):
        client.extend(rows(producer, 0, arguments.rows, arguments.words))
    for client in clients:
        client.flush()
    say("delivered", len(clients) * arguments.rows)
    sys.stdin.read()
    for client in clients:
        client.close()
    say("done", len(clients))


def rush(arguments: argparse.Namespace) -> None:
    """Connect several clients at the same moment, when a line comes on stdin, and send a little."""
    failures: list[BaseException] = []

    def run(producer: int) -> None:
        try:
            with echoic.connect(arguments.address).stream(example(arguments.words)) as client:
                for step in range(arguments.count):
                    client.add(sample(producer, step, arguments.words))
        except BaseException as failure:  # raised again below
            failures.append(failure)

    first = arguments.producer
    threads = [
        threading.Thread(target=run, args=(first + number,))
        for number in range(arguments.connections)
    ]
    say("ready")
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    say("done", arguments.count * len(threads))


def main() -> None:
    """Run the program that the command line names."""
    parser = argparse.ArgumentParser()
    programs = {
        function.__name__: function
        for function in (send, despair, serve, keep, insert, crowd, rush)
    }
    parser.add_argument("program", choices=programs)
    parser.add_argument("address")
    parser.add_argument("--options", default="{}", help="of the client or server, as JSON")
    parser.add_argument("--words", type=int, default=SMALL)
    parser.add_argument("--producer", type=int, default=0)
    parser.add_argument("--count", type=int, default=-1)
    parser.add_argument("--rows", type=int, default=0, help="of one extend; 0: use add")
    parser.add_argument("--report", type=int, default=100, help="calls between two reports")
    parser.add_argument("--flush", action="store_true", help="report what a flush promises")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds, after each report")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--capacity", type=int)
    parser.add_argument("--intake", default=os.devnull)
    parser.add_argument("--files", type=int, default=0, help="file descriptors once it serves")
    parser.add_argument("--connections", type=int, default=0)
    arguments = parser.parse_args()
    programs[arguments.program](arguments)


if __name__ == "__main__":
    main()
