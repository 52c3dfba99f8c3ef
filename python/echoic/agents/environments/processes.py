"""Environments in processes of their own, so that one that hangs or dies takes nothing with it.

An :class:`EnvironmentProcess` acts as the environment that runs in it. One that takes too long for
a step is killed, the episode ends with an
:class:`~echoic.agents.environments.EnvironmentProcessError`, and the next ``reset`` starts another
process.

Decisions:

- Lines of JSON over pipes, and vectors as base64: nothing that a worker says is ever run.
- A worker is a fresh interpreter. It knows the environments of this package, and those that the
  modules named in ``imports`` register.
- Statistics and seeds are on this side, because a worker may be replaced. One that takes another's
  place does not repeat its episodes.
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
    Outcome,
    make_environment,
)
from echoic.agents.environments.workers.environment import from_json
from echoic.errors import ArgumentError
from echoic.workers import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "EnvironmentProcess",
    "EnvironmentProcessError",
    "JsonProcess",
    "environment_of",
]

_BEGINNING = 120.0
_LONGEST_ANSWER = 64 << 20
_KEPT_OF_STDERR = 4000
_SHOWN_OF_STDERR = 1500
_CHUNK = 1 << 16
# Errors that mean the same on both sides. Others are told as they were.
_KNOWN = (
    "ImportError",
    "FileNotFoundError",
    "KeyError",
    "ModuleNotFoundError",
    "OSError",
    "TypeError",
    "ValueError",
)


class EnvironmentProcessError(errors.EchoicError, RuntimeError):
    """An environment's worker process died, hung, or failed; the message says which and why.

    The episode is over. The next ``reset`` starts another process.
    """


class JsonProcess(Process):
    """A worker process. One request at a time; any thread may close it meanwhile.

    Args:
        command: What to run, and its arguments.
        name: What errors call it.
        environment: Variables beside those of this process.
        hook: What to make of objects in answers, as ``object_hook`` of :func:`json.loads`.
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
        self._said = b""
        try:
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            super().__init__(command, name=name, env=environment, **pipes)
        except OSError as error:
            raise EnvironmentProcessError(f"{name} can't be started: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._in = self.process.stdin.fileno()
        self._out = self.process.stdout.fileno()
        self._err = self.process.stderr.fileno()
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)

    def ask(self, do: str, timeout: float, **arguments: Any) -> Any:
        """Ask and wait for the answer."""
        self.send(do, timeout, **arguments)
        return self.receive(timeout)

    def send(self, do: str, timeout: float, **arguments: Any) -> None:
        """Ask without waiting for the answer, which must take no longer than so many seconds."""
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
        """Wait so many seconds for the answer.

        Raises:
            EnvironmentProcessError: None came in time, or the process is dead; it is killed in
                both cases. Or it failed with an error that means nothing here.
        """
        deadline = time.monotonic() + timeout
        with self._busy:
            while (end := self._read.find(b"\n")) < 0:
                self._wait(self._out, select.POLLIN, deadline, timeout, "an answer")
                try:
                    came = os.read(self._out, _CHUNK)
                except BlockingIOError:
                    continue
                except OSError:
                    came = b""
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
                f"{self.name} was killed: it said what is no JSON: {line[:80]!r}"
            ) from error
        if "is" in answer:
            return answer["is"]
        raise self._error(answer["error"])

    def close(self) -> None:
        """Kill the process, and what it started. Safe to call at any time, and more than once."""
        self.kill()
        with self._busy:
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                if pipe is not None:
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
            if self._err in ready and not self._keep_stderr():
                poll.unregister(self._err)
            if descriptor in ready:
                return
            if not ready and left <= 0:
                self.kill()
                raise EnvironmentProcessError(
                    f"{self.name} was killed: {what} took longer than {limit:g} s{self._told()}"
                )

    def _keep_stderr(self) -> bool:
        try:
            came = os.read(self._err, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._said = (self._said + came)[-_KEPT_OF_STDERR:]
        return bool(came)

    def _told(self) -> str:
        text = self._said.decode(errors="replace").strip()[-_SHOWN_OF_STDERR:]
        return f"; it had printed:\n{text}" if text else ""

    def _lost(self, what: str) -> EnvironmentProcessError:
        """The process is gone."""
        closed = self.killed
        how = self.ending() if self.wait(1) else "closed its output"
        self.kill()
        if closed:
            return EnvironmentProcessError(f"{self.name} is closed")
        for _ in range(_KEPT_OF_STDERR):
            before = self._said
            if not self._keep_stderr() or self._said == before:
                break
        return EnvironmentProcessError(f"{self.name} {how} before {what}{self._told()}")

    def _error(self, told: Mapping[str, str]) -> Exception:
        kind, text = told["kind"], told["text"]
        known: Any = None
        if kind in _KNOWN:
            known = getattr(builtins, kind)
        elif kind == "ResetNeeded":
            known = gymnasium.error.ResetNeeded
        elif kind in errors.__all__:
            known = getattr(errors, kind)
        if known is not None:
            error = known(text)
            assert isinstance(error, Exception)
            return error
        return EnvironmentProcessError(f"{self.name} failed: {kind}: {text}\n{told['trace']}")


class EnvironmentProcess(EchoRLEnvironment):
    """An environment of the registry that runs in a worker process; started at once.

    Args:
        name: As of :func:`~echoic.agents.environments.make_environment`.
        settings: Of the environment.
        timeout: Seconds that a step, or a word of the expert, may take.
        reset_timeout: Seconds that a start of a worker or an episode may take.
        imports: Modules that the worker imports first, to register environments.

    Raises:
        EnvironmentProcessError: A worker died or hung. Others are those of the environment itself.

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
        self._make = {
            "name": name,
            "settings": dict(settings or {}),
            "imports": list(imports),
        }
        self._worker: JsonProcess | None = None
        self._replaced = 0
        self._last_vector: NDArray[np.float32] | None = None
        # Whether a new worker has to be told where its random numbers begin.
        self._fresh = False
        try:
            hello = self._spawn()
        except BaseException:
            self._drop()
            raise
        sizes = {
            "state_encoding_dim": hello["state_dim"],
            "action_space_size": hello["action_space_size"],
            "action_format": "discrete" if hello["discrete"] else "text",
        }
        super().__init__(EnvironmentConfig(**{**hello["config"], **sizes}))
        vector = spaces.Box(hello["low"], hello["high"], dtype=np.float32)
        self.observation_space = spaces.Dict(
            {"text": self.observation_space["text"], "vector": vector}
        )
        self.instructions = hello["instructions"]

    @property
    def worker_pid(self) -> int | None:
        """The worker's process; None between a worker's death and the next ``reset``."""
        return None if self._worker is None else self._worker.pid

    @property
    def replacements(self) -> int:
        """How many workers had to be replaced."""
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
        observation, info = self._take(answer)
        self._state = EnvironmentState(answer["text"], 0.0, False, info, 0, 0.0)
        return observation, info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Do a command: a text, or the index of a listed one."""
        self._check_open()
        before = self._state
        if before is None or before.done:
            raise gymnasium.error.ResetNeeded("reset comes before step, and after an episode's end")
        if isinstance(action, np.ndarray) and action.ndim == 0:
            action = action.item()
        if isinstance(action, np.integer):
            action = int(action)
        if not isinstance(action, (str, int)):
            raise ArgumentError(
                f"an action is a text or an index of a listed command, not {type(action).__name__}"
            )
        answer = self._ask("step", self.timeout, action=action)
        observation, info = self._take(answer)
        reward, ended, cut = answer["reward"], answer["ended"], answer["cut"]
        step, earned = before.step_count + 1, before.episode_reward + reward
        self._state = EnvironmentState(answer["text"], reward, ended or cut, info, step, earned)
        if ended or cut:
            self._episodes += 1
            self._successes += bool(info["success"])
            self._steps += step
            self._rewards += earned
        return observation, reward, ended, cut, info

    def close(self) -> None:
        """End the worker; the environment can't be used after."""
        super().close()
        if self._worker is not None:
            self._worker.close()

    def _expert(self) -> str | None:
        command: str | None = self._ask("expert", self.timeout)
        return command

    def _vector(self, text: str) -> NDArray[np.float32]:
        del text
        assert self._last_vector is not None
        return self._last_vector

    def _start(self, options: dict[str, Any]) -> str:
        raise NotImplementedError  # in the worker

    def _apply(self, command: str) -> Outcome | None:
        raise NotImplementedError  # in the worker

    def _take(self, answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        info = answer["info"]
        info["commands"] = tuple(info["commands"])
        vector: NDArray[np.float32] = answer["vector"]
        self._last_vector = vector
        return {"text": answer["text"], "vector": vector}, info

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
        """Ask the worker, and end it if it is late or the wait is interrupted."""
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
            # After an error of the environment itself, the worker is as good as before.
            late = isinstance(error, EnvironmentProcessError) and not worker.alive
            if late or not isinstance(error, Exception):
                self._drop()
            raise

    def _drop(self) -> None:
        """End the worker and what it played."""
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
    """Make an environment: here, or, if its steps have a time-out, in a process of its own.

    Args:
        name: As of :func:`~echoic.agents.environments.make_environment`.
        settings: Of the environment.
        timeout: Seconds that a step may take; None is for ever, and here.
        imports: See :class:`EnvironmentProcess`.
    """
    if timeout is None:
        return make_environment(name, **settings)
    # To begin an episode may take longer, as it may to start.
    longest = max(timeout, _BEGINNING)
    return EnvironmentProcess(
        name, settings, timeout=timeout, reset_timeout=longest, imports=imports
    )
