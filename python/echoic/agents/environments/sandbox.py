"""Python code in a process of its own, with limits.

Two kinds of isolation, for two kinds of code:

- ``"limits"``: an interpreter without site packages, with an empty environment and a session of its
  own, that gives itself limits of time, memory, files and processes before it runs the code. That
  stops what runs wild. It stops nobody who means harm: such code may still read files and open
  sockets.
- ``"bubblewrap"``: the same, within bubblewrap: no network, no processes but its own, no files but
  Python's, read-only. For code that a model wrote.

Root is exempt from the limit of processes, and what it starts could outlive its session: as root,
both kinds become nobody first. Where nobody may not read the interpreter, as below a closed home of
root, code with limits keeps the right to read all files, as it had before, and no other; where that
can't be had it is refused.

Which one is the caller's choice, and a sandbox that can't be had is refused, never replaced.

# Invariants

1. What the code writes goes to a file of bounded size, so that reading it is bounded.
2. When a call returns, the process and all that it started are gone.
3. Values come back as text; nothing is unpickled.
4. The same code prints the same: hashes have no random seed there.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from echoic.errors import ArgumentError

__all__ = ["ISOLATIONS", "Ran", "Sandbox", "bubblewrap_works", "limits_work"]

ISOLATIONS = ("limits", "bubblewrap")
_MEGABYTE = 1 << 20
_WALL = 4
_NOBODY = 65534

# Runs in the child: it reads the job, limits itself, and executes. What the code prints, and the
# value after it, go to standard output; how it ended, in one word, to standard error.
_CHILD = """
import sys
sys.path[:] = [one for one in sys.path if one]
import json, os, resource
sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
job = json.loads(sys.stdin.buffer.read())
if job["drop"]:
    if job["read"]:
        import ctypes
        libc = ctypes.CDLL(None)
        libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
    os.setgroups([]); os.setgid(job["drop"]); os.setuid(job["drop"])
    if job["read"]:
        # The third version of capabilities: effective, permitted and inheritable, twice.
        head = (ctypes.c_uint32 * 2)(0x20080522, 0)
        rights = (ctypes.c_uint32 * 6)(1 << 2, 1 << 2)  # CAP_DAC_READ_SEARCH
        if libc.capset(head, rights):
            os.write(2, b"unreadable")
            os._exit(0)
for name, value in job["limits"]:
    limit = getattr(resource, name)
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    # A process is told that its time is over a second before it is killed, so that we know why.
    resource.setrlimit(limit, (value - 1 if name == "RLIMIT_CPU" else value, value))
names = {"__name__": "__main__"}
status = "ok"
try:
    exec(compile(job["code"], "<code>", "exec"), names)
    if job["expression"] is not None:
        print(repr(eval(job["expression"], names)), end="")
except MemoryError:
    names.clear()
    status = "memory"
except SystemExit:
    status = "error"
    print("SystemExit")
except BaseException as error:
    status = "error"
    line = str(error).split("\\n")[0][:500]
    print(type(error).__name__ + (": " + line if line else ""))
try:
    sys.stdout.flush()
except OSError:
    status = "output"
