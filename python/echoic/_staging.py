"""Copy tensors to a GPU through blocks of page-locked memory, which are kept and used again.

A copy runs beside the program only from page-locked memory, which takes long to allocate. A
:class:`Staging` allocates a few blocks of one size and no more. Its parts:

- ``Link`` is what it needs of a device: memory, copies, and a reader that waits for them. Tests on
  a machine without a GPU use another one.
- Tensors are cut into blocks, and the link copies each block when it is filled, so that a large
  tensor is on its way before all of it was read. Small tensors share a block, hence one copy.

Invariants:

1. A block is filled by one thread, and only after its last copy is complete.
2. The tensors of a :class:`Copy` are read only after ``join``.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BLOCKS", "BLOCK_BYTES", "Copy", "Link", "Staging", "staging_of"]

# 4 MiB take a link of 25 GB/s 0.2 ms, many times what it costs to start a copy.
BLOCK_BYTES = 4 << 20
BLOCKS = 8
# Tensors below this share memory on the device, which is freed with the last of them.
_SMALL = 64 << 10
# Where tensors begin in shared memory: kernels read aligned ones faster.
_ALIGN = 256


class _Event(Protocol):
    """When a copy is complete."""

    def query(self) -> bool: ...
    def synchronize(self) -> Any: ...


class Link(Protocol):
    """A device that copies in the background, in the order of the calls."""

    def page_locked(self, size: int) -> Any:
        """Return a tensor of bytes of this machine's memory that ``copy`` can read."""

    def empty(self, size: int) -> Any:
        """Return a tensor of bytes on the device."""

    def copy(self, target: Any, source: Any) -> _Event:
        """Start to copy to the device, and return when that will be complete."""

    def join(self, event: _Event, targets: list[Any]) -> None:
        """Let what the caller's thread starts from now on wait for the event."""


@dataclass
class Copy:
    """Tensors on a device that are being copied."""

    tensors: list[Any]
    # The memory that they are in.
    targets: list[Any] = field(default_factory=list)
    # Of the last copy, before which all others are complete; ``None`` without any.
    event: _Event | None = None


class _Source(NamedTuple):
    """The bytes of a tensor, and where they begin in its memory on the device."""

    leaf: int
    at: int
    content: Any


class Staging:
    """Copies tensors of the CPU to one device; any thread may call it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        # The blocks that no thread fills, with their last copies, the oldest first.
        self._blocks: deque[tuple[Any, _Event]] = deque()
        self.made = 0
        # Guards these two.
        self._returned = threading.Condition()

    def copy(self, tensors: Sequence[Any]) -> Copy:
        """Start to copy tensors, which may be changed when this returns."""
        import torch

        copy = Copy(list(tensors))
        small: list[_Source] = []
        end = 0
        for index, tensor in enumerate(tensors):
            source = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            size = len(source)
            if size >= _SMALL:
                self._start(copy, [_Source(index, 0, source)], size)
                continue
            if end + size > BLOCK_BYTES:
                self._start(copy, small, end)
                small, end = [], 0
            small.append(_Source(index, end, source))
            end += -(-size // _ALIGN) * _ALIGN
        if small:
            self._start(copy, small, end)
        return copy

    def join(self, copy: Copy) -> list[Any]:
        """Return the tensors; what the caller's thread starts with them waits for the copies."""
        if copy.event is not None:
            self._link.join(copy.event, copy.targets)
        return copy.tensors

    def _start(self, copy: Copy, sources: list[_Source], size: int) -> None:
        """Start to copy a large tensor, or small ones that share memory."""
        target = self._link.empty(size)
        copy.targets.append(target)
        for start in range(0, size, BLOCK_BYTES):
            stop = start + BLOCK_BYTES
            pieces = [(source.at, source.content[start:stop]) for source in sources]
            copy.event = self._send(target[start:stop], pieces)
        for leaf, at, content in sources:
            like = copy.tensors[leaf]
            copy.tensors[leaf] = target[at : at + len(content)].view(like.dtype).view(like.shape)

    def _send(self, target: Any, pieces: list[tuple[int, Any]]) -> _Event:
        block, event = self._taken()
        try:
            event.synchronize()
            for at, piece in pieces:
                block[at : at + len(piece)].copy_(piece)
            event = self._link.copy(target, block[: len(target)])
        finally:
            with self._returned:
                self._blocks.append((block, event))
                self._returned.notify()
        return event

    def _taken(self) -> tuple[Any, Any]:
        """Return a block that no thread fills, and the event of its last copy."""
        with self._returned:
            self._returned.wait_for(lambda: self._blocks or self.made < BLOCKS)
            idle = self._blocks and self._blocks[0][1].query()
            if not idle and self.made < BLOCKS:
                block = self._link.page_locked(BLOCK_BYTES)
                self.made += 1
                return block, _Complete()
            return self._blocks.popleft()


class _Complete:
    """The event of a block that was not copied yet."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class _Cuda:
    """Copies to a CUDA device, on a stream of their own."""

    def __init__(self, device: Any) -> None:
        import torch

        self._torch: Any = torch
        self._device = device
        self._stream = self._torch.cuda.Stream(device)

    def page_locked(self, size: int) -> Any:
        return self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)

    def empty(self, size: int) -> Any:
        # Of this stream: its memory is used again when earlier copies and readers are done.
        with self._torch.cuda.stream(self._stream):
            return self._torch.empty(size, dtype=self._torch.uint8, device=self._device)

    def copy(self, target: Any, source: Any) -> _Event:
        with self._torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        event: _Event = self._stream.record_event()
        return event

    def join(self, event: _Event, targets: list[Any]) -> None:
        reader = self._torch.cuda.current_stream(self._device)
        reader.wait_event(event)
        for target in targets:
            # So that its memory is not used again before the work that reads it is done.
            target.record_stream(reader)


_stagings: dict[Any, Staging] = {}
_making = threading.Lock()


def staging_of(device: Any) -> Staging:
    """Return the staging memory of a CUDA device, that of the calling thread if it has no index."""
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    with _making:
        if index not in _stagings:
            _stagings[index] = Staging(_Cuda(torch.device("cuda", index)))
        return _stagings[index]
