"""Episodes: what hangs, what is cancelled, and what was used by what failed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from echoic.agents.backbones.base import Completion
from echoic.agents.baselines import Cell, method_of
from echoic.agents.episodes import Decision, EnvironmentThread, Usage, run_episode
from echoic.errors import ClosedError

INFO = {
    "commands": ("go", "stay"),
    "command_mask": np.array([True, True]),
    "score": 0.0,
    "success": False,
}


class Corridor:
    """Ends after two steps, unless a step waits for ``door``."""

    instructions = "Walk."

    def __init__(self, door: threading.Event | None = None) -> None:
        self.door = door
        self.done = 0

    def reset(self, *, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        del seed
        self.done = 0
        return {"text": "a corridor"}, INFO

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        del action
        if self.door is not None:
            self.door.wait()
        self.done += 1
        return {"text": "a corridor"}, 1.0, self.done == 2, False, INFO


class Walker:
    """Goes on."""

    def begin(self, instructions: str, seed: int) -> None:
        """Nothing to prepare."""

    async def act(self, observation: Any, info: Any) -> Decision:
        """One step, which used one token."""
        del observation, info
        return Decision("go", usage=Usage(tokens_in=1))


def test_environments_that_hang_take_no_thread_from_others() -> None:
    door = threading.Event()

    async def run() -> None:
        stuck = [run_episode(Corridor(door), Walker(), seed, timeout=0.05) for seed in range(50)]
        assert {one.ended for one in await asyncio.gather(*stuck)} == {"timeout"}
        healthy = await run_episode(Corridor(), Walker(), 0, timeout=20)
        assert (healthy.ended, healthy.steps, healthy.usage.tokens_in) == ("terminated", 2, 2)

    try:
        asyncio.run(run())
    finally:
        door.set()


def test_a_program_ends_although_an_environment_hangs() -> None:
    code = """
import asyncio, time
from echoic.agents.episodes import Decision, run_episode

class Stuck:
    instructions = ""
    def reset(self, *, seed): time.sleep(1000)

class Any:
    def begin(self, instructions, seed): pass
    async def act(self, observation, info): return Decision("go")

print(asyncio.run(run_episode(Stuck(), Any(), 0, timeout=0.05)).ended)
"""
    came = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert came.stdout == "timeout\n"


def test_a_thread_tells_what_was_raised_and_refuses_when_closed() -> None:
    async def run() -> None:
        thread = EnvironmentThread()
        assert await thread.call(int, "11", base=2) == 3
        assert await thread.call(threading.get_ident) == await thread.call(threading.get_ident)
        with pytest.raises(ValueError, match="invalid literal"):
            await thread.call(int, "x")
        with pytest.raises(RuntimeError, match="StopIteration"):
            await thread.call(next, iter(()))
        with pytest.raises(RuntimeError, match="SystemExit"):
            await thread.call(sys.exit, 3)
        thread.close()
        with pytest.raises(ClosedError):
            await thread.call(int)

    asyncio.run(run())


def test_a_policy_that_cancels_itself_is_an_error_of_its_episode() -> None:
    class Quitter(Walker):
        async def act(self, observation: Any, info: Any) -> Decision:
            raise asyncio.CancelledError

    episode = asyncio.run(run_episode(Corridor(), Quitter(), 0))
    assert episode.ended == "error"
    assert "CancelledError" in (episode.error or "")


def test_a_policy_has_stopped_when_its_episode_took_too_long() -> None:
    class Slow(Walker):
        stopped = False

        async def act(self, observation: Any, info: Any) -> Decision:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(0.01)
                self.stopped = True
            return Decision("go")

    async def run() -> None:
        policy = Slow()
        assert (await run_episode(Corridor(), policy, 0, timeout=0.05)).ended == "timeout"
        assert policy.stopped

    asyncio.run(run())


class Failing:
    """A backbone whose answers use 10 tokens, until one fails."""

    can_score = False

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers

    async def chat(self, messages: Any, **settings: Any) -> Completion:
        """The next answer, at once; the failure later."""
        del messages, settings
        if not self.answers:
            await asyncio.sleep(0.01)
            raise ConnectionError("gone")
        return Completion(self.answers.pop(0), usage=Usage(tokens_in=10, requests=1))


@pytest.mark.parametrize("kind", ["react", "tot"])
def test_what_a_failed_decision_used_is_counted(kind: str) -> None:
    # ReAct acts once, thinks of nothing once and fails; the tree proposes, judges one plan of two
    # and fails at the other.
    answers = ["Action: go", "hm"] if kind == "react" else ["go\nstay", "7"]
    settings = {} if kind == "react" else {"depth": 1}
    policy = method_of(kind, Cell("", backbone=Failing(answers), settings=settings)).policy()
    episode = asyncio.run(run_episode(Corridor(), policy, 0))
    assert episode.error == "ConnectionError: gone"
    assert episode.usage == Usage(tokens_in=20, requests=2)


def test_what_was_used_is_not_counted_twice_nor_carried_over() -> None:
    policy = method_of("react", Cell("", backbone=Failing(["Action: go"] * 2))).policy()
    episode = asyncio.run(run_episode(Corridor(), policy, 0))
    assert (episode.ended, episode.usage.requests) == ("terminated", 2)

    class Broken(Corridor):
        def reset(self, *, seed: int) -> Any:
            raise OSError(seed)

    assert asyncio.run(run_episode(Broken(), policy, 0)).usage == Usage()
