"""Programs of `workers.py` in processes of their own, as a test sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from content import PATIENCE

if TYPE_CHECKING:
    import signal

    from forks import Forks

PROGRAMS = Path(__file__).with_name("workers.py")


class Process:
    """A running program: what it said, and signals for it."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        # All that it said, but of the reports only the last: there are many.
        self.lines: list[str] = []
        self.acked = 0
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._changed:
                if line.startswith("acked "):
                    self.acked = int(line.split()[1])
                else:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def said(self, word: str) -> list[str]:
        """What followed this word, in the lines that begin with it."""
        split = [line.partition(" ") for line in list(self.lines)]
        return [rest for first, _, rest in split if first == word]

    def wait_for(self, word: str, times: int = 1) -> str:
        """Wait until the process has said a word so often, and return what followed it."""
        with self._changed:
            heard = self._changed.wait_for(
                lambda: self._ended or len(self.said(word)) >= times, PATIENCE
            )
            found = self.said(word)
        assert heard, f"no {word!r} in time, but {self.lines[-5:]}"
        assert len(found) >= times, "\n".join([f"ended without {word!r}:", *self.lines])
        return found[times - 1]

    def tell(self, line: str) -> None:
        """Send it a line."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()

    def ask(self, question: str) -> str:
        """Have a `serve` answer a question."""
        times = len(self.said(question)) + 1
        self.tell(question)
        return self.wait_for(question, times)

    def rss(self) -> int:
        """Bytes of memory that it has now."""
        return int(self._proc("statm").split()[1]) * os.sysconf("SC_PAGESIZE")

    def cpu(self) -> float:
        """Seconds of CPU that all its threads have used."""
        user, system = self._proc("stat").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.popen.pid}/{name}").read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.popen.send_signal(number)

    def kill(self) -> None:
        """End it as `kill -9` does, and wait until all it said was read."""
        self.popen.kill()
        self.join()

    def stop(self) -> int:
        """Ask it to end, and return how many samples it sent or took."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        return self.done()

    def done(self) -> int:
        """Wait for the end that it comes to by itself, and return how many samples it sent."""
        number = int(self.wait_for("done"))
        self.join()
        assert self.popen.returncode == 0, "\n".join(self.lines)
        return number

    def join(self) -> None:
        """Wait for its end and its last line."""
        self.popen.wait(PATIENCE)
        self._reader.join(PATIENCE)


def fresh(*command: str) -> subprocess.Popen[str]:
    """Start a fresh interpreter."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Nothing here multiplies matrices, and its threads make the start twice as dear.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )


class Processes:
    """Starts processes, and leaves none behind."""

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._all: list[Process] = []

    def script(self, source: str) -> Process:
        """Run Python source."""
        return self._add(self._forks.run(source))

    def start(
        self, program: str, address: str, prefix: tuple[str, ...] = (), **options: Any
    ) -> Process:
        """Run a program of `workers.py`; dicts are passed as JSON, `True` as a flag.

        What the prefix runs must become the program, and not start another process.
        """
        command = [program, address]
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                command.append(flag)
            else:
                text = json.dumps(value) if isinstance(value, dict) else str(value)
                command += [flag, text]
        if prefix:
            return self._add(fresh(*prefix, sys.executable, str(PROGRAMS), *command))
        return self._add(self._forks.start(f"{PROGRAMS.stem}:main", *command))

    def _add(self, popen: subprocess.Popen[str]) -> Process:
        self._all.append(Process(popen))
        return self._all[-1]

    def end(self) -> None:
        """Kill all that still run."""
        for process in self._all:
            # A stopped process dies of this too.
            process.popen.kill()
        for process in self._all:
            process.join()
            for pipe in (process.popen.stdin, process.popen.stdout):
                assert pipe is not None
                pipe.close()