os.write(2, status.encode())
os._exit(0)
"""


@dataclass(frozen=True)
class Ran:
    """What running code came to.

    Attributes:
        status: ``"ok"``, ``"error"`` (it raised), ``"timeout"``, ``"memory"``, ``"output"`` (it
            wrote too much), ``"killed"``, or ``"refused"`` (there is no such sandbox here).
        output: What it printed, or the value that was asked for, or the error's text.
    """

    status: str
    output: str = ""


class Sandbox:
    r"""Runs Python code in a process of its own.

    Args:
        isolation: ``"limits"`` or ``"bubblewrap"``.
        seconds: Of processor time, in whole seconds: no answer is wrong because a machine is busy.
            On the wall clock it may take four times as long.
        memory: Of address space, in bytes.
        output: How much it may print, in bytes.

    >>> Sandbox("limits").run("def f(x):\n    return x + 1", "f(41)")
    Ran(status='ok', output='42')
    """

    def __init__(
        self,
        isolation: str = "bubblewrap",
        *,
        seconds: float = 5.0,
        memory: int = 512 * _MEGABYTE,
        output: int = 64 * 1024,
    ) -> None:
        if isolation not in ISOLATIONS:
            raise ArgumentError(
                f"isolation must be one of {', '.join(ISOLATIONS)}, not {isolation!r}"
            )
        if not 0 < seconds <= 600:  # noqa: PLR2004 - minutes are no time for a step
            raise ArgumentError(f"seconds must be above 0 and at most 600, not {seconds}")
        if memory < 64 * _MEGABYTE:
            raise ArgumentError(f"memory must be at least 64 MiB, not {memory} bytes")
        if output < 1:
            raise ArgumentError(f"output must be at least 1, not {output}")
        self.isolation = isolation
        self._seconds = seconds
        self._output = output
        self._limits = [
            ("RLIMIT_CPU", math.ceil(seconds) + 1),
            ("RLIMIT_AS", memory),
            ("RLIMIT_FSIZE", output),
            ("RLIMIT_NOFILE", 16),
            ("RLIMIT_NPROC", 0),
            ("RLIMIT_CORE", 0),
        ]

    def run(self, code: str, expression: str | None = None) -> Ran:
        """Execute code, then give back the ``repr`` of an expression if there is one."""
        wrapped = self.isolation == "bubblewrap"
        if wrapped and not bubblewrap_works():
            return Ran("refused", "there is no working bubblewrap here")
        return self._run(code, expression, wrapped=wrapped)

    def _run(self, code: str, expression: str | None, *, wrapped: bool) -> Ran:
        drop = _NOBODY if os.geteuid() == 0 else 0
        job = json.dumps(
            {
                "code": code,
                "expression": expression,
                "limits": self._limits,
                "drop": drop,
                # Bubblewrap shows the interpreter to all.
                "read": not wrapped and not _nobody_reads_python(),
            }
        )
        command = [*(_bubblewrap() if wrapped else ()), _python(), "-s", "-S", "-c", _CHILD]
        with (
            tempfile.TemporaryFile() as said,
            tempfile.TemporaryFile() as status,
            tempfile.TemporaryFile() as told,
        ):
            told.write(job.encode("utf-8", "backslashreplace"))
            told.seek(0)
            process = subprocess.Popen(  # noqa: S603 - the command is ours; the code is its input
                command,
                stdin=told,
                stdout=said,
                stderr=status,
                env={"PYTHONHASHSEED": "0"},
                cwd="/",
                start_new_session=True,
            )
            late = False
            try:
                process.wait(self._seconds * _WALL)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(0)
            status.seek(0)
            output = said.read(self._output).decode("utf-8", "replace")
            told_status = status.read(256).decode("utf-8", "replace")
        if late or process.returncode in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
            return Ran("timeout", output)
        if told_status == "unreadable":
            return Ran("refused", f"root becomes nobody, who may not read {_python()}")
        if process.returncode or told_status not in ("ok", "error", "memory", "output"):
            return Ran("killed", output)
        return Ran(told_status, output)


@functools.lru_cache(maxsize=1)
def bubblewrap_works() -> bool:
    """Whether bubblewrap is here and may do what it must; tried once."""
    return shutil.which("bwrap") is not None and _works(wrapped=True)


@functools.lru_cache(maxsize=1)
def limits_work() -> bool:
    """Whether a process can limit itself on this system; tried once."""
    return _works(wrapped=False)


def _works(*, wrapped: bool) -> bool:
    ran = Sandbox("limits", seconds=10)._run("", "1 + 1", wrapped=wrapped)  # noqa: SLF001 - ours
    return ran == Ran("ok", "2")


@functools.lru_cache(maxsize=1)
def _python() -> str:
    """The interpreter itself, not a link of a virtual environment to it."""
    return str(Path(sys.executable).resolve())


@functools.lru_cache(maxsize=1)
def _nobody_reads_python() -> bool:
    """Whether the interpreter and its library are open to all."""
    files = (Path(_python()), Path(os.__file__).resolve())
    return all(
        file.stat().st_mode & 0o004 and all(up.stat().st_mode & 0o001 for up in file.parents)
        for file in files
    )


def _bubblewrap() -> list[str]:
    folders = {"/usr", "/lib", "/lib64", sys.base_prefix, sys.base_exec_prefix}
    here = sorted(one for one in folders if Path(one).exists())
    binds = [part for one in here for part in ("--ro-bind", one, one)]
    # Bubblewrap makes the folders above them, for root alone where nothing else is said.
    above = sorted({str(up) for one in here for up in Path(one).parents if up != Path("/")})
    folders_above = [part for one in above for part in ("--perms", "0755", "--dir", one)]
    # A user namespace maps one user only, so root does without and becomes nobody inside.
    users = (
        ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        if os.geteuid() == 0
        else ["--unshare-user"]
    )
    return [
        shutil.which("bwrap") or "bwrap",
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"),
        *("--setenv", "PYTHONHASHSEED", "0"),
        *("--cap-drop", "ALL", *users),
        *folders_above,
        *binds,
        *("--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom"),
        *("--remount-ro", "/", "--chdir", "/", "--"),
    ]
