"""The processes beside the learner's: ``python -m benchmarks.rollouts.processes MODULE``.

Each has the engine of a module, and is asked to ``serve``, or to ``produce``, by a plan.
[`Helper`] is the learner's end.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.child import Child, ChildError, Message, answer_requests
from benchmarks.rollouts.engine import Plan, Sender
from benchmarks.rollouts.groups import Groups
from benchmarks.usage import cpu_seconds

if TYPE_CHECKING:
    from types import TracebackType

    from benchmarks.rollouts.engine import Producer, RolloutEngine


class Helper(Child):
    """One such process."""

    def __init__(self, engine: Any) -> None:
        """Start it with the engine of the same module."""
        module = type(engine).__module__
        super().__init__([sys.executable, "-m", "benchmarks.rollouts.processes", module])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Have it close what it has opened, which may take longer than its end may, and end it."""
        with contextlib.suppress(ChildError):
            self.ask({"do": "close"})
        super().__exit__(kind, error, trace)


class Worker:
    """The process, as it has itself."""

    def __init__(self, engine: RolloutEngine) -> None:
        """Have nothing open yet."""
        self._engine = engine
        self._open: list[Any] = []

    def answer(self, request: Message) -> Message | None:
        """Do what the learner asks for."""
        reply: Message | None = getattr(self, request.pop("do"))(**request)
        return reply

    def serve(self, plan: Message) -> Message:
        """Open the table or queue."""
        host = self._engine.serve(Plan(**plan))
        self._open.append(host)
        return {"address": host.address}

    def produce(self, address: str, plan: Message) -> None:
        """Connect as a producer."""
        self._plan = Plan(**plan)
        self._groups = Groups(self._plan.items, self._plan.tokens)
        self._producer = self._engine.produce(address, self._plan)
        self._open.append(self._producer)

    def send(self, first: int, count: int) -> Message:
        """Send groups by their serial numbers."""
        before = cpu_seconds()
        send(self._producer, self._groups, first, count)
        return {"cpu": cpu_seconds() - before}

    def usage(self) -> Message:
        """Tell what this process has used."""
        return {"cpu": cpu_seconds()}

    def close(self) -> None:
        """Close what is open."""
        while self._open:
            self._open.pop().close()


def send(producer: Producer | Sender, groups: Groups, first: int, count: int) -> None:
    """Send so many groups, from a serial number on."""
    if isinstance(producer, Sender):
        producer.send(groups, first, count)
        return
    for serial in range(first, first + count):
        producer.put(groups.entry(serial), groups.rewards(serial))
    producer.flush()


def serving(engine: Any, plan: Plan) -> tuple[Helper, str]:
    """Start a process that serves; it, and where."""
    return _started(engine, lambda helper: helper.ask({"do": "serve", "plan": asdict(plan)}))


def producing(engine: Any, address: str, plan: Plan) -> Helper:
    """Start a process that produces."""
    request = {"do": "produce", "address": address, "plan": asdict(plan)}
    return _started(engine, lambda helper: helper.ask(request))[0]


def _started(engine: Any, ask: Any) -> tuple[Helper, str]:
    helper = Helper(engine)
    try:
        return helper, ask(helper).get("address", "")
    except BaseException:
        helper.stop()
        raise


if __name__ == "__main__":
    worker = Worker(importlib.import_module(sys.argv[1]).ENGINE)
    answer_requests(worker.answer)
    worker.close()
