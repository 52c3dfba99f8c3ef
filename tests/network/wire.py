"""The protocol of `docs/protocol.md`, written once more: enough of it to break its rules.

Sharing no code with the implementation, this also shows that a client can be written from the
document.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from content import PATIENCE

MAGIC = b"\x89ECHOIC\n"
VERSION = 2

HELLO, CHALLENGE, OPEN, WELCOME, REFUSED = 1, 2, 3, 4, 5
DATA, ACK, PING, PONG, GOODBYE = 16, 17, 18, 19, 20
REQUEST, OBSERVED = 32, 45
PROTOCOL, WRONG_VERSION, AUTH, SPEC, SERVICE = 1, 2, 3, 4, 5

# The spec of `np.int64(0)`: one leaf without a path.
COUNTER = struct.pack("<IIcII", 1, 0, b"i", 8, 0)


def preface(version: int = VERSION) -> bytes:
    """What both sides send first."""
    return MAGIC + struct.pack("<HH", version, 0)


def frame(kind: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """A frame; its header may say another length than it has."""
    size = len(payload) if length is None else length
    return struct.pack("<IBBH", size, kind, 0, 0) + payload


def text(value: bytes) -> bytes:
    """A text with its length."""
    return struct.pack("<I", len(value)) + value


def hello() -> bytes:
    """The client's first frame."""
    return frame(HELLO, bytes(32))


def opening(
    spec: bytes = COUNTER,
    *,
    producer: int = 1,
    stream: bytes = b"stream",
    purpose: int = 1,
    name: bytes = b"stranger",
) -> bytes:
    """The client's second frame, of somebody without a token."""
    identity = struct.pack("<16sQQ", bytes([producer] * 16), 1, 0)
    has_spec = bytes([bool(spec)])
    rest = text(stream) + has_spec + spec + text(name)
    return frame(OPEN, bytes(32) + bytes([purpose]) + identity + rest)


def data(first: int, *values: int, count: int | None = None) -> bytes:
    """Samples that are one int64 each."""
    number = len(values) if count is None else count
    return frame(DATA, struct.pack(f"<QI{len(values)}q", first, number, *values))


class Frame(NamedTuple):
    """What the server said."""

    kind: int
    payload: bytes


class Wire:
    """A connection on which any bytes can be sent."""

    def __init__(self, address: str) -> None:
        kind, _, rest = address.partition("://")
        if kind == "tcp":
            host, port = rest.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)), PATIENCE)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(PATIENCE)
            self.socket.connect(rest)

    @classmethod
    def of(cls, connected: socket.socket) -> Wire:
        """A connection that stands, from whichever end."""
        self = cls.__new__(cls)
        self.socket = connected
        self.socket.settimeout(PATIENCE)
        return self

    def send(self, *parts: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(b"".join(parts))

    def receive(self, count: int) -> bytes:
        """Read so many bytes, or fewer where the server has closed."""
        got = b""
        while len(got) < count and (more := self._read(count - len(got))):
            got += more
        return got

    def _read(self, count: int) -> bytes:
        try:
            return self.socket.recv(count)
        except ConnectionError:
            return b""

    def frame(self) -> Frame | None:
        """The next frame; `None` once the server has closed."""
        header = self.receive(8)
        if len(header) < 8:
            return None
        length, kind, _, _ = struct.unpack("<IBBH", header)
        return Frame(kind, self.receive(length))

    def until(self, kind: int) -> Frame | None:
        """The next frame of this kind, leaving out others."""
        while (got := self.frame()) is not None and got.kind != kind:
            pass
        return got

    def shake_hands(self, **rest: object) -> Frame | None:
        """Introduce ourselves, and return what the server says to that."""
        self.send(preface(), hello())
        assert self.receive(12) == preface()
        challenge = self.frame()
        assert challenge is not None
        assert challenge.kind == CHALLENGE
        assert len(challenge.payload) == 33
        self.send(opening(**rest))  # type: ignore[arg-type]
        return self.frame()

    def refusal(self) -> tuple[int, str] | None:
        """The code and text of the refusal that comes; `None` when the server closes without."""
        got = self.until(REFUSED)
        if got is None:
            return None
        code, length = struct.unpack("<BI", got.payload[:5])
        assert len(got.payload) == 5 + length
        return code, got.payload[5:].decode()

    def is_closed(self) -> bool:
        """Whether the server closes, whatever it says before."""
        while more := self._read(1 << 16):
            assert len(more) <= 1 << 16
        return True

    def close(self) -> None:
        """End the connection."""
        self.socket.close()
