"""A device of the CPU whose copies happen later, in a thread, as those of a GPU do."""

from __future__ import annotations

import random
import threading
import time
from queue import SimpleQueue
from typing import Any

import torch


class Done:
    """The event of a copy."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.query = self._event.is_set
        self.complete = self._event.set

    def synchronize(self) -> None:
        assert self._event.wait(60), "a copy did not come to its end"


class SlowLink:
    """Reads the source of a copy only when its turn comes, as long after the call as it may."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        # No copy runs while it is not set.
        self.gate = threading.Event()
        self.gate.set()
        self.copies = 0
        self.blocks: list[torch.Tensor] = []
        self.joined: list[int] = []
        self._random = random.Random(0)
        self._waiting: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (copy := self._waiting.get()) is not None:
            target, source, done = copy
            self.gate.wait(60)
            if self.delay:
                time.sleep(self._random.random() * 2 * self.delay)
            target.copy_(source)
            done.complete()

    def page_locked(self, size: int) -> torch.Tensor:
        self.blocks.append(torch.empty(size, dtype=torch.uint8))
        return self.blocks[-1]

    def empty(self, size: int) -> torch.Tensor:
        # What is read before it was copied has other bytes.
        return torch.full((size,), 0xA5, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Done:
        self.copies += 1
        done = Done()
        self._waiting.put((target, source, done))
        return done

    def join(self, event: Done, targets: list[torch.Tensor]) -> None:
        self.joined.append(len(targets))
        event.synchronize()

    def close(self) -> None:
        self._waiting.put(None)
