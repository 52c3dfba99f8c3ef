"""The machine and the software a number was measured on.

A number without these is a rumour: every JSON line carries both records.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Describe the hardware, the kernel and how busy the machine is right now."""
    return {
        "cpu": _cpu_model(),
        "cores": _usable_cores(),
        "memory_gib": _memory_gib(),
        # Without the suffix of whoever built it, which says nothing about speed.
        "kernel": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        # Other programs on the same cores are the commonest reason for a bad number.
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
    }


def versions() -> dict[str, Any]:
    """Name the versions of everything that takes part in a measurement."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "gil": bool(getattr(sys, "_is_gil_enabled", lambda: True)()),
        "switch_interval_s": sys.getswitchinterval(),
        "numpy": installed_version("numpy"),
        "echoic": installed_version("echoic"),
        "build": build(),
    }


@functools.cache
def build() -> str | None:
    """Return a digest of Echoic's files as they are imported: what was measured, to the byte."""
    spec = importlib.util.find_spec("echoic")
    if spec is None:
        return None
    digest = hashlib.sha256()
    for folder in spec.submodule_search_locations or ():
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in {".py", ".so", ".pyd"}:
                digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def installed_version(package: str) -> str | None:
    """Return the installed version of ``package``, or None when there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def _usable_cores() -> int:
    # A container or taskset may leave fewer cores than the machine has.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (OSError, ValueError):
        return None
