"""What a process has used of the machine."""

from __future__ import annotations

import resource
from pathlib import Path


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
