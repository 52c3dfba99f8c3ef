"""Code in a process of its own: what it may do, and what it may not."""

import contextlib
import platform
import threading
import time
import uuid
from pathlib import Path

import pytest
from echoic.agents.environments import sandbox
from echoic.agents.environments.sandbox import Ran, run_code, why_no_bubblewrap

needs_bubblewrap = pytest.mark.skipif(
    why_no_bubblewrap() is not None, reason=f"no bubblewrap: {why_no_bubblewrap()}"
)


@needs_bubblewrap
def test_values_and_what_is_printed_come_back():
    assert run_code("def f(x):\n    return x + [3]", "f([1])") == Ran("ok", "[1, 3]")
    assert run_code("print('a')\nprint('\\ud800')") == Ran("ok", "a\n\\ud800\n")
    assert run_code("1 / 0") == Ran("error", "ZeroDivisionError: division by zero\n")
    assert run_code("def f(x):\n    return f(x)\nf(1)").output.startswith("RecursionError")
    assert run_code("raise SystemExit(0)").status == "error"


@needs_bubblewrap
def test_what_runs_wild_is_stopped():
    assert run_code("x = [0] * 10**10").status == "memory"
    much = run_code("print('a' * 10**6)", output=1000)
    assert (much.status, len(much.output)) == ("output", 1000)
    assert run_code("import os; os._exit(3)").status == "killed"
    assert run_code("import os\nwhile True: os.write(2, b'a' * 1000)").status == "output"
    endless = "import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    ran = run_code(f"{endless}for _ in range(99): os.write(1, b'a' * 1000)", output=1000)
    assert ran == Ran("killed", "a" * 1000), "no more is kept where the signal is ignored"


@needs_bubblewrap
def test_a_warning_does_not_make_a_right_answer_wrong():
    code = "import sys, warnings\nwarnings.warn('old')\nprint('more', file=sys.stderr)"
    assert run_code(code, "1 + 1") == Ran("ok", "2")


@needs_bubblewrap
def test_what_code_does_to_its_descriptors_is_its_own_loss():
    for flag in ("O_NONBLOCK", "O_APPEND"):
        code = (
            "import fcntl, os\nprint('before', flush=True)\n"
            f"for one in range(20):\n    try: fcntl.fcntl(one, fcntl.F_SETFL, os.{flag})\n"
            "    except OSError: pass"
        )
        assert run_code(code, "'after'") == Ran("ok", "before\n'after'")
    assert run_code("import os\nos.closerange(0, 100)", "1 + 1").status == "killed"
    assert run_code("import os\nprint('x', flush=True)\nos.ftruncate(1, 0)") == Ran("ok")


@needs_bubblewrap
@pytest.mark.parametrize("said", ["refused", "run refused", ""])
def test_code_that_ran_is_never_called_refused(said):
    code = (
        "import os\nfor one in range(1, 100):\n"
        f"    try: os.write(one, {said.encode()!r})\n    except OSError: pass\nos._exit(0)"
    )
    assert run_code(code) == Ran("killed", said)


CREATE = [
    # KEYCTL_GET_PERSISTENT: a keyring of the user, which the kernel keeps for days.
    "import ctypes; made = ctypes.CDLL(None).syscall(KEYCTL, 22, -1, -2)",
    "made = os.open(PATH, os.O_CREAT | os.O_WRONLY)",
    "made = os.mkdir(PATH)",
    "made = os.mkfifo(PATH)",
    "made = os.symlink('/', PATH)",
    "made = os.link('/dev/null', PATH)",
    "import socket; made = socket.socket(socket.AF_UNIX).bind(PATH)",
    # CLONE_NEWUSER: a user namespace, in which it would have rights of root.
    "import ctypes; made = ctypes.CDLL(None).unshare(0x10000000)",
    # A ring for system calls that no filter sees.
    "import ctypes; made = ctypes.CDLL(None).syscall(425, 1, ctypes.create_string_buffer(120))",
]


