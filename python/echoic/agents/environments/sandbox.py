"""Python code in a process of its own, with limits.

- ``"limits"``: an interpreter without site packages, with an empty environment and a session of its
  own. It limits its time, memory, files and processes, and filters system calls that create what
  would outlive it (files, System V memory, user namespaces) before it runs the code. That stops
  accidents, not attacks: the code acts as the user that runs it.
- ``"bubblewrap"``: the same within bubblewrap: no network, no other processes, and only Python's
  files, read-only. For code that a model wrote.

Root is exempt from the limit of processes, so both kinds become the unprivileged user of id 65534.
If that user can't read the interpreter, code with limits keeps root's right to read all files and
no other. A sandbox that can't be had is refused, never replaced.

Invariants: output comes over pipes, of which a bounded number of bytes is read. When a call
returns, the process and all that it started and created are gone. ``"refused"`` means that the code
did not run; ``"ok"``, ``"error"`` and ``"memory"`` are reported by the process that ran it, so
hostile code can choose between them, as it can choose its output.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import platform
import select
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from echoic.agents import _checks

__all__ = ["ISOLATIONS", "Ran", "Sandbox", "bubblewrap_works", "limits_work", "why_no_bubblewrap"]

ISOLATIONS = ("limits", "bubblewrap")
_MEGABYTE = 1 << 20
_WALL = 4
_UNPRIVILEGED = 65534

_STATUS_BYTES = 64
_PART = 64 * 1024
_LOOK = 0.1

# The system calls that create what outlives a process: System V memory, semaphores and queues,
# POSIX queues, keys and keyrings, folders, nodes, links and sockets with a path. `creat` and the
# ways to open files that a filter can't look into are among them. With `open` and `openat` the flag
# decides. `unshare` makes a user namespace, whose rights open most of the kernel to attacks.
_CREATING = {
    "x86_64": (
        *(29, 49, 64, 68, 83, 85, 86, 88, 133, 240, 248, 249, 250, 258, 259, 265, 266, 272),
        *(425, 437),
    ),
    "aarch64": (33, 34, 36, 37, 97, 180, 186, 190, 194, 200, 217, 218, 219, 425, 437),
}
# `socket`. A network namespace keeps only IP and Unix sockets in: over AF_VSOCK a virtual machine
# talks to its host.
_SOCKET = {"x86_64": 41, "aarch64": 198}
# Number of the call, and which of its arguments has the flags.
_OPENING = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Runs in the child: it reads the job, limits itself, reports that, and executes. Output of the
# code, and the value after it, go to standard output; the status word to a pipe of its own. Errors
# before that go to standard error.
_CHILD = """
import sys
sys.path[:] = [one for one in sys.path if one]
import ctypes, json, os, resource
libc = ctypes.CDLL(None)
sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
job = json.loads(sys.stdin.buffer.read())
if job["drop"]:
    if job["read"]:
        libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
    os.setgroups([]); os.setgid(job["drop"]); os.setuid(job["drop"])
    if job["read"]:
        # The third version of capabilities: effective, permitted and inheritable, twice.
        head = (ctypes.c_uint32 * 2)(0x20080522, 0)
        rights = (ctypes.c_uint32 * 6)(1 << 2, 1 << 2)  # CAP_DAC_READ_SEARCH
        if libc.capset(head, rights):
            sys.exit("without root's rights, this process may not read " + sys.executable)
for name, value in job["limits"]:
    limit = getattr(resource, name)
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    # SIGXCPU comes a second before SIGKILL, so that the cause is known.
    resource.setrlimit(limit, (value - 1 if name == "RLIMIT_CPU" else value, value))
