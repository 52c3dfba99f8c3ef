"""Environments in processes of their own, so that one that hangs or dies harms nothing else.

Messages are lines of JSON over a socket: nothing of a worker is executed. A worker is a fresh
interpreter. It knows the environments of this package, and those that the modules named in
``imports`` register. Statistics and seeds are on this side, because a worker may be replaced; a
replacement does not repeat the episodes of its predecessor.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from echoic import errors
from echoic.agents.environments.base import (
    BEFORE,
    EchoRLEnvironment,
    EnvironmentConfig,
    EnvironmentState,
    make_environment,
    plain_action,
)
from echoic.agents.environments.workers.loop import serve
from echoic.errors import ArgumentError
from echoic.workers import Process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["EnvironmentProcess", "EnvironmentProcessError", "JsonProcess", "environment_of"]

# Least seconds for starting a worker or an episode.
_BEGINNING = 120.0
_LONGEST_ANSWER = 64 << 20
_CHUNK = 1 << 16
# What is kept of a worker's output, in reads of a page each, and shown in a message.
_KEPT_READS, _PAGE, _SHOWN = 64, 4096, 1500
# Errors that mean the same on both sides. Others become an EnvironmentProcessError.
_KNOWN: dict[str, Any] = {name: getattr(errors, name) for name in errors.__all__}
for _error in (
    FileNotFoundError, ImportError, KeyError, ModuleNotFoundError, OSError, TypeError, ValueError,
    gymnasium.error.ResetNeeded,
):  # fmt: skip
    _KNOWN[_error.__name__] = _error


class EnvironmentProcessError(errors.EchoicError, RuntimeError):
    """An environment's worker process died, hung, or failed; the message says which and why.

    The episode is over. The next ``reset`` starts another process.
    """


class JsonProcess(Process):
    """A worker process that answers requests in JSON, one at a time. Any thread may close it.

    The number of its socket is added to the command, and ``environment`` to the variables.
    """

    def __init__(
        self, command: Sequence[str], *, name: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._socket, theirs = socket.socketpair()
        weakref.finalize(self, self._socket.close)
        with theirs:
            try:
                super().__init__(
                    [*command, str(theirs.fileno())],
                    name=name,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError as error:
                raise EnvironmentProcessError(f"{name} can't be started: {error}") from error
        self._printed: deque[bytes] = deque(maxlen=_KEPT_READS)
        what = (self.process.stdout, self._printed)
        self._reader = threading.Thread(target=_keep, args=what, daemon=True)
        self._reader.start()

    def ask(self, do: str, timeout: float, **arguments: Any) -> Any:
        """Send a request, and wait up to ``timeout`` seconds for the answer.

        Raises:
            EnvironmentProcessError: If none came in time or the process died; it is killed then.
                Or if the request failed with an error that is not known here.
        """
        request = {"do": do, "with": arguments, "limit": timeout}
        try:
            message = json.dumps(request).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"a worker can't be given what is no JSON: {error}") from error
        deadline, line = time.monotonic() + timeout, bytearray()
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(message)
            while not line.endswith(b"\n"):
                self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
                came = self._socket.recv(_CHUNK)
                line += came
                if not came or len(line) > _LONGEST_ANSWER:
                    raise ConnectionError("the end, or too long an answer")
            answer = json.loads(line)
        except (OSError, ValueError) as error:
            raise self._lost(timeout, error) from error
        if "is" in answer:
            return answer["is"]
        kind, text, trace = (answer["error"][name] for name in ("kind", "text", "trace"))
        if kind in _KNOWN:
            raise _KNOWN[kind](text)
        raise EnvironmentProcessError(f"{self.name} failed: {kind}: {text}\n{trace}")

    def close(self) -> None:
        """Kill the process, and what it started. Safe to call at any time, and more than once."""
        self.kill()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _lost(self, limit: float, error: Exception) -> EnvironmentProcessError:
        """Kill the process, and say why, with the end of what it printed."""
        if self.killed:
            return EnvironmentProcessError(f"{self.name} is closed")
        if isinstance(error, TimeoutError):
            how = f"was killed: an answer took longer than {limit:g} s"
        elif self.wait(1):
            how = f"{self.ending()} before an answer"
        else:
            how = f"was killed: an answer broke off ({error})"
        self.close()
        # A process that it left behind may hold the pipe.
        self._reader.join(1)
        text = b"".join(self._printed).decode(errors="replace").strip()[-_SHOWN:]
        printed = f"; it had printed:\n{text}" if text else ""
        return EnvironmentProcessError(f"{self.name} {how}{printed}")


def _keep(pipe: Any, printed: deque[bytes]) -> None:
    """Read what a worker prints, so that it never waits for that."""
    with pipe:
        printed.extend(iter(lambda: pipe.read(_PAGE), b""))


class EnvironmentProcess(EchoRLEnvironment):
    """An environment of the registry that runs in a worker process; started at once.

    Arrays in ``info`` come as lists, but for the mask of commands.

    Args:
        name: As for :func:`~echoic.agents.environments.make_environment`.
        settings: Settings of the environment.
        timeout: Seconds that a step, or a command of the expert, may take. A start of a worker or
            an episode may take two minutes, or as long if that is more.
        imports: Modules that the worker imports first, to register environments.

    Raises:
        EnvironmentProcessError: If a worker died or hung. Others are the environment's own.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        timeout: float = 60.0,
        imports: Sequence[str] = (),
    ) -> None:
        if not 0 < timeout < math.inf:
            raise ArgumentError(f"timeout must be finite and above 0 seconds, not {timeout}")
        self.name = name
        self.timeout, self._beginning = timeout, max(timeout, _BEGINNING)
        #: Number of workers that had to be replaced.
        self.replacements = 0
        self._make = {"name": name, "settings": dict(settings or {}), "imports": list(imports)}
        self._last_vector = np.zeros(0, np.float32)
        self._state: EnvironmentState | None = None
        hello = self._spawn()
        super().__init__(EnvironmentConfig(**hello["config"]))
        low, high = (np.array(hello[name], np.float32) for name in ("low", "high"))
        text = self.observation_space["text"]
        self.observation_space = spaces.Dict({"text": text, "vector": spaces.Box(low, high)})
        self.instructions = hello["instructions"]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode, in a new worker if the last one is gone."""
        self._check_open()
        if not self._worker.alive:
            self._state = None
            self.replacements += 1
            self._spawn()
            if seed is None:
                start = self.config.seed
                entropy = None if start is None else [self.replacements, start]
                seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        if seed is None and not self._seeded:
            seed = self.config.seed
        self._seeded = True
        gymnasium.Env.reset(self, seed=seed)
        answer = self._ask("reset", self._beginning, seed=seed, options=dict(options or {}))
        observation, *_, info = self._take(answer, BEFORE)
        return observation, info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Execute a command: a text, or the index of a listed one."""
        before = self._before_step()
        return self._take(self._ask("step", self.timeout, action=plain_action(action)), before)

    def close(self) -> None:
        """End the worker; the environment can't be used afterwards."""
        super().close()
        self._worker.close()

    def _expert(self) -> str | None:
        command: str | None = self._ask("expert", self.timeout)
        return command

    def _vector(self, text: str) -> NDArray[np.float32]:
        return self._last_vector

    def _take(
        self, answer: list[Any], before: EnvironmentState
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        observation, reward, ended, cut, info = answer
        info["commands"] = tuple(info["commands"])
        info["command_mask"] = np.array(info["command_mask"], bool)
        self._last_vector = np.array(observation["vector"], np.float32)
        observation["vector"] = self._last_vector
        done, step, earned = ended or cut, before.step_count + 1, before.episode_reward + reward
        self._enter(EnvironmentState(observation["text"], reward, done, info, step, earned))
        return observation, reward, ended, cut, info

    def _spawn(self) -> dict[str, Any]:
        where = os.pathsep.join(one for one in sys.path if one)
        self._worker = JsonProcess(
            [sys.executable, "-c", f"import {__name__} as own; own.main()"],
            name=f"the worker of environment {self.name}",
            environment={"PYTHONPATH": where},
        )
        try:
            hello: dict[str, Any] = self._ask("make", self._beginning, **self._make)
        except BaseException:
            self._worker.close()
            raise
        return hello

    def _ask(self, do: str, seconds: float, **arguments: Any) -> Any:
        """Ask the worker; if it is gone then, or the wait was interrupted, the episode is over."""
        try:
            return self._worker.ask(do, seconds, **arguments)
        except BaseException as error:
            # An error of the environment itself leaves the worker as it was.
            if self._worker.killed or not isinstance(error, Exception):
                self._worker.close()
                self._state = None
            raise


def environment_of(
    name: str,
    settings: Mapping[str, Any],
    *,
    timeout: float | None = None,
    imports: Sequence[str] = (),
) -> Any:
    """Make an environment here, or in a process of its own if its steps have a time limit."""
    if timeout is None:
        return make_environment(name, **settings)
    return EnvironmentProcess(name, settings, timeout=timeout, imports=imports)


# What runs in a worker.


class _Worker:
    def make(self, name: str, settings: dict[str, Any], imports: list[str]) -> dict[str, Any]:
        for module in imports:
            importlib.import_module(module)
        made = make_environment(name, **settings)
        self.step, self.expert, self._reset = made.step, made.expert, made.reset
        is_discrete = isinstance(made.action_space, spaces.Discrete)
        vector = made.observation_space["vector"]
        return {
            "config": {
                **{one.name: getattr(made.config, one.name) for one in fields(EnvironmentConfig)},
                # An environment may have other sizes than its settings.
                "state_encoding_dim": int(made.get_state_dim()),
                "action_space_size": int(made.get_action_space_size()),
                "action_format": "discrete" if is_discrete else "text",
            },
            "low": vector.low,
            "high": vector.high,
            "instructions": made.instructions,
        }

    def reset(self, **options: Any) -> tuple[Any, ...]:
        observation, info = self._reset(**options)
        return observation, 0.0, False, False, info


def main() -> None:
    """Serve one environment."""
    serve(_Worker(), default=lambda value: value.tolist())
