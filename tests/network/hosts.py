"""Hosts that are network namespaces of this machine, and a network between them with faults.

Each `Host` has an address of its own, its own routes and loopback, and processes run in it. What it
sends leaves through a TUN device whose other end is the `Network`: a thread that passes packets on,
late, or not at all. So connections are those of the kernel, which sends again what was lost and
waits longer each time, as between machines.

The kernel's own `netem` would do the same, where it was built in; packets that a thread passes on
need only TUN, and can be counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

# From <linux/if_tun.h>: name a device; it has whole IP packets, without a header before them.
TUNSETIFF = 0x400454CA
TUN_WITHOUT_HEADER = 0x0001 | 0x1000
# Fewer packets for the thread to pass on; still many for each frame of ours.
MTU = 9000
# Where the numbers of both ends lie in an IPv4 header.
SOURCE, TARGET = slice(12, 16), slice(16, 20)
PREFIX = "echoic-test"


@functools.cache
def missing() -> str:
    """Why there can be no hosts here, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need `ip` of iproute2"
    name = f"{PREFIX}-{os.getpid()}-try"
    try:
        device = _open_device(_device("try"))
    except OSError as error:
        return f"no TUN device: {error}"
    try:
        _ip("netns", "add", name)
        _ip("link", "set", _device("try"), "netns", name)
    except subprocess.CalledProcessError as error:
        return f"no network namespace: {error.stderr.strip()}"
    finally:
        os.close(device)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", name)
    return ""


@dataclass(frozen=True)
class Host:
    """A namespace.

    Attributes:
        name: Of the namespace.
        address: Its number, which the others reach it by.
    """

    name: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command so that it runs there, as the same process."""
        return ("ip", "netns", "exec", self.name)


class Network:
    """Passes packets on between hosts.

    Args:
        count: How many hosts there are.
        seed: Of the choice of packets that are lost.

    Attributes:
        hosts: The hosts.
        latency: Seconds that every packet takes.
        loss: How many of 1 are lost.
        passed: How many packets arrived.
        lost: How many were lost by chance.
        cut: How many were sent over a link that was down.
    """

    def __init__(self, count: int, seed: int = 0) -> None:
        _sweep()
        self.latency = self.loss = 0.0
        self.passed = self.lost = self.cut = 0
        self._chance = random.Random(seed)
        # From where to where nothing gets.
        self._down: frozenset[tuple[bytes, bytes]] = frozenset()
        self._devices: dict[bytes, int] = {}
        self.hosts: list[Host] = []
        self._end, self._ended = os.pipe()
        try:
            for number in range(count):
                self._add(number)
        except BaseException:
            os.close(self._ended)
            self._remove()
            raise
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _add(self, number: int) -> None:
        host = Host(f"{PREFIX}-{os.getpid()}-{number}", f"10.77.0.{number + 1}")
        device = _device(number)
        _ip("netns", "add", host.name)
        self.hosts.append(host)
        self._devices[_packed(host)] = _open_device(device)
        _ip("link", "set", device, "netns", host.name)
        _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", device)
        _ip("-n", host.name, "link", "set", device, "mtu", str(MTU), "up")
        _ip("-n", host.name, "link", "set", "lo", "up")

    def part(self, one: Host, *others: Host) -> None:
        """Let nothing through between a host and some others, from now on."""
        for other in others:
            self.mute(one, other)
            self.mute(other, one)

    def mute(self, source: Host, target: Host) -> None:
        """Let nothing through from a host to another, which is still heard by it."""
        self._down |= {(_packed(source), _packed(target))}

    def heal(self) -> None:
        """Let everything through again."""
        self._down = frozenset()

    def close(self) -> None:
        """Remove the hosts; what still runs there has no network any more."""
        os.close(self._ended)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the network does not end"
        self._remove()

    def _remove(self) -> None:
        for device in self._devices.values():
            os.close(device)
        for host in self.hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", host.name)
        os.close(self._end)

    def _run(self) -> None:
        # When each packet arrives, a number that keeps their order, where to, and the packet.
        flying: list[tuple[float, int, int, bytes]] = []
        number = 0
        while True:
            wait = max(0.0, flying[0][0] - time.monotonic()) if flying else None
            ready, _, _ = select.select([self._end, *self._devices.values()], [], [], wait)
            if self._end in ready:
                return
            for device in ready:
                packet = _read(device)
                sink = self._devices.get(packet[TARGET])
                if sink is not None and self._survives(packet):
                    number += 1
                    due = time.monotonic() + self.latency
                    heapq.heappush(flying, (due, number, sink, packet))
            now = time.monotonic()
            while flying and flying[0][0] <= now:
                _, _, sink, packet = heapq.heappop(flying)
                # A host that takes nothing now loses packets, as a full queue does.
                with contextlib.suppress(OSError):
                    os.write(sink, packet)
                    self.passed += 1

    def _survives(self, packet: bytes) -> bool:
        if (packet[SOURCE], packet[TARGET]) in self._down:
            self.cut += 1
            return False
        if self._chance.random() < self.loss:
            self.lost += 1
            return False
        return True


def _packed(host: Host) -> bytes:
    return bytes(map(int, host.address.split(".")))


def _device(what: object) -> str:
    # Until it is in its namespace it must have a name that no other test run gives.
    return f"ech{os.getpid()}-{what}"


def _open_device(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), TUN_WITHOUT_HEADER))
    except BaseException:
        os.close(device)
        raise
    return device


def _read(device: int) -> bytes:
    try:
        return os.read(device, MTU + 100)
    except BlockingIOError:
        return b""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)


def _sweep() -> None:
    """Remove hosts of tests that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        name = line.split()[0]
        if name.startswith(f"{PREFIX}-") and not Path(f"/proc/{name.split('-')[2]}").exists():
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)
