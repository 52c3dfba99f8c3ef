"""Python code in a process of its own, within bubblewrap, with limits; or not at all.

Code has no network, no other processes, and only Python's files, read-only. It is limited in time,
memory, output and processes, and a filter of system calls refuses what namespaces leave open. Root
is exempt from the limit of processes, so it becomes another user inside.

Invariants: a bounded number of bytes is kept of the output. When a call returns, the process and
all that it started and created are gone. ``"refused"`` means that the code did not run; ``"ok"``,
``"error"`` and ``"memory"`` are reported by the process that ran it, so hostile code can choose
between them, as it can choose its output.
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
import shutil
import signal
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echoic.workers import Process

__all__ = ["Ran", "run_code", "why_no_bubblewrap"]

_MEMORY = 512 << 20
# The limit on the wall clock, beside that of processor time: a busy machine changes no result.
_WALL = 4
# By machine, its number in the kernel, and the calls that are refused: `socket` (a network
# namespace keeps only IP and Unix sockets in: over AF_VSOCK a virtual machine talks to its host),
# `io_uring_setup` (a way around this filter), `unshare` (a user namespace, whose rights open most
# of the kernel to attacks), and `add_key`, `request_key` and `keyctl` (keyrings outlive processes).
_REFUSED = {
    "x86_64": (0xC000003E, (41, 425, 272, 248, 249, 250)),
    "aarch64": (0xC00000B7, (198, 425, 97, 217, 218, 219)),
}

# Runs inside: it reads the job, limits itself, reports that, and executes. Output of the code, and
# the value after it, go to standard output; the status word to a pipe of its own. Errors before
# that go to standard error.
_CHILD = """
import sys
sys.path[:] = [one for one in sys.path if one]
import json, os, resource, signal
sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
job = json.loads(sys.stdin.buffer.read())
if job["drop"]:
    os.setgroups([]); os.setgid(job["drop"]); os.setuid(job["drop"])
