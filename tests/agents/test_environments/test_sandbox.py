"""Code in a process of its own: what it may do, and what it may not."""

import contextlib
import os
import platform
import threading
import time
import uuid
from pathlib import Path

import pytest
from echoic.agents.environments import sandbox
from echoic.agents.environments.sandbox import Ran, Sandbox, bubblewrap_works, why_no_bubblewrap
from echoic.errors import ArgumentError

needs_bubblewrap = pytest.mark.skipif(
    not bubblewrap_works(), reason=f"no bubblewrap: {why_no_bubblewrap()}"
)


@pytest.fixture(params=["limits", pytest.param("bubblewrap", marks=needs_bubblewrap)])
def box(request):
    return Sandbox(request.param, seconds=5, output=1000)


def test_values_and_what_is_printed_come_back(box):
    assert box.run("def f(x):\n    return x + [3]", "f([1])") == Ran("ok", "[1, 3]")
    assert box.run("print('a')\nprint('\\ud800')") == Ran("ok", "a\n\\ud800\n")
    assert box.run("1 / 0") == Ran("error", "ZeroDivisionError: division by zero\n")
    assert box.run("def f(x):\n    return f(x)\nf(1)").output.startswith("RecursionError")
    assert box.run("raise SystemExit(0)").status == "error"


def test_what_runs_wild_is_stopped(box):
    assert box.run("x = [0] * 10**10").status == "memory"
    much = box.run("print('a' * 10**6)")
    assert (much.status, len(much.output)) == ("output", 1000)
    assert box.run("import os; os._exit(3)").status == "killed"
    assert box.run("import os\nwhile True: os.write(2, b'a' * 1000)").status == "output"
    assert box.run("open('/proc/self/x', 'w')").status == "error"


def test_a_warning_does_not_make_a_right_answer_wrong(box):
    code = "import sys, warnings\nwarnings.warn('old')\nprint('more', file=sys.stderr)"
    assert box.run(code, "1 + 1") == Ran("ok", "2")


def test_what_code_does_to_its_descriptors_is_its_own_loss(box):
    # With O_DIRECT, files and pipes are read in whole blocks and packets.
    for flag in ("O_DIRECT", "O_NONBLOCK", "O_APPEND"):
        code = (
            "import fcntl, os\nprint('before', flush=True)\n"
            f"for one in range(20):\n    try: fcntl.fcntl(one, fcntl.F_SETFL, os.{flag})\n"
            "    except OSError: pass"
        )
        assert box.run(code, "'after'") == Ran("ok", "before\n'after'")
    assert box.run("import os\nos.closerange(0, 100)", "1 + 1").status == "killed"


@pytest.mark.parametrize("said", ["refused", "run refused", ""])
def test_code_that_ran_is_never_called_refused(box, said):
    code = (
        "import os\nfor one in range(1, 100):\n"
        f"    try: os.write(one, {said.encode()!r})\n    except OSError: pass\nos._exit(0)"
    )
    assert box.run(code) == Ran("killed", said)


CREATE = [
    "import ctypes; made = ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600)",
    "import ctypes; made = ctypes.CDLL(None).msgget(0, 0o1600)",
    "import ctypes; made = ctypes.CDLL(None).semget(0, 1, 0o1600)",
    "import ctypes; made = ctypes.CDLL(None).mq_open(b'/left', 0o102, 0o600, None)",
    # KEYCTL_GET_PERSISTENT: a keyring of the user, which the kernel keeps for days.
    "import ctypes; made = ctypes.CDLL(None).syscall(KEYCTL, 22, -1, -2)",
    "import ctypes; made = ctypes.CDLL(None).creat(PATH.encode(), 0o600)",
    "made = os.open(PATH, os.O_CREAT | os.O_WRONLY)",
    "made = os.open(PATH, os.O_CREAT | os.O_WRONLY, dir_fd=os.open('/', os.O_RDONLY))",
    "made = os.mkdir(PATH)",
    "made = os.mkfifo(PATH)",
    "made = os.symlink('/', PATH)",
    "made = os.link('/dev/null', PATH)",
    "import socket; made = socket.socket(socket.AF_UNIX).bind(PATH)",
    # CLONE_NEWUSER: a user namespace, in which it would have rights of root.
    "import ctypes; made = ctypes.CDLL(None).unshare(0x10000000)",
]


