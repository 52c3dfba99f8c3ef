"""What a process, or a thread of it, has used of the machine.

Seconds on a processor do not depend on what else the machine does, as those on the clock do: so
they are what the model of costs is made of.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import numpy as np

from benchmarks.timing import UnavailableError


def cpu_seconds() -> float:
    """Return the processor time of all threads of this process, in it and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_mib() -> float:
    """Return the most memory that this process has had resident."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError, ValueError):
        # Less good: on Linux this counts what the process was before it became this program.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_bytes() -> int:
    """Return the memory that this process has resident now.

    Raises:
        UnavailableError: the system does not tell.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError) as error:
        raise UnavailableError(f"the system does not tell resident memory: {error}") from error


# As the native core names them; the thread that calls into it is Python's.
CALL = "call"
NAMES = {"echoic-io": "io_thread", "echoic-listen": "event_loop"}

# Of the number of a clock: that it is the time on a processor, and of a thread.
_OF_A_THREAD = 6


def thread_seconds() -> dict[str, float]:
    """Return the seconds on a processor of this process's threads, summed by name.

    Raises:
        UnavailableError: the system does not tell them.
    """
    used: dict[str, float] = {}
    try:
        for task in Path("/proc/self/task").iterdir():
            try:
                comm = (task / "comm").read_text().strip()
                # What /proc says of a thread that runs is as old as the last tick, some
                # milliseconds; the clock that Linux has for each thread is not.
                seconds = time.clock_gettime((~int(task.name) << 3) | _OF_A_THREAD)
            except OSError:
                continue  # it has ended meanwhile
            # Listeners' threads are numbered; Linux cuts names to 15 letters.
            name = next((NAMES[key] for key in NAMES if comm.startswith(key[:15])), CALL)
            used[name] = used.get(name, 0.0) + seconds
    except (OSError, ValueError) as error:
        raise UnavailableError(f"the system does not tell the time of threads: {error}") from error
    return used


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return what was used between two looks."""
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}


def work_seconds() -> float:
    """Do a fixed amount of what clients and servers do, calls and copies; return what it used.

    It is by how much this changes that a processor is faster or slower than it was: others who
    share it empty its caches, and a virtual one may be half of a real one.
    """
    source, target = np.ones(1 << 16, np.uint8), np.empty(1 << 16, np.uint8)
    before = time.thread_time()
    for _ in range(1000):
        target[:] = source
        for number in range(60):
            str(number)
    return time.thread_time() - before


def busy_seconds() -> float:
    """Return how long the processors of the machine have been busy, by whoever, since it started.

    Raises:
        UnavailableError: the system does not tell.
    """
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        ticks = [int(word) for word in words]
        # Of user, nice, system, idle, iowait, irq, softirq, steal: all but the two that wait.
        return (sum(ticks[:8]) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError) as error:
        raise UnavailableError(f"the system does not tell how busy it is: {error}") from error
