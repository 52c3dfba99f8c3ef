"""What a process has used of the machine."""

from __future__ import annotations

import resource
from pathlib import Path

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
