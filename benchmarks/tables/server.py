"""A process with a server: ``python -m benchmarks.tables.server MODULE``, with an engine's module.

[`ServerProcess`] is its client's end. It is asked to ``open`` a table and for its ``usage``.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.child import Child, Message, answer_requests
from benchmarks.tables.engine import Plan
from benchmarks.usage import cpu_seconds, peak_mib, resident_bytes

if TYPE_CHECKING:
    from benchmarks.tables.engine import TableEngine, TableServer


class ServerProcess(Child):
    """The process, seen from the client's."""

    def __init__(self, engine: TableEngine, plan: Plan) -> None:
        """Start it, and wait until it listens."""
        module = type(engine).__module__
        super().__init__([sys.executable, "-m", "benchmarks.tables.server", module])
        try:
            self.address: str = self.ask({"do": "open", "plan": asdict(plan)})["address"]
        except Exception:
            self.stop()
            raise

    def usage(self) -> Message:
        """Ask what it has used: ``cpu`` seconds, ``peak`` MiB and ``resident`` bytes."""
        return self.ask({"do": "usage"})


class Host:
    """The server of the process, as the process has it."""

    def __init__(self, engine: TableEngine) -> None:
        """Have none yet."""
        self._engine = engine
        self._server: TableServer | None = None

    def answer(self, request: Message) -> Message:
        """Do what the parent asks for."""
        reply: Message = getattr(self, request.pop("do"))(**request)
        return reply

    def open(self, plan: Message) -> Message:
        """Open the table."""
        self._server = self._engine.serve(Plan(**plan))
        return {"address": self._server.address}

    def usage(self) -> Message:
        """Tell what this process has used."""
        return {"cpu": cpu_seconds(), "peak": peak_mib(), "resident": resident_bytes()}

    def close(self) -> None:
        """Close the server."""
        if self._server is not None:
            self._server.close()


if __name__ == "__main__":
    host = Host(importlib.import_module(sys.argv[1]).ENGINE)
    answer_requests(host.answer)
    host.close()
