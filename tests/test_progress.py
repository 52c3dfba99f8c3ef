"""Progress of long work: shown to a person who watches, and to nothing else."""

from __future__ import annotations

import io
import threading
from typing import Any

import numpy as np
import pytest
from echoic import OfflineDataset, ReplayBuffer, Server, Table, _progress
from echoic._progress import working

pytest.importorskip("rich")


class Screen(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


def watched_by(monkeypatch: Any) -> Screen:
    """Make standard error a terminal, and show work at once; pytest undoes it in a fixture."""
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(_progress, "_DELAY", 0)
    return screen


def wait_for(screen: Screen, text: str) -> None:
    for _ in range(500):
        if text in screen.getvalue():
            return

        threading.Event().wait(0.01)
    pytest.fail(f"{text!r} is not in {screen.getvalue()[-2000:]!r}")


def test_a_person_sees_the_work_and_how_much_is_done(monkeypatch: Any) -> None:
    screen = watched_by(monkeypatch)
    with working("counting [apples]") as update:
        update(3, 10)
        wait_for(screen, "counting [apples]")
        wait_for(screen, "3 of 10")
        with working("part"):
            update(4, 10)
            wait_for(screen, "4 of 10")
    assert "part" not in screen.getvalue()
    assert _progress._shown is None


def test_bytes_have_their_unit(monkeypatch: Any) -> None:
    screen = watched_by(monkeypatch)
    with working("copying", of_bytes=True) as update:
        update(1_500_000, 3_000_000)
        wait_for(screen, "1.5 MB of 3 MB")


def test_an_error_ends_what_is_shown(monkeypatch: Any) -> None:
    screen = watched_by(monkeypatch)

    @working("failing")
    def fail() -> None:
        wait_for(screen, "failing")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert _progress._shown is None


def test_short_work_and_work_that_is_not_watched_write_nothing(monkeypatch: Any) -> None:
    screen = watched_by(monkeypatch)
    monkeypatch.setattr(_progress, "_DELAY", 60)
    with working("short"):
        pass
    monkeypatch.setattr(_progress, "_DELAY", 0)
    watched: list[bool] = []
    thread = threading.Thread(target=lambda: watched.append(_progress._is_watched()))
    thread.start()
    thread.join()
    monkeypatch.setattr(screen, "isatty", lambda: False)
    with working("piped"):
        threading.Event().wait(0.05)
    assert (screen.getvalue(), watched) == ("", [False])


def test_long_calls_of_the_package_are_shown(tmp_path: Any, monkeypatch: Any) -> None:
    started: list[str] = []

    class Shown:
        def __init__(self, what: str, **_: Any) -> None:
            started.append(what)

        def start(self) -> None: ...

        def update(self, done: int, total: int | None = None, /) -> None: ...

        def stop(self) -> None: ...

    monkeypatch.setattr(_progress, "_is_watched", lambda: True)
    monkeypatch.setattr(_progress, "_Shown", Shown)
    buffer = ReplayBuffer({"obs": np.zeros(2, np.float32)}, 10)
    buffer.save(tmp_path / "buffer.npz")
    buffer.load(tmp_path / "buffer.npz")
    ends = np.array([False, True])
    columns = {"obs": np.zeros((2, 3)), "next_obs": np.zeros((2, 3)), "actions": np.zeros(2)}
    columns |= {"rewards": np.zeros(2), "terminated": ends, "truncated": np.zeros(2, bool)}
    np.savez(tmp_path / "data.npz", **columns)
    OfflineDataset.from_npz(tmp_path / "data.npz")
    table = Table("t", 0.0, capacity=2, durability="async")
    Server(table, journal=tmp_path / "journal").close()
    verbs = ["saving", "loading", "reading", "restoring"]
    assert [what.split()[0] for what in started] == verbs
