"""A whole run: a job, what is done to it on the way, and what came of it.

Between two looks at the curve nothing happens here. What is done to a job does not depend on how
fast it is: a worker is killed when the learner has made a quarter of its versions, the learner
itself at the half.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, NamedTuple

from examples.grpo import curve
from examples.grpo.job import Processes, Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.grpo.curve import Point
    from examples.grpo.job import Job
    from examples.grpo.settings import Settings

TRANSPORTS = ("shm", "unix", "none")
LOOK = 0.1


class Event(NamedTuple):
    """Something that was done to a job."""

    version: int
    what: str


class Result(NamedTuple):
    """What came of a run."""

    points: list[Point]
    events: list[Event]

    @property
    def score(self) -> float:
        """The mean of the last three evaluations."""
        scores = [point.score for point in self.points if point.score is not None]
        return sum(scores[-3:]) / max(1, len(scores[-3:]))


def run(
    settings: Settings,
    transport: str = "shm",
    *,
    kill_worker: bool = False,
    restart: bool = False,
    show: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Run a job in a folder of its own, and disturb it if asked to."""
    shutil.rmtree(settings.folder, ignore_errors=True)
    settings.folder.mkdir(parents=True)
    job: Job = Threads(settings) if transport == "none" else Processes(settings, transport)
    events: list[Event] = []
    job.start()
    try:
        while not job.is_over:
            time.sleep(LOOK)
            job.check()
            points = curve.read(settings.folder)
            version = points[-1].version if points else 0
            if kill_worker and version >= settings.versions // 4:
                job.kill_worker()
                job.start_worker()
                events.append(Event(version, "a worker was killed, and another one started"))
                kill_worker = False
            if restart and version >= settings.versions // 2:
                job.restart_learner()
                events.append(
                    Event(version, "the learner was killed, and started from a checkpoint")
                )
                restart = False
            show(Result(points, events))
    finally:
        job.stop()
    points = curve.read(settings.folder)
    if not points or points[-1].version < settings.versions:
        raise RuntimeError("the learner ended before its time; its error is above")
    return Result(points, events)
