"""Code in a process of its own: what it may do, and what it may not."""

import os
import threading
import time

import pytest
from echoic.agents.environments import sandbox
from echoic.agents.environments.sandbox import Ran, Sandbox, bubblewrap_works
from echoic.errors import ArgumentError

needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="no working bubblewrap here")


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
    assert box.run("open('/proc/self/x', 'w')").status == "error"


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
    box = Sandbox(box.isolation, seconds=0.5)
    for code in ("while True: pass", "import time; time.sleep(60)"):
        began = time.monotonic()
        assert box.run(code).status == "timeout"
        assert time.monotonic() - began < 30


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


def test_a_sandbox_that_is_not_there_is_refused_and_not_replaced(monkeypatch):
    monkeypatch.setattr(sandbox, "bubblewrap_works", lambda: False)
    ran = Sandbox("bubblewrap").run("print('I ran')")
    assert ran == Ran("refused", "there is no working bubblewrap here")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"isolation": "trust"}, "one of limits, bubblewrap, not 'trust'"),
        ({"seconds": 0}, "seconds must be above 0"),
        ({"memory": 1}, "memory must be at least 64 MiB"),
        ({"output": 0}, "output must be at least 1"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ArgumentError, match=message):
        Sandbox(**settings)