@needs_bubblewrap
def test_nothing_that_code_creates_outlives_it():
    """Each attempt fails, by -1 as a system call or an error of Python, or ends with the code."""
    keyctl = {"x86_64": 250, "aarch64": 219}[platform.machine()]
    code = f"""
import os
made, KEYCTL = {{}}, {keyctl}
for place in ("/", "/usr/", "/dev/"):
    for number, create in enumerate({CREATE!r}):
        names = {{"os": os, "KEYCTL": KEYCTL, "PATH": place + "echoic-left"}}
        try:
            exec(create, names)
            made[number] = names["made"]
        except OSError:
            made[number] = -1
import ctypes
libc = ctypes.CDLL(None)
shared = [libc.shmget(0, 1 << 20, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600)]
"""
    kinds = [Path("/proc/sysvipc", kind) for kind in ("shm", "msg", "sem")]
    before = [len(kind.read_text().splitlines()) for kind in kinds]
    ran = run_code(code, "set(made.values()), len(made), min(shared) >= 0, os.geteuid() > 0")
    assert ran == Ran("ok", f"({{-1}}, {len(CREATE)}, True, True)")
    assert [len(kind.read_text().splitlines()) for kind in kinds] == before


@needs_bubblewrap
def test_code_may_still_open_what_is_there():
    assert run_code("data = open('/dev/null').read()", "data") == Ran("ok", "''")


@needs_bubblewrap
def test_code_starts_no_process_that_outlives_it():
    ran = run_code("import os\nif not os.fork():\n    os.setsid()\n    os._exit(0)")
    assert ran.status == "error"
    assert "BlockingIOError" in ran.output
    # What it needs later can still be read.
    assert run_code("import decimal, os", "decimal.Decimal(3), os.getuid() > 0").output == (
        "(Decimal('3'), True)"
    )


@needs_bubblewrap
def test_what_takes_too_long_is_ended():
    for code in ("while True: pass", "import time; time.sleep(60)"):
        began = time.monotonic()
        assert run_code(code, seconds=0.25).status == "timeout"
        assert time.monotonic() - began < 30


@needs_bubblewrap
def test_nothing_of_it_runs_when_a_call_returns(monkeypatch):
    mark = uuid.uuid4().hex
    monkeypatch.setattr(sandbox, "_CHILD", f"{sandbox._CHILD}# {mark}")
    # Much memory takes long to give back.
    for code in ("x = bytearray(150 << 20)\nwhile True: pass", "x = bytearray(150 << 20)"):
        run_code(code, seconds=0.2)
        running = []
        for one in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # of one that ended meanwhile
                running += [one] if mark in one.read_text() else []
        assert not running


@needs_bubblewrap
def test_sets_print_in_the_same_order_each_time():
    assert len({run_code("print({'a', 'b', 'c', 'd'})").output for _ in range(3)}) == 1


@needs_bubblewrap
def test_it_runs_from_several_threads():
    ran = {}
    threads = [
        threading.Thread(target=lambda i=i: ran.update({i: run_code("", f"{i} + 1").output}))
        for i in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert ran == {i: str(i + 1) for i in range(4)}


@needs_bubblewrap
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os; os.fork()", "BlockingIOError"),
        ("import socket; socket.create_connection(('192.0.2.1', 9), 1)", "OSError"),
        # From a virtual machine to its host.
        ("import socket; socket.socket(40, socket.SOCK_STREAM)", "PermissionError"),
        ("open('/etc/passwd')", "FileNotFoundError"),
        ("open('/proc/1/environ')", "FileNotFoundError"),
        ("open('/usr/here', 'w')", "OSError"),
        ("open('/here', 'w')", "OSError"),
        ("import os; os.setuid(0); os.setgroups([])", "Error"),
    ],
)
def test_bubblewrap_keeps_code_of_models_in(code, error):
    ran = run_code(code)
    assert ran.status == "error"
    assert error in ran.output or "PermissionError" in ran.output


def test_a_sandbox_that_is_not_there_is_refused_and_not_replaced(monkeypatch, tmp_path):
    fails = tmp_path / "bwrap"
    fails.write_text("#!/bin/sh\necho no rights >&2\nexit 1\n")
    fails.chmod(0o755)
    for found, why in (
        (None, "the program bwrap is not installed"),
        (str(fails), "refused: no rights"),
    ):
        monkeypatch.setattr(sandbox.shutil, "which", lambda _, found=found: found)
        why_no_bubblewrap.cache_clear()
        try:
            ran = run_code("print('I ran')")
        finally:
            why_no_bubblewrap.cache_clear()
        assert ran == Ran("refused", f"there is no working bubblewrap here: {why}")
