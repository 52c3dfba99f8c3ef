"""Environments in processes of their own, so that one that hangs or dies takes nothing with it.

An :class:`EnvironmentProcess` acts as the environment that runs in it. One that takes too long for
a step is killed, the episode ends with an
:class:`~echoic.agents.environments.EnvironmentProcessError`, and the next ``reset`` starts another
process. :class:`EnvironmentProcesses` are several, served in the order in which they are ready, so
that nobody waits for the slowest.

Decisions:

- Lines of JSON over pipes, and vectors as base64: nothing that a worker says is ever run.
- A worker is a fresh interpreter. It knows the environments of this package, and those that the
  modules named in ``imports`` register.
- Statistics and seeds are on this side, because a worker may be replaced. One that takes another's
  place does not repeat its episodes.
"""

from __future__ import annotations

import math
import os
import select
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from echoic.agents.environments.base import (
    EchoRLEnvironment,
    EnvironmentConfig,
    EnvironmentState,
    Outcome,
)
from echoic.agents.environments.registry import make_environment
from echoic.agents.environments.workers.environment import from_json
from echoic.agents.environments.workers.process import EnvironmentProcessError, JsonProcess
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

__all__ = [
    "EnvironmentProcess",
    "EnvironmentProcessError",
    "EnvironmentProcesses",
    "Ready",
    "environment_of",
]


