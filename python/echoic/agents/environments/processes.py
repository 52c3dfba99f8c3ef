"""Environments in processes of their own, so that one that hangs or dies harms nothing else.

An :class:`EnvironmentProcess` has the interface of the environment that runs in it. One that takes
too long for a step is killed, the episode ends with an :class:`EnvironmentProcessError`, and the
next ``reset`` starts another process.

Decisions:

- Messages are lines of JSON over pipes, with vectors in base64: nothing of a worker is executed.
- A worker is a fresh interpreter. It knows the environments of this package, and those that the
  modules named in ``imports`` register.
- Statistics and seeds are on this side, because a worker may be replaced. A replacement does not
  repeat the episodes of its predecessor.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import math
import os
import select
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from echoic import errors
from echoic.agents.environments.base import (
    EchoRLEnvironment,
    EnvironmentConfig,
    EnvironmentState,
    make_environment,
    plain_action,
)
from echoic.agents.environments.workers.environment import from_json
from echoic.errors import ArgumentError
from echoic.workers import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["EnvironmentProcess", "EnvironmentProcessError", "JsonProcess", "environment_of"]

# Least seconds for starting a worker or an episode.
_BEGINNING = 120.0
_LONGEST_ANSWER = 64 << 20
_KEPT_OF_STDERR = 4000
_SHOWN_OF_STDERR = 1500
_CHUNK = 1 << 16
# Errors that mean the same on both sides. Others become an EnvironmentProcessError.
_KNOWN: dict[str, Any] = {
    **{name: getattr(errors, name) for name in errors.__all__},
    **{
        name: getattr(builtins, name)
        for name in (
            "ImportError", "FileNotFoundError", "KeyError", "ModuleNotFoundError", "OSError",
            "TypeError", "ValueError",
        )
    },
    "ResetNeeded": gymnasium.error.ResetNeeded,
}  # fmt: skip


class EnvironmentProcessError(errors.EchoicError, RuntimeError):
    """An environment's worker process died, hung, or failed; the message says which and why.

    The episode is over. The next ``reset`` starts another process.
    """


class JsonProcess(Process):
    """A worker process that answers requests in JSON, one at a time. Any thread may close it.

    Args:
        command: The program and its arguments.
        name: Names the process in messages.
        environment: Variables beside those of this process.
        hook: The ``object_hook`` of :func:`json.loads` for answers.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        environment: Mapping[str, str] | None = None,
        hook: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self._hook = hook
        self._busy = threading.Lock()
        self._read = bytearray()
        self._printed = b""
        try:
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            super().__init__(command, name=name, env=environment, **pipes)
        except OSError as error:
            raise EnvironmentProcessError(f"{name} can't be started: {error}") from error
        process: Any = self.process
        self._pipes: tuple[Any, ...] = (process.stdin, process.stdout, process.stderr)
        self._in, self._out, self._err = (pipe.fileno() for pipe in self._pipes)
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)

    def ask(self, do: str, timeout: float, **arguments: Any) -> Any:
        """Send a request and wait for the answer."""
        self.send(do, timeout, **arguments)
        return self.receive(timeout)

    def send(self, do: str, timeout: float, **arguments: Any) -> None:
        """Send a request without waiting for the answer, which may take ``timeout`` seconds."""
        line = json.dumps({"do": do, "with": arguments, "limit": timeout}).encode() + b"\n"
        rest = memoryview(line)
        deadline = time.monotonic() + timeout
        with self._busy:
            while rest:
                self._wait(self._in, select.POLLOUT, deadline, timeout, do)
                try:
                    rest = rest[os.write(self._in, rest) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise self._lost(do) from error

    def receive(self, timeout: float) -> Any:
        """Wait up to ``timeout`` seconds for the answer.

        Raises:
            EnvironmentProcessError: If none came in time or the process died; it is killed then.
                Or if the request failed with an error that is not known here.
        """
        deadline = time.monotonic() + timeout
        with self._busy:
            while (end := self._read.find(b"\n")) < 0:
                self._wait(self._out, select.POLLIN, deadline, timeout, "an answer")
                came = self._read_from(self._out)
                if came is None:
                    continue
                if not came:
                    raise self._lost("an answer")
                self._read += came
                if len(self._read) > _LONGEST_ANSWER:
                    self.kill()
                    raise EnvironmentProcessError(
                        f"{self.name} was killed: its answer is longer than {_LONGEST_ANSWER} bytes"
                    )
            line = bytes(self._read[:end])
            del self._read[: end + 1]
        try:
            answer = json.loads(line, object_hook=self._hook)
        except ValueError as error:
            self.close()
            raise EnvironmentProcessError(
                f"{self.name} was killed: its answer is no JSON: {line[:80]!r}"
            ) from error
        if "is" in answer:
            return answer["is"]
        kind, text, trace = (answer["error"][name] for name in ("kind", "text", "trace"))
        if kind in _KNOWN:
            raise _KNOWN[kind](text)
        raise EnvironmentProcessError(f"{self.name} failed: {kind}: {text}\n{trace}")

    def close(self) -> None:
        """Kill the process, and what it started. Safe to call at any time, and more than once."""
        self.kill()
        with self._busy:
            for pipe in self._pipes:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _wait(self, descriptor: int, event: int, deadline: float, limit: float, what: str) -> None:
        """Wait for a pipe, and keep the end of what the worker prints meanwhile."""
        if self.killed:
            raise EnvironmentProcessError(f"{self.name} is closed")
        poll = select.poll()
        poll.register(descriptor, event)
        poll.register(self._err, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            ready = dict(poll.poll(max(0.0, left) * 1000))
            if self._err in ready and self._keep_printed() == b"":
                poll.unregister(self._err)
            if descriptor in ready:
                return
            if not ready and left <= 0:
                self.kill()
                raise EnvironmentProcessError(
                    f"{self.name} was killed: {what} took longer than {limit:g} s{self._shown()}"
                )

    def _read_from(self, descriptor: int) -> bytes | None:
        """Read what is there; None if there is nothing yet, empty at the end."""
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _keep_printed(self) -> bytes | None:
        came = self._read_from(self._err)
        self._printed = (self._printed + (came or b""))[-_KEPT_OF_STDERR:]
        return came

    def _shown(self) -> str:
        text = self._printed.decode(errors="replace").strip()[-_SHOWN_OF_STDERR:]
        return f"; it had printed:\n{text}" if text else ""

    def _lost(self, what: str) -> EnvironmentProcessError:
        """Say how the process ended."""
        closed = self.killed
        how = self.ending() if self.wait(1) else "closed its output"
        self.kill()
        if closed:
            return EnvironmentProcessError(f"{self.name} is closed")
        for _ in range(16):  # a process that it left behind may print without end
            if not self._keep_printed():
                break
        return EnvironmentProcessError(f"{self.name} {how} before {what}{self._shown()}")


class EnvironmentProcess(EchoRLEnvironment):
    """An environment of the registry that runs in a worker process; started at once.

    Args:
        name: As for :func:`~echoic.agents.environments.make_environment`.
        settings: Settings of the environment.
        timeout: Seconds that a step, or a command of the expert, may take.
        reset_timeout: Seconds that a start of a worker or an episode may take.
        imports: Modules that the worker imports first, to register environments.

    Raises:
        EnvironmentProcessError: If a worker died or hung. Others are the environment's own.

    >>> from echoic.agents.environments import EnvironmentProcess
    >>> with EnvironmentProcess("rooms", {"num_rooms": 3}, timeout=5.0) as environment:
    ...     observation, info = environment.reset(seed=1)
    ...     text = environment.step(environment.expert())[0]["text"]
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        timeout: float = 60.0,
        reset_timeout: float = 120.0,
        imports: Sequence[str] = (),
    ) -> None:
        if not all(0 < seconds < math.inf for seconds in (timeout, reset_timeout)):
            raise ArgumentError(
                "timeout and reset_timeout must be finite and above 0 seconds, not "
                f"{timeout} and {reset_timeout}"
            )
        self.name = name
        self.timeout, self.reset_timeout = timeout, reset_timeout
        self._make = {"name": name, "settings": dict(settings or {}), "imports": list(imports)}
        self._worker: JsonProcess | None = None
        self._replaced = 0
        self._last_vector = np.zeros(0, np.float32)
        # Whether a new worker needs a seed of its own.
        self._fresh = False
        try:
            hello = self._spawn()
        except BaseException:
            self._drop()
            raise
        super().__init__(EnvironmentConfig(**hello["config"]))
        vector = spaces.Box(hello["low"], hello["high"], dtype=np.float32)
        text = self.observation_space["text"]
        self.observation_space = spaces.Dict({"text": text, "vector": vector})
        self.instructions = hello["instructions"]

    @property
    def worker_pid(self) -> int | None:
        """The worker's process; None between a worker's death and the next ``reset``."""
        return None if self._worker is None else self._worker.pid

    @property
    def replacements(self) -> int:
        """Number of workers that had to be replaced."""
        return self._replaced

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode, in a new worker if the last one is gone."""
        self._check_open()
        if self._worker is None or not self._worker.alive:
            self._drop()
            self._replaced += 1
            self._spawn()
            self._fresh = True
        if seed is None and self._fresh:
            start = self.config.seed
            entropy = None if start is None else [self._replaced, start]
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        if seed is None and not self._seeded:
            seed = self.config.seed
        self._seeded, self._fresh = True, False
        gymnasium.Env.reset(self, seed=seed)
        answer = self._ask("reset", self.reset_timeout, seed=seed, options=dict(options or {}))
        self.instructions = answer["instructions"]
        return self._take(answer, EnvironmentState("", 0.0, False, {}, -1, 0.0))

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Execute a command: a text, or the index of a listed one."""
        before = self._before_step()
        answer = self._ask("step", self.timeout, action=plain_action(action))
        observation, info = self._take(answer, before)
        self._count(self.state)
        return observation, answer["reward"], answer["ended"], answer["cut"], info

    def close(self) -> None:
        """End the worker; the environment can't be used afterwards."""
        super().close()
        if self._worker is not None:
            self._worker.close()

    def _expert(self) -> str | None:
        command: str | None = self._ask("expert", self.timeout)
        return command

    def _vector(self, text: str) -> NDArray[np.float32]:
        return self._last_vector

    def _start(self, options: dict[str, Any]) -> str:
        raise NotImplementedError  # in the worker

    def _apply(self, command: str) -> None:
        raise NotImplementedError  # in the worker

    def _take(
        self, answer: dict[str, Any], before: EnvironmentState
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        info, text, reward = answer["info"], answer["text"], answer["reward"]
        info["commands"] = tuple(info["commands"])
        self._last_vector = answer["vector"]
        done, earned = answer["ended"] or answer["cut"], before.episode_reward + reward
        self._state = EnvironmentState(text, reward, done, info, before.step_count + 1, earned)
        return {"text": text, "vector": self._last_vector}, info

    def _spawn(self) -> dict[str, Any]:
        where = os.pathsep.join(one for one in sys.path if one)
        self._worker = JsonProcess(
            [sys.executable, "-m", "echoic.agents.environments.workers.environment"],
            name=f"the worker of environment {self.name}",
            environment={"PYTHONPATH": where},
            hook=from_json,
        )
        hello: dict[str, Any] = self._ask("make", self.reset_timeout, **self._make)
        return hello

    def _ask(self, do: str, seconds: float, **arguments: Any) -> Any:
        """Send a request, and end the worker if it is late or the wait is interrupted."""
        worker = self._worker
        if worker is None:
            raise EnvironmentProcessError("the worker is gone, and reset starts another")
        try:
            worker.send(do, seconds, **arguments)
        except (TypeError, ValueError, RecursionError) as error:
            # Nothing was sent.
            raise ArgumentError(f"a worker can't be given what is no JSON: {error}") from error
        except BaseException:
            self._drop()
            raise
        try:
            return worker.receive(seconds)
        except BaseException as error:
            # An error of the environment itself leaves the worker as it was.
            late = isinstance(error, EnvironmentProcessError) and not worker.alive
            if late or not isinstance(error, Exception):
                self._drop()
            raise

    def _drop(self) -> None:
        """End the worker and its episode."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        self._state = None


def environment_of(
    name: str,
    settings: Mapping[str, Any],
    *,
    timeout: float | None = None,
    imports: Sequence[str] = (),
) -> Any:
    """Make an environment here, or, if its steps have a time limit, in a process of its own.

    Args:
        name: As for :func:`~echoic.agents.environments.make_environment`.
        settings: Settings of the environment.
        timeout: Seconds that a step may take. None: no limit, and no process.
        imports: As for :class:`EnvironmentProcess`.
    """
    if timeout is None:
        return make_environment(name, **settings)
    return EnvironmentProcess(
        name, settings, timeout=timeout, reset_timeout=max(timeout, _BEGINNING), imports=imports
    )