rules = ctypes.create_string_buffer(bytes.fromhex(job["filter"]))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("rules", ctypes.c_void_p)]
program = Program(len(rules) // 8, ctypes.addressof(rules))
# PR_SET_NO_NEW_PRIVS, without which only root may set a filter; PR_SET_SECCOMP.
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit("this system refuses a filter of system calls")
os.write(job["status"], b"run ")
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
sys.stdout.flush()
os.write(job["status"], status.encode())
os._exit(0)
"""


@dataclass(frozen=True)
class Ran:
    """The result of running code.

    Attributes:
        status: ``"ok"``, ``"error"`` (it raised), ``"timeout"``, ``"memory"``, ``"output"`` (too
            much of it), ``"killed"``, or ``"refused"`` (there is no such sandbox here, and the code
            did not run).
        output: Standard output, the value of the expression, and the error's text.
    """

    status: str
    output: str = ""


class Sandbox:
    r"""Runs Python code in a process of its own.

    Args:
        isolation: ``"limits"`` or ``"bubblewrap"``.
        seconds: Limit of processor time, so that a busy machine changes no result. The limit on the
            wall clock is four times as long.
        memory: Limit of address space, in bytes.
        output: Limit of standard output, and of standard error, in bytes.

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
        self.isolation, self.seconds, self.memory = isolation, seconds, memory
        self.output = output
        _checks.one_of(self, "isolation", ISOLATIONS)
        _checks.number(self, "seconds", above=0, most=600)
        _checks.whole(self, "memory", least=64 * _MEGABYTE)
        _checks.whole(self, "output")
        self._limits = [
            ("RLIMIT_CPU", math.ceil(seconds) + 1),
            ("RLIMIT_AS", memory),
            ("RLIMIT_FSIZE", 0),
            ("RLIMIT_NOFILE", 16),
            ("RLIMIT_NPROC", 0),
            ("RLIMIT_CORE", 0),
        ]

    def run(self, code: str, expression: str | None = None) -> Ran:
        """Execute code, then evaluate an expression if there is one; its ``repr`` is the output."""
        wrapped = self.isolation == "bubblewrap"
        if wrapped and not bubblewrap_works():
            return Ran("refused", f"there is no working bubblewrap here: {why_no_bubblewrap()}")
        return self._run(code, expression, wrapped=wrapped)

    def _run(self, code: str, expression: str | None, *, wrapped: bool) -> Ran:
        rules = _filter(sockets=not wrapped)
        if rules is None:
            return Ran("refused", f"no filter of system calls is known for {platform.machine()}")
        status, status_of_child = os.pipe()
        info, info_of_bubblewrap = os.pipe()
        with (
            os.fdopen(status, "rb", 0) as status_pipe,
            os.fdopen(status_of_child, "wb", 0) as pipe_of_child,
            os.fdopen(info, "rb") as info_pipe,
            os.fdopen(info_of_bubblewrap, "wb", 0) as pipe_of_bubblewrap,
            contextlib.ExitStack() as ended,
            tempfile.TemporaryFile() as sent,
        ):
            job = {
                "code": code,
                "expression": expression,
                "limits": self._limits,
                "drop": _UNPRIVILEGED if os.geteuid() == 0 else 0,
                # Bubblewrap shows the interpreter to all.
                "read": not wrapped and not _all_read_python(),
                "filter": rules.hex(),
                "status": status_of_child,
            }
            sent.write(json.dumps(job).encode("utf-8", "backslashreplace"))
            sent.seek(0)
            with subprocess.Popen(
                [
                    *(_bubblewrap(info_of_bubblewrap) if wrapped else ()),
                    *(_PYTHON, "-s", "-S", "-c", _CHILD),
                ],
                stdin=sent,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(status_of_child, *((info_of_bubblewrap,) if wrapped else ())),
                env={"PYTHONHASHSEED": "0"},
                cwd="/",
                start_new_session=True,
            ) as process:
                try:
                    pipe_of_child.close()
                    pipe_of_bubblewrap.close()
                    ended.callback(_end, _init(info_pipe.read()))
                    said = _Bounded(process.stdout, self.output)
                    complained = _Bounded(process.stderr, self.output)
                    reported = _Bounded(status_pipe, _STATUS_BYTES)
                    deadline = time.monotonic() + self.seconds * _WALL
                    stopped = _read(process, (said, complained, reported), deadline)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    ended.close()
        output = said.text()
        if stopped == "timeout" or process.returncode in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
            return Ran("timeout", output)
        began, _, word = reported.text().partition(" ")
        if began != "run":
            why = complained.text().strip().rpartition("\n")[2]
            return Ran("refused", why or f"the process ended with {process.returncode}")
        if stopped == "output":
            return Ran("output", output)
        if process.returncode or word not in ("ok", "error", "memory"):
            return Ran("killed", output)
        return Ran(word, output)


def _init(info: bytes) -> int | None:
    """Open the first process of bubblewrap's process namespace, if there is one."""
    if not info:
        return None
    with contextlib.suppress(ProcessLookupError):
        return os.pidfd_open(json.loads(info)["child-pid"])
    return None


def _end(init: int | None) -> None:
    """End a process namespace, and wait until all its processes are gone.

    Bubblewrap's own process ends before them. The first process of a namespace ends last.
    """
    if init is None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(init, signal.SIGKILL)
        gone = select.poll()
        gone.register(init, select.POLLIN)
        gone.poll()
    finally:
        os.close(init)


class _Bounded:
    """The bytes of a pipe, up to one more than a limit."""

    def __init__(self, pipe: IO[bytes] | None, limit: int) -> None:
        assert pipe is not None
        self.pipe = pipe
        self.limit = limit
        self.data = bytearray()
        self.open = True
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> None:
        """Read what is there."""
        while self.open and not self.is_over():
            try:
                part = os.read(self.pipe.fileno(), min(self.limit + 1 - len(self.data), _PART))
            except BlockingIOError:
                return
            self.data += part
            self.open = bool(part)

    def is_over(self) -> bool:
        return len(self.data) > self.limit

    def text(self) -> str:
        return self.data[: self.limit].decode("utf-8", "replace")


def _read(
    process: subprocess.Popen[bytes], streams: tuple[_Bounded, ...], deadline: float
) -> str | None:
    """Read until the process ends; ``"timeout"`` or ``"output"`` where it has to be ended."""
    with selectors.DefaultSelector() as selector:
        for one in streams:
            selector.register(one.pipe, selectors.EVENT_READ, one)
        while process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            if not selector.get_map():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(left)
                continue
            # A process forked elsewhere may hold a pipe open: an end of file may never come.
            for key, _ in selector.select(min(left, _LOOK)):
                key.data.read()
                if key.data.is_over():
                    return "output"
                if not key.data.open:
                    selector.unregister(key.fileobj)
    for one in streams:
        one.read()
    return "output" if any(one.is_over() for one in streams) else None


@functools.lru_cache(maxsize=2)
def _filter(*, sockets: bool) -> bytes | None:
    """Assemble the filter's program; None for a machine whose calls are not known."""
    machine = platform.machine()
    if machine not in _CREATING:
        return None
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse = (give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | errno.EPERM)
    # A jump says how many rules are passed over if it is so, and if not. The call's number is at
    # 0, the architecture at 4, and the arguments, of eight bytes each, from 16.
    rules = [(load, 0, 0, 4), (equal, 1, 0, _ARCHITECTURE[machine]), refuse, (load, 0, 0, 0)]
    # Calls from here on are those of another architecture's numbers.
    rules += [(at_least, 0, 1, 0x40000000), refuse]
    for number in (*_CREATING[machine], *(() if sockets else (_SOCKET[machine],))):
        rules += [(equal, 0, 1, number), refuse]
    for number, flags in _OPENING[machine]:
        rules += [(equal, 0, 4, number), (load, 0, 0, 16 + 8 * flags)]
        rules += [(any_bit, 0, 1, os.O_CREAT), refuse, allow]
    return b"".join(struct.pack("=HBBI", *one) for one in [*rules, allow])


def bubblewrap_works() -> bool:
    """Return whether bubblewrap works here; tried once."""
    return why_no_bubblewrap() is None


@functools.lru_cache(maxsize=1)
def why_no_bubblewrap() -> str | None:
    """Say why bubblewrap does not work here; None if it does. Tried once."""
    if shutil.which("bwrap") is None:
        return "the program bwrap is not installed"
    ran = Sandbox("limits", seconds=10)._run("", "1 + 1", wrapped=True)
    return None if ran == Ran("ok", "2") else f"{ran.status}: {ran.output}"


@functools.lru_cache(maxsize=1)
def limits_work() -> bool:
    """Return whether a process can limit itself on this system; tried once."""
    return Sandbox("limits", seconds=10).run("", "1 + 1") == Ran("ok", "2")


# The interpreter itself, not a virtual environment's link to it.
_PYTHON = str(Path(sys.executable).resolve())


@functools.lru_cache(maxsize=1)
def _all_read_python() -> bool:
    """Return whether every user can read the interpreter and its library."""
    files = (Path(_PYTHON), Path(os.__file__).resolve())
    return all(
        file.stat().st_mode & 0o004 and all(up.stat().st_mode & 0o001 for up in file.parents)
        for file in files
    )


def _bubblewrap(info: int) -> list[str]:
    folders = {"/usr", "/lib", "/lib64", sys.base_prefix, sys.base_exec_prefix}
    here = sorted(one for one in folders if Path(one).exists())
    binds = [part for one in here for part in ("--ro-bind", one, one)]
    # Bubblewrap makes the folders above them, for root alone where nothing else is said.
    devices = ("/dev/null", "/dev/urandom")
    inside = (*here, *devices)
    above = sorted({str(up) for one in inside for up in Path(one).parents if up != Path("/")})
    folders_above = [part for one in above for part in ("--perms", "0755", "--dir", one)]
    # A user namespace maps one user only, so root does without and drops its rights inside.
    users = (
        ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        if os.geteuid() == 0
        else ["--unshare-user"]
    )
    return [
        shutil.which("bwrap") or "bwrap",
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"),
        *("--info-fd", str(info)),
        *("--setenv", "PYTHONHASHSEED", "0"),
        *("--cap-drop", "ALL", *users),
        *folders_above,
        *binds,
        *(part for one in devices for part in ("--dev-bind", one, one)),
        *("--remount-ro", "/", "--chdir", "/", "--"),
    ]