_BEGINNING = 120.0


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
        _worker: JsonProcess | None = None,
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
        # Answers that are to come, the last of them to the user's question, and until when.
        self._awaited: list[str] = []
        self._deadline = self._limit = 0.0
        self._last_vector: NDArray[np.float32] | None = None
        # Whether a new worker has to be told where its random numbers begin.
        self._fresh = False
        try:
            self._spawn(_worker)
            hello = self._finish()
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
        self._begin_reset(seed, options)
        observation, info = self._finish_reset()
        return observation, info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Do a command: a text, or the index of a listed one."""
        self._begin_step(action)
        return self._finish_step()

    def _expert(self) -> str | None:
        """The next command of the environment's own solver."""
        self._begin("expert", self.timeout)
        command: str | None = self._finish()
        return command

    def close(self) -> None:
        """End the worker; the environment can't be used after."""
        super().close()
        if self._worker is not None:
            self._worker.close()

    def _vector(self, text: str) -> NDArray[np.float32]:
        del text
        assert self._last_vector is not None
        return self._last_vector

    def _start(self, options: dict[str, Any]) -> str:
        raise NotImplementedError  # in the worker

    def _apply(self, command: str) -> Outcome | None:
        raise NotImplementedError  # in the worker

    # A question and its answer are apart, so that others can be asked meanwhile.

    def _begin_reset(self, seed: int | None, options: dict[str, Any] | None = None) -> None:
        self._check_open()
        # What an answer is late for, the next episode must not get.
        if self._awaited:
            self._drop()
        if self._worker is None or not self._worker.alive:
            self._drop()
            self._replaced += 1
            self._spawn()
        if seed is None and self._fresh:
            start = self.config.seed
            entropy = [self._replaced, *([] if start is None else [start])]
            sequence = np.random.SeedSequence(entropy if start is not None else None)
            seed = int(sequence.generate_state(1)[0])
        if seed is None and not self._seeded:
            seed = self.config.seed
        self._seeded, self._fresh = True, False
        gymnasium.Env.reset(self, seed=seed)
        self._begin("reset", self.reset_timeout, seed=seed, options=dict(options or {}))

    def _finish_reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        answer = self._finish()
        self.instructions = answer["instructions"]
        observation, info = self._take(answer)
        self._state = EnvironmentState(answer["text"], 0.0, False, info, 0, 0.0)
        return observation, info

    def _begin_step(self, action: Any) -> None:
        self._check_open()
        if self._state is None or self._state.done:
            raise gymnasium.error.ResetNeeded("reset comes before step, and after an episode's end")
        if isinstance(action, np.ndarray) and action.ndim == 0:
            action = action.item()
        if isinstance(action, np.integer):
            action = int(action)
        if not isinstance(action, (str, int)):
            raise ArgumentError(
                f"an action is a text or an index of a listed command, not {type(action).__name__}"
            )
        self._begin("step", self.timeout, action=action)

    def _finish_step(self) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        answer = self._finish()
        before = self.state
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

    def _take(self, answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        info = answer["info"]
        info["commands"] = tuple(info["commands"])
        vector: NDArray[np.float32] = answer["vector"]
        self._last_vector = vector
        return {"text": answer["text"], "vector": vector}, info

    def _spawn(self, worker: JsonProcess | None = None) -> None:
        self._worker = worker or spawn(self.name)
        self._fresh = self._replaced > 0
        self._begin("make", self.reset_timeout, **self._make)

    def _begin(self, do: str, seconds: float, **arguments: Any) -> None:
        if self._worker is None:
            raise EnvironmentProcessError("the worker is gone, and reset starts another")
        now = time.monotonic()
        self._deadline = max(self._deadline, now) if self._awaited else now
        self._deadline += seconds
        self._limit = seconds
        self._awaited.append(do)
        try:
            self._worker.send(do, seconds, **arguments)
        except (TypeError, ValueError, RecursionError) as error:
            # Nothing was sent, and no answer will come.
            self._awaited.pop()
            raise ArgumentError(f"a worker can't be told what is no JSON: {error}") from error
        except BaseException:
            self._drop()
            raise

    def _finish(self) -> Any:
        """Wait for all answers that are to come; the last."""
        if self._worker is None:
            raise EnvironmentProcessError("the worker is gone, and reset starts another")
        answer = None
        try:
            while self._awaited:
                left = max(0.0, self._deadline - time.monotonic())
                answer = self._worker.receive(left, self._limit)
                self._awaited.pop(0)
        except BaseException as error:
            late = isinstance(error, EnvironmentProcessError) and not self._worker.alive
            if late or not isinstance(error, Exception) or len(self._awaited) > 1:
                self._drop()
            else:
                # The environment raised, and the worker is as good as before.
                self._awaited.clear()
            raise
        return answer

    def _drop(self) -> None:
        """End the worker and what it played."""
        self._awaited.clear()
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        self._state = None


@dataclass(frozen=True)
class Ready:
    """What came from one of several environments.

    Attributes:
        index: Which.
        observation: What is seen now; None after an error.
        info: What is told beside it.
        reward: Of the step.
        terminated: Whether the episode ended.
        truncated: Whether it was cut off.
        error: What went wrong; the next thing to do is a reset.
    """

    index: int
    observation: dict[str, Any] | None
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    error: Exception | None = None


class EnvironmentProcesses:
    """Several environments of one name, each in a process of its own, whoever is ready first.

    Arguments are those of :class:`EnvironmentProcess`; with a ``count`` of them.

    >>> from echoic.agents.environments import EnvironmentProcesses
    >>> with EnvironmentProcesses("rooms", 2, {"num_rooms": 3}) as environments:
    ...     for index in range(2):
    ...         environments.reset_async(index, seed=index)
    ...     came = {ready.index for _ in range(2) for ready in environments.ready(at_most=1)}
    >>> came
    {0, 1}
    """

    def __init__(
        self,
        name: str,
        count: int,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if count < 1:
            raise ArgumentError(f"count must be at least 1, not {count}")
        # All at once, since a start is mostly waiting for imports.
        workers = [spawn(f"{name} {index}") for index in range(count)]
        self.environments: list[EnvironmentProcess] = []
        try:
            for worker in workers:
                made = EnvironmentProcess(name, settings, _worker=worker, **options)
                self.environments.append(made)
        except BaseException:
            for worker in workers:
                worker.close()
            raise
        self._asked: dict[int, str] = {}
        # Errors of those that could not be asked.
        self._failed: dict[int, EnvironmentProcessError] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.environments)

    @property
    def pending(self) -> tuple[int, ...]:
        """Which have been asked and have not answered."""
        return tuple(self._asked)

    def reset_async(self, index: int, seed: int | None = None) -> None:
        """Have one begin an episode; one that is still in a step is replaced."""
        self._asked.pop(index, None)
        self._failed.pop(index, None)
        one = self.environments[index]
        self._ask(index, "reset", lambda: one._begin_reset(seed))

    def step_async(self, index: int, action: Any) -> None:
        """Have one do a command. If its worker has died, it is ready with that error."""
        if index in self._asked:
            raise ArgumentError(f"environment {index} has not answered yet")
        one = self.environments[index]
        self._ask(index, "step", lambda: one._begin_step(action))

    def ready(self, timeout: float | None = None, at_most: int | None = None) -> list[Ready]:
        """Those that are ready, after waiting for the first of them.

        Empty if none was within ``timeout`` seconds, or none was asked. One that is late is
        killed, and is ready with an error.
        """
        until = None if timeout is None else time.monotonic() + timeout
        came = [self._collect(index) for index in list(self._failed)[:at_most]]
        while self._asked and not came:
            poll = select.poll()
            which: dict[int, int] = {}
            soonest = until
            for index in self._asked:
                one = self.environments[index]
                if one._worker is not None:
                    which[one._worker.fileno()] = index
                    poll.register(one._worker.fileno(), select.POLLIN)
                deadline = one._deadline
                soonest = deadline if soonest is None else min(soonest, deadline)
            now = time.monotonic()
            left = 0.0 if soonest is None else max(0.0, soonest - now)
            indices = [which[fd] for fd, _ in poll.poll(left * 1000 + 1)]
            now = time.monotonic()
            late = [i for i in self._asked if self.environments[i]._deadline <= now]
            for index in dict.fromkeys([*indices, *late]):
                if at_most is None or len(came) < at_most:
                    came.append(self._collect(index))
            if until is not None and now >= until:
                break
        return came

    def close(self) -> None:
        """End all workers."""
        self._asked.clear()
        self._failed.clear()
        for one in self.environments:
            one.close()

    def _ask(self, index: int, what: str, begin: Callable[[], None]) -> None:
        try:
            begin()
        except EnvironmentProcessError as error:
            self._failed[index] = error
        self._asked[index] = what

    def _collect(self, index: int) -> Ready:
        asked = self._asked.pop(index)
        if index in self._failed:
            return Ready(index, None, {}, error=self._failed.pop(index))
        one = self.environments[index]
        try:
            if asked == "reset":
                return Ready(index, *one._finish_reset())
            observation, reward, ended, cut, info = one._finish_step()
        except Exception as error:  # told as a result
            return Ready(index, None, {}, error=error)
        return Ready(index, observation, info, reward, ended, cut)


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


def spawn(name: str) -> JsonProcess:
    """Start a worker for an environment, of this interpreter."""
    where = os.pathsep.join(one for one in sys.path if one)
    command = [sys.executable, "-m", "echoic.agents.environments.workers.environment"]
    return JsonProcess(
        command,
        name=f"the worker of environment {name}",
        environment={"PYTHONPATH": where},
        hook=from_json,
    )
