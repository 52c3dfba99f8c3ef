"""A text game that is played in a worker process, since what plays it is not ours to import.

TextWorld and ALFWorld bring packages under the GPL, so they run in an interpreter of their own,
which may be that of another virtual environment. This process speaks JSON with it, no more.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoic.agents.environments.base import EchoRLEnvironment, EnvironmentConfig, Outcome
from echoic.agents.environments.workers.process import EnvironmentProcessError, JsonProcess
from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GameConfig", "GameEnvironment", "cache_folder"]


def cache_folder(name: str) -> Path:
    """Where games are kept between runs: in the user's cache, or where the variables say."""
    own = os.environ.get("ECHOIC_CACHE")
    if own:
        return Path(own) / name
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "echoic" / name


@dataclass
class GameConfig(EnvironmentConfig):
    """Settings of an environment whose games run in a process of another interpreter.

    Attributes:
        python: The interpreter that has the package; ``None`` for what the environment says.
        step_timeout: Seconds that a command may take.
        reset_timeout: Seconds that making and starting a game, or a word of the expert, may take.
    """

    python: str | None = None
    step_timeout: float = 60.0
    reset_timeout: float = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("step_timeout", "reset_timeout"):
            seconds = getattr(self, name)
            if not 0 < seconds < math.inf:
                raise ArgumentError(f"{name} must be above 0 seconds and finite, not {seconds}")


class GameEnvironment(EchoRLEnvironment):
    """A game in a worker; a subclass says which worker, and what a game is made from.

    The worker starts at the first ``reset``, and another one after the last has died.
    """

    _worker_file = ""
    _package = ""
    #: How to install what the worker needs.
    _install = ""
    #: Variables that name the worker's interpreter, the first that is set counting.
    _variables: tuple[str, ...] = ()

    def __init__(self, config: GameConfig) -> None:
        super().__init__(config)
        self._python = config.python
        self._step_timeout, self._reset_timeout = config.step_timeout, config.reset_timeout
        self._worker: JsonProcess | None = None
        self._seen: dict[str, Any] = {}

    def _game(self, options: dict[str, Any]) -> dict[str, Any]:
        """What the worker makes an episode's game from, with no randomness but ``np_random``."""
        raise NotImplementedError

    @property
    def python(self) -> str:
        """The interpreter of the worker."""
        named = (os.environ.get(variable) for variable in self._variables)
        return self._python or next((one for one in named if one), sys.executable)

    def _expert(self) -> str | None:
        """The next command of the game's own solver."""
        command: str | None = self._ask("expert", self._reset_timeout)
        return command

    def close(self) -> None:
        """End the worker; the environment can't be used after."""
        super().close()
        if self._worker is not None:
            self._worker.close()

    def _start(self, options: dict[str, Any]) -> str:
        game = self._game(options)
        if self._worker is None:
            self._worker = self._open()
        self._seen = self._ask("reset", self._reset_timeout, **game)
        return str(self._seen["text"])

    def _apply(self, command: str) -> Outcome | None:
        said = " ".join(command.split()).casefold()
        known = {one.casefold(): one for one in self._seen["commands"]}
        if said not in known:
            return None
        before = float(self._seen["score"])
        self._seen = seen = self._ask("step", self._step_timeout, command=known[said])
        score = float(seen["score"])
        # A lost game earns nothing, however far it got.
        final = 0.0 if seen["ended"] and not seen["won"] else score
        reward = max(0.0, score - before)
        return Outcome(seen["text"], reward, bool(seen["ended"]), final, seen["details"])

    def _commands(self) -> Sequence[str]:
        commands: list[str] = self._seen["commands"]
        return commands

    def _ask(self, do: str, timeout: float, **arguments: Any) -> Any:
        if self._worker is None:
            raise EnvironmentProcessError("the game's worker is gone, and reset starts another")
        try:
            return self._worker.ask(do, timeout, **arguments)
        except EnvironmentProcessError:
            # What it plays is of no more use, even if it lives.
            self._worker.close()
            self._worker = None
            raise

    def _open(self) -> JsonProcess:
        python = self.python
        file = Path(__file__).parent / "workers" / self._worker_file
        worker = JsonProcess([python, str(file)], name=f"the worker of {self._package}")
        try:
            worker.ask("hello", self._reset_timeout)
        except BaseException as error:
            worker.close()
            if isinstance(error, ImportError):
                raise ModuleNotFoundError(
                    f"{self._package} is not installed for {python} ({error}): {self._install}; "
                    f"then say where in {self._variables[0]} or in the setting python"
                ) from error
            raise
        return worker
