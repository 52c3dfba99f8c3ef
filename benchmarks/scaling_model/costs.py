"""What parts cost on one machine: what the model is made of, and how it is kept.

A cost of something with bytes is a straight line through two sizes that were measured. It is in
seconds on a processor, by the thread that spends them: ``call`` is the thread that calls into
Echoic, ``io_thread`` the client's own, ``event_loop`` the server's, ``take`` the consumer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Those that the documentation's tables are made of.
COMMITTED = Path(__file__).with_name("costs.json")


@dataclass(frozen=True)
class Line:
    """Seconds or bytes for one item: some for itself, and some for each of its bytes."""

    fixed: float
    per_byte: float

    def at(self, nbytes: float) -> float:
        """Return what an item of so many bytes costs."""
        return self.fixed + self.per_byte * nbytes

    @classmethod
    def through(cls, small: tuple[float, float], large: tuple[float, float]) -> Line:
        """Return the line through two points of bytes and cost; nothing costs less than nothing."""
        per_byte = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
        return cls(max(0.0, small[1] - per_byte * small[0]), per_byte)


Threads = dict[str, Line]


@dataclass(frozen=True)
class Costs:
    """All that was measured, each part by itself.

    Attributes:
        stream: Of a sample by its transport, one for each thread above.
        insert: Of an item that is inserted over TCP.
        sampled: Of an item that is sampled over TCP.
        request: Of a batch that is sampled, however many items it has; seconds by thread.
        wire: Bytes on the wire beside those of the sample or item: of ``stream`` and ``insert``.
        connect: Of a new connection, seconds by ``client`` and ``server``.
        idle: Bytes of a server's memory for an idle connection that was used: of a ``stream``, a
            ``table``; and what its client has in all, as ``stream_client``, ``table_client``.
        beat: Seconds of a listener's thread for one idle connection in each second.
        weights: Of a byte of weights sent to one subscriber: seconds by ``server`` and ``client``.
        checkpoint: Seconds for a byte: on a ``processor``, and on the ``clock`` with the disk.
        crowding: By how much the same work costs more when all processors have some.
        work: Seconds that a fixed amount of work took meanwhile: see `threads.work_seconds`.
        cores: How many processors the machine has.
    """

    stream: dict[str, Threads]
    insert: Threads
    sampled: Threads
    request: dict[str, float]
    wire: dict[str, float]
    connect: dict[str, float]
    idle: dict[str, float]
    beat: float
    weights: dict[str, float]
    checkpoint: dict[str, float]
    crowding: float
    work: float
    cores: int

    def write(self, path: Path, **about: Any) -> None:
        """Keep them as JSON, with what they are about: the machine, how good predictions are."""
        kept = {**about, "costs": _rounded(asdict(self))}
        path.write_text(json.dumps(kept, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path = COMMITTED) -> Costs:
        """Read what was kept."""
        kept = about(path)["costs"]
        lines = {
            "stream": {
                transport: _threads(threads) for transport, threads in kept["stream"].items()
            },
            "insert": _threads(kept["insert"]),
            "sampled": _threads(kept["sampled"]),
        }
        return cls(**{**kept, **lines})


def about(path: Path = COMMITTED) -> dict[str, Any]:
    """Read all that was kept: ``machine``, ``versions``, ``checks``, ``costs`` as numbers."""
    kept: dict[str, Any] = json.loads(path.read_text())
    return kept


def _threads(kept: dict[str, dict[str, float]]) -> Threads:
    return {name: Line(**line) for name, line in kept.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