for name, value in job["limits"]:
    limit = getattr(resource, name)
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    # SIGXCPU comes a second before SIGKILL, so that the cause is known.
    resource.setrlimit(limit, (value - 1 if name == "RLIMIT_CPU" else value, value))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
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
            much of it), ``"killed"``, or ``"refused"`` (there is no bubblewrap here, and the code
            did not run).
        output: Standard output, the value of the expression, and the error's text.
    """

    status: str
    output: str = ""


def run_code(
    code: str, expression: str | None = None, *, seconds: float = 5.0, output: int = 64 * 1024
) -> Ran:
    """Execute code, then evaluate an expression if there is one; its ``repr`` is the output.

    ``seconds`` limits the processor time (on the wall clock it is four times as long), ``output``
    the bytes of standard output and of standard error.
    """
    if (why := why_no_bubblewrap()) is not None:
        return Ran("refused", f"there is no working bubblewrap here: {why}")
    return _run(code, expression, seconds, output)


@functools.lru_cache(maxsize=1)
def why_no_bubblewrap() -> str | None:
    """Say why bubblewrap does not work here; None if it does. Tried once."""
    if shutil.which("bwrap") is None:
        return "the program bwrap is not installed"
    if platform.machine() not in _REFUSED:
        return f"no filter of system calls is known for {platform.machine()}"
    ran = _run("", "1 + 1", 10.0, 1000)
    return None if ran == Ran("ok", "2") else f"{ran.status}: {ran.output}"


def _run(code: str, expression: str | None, seconds: float, output: int) -> Ran:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def opened(what: str | int, mode: str) -> Any:
            path = what if isinstance(what, int) else folder / what
            return stack.enter_context(open(path, mode, 0))  # noqa: PTH123

        (status, status_of_child), (info, info_of_bubblewrap) = (
            (opened(reads, "rb"), opened(writes, "wb")) for reads, writes in (os.pipe(), os.pipe())
        )
        job = {
            "code": code,
            "expression": expression,
            "limits": [
                ("RLIMIT_CPU", math.ceil(seconds) + 1),
                ("RLIMIT_AS", _MEMORY),
                ("RLIMIT_FSIZE", output),
                ("RLIMIT_NOFILE", 16),
                ("RLIMIT_NPROC", 0),
                ("RLIMIT_CORE", 0),
            ],
            "drop": 65534 if os.geteuid() == 0 else 0,
            "status": status_of_child.fileno(),
        }
        (folder / "job").write_text(json.dumps(job))
        (folder / "filter").write_bytes(_filter())
        rules = opened("filter", "rb")
        process = Process(
            [
                *_bubblewrap(info_of_bubblewrap.fileno(), rules.fileno()),
                *(_PYTHON, "-s", "-S", "-c", _CHILD),
            ],
            name="the process",
            stdin=opened("job", "rb"),
            stdout=opened("said", "wb"),
            stderr=opened("complained", "wb"),
            pass_fds=[one.fileno() for one in (status_of_child, info_of_bubblewrap, rules)],
            cwd="/",
        )
        init = None
        try:
            status_of_child.close()
            info_of_bubblewrap.close()
            if told := info.read():
                with contextlib.suppress(ProcessLookupError):
                    init = os.pidfd_open(json.loads(told)["child-pid"])
            in_time = process.wait(seconds * _WALL)
        finally:
            process.kill()
            # Bubblewrap's own process ends before its namespace, whose first process ends last.
            if init is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(init, signal.SIGKILL)
                gone = select.poll()
                gone.register(init, select.POLLIN)
                gone.poll()
                os.close(init)
        os.set_blocking(status.fileno(), False)
        reported = (status.read(64) or b"").decode(errors="replace")
        said, complained = (
            (folder / name).read_bytes()[:output].decode(errors="replace")
            for name in ("said", "complained")
        )
    began, _, word = reported.partition(" ")
    code_of_end = process.process.returncode
    if not in_time or code_of_end == 128 + signal.SIGXCPU:
        return Ran("timeout", said)
    if began != "run":
        why = complained.strip().rpartition("\n")[2]
        return Ran("refused", why or f"{process.name} {process.ending()}")
    if code_of_end == 128 + signal.SIGXFSZ:
        return Ran("output", said)
    return Ran("killed" if code_of_end or word not in ("ok", "error", "memory") else word, said)


def _filter() -> bytes:
    """Assemble the filter's program."""
    architecture, refused = _REFUSED[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    allow, refuse = (give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | errno.EPERM)
    # A jump says how many rules are passed over if it is so, and if not. The call's number is at
    # 0, the architecture at 4.
    rules = [(load, 0, 0, 4), (equal, 1, 0, architecture), refuse, (load, 0, 0, 0)]
    # Calls from here on are those of another architecture's numbers.
    rules += [(at_least, 0, 1, 0x40000000), refuse]
    for number in refused:
        rules += [(equal, 0, 1, number), refuse]
    return b"".join(struct.pack("=HBBI", *one) for one in [*rules, allow])


# The interpreter itself, not a virtual environment's link to it.
_PYTHON = str(Path(sys.executable).resolve())


def _bubblewrap(info: int, rules: int) -> list[str]:
    folders = {"/usr", "/lib", "/lib64", sys.base_prefix, sys.base_exec_prefix}
    here = sorted(one for one in folders if Path(one).exists())
    # Bubblewrap makes the folders above them, for root alone where nothing else is said.
    devices = ("/dev/null", "/dev/urandom")
    above = sorted({str(up) for one in (*here, *devices) for up in Path(one).parents} - {"/"})
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
        *("--info-fd", str(info), "--seccomp", str(rules)),
        *("--setenv", "PYTHONHASHSEED", "0"),
        *("--cap-drop", "ALL", *users),
        *(part for one in above for part in ("--perms", "0755", "--dir", one)),
        *(part for one in here for part in ("--ro-bind", one, one)),
        *(part for one in devices for part in ("--dev-bind", one, one)),
        *("--remount-ro", "/", "--chdir", "/", "--"),
    ]
