"""Peers that say nonsense, too much, too little, or something else than they should.

Each closes its own connection and is counted; nothing of it reaches the learner, and whoever
behaves goes on.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import echoic
import numpy as np
import pytest
import tiers
import wire
from content import assert_exactly
from polling import until
from wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(40)

STRANGERS = {
    "random": random.Random(0).randbytes(100_000),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "zeros": bytes(100_000),
    "ones": b"\xff" * 100_000,
    "almost the magic": b"\x89ECHOIC\r\n" + bytes(100),
}

# What comes after a good preface.
BEFORE_OPENING = {
    "a frame of 4 GiB": wire.frame(wire.HELLO, bytes(32), length=0xFFFF_FFFF),
    "a frame past the limit": wire.frame(wire.HELLO, length=(1 << 20) + 1),
    "an unknown frame": wire.frame(99),
    "a short frame": wire.frame(wire.HELLO, bytes(31)),
    "a long frame": wire.frame(wire.HELLO, bytes(33)),
    "a reserved byte": struct.pack("<IBBH", 32, wire.HELLO, 1, 0) + bytes(32),
    "another channel": struct.pack("<IBBH", 32, wire.HELLO, 0, 1) + bytes(32),
    "samples first": wire.data(0, 1, 2, 3),
    "opening first": wire.opening(),
    "hello twice": wire.hello() + wire.hello(),
    "samples too early": wire.hello() + wire.data(0, 1, 2, 3),
    "an opening that ends early": wire.hello() + wire.frame(wire.OPEN, bytes(40)),
    "a purpose without meaning": wire.hello() + wire.opening(purpose=9),
    "a name that is too long": wire.hello() + wire.opening(stream=b"x" * 5_000),
    "a name that is no text": wire.hello() + wire.opening(stream=b"\xff\xfe"),
    "4 billion leaves": wire.hello() + wire.opening(struct.pack("<I", 0xFFFF_FFFF)),
    "a spec of no leaves": wire.hello() + wire.opening(struct.pack("<I", 0)),
    "a dtype without meaning": wire.hello() + wire.opening(struct.pack("<IIcII", 1, 0, b"?", 8, 0)),
    "a size without meaning": wire.hello() + wire.opening(struct.pack("<IIcII", 1, 0, b"i", 7, 0)),
    "too many axes": wire.hello() + wire.opening(struct.pack("<IIcII", 1, 0, b"i", 8, 255)),
    "a shape past all memory": wire.hello()
    + wire.opening(struct.pack("<IIcII3Q", 1, 0, b"i", 8, 3, 1 << 40, 1 << 40, 1 << 40)),
    "bytes behind the spec": wire.hello() + wire.opening(wire.COUNTER + b"more"),
    "bytes behind the name": wire.hello()
    + wire.opening(wire.COUNTER + wire.text(b"me"), name=b"x"),
    "an empty name": wire.hello() + wire.opening(name=b""),
    "a client's name that is too long": wire.hello() + wire.opening(name=b"x" * 129),
    "a client's name that is no text": wire.hello() + wire.opening(name=b"\xff"),
    "a name that clears the screen": wire.hello() + wire.opening(name=b"\x1b[2J"),
}

# What comes after a good handshake.
AFTER_OPENING = {
    "no samples": wire.data(0),
    "4 billion samples": wire.data(0, 1, count=0xFFFF_FFFF),
    "more samples than bytes": wire.data(0, 1, count=2),
    "fewer samples than bytes": wire.data(0, 1, 2, count=1),
    "half a sample": wire.frame(wire.DATA, struct.pack("<QI4x", 0, 1)),
    "a gap": wire.data(7, 1),
    "numbers past the end": wire.data(0xFFFF_FFFF_FFFF_FFFF, 1),
    "an acknowledgement": wire.frame(wire.ACK, struct.pack("<QQB", 5, 5, 0)),
    "another opening": wire.opening(),
    "an unknown frame": wire.frame(99),
    "a long control frame": wire.frame(wire.PING, bytes(9)),
    "a control frame of 4 GiB": wire.frame(wire.PING, length=0xFFFF_FFFF),
    "a goodbye that is no text": wire.frame(wire.GOODBYE, wire.text(b"\xff")),
    "a goodbye that ends early": wire.frame(wire.GOODBYE, struct.pack("<I", 5)),
}


class Bystander:
    """A client that behaves, and what its server should have got from it and nobody else."""

    def __init__(self, server: echoic.Server) -> None:
        self.server = server
        self.client = echoic.connect(server.address).stream(np.int64(0))
        self.sent = 0

    def send(self) -> None:
        """Get ten samples through."""
        self.client.extend(np.arange(self.sent, self.sent + 10))
        self.sent += 10
        self.client.flush(timeout=10)

    def finish(self) -> None:
        """All that it sent has come, and nothing else."""
        self.client.close(timeout=10)
        assert self.server.stream.stats().inserted_total == self.sent
        self.server.close()
        came = [taken.data.copy() for taken in self.server.stream.batches()]
        rest = self.server.stream.rest()
        came += [] if rest is None else [rest.data.copy()]
        assert_exactly(np.concatenate(came), self.sent)


def refusals(server: echoic.Server) -> float:
    """How many connections were refused or made no sense."""
    metrics = server.metrics()
    return metrics["connections_refused"] + metrics["connections_malformed"]


@pytest.fixture(params=["tcp", "unix"])
def server(request: Any, make_server: Any, folder: Any) -> echoic.Server:
    """A server of int64 with much room, so that nobody needs to take."""
    ways = {
        "tcp": lambda: "tcp://127.0.0.1:0",
        "unix": lambda: f"unix://{folder / 's'}",
    }
    return make_server(np.int64(0), 16, 1024, listen=ways[request.param]()).start()


@pytest.fixture
def bystander(server: echoic.Server) -> Iterator[Bystander]:
    """Somebody who behaves, before, while and after."""
    started = Bystander(server)
    started.send()
    yield started
    started.send()
    started.finish()


@pytest.fixture
def stranger(server: echoic.Server) -> Iterator[Wire]:
    """A connection to say anything on."""
    connection = Wire(server.address)
    yield connection
    connection.close()


def test_a_client_written_from_the_document_gets_its_samples_through(
    server: echoic.Server, bystander: Bystander, stranger: Wire
) -> None:
    welcome = stranger.shake_hands()
    assert welcome is not None
    assert welcome.kind == wire.WELCOME
    first, limit = struct.unpack_from("<QQ", welcome.payload, 48)
    assert first == 0
    assert limit > 0
    # What the bystander would send next, since its numbers are looked at.
    values = range(bystander.sent, bystander.sent + 5)
    stranger.send(wire.data(0, *values[:2]), wire.data(2, *values[2:]))
    stored = 0
    while stored < 5:
        ack = stranger.until(wire.ACK)
        assert ack is not None
        stored, limit, stall = struct.unpack("<QQB", ack.payload)
        assert limit >= stored
        assert stall == 0
    stranger.send(wire.frame(wire.PING, struct.pack("<Q", 77)))
    pong = stranger.until(wire.PONG)
    assert pong is not None
    assert pong.payload == struct.pack("<Q", 77)
    stranger.send(wire.frame(wire.GOODBYE, wire.text(b"bye")))
    assert stranger.until(wire.GOODBYE) is not None
    assert stranger.is_closed()
    assert refusals(server) == 0
    bystander.sent += 5


def test_names_come_to_those_who_watch(server: echoic.Server, stranger: Wire) -> None:
    stranger.shake_hands(name="Schreiber №1".encode())
    [told] = server.connections()
    assert told["name"] == "Schreiber №1"
    watcher = Wire(server.address)
    watcher.shake_hands(spec=b"", stream=b"", purpose=7, producer=2)
    watcher.send(wire.frame(wire.REQUEST, struct.pack("<QBI", 0, 17, 0)))
    observed = watcher.until(wire.OBSERVED)
    watcher.close()
    assert observed is not None
    assert "Schreiber №1".encode() in observed.payload


@pytest.mark.parametrize("bytes_", STRANGERS.values(), ids=STRANGERS)
def test_bytes_of_another_protocol(
    server: echoic.Server, bystander: Bystander, stranger: Wire, bytes_: bytes
) -> None:
    # It may close before it has read everything.
    with contextlib.suppress(ConnectionError):
        stranger.send(bytes_)
    assert stranger.is_closed()
    until(lambda: refusals(server) == 1)


@pytest.mark.parametrize("bytes_", BEFORE_OPENING.values(), ids=BEFORE_OPENING)
def test_a_handshake_that_breaks_the_rules(
    server: echoic.Server, bystander: Bystander, stranger: Wire, bytes_: bytes
) -> None:
    stranger.send(wire.preface(), bytes_)
    assert stranger.receive(12) == wire.preface()
    refusal = stranger.refusal()
    assert refusal is not None
    assert refusal[0] in {wire.PROTOCOL, wire.SPEC}
    assert len(refusal[1]) > 10
    assert stranger.is_closed()
    until(lambda: refusals(server) == 1)


@pytest.mark.parametrize("bytes_", AFTER_OPENING.values(), ids=AFTER_OPENING)
def test_frames_that_break_the_rules(
    server: echoic.Server, bystander: Bystander, stranger: Wire, bytes_: bytes
) -> None:
    welcome = stranger.shake_hands()
    assert welcome is not None
    assert welcome.kind == wire.WELCOME
    stranger.send(bytes_)
    refusal = stranger.refusal()
    assert refusal is not None
    assert refusal[0] == wire.PROTOCOL
    assert len(refusal[1]) > 10
    assert stranger.is_closed()
    until(lambda: refusals(server) == 1)


def test_samples_past_the_credit(make_server: Any) -> None:
    server = make_server(np.zeros(10_000), 2, listen="tcp://127.0.0.1:0").start()
    stranger = Wire(server.address)
    spec = struct.pack("<IIcIIQ", 1, 0, b"f", 8, 1, 10_000)
    welcome = stranger.shake_hands(spec=spec)
    assert welcome is not None
    assert welcome.kind == wire.WELCOME
    limit = struct.unpack_from("<QQ", welcome.payload, 48)[1]
    assert limit < 10_000
    # The head of the frame is enough.
    head = struct.pack("<QI", 0, limit + 1)
    stranger.send(wire.frame(wire.DATA, head, length=12 + 80_000 * (limit + 1)))
    refusal = stranger.refusal()
    assert refusal is not None
    assert refusal[0] == wire.PROTOCOL
    assert "credit" in refusal[1]
    assert stranger.is_closed()
    stranger.close()
    until(lambda: refusals(server) == 1)


@pytest.mark.parametrize("version", [0, 1, 999])
def test_another_version_is_told_which_one_is_spoken(
    server: echoic.Server, bystander: Bystander, stranger: Wire, version: int
) -> None:
    stranger.send(wire.preface(version))
    assert stranger.receive(12) == wire.preface()
    code, text = stranger.refusal() or (0, "")
    assert code == wire.WRONG_VERSION
    assert f"version {wire.VERSION}" in text
    assert str(version) in text
    assert stranger.is_closed()
    until(lambda: refusals(server) == 1)


@pytest.mark.parametrize("count", [0, 1, 11, 12, 15, 40, 100, 150, 170])
def test_an_end_in_the_middle(server: echoic.Server, bystander: Bystander, count: int) -> None:
    stranger = Wire(server.address)
    whole = wire.preface() + wire.hello() + wire.opening() + wire.data(0, *range(50))
    stranger.send(whole[:count])
    stranger.close()
    bystander.send()


def test_half_a_sample_at_the_end_is_not_stored(
    server: echoic.Server, bystander: Bystander
) -> None:
    stranger = Wire(server.address)
    assert stranger.shake_hands() is not None
    stranger.send(wire.data(0, bystander.sent, -1)[:-3])
    stranger.close()
    bystander.sent += 1
    until(lambda: server.stream.stats().inserted_total == bystander.sent)
    until(lambda: len(server.connections()) == 1)


# Every other day, since nothing shortens the ten seconds that a stranger has. They are the same for
# both transports at once.
@tiers.turn(0, of=2)
def test_many_who_say_nothing_or_little_are_closed_and_disturb_nobody(
    folder: Any, make_server: Any
) -> None:
    servers = [
        make_server(np.int64(0), 16, 1024, listen=address).start()
        for address in ("tcp://127.0.0.1:0", f"unix://{folder}/s")
    ]
    bystanders = [Bystander(server) for server in servers]
    addresses = [server.address for server in servers]
    silent = [Wire(address) for address in addresses for _ in range(50)]
    lorises = [Wire(address) for address in addresses]
    closed: set[Wire] = set()
    start = time.monotonic()
    for byte in wire.preface() + wire.hello():
        for loris in lorises:
            try:
                loris.send(bytes([byte]))
            except ConnectionError:
                closed.add(loris)
        for bystander in bystanders:
            bystander.send()
        if len(closed) == len(lorises) or time.monotonic() - start > 14:
            break
        time.sleep(0.3)
    for connection in [*lorises, *silent]:
        assert connection in closed or connection.is_closed()
        connection.close()
    assert time.monotonic() - start < 20
    for bystander in bystanders:
        bystander.finish()


SPECS = {
    "another name": (
        {"a": np.zeros((2, 3), np.float32), "c": np.int32(0)},
        "lacks `b: int32.*not know `c: int32",
    ),
    "another dtype of the same size": (
        {"a": np.zeros((2, 3), np.int32), "b": np.int32(0)},
        "`a`.*float32.*int32",
    ),
    "another kind of the same width": (
        {"a": np.zeros((2, 3), np.float32), "b": np.uint32(0)},
        "`b`.*int32.*uint32",
    ),
    "another width": ({"a": np.zeros((2, 3), np.float64), "b": np.int32(0)}, "`a`.*float64"),
    "swapped shapes": (
        {"a": np.zeros((3, 2), np.float32), "b": np.int32(0)},
        r"`a`.*\[2, 3\].*\[3, 2\]",
    ),
    "a flat shape": ({"a": np.zeros(6, np.float32), "b": np.int32(0)}, r"`a`.*\[6\]"),
    "a leaf less": ({"a": np.zeros((2, 3), np.float32)}, "lacks `b: int32"),
    "a leaf more": (
        {"a": np.zeros((2, 3), np.float32), "b": np.int32(0), "c": np.int32(0)},
        "not know `c: int32",
    ),
    "bytes of the same size": (
        {"a": np.zeros((2, 3), np.float32), "b": np.zeros((), "S4")},
        "`b`",
    ),
}


@pytest.mark.parametrize(("example", "text"), SPECS.values(), ids=SPECS)
def test_a_client_with_another_spec_is_told_what_differs(
    transport: Any, make_server: Any, example: Any, text: str
) -> None:
    agreed = {"a": np.zeros((2, 3), np.float32), "b": np.int32(0)}
    server = make_server(agreed, 2, listen=transport.address()).start()
    address = server.address
    with pytest.raises(echoic.errors.SpecError, match=text):
        echoic.connect(address).stream(example)
    with echoic.connect(address).stream(agreed) as client:
        client.extend({"a": np.ones((2, 2, 3), np.float32), "b": np.arange(2, dtype=np.int32)})
        client.flush(timeout=10)
    assert server.stream.sample(timeout=5).data["b"].tolist() == [0, 1]
    assert server.stream.stats().inserted_total == 2
    assert refusals(server) == server.metrics()["connections_refused.SPEC"] == 1


def test_a_stream_of_another_name(
    server: echoic.Server, bystander: Bystander, stranger: Wire
) -> None:
    answer = stranger.shake_hands(stream=b"other")
    assert answer is not None
    assert answer.kind == wire.REFUSED
    assert answer.payload[0] == wire.SERVICE
    assert refusals(server) == server.metrics()["connections_refused.SERVICE"] == 1


def test_a_peer_that_is_no_server(folder: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            end = listener.accept()[0]
            end.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            end.recv(1000)
            end.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(echoic.EchoicError) as caught:
            echoic.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}", timeout=2.0).stream(
                np.int64(0)
            )
        thread.join(10)
    assert isinstance(caught.value, ConnectionError)


def test_a_peer_that_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        start = time.monotonic()
        with pytest.raises(echoic.errors.DisconnectedError):
            echoic.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5).stream(
                np.int64(0)
            )
        assert time.monotonic() - start < 10