def test_nothing_that_code_creates_outlives_it(box):
    """Each attempt fails: by -1 as a system call, or by an error of Python."""
    path = f"/dev/shm/echoic-{uuid.uuid4().hex}"
    keyctl = {"x86_64": 250, "aarch64": 219}[platform.machine()]
    code = f"""
import os
made, KEYCTL = {{}}, {keyctl}
for number, create in enumerate({CREATE!r}):
    names = {{"os": os, "KEYCTL": KEYCTL, "PATH": {path!r} + str(number)}}
    try:
        exec(create, names)
        made[number] = names["made"]
    except OSError:
        made[number] = -1
"""
    assert box.run(code, "sorted(made.items()), os.geteuid() > 0") == Ran(
        "ok", f"({[(number, -1) for number in range(len(CREATE))]}, True)"
    )
    assert not list(Path("/dev/shm").glob(f"{Path(path).name}*"))


def test_code_may_still_open_what_is_there(box):
    assert box.run("data = open('/dev/null').read()", "data") == Ran("ok", "''")


def test_code_starts_no_process_that_outlives_it(box):
    ran = box.run("import os\nif not os.fork():\n    os.setsid()\n    os._exit(0)")
    assert ran.status == "error"
    assert "BlockingIOError" in ran.output
    # What it needs later can still be read.
    assert box.run("import decimal, os", "decimal.Decimal(3), os.getuid() > 0").output == (
        "(Decimal('3'), True)"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up rights")
def test_root_keeps_no_right_but_to_read():
    code = "rights = [one for one in open('/proc/self/status') if one.startswith('CapEff')][0]"
    rights = Sandbox("limits").run(code, "int(rights.split()[1], 16)")
    assert rights in (Ran("ok", "0"), Ran("ok", str(1 << 2)))
    for code in ("open('/etc/here', 'w')", "import os; os.setuid(0)"):
        assert "PermissionError" in Sandbox("limits").run(code).output


def test_what_takes_too_long_is_ended(box):
    box = Sandbox(box.isolation, seconds=0.25)
    for code in ("while True: pass", "import time; time.sleep(60)"):
        began = time.monotonic()
        assert box.run(code).status == "timeout"
        assert time.monotonic() - began < 30


def test_nothing_of_it_runs_when_a_call_returns(box, monkeypatch):
    mark = uuid.uuid4().hex
    monkeypatch.setattr(sandbox, "_CHILD", f"{sandbox._CHILD}# {mark}")
    box = Sandbox(box.isolation, seconds=0.2)
    # Much memory takes long to give back.
    for code in ("x = bytearray(150 << 20)\nwhile True: pass", "x = bytearray(150 << 20)"):
        box.run(code)
        running = []
        for one in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # of one that ended meanwhile
                running += [one] if mark in one.read_text() else []
        assert not running


def test_sets_print_in_the_same_order_each_time(box):
    assert len({box.run("print({'a', 'b', 'c', 'd'})").output for _ in range(3)}) == 1


def test_it_runs_from_several_threads(box):
    ran = {}
    threads = [
        threading.Thread(target=lambda i=i: ran.update({i: box.run("", f"{i} + 1").output}))
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
        ("import os; os.setuid(0); os.setgroups([])", "PermissionError"),
    ],
)
def test_bubblewrap_keeps_code_of_models_in(code, error):
    ran = Sandbox("bubblewrap").run(code)
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
            ran = Sandbox("bubblewrap").run("print('I ran')")
        finally:
            why_no_bubblewrap.cache_clear()
        assert ran == Ran("refused", f"there is no working bubblewrap here: {why}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"isolation": "trust"}, "one of limits, bubblewrap, not 'trust'"),
        ({"seconds": 0}, "seconds must be above 0"),
        ({"memory": 1}, "memory must be at least 67108864, not 1"),
        ({"output": 0}, "output must be at least 1"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ArgumentError, match=message):
        Sandbox(**settings)
