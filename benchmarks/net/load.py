"""What clients send, in words that travel to their processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import payload
from benchmarks.content import Crowd
from benchmarks.payload import Pool

if TYPE_CHECKING:
    from benchmarks.payload import Tree


@dataclass(frozen=True)
class Load:
    """A kind of sample, and how many of them a call sends.

    ``kind`` is the name of a function of `benchmarks.payload` that makes an example.
    """

    kind: str
    entries: int
    rows: int = 1

    @property
    def example(self) -> Tree:
        """An example sample."""
        example: Tree = getattr(payload, self.kind)()
        return example

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return payload.sample_bytes(self.example)

    def pool(self, client: int = 0) -> Pool:
        """Return the samples that a client sends in turn."""
        if self.kind == "numbered":
            return Crowd.pool(client)
        # Stamps are made when a sample is sent; what is known before is the rest.
        example = {name: leaf for name, leaf in self.example.items() if name != "sent"}
        if self.rows == 1:
            return Pool.of_samples(example, self.entries)
        return Pool.of_blocks(example, self.entries, self.rows)
