"""Actors: environments side by side, each with its own episode, served by one forward pass.

Decisions:

- The seed of an episode follows from the run's seed, the actor and the number of the episode. So an
  episode that was under way when a run was saved is brought back by its seed and its actions; one
  that does not come back as it was, because the environment is not deterministic, begins anew.
- An environment that raises is closed and made anew. The step that broke is marked, and learned
  from by nobody. One that can't be made, or breaks ten times in a row, ends the actor.
- With ``environment_timeout``, each environment has a process of its own, and one that hangs within
  a step is killed: to its actor it is one that raised.
- A judge, where there is one, pays an episode when it ends, in place of the environment; what the
  environment paid is still what is reported.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.environments.processes import environment_of
from echoic.agents.latent_planning.windows import PlanWindows
from echoic.agents.training.acting import ActingNetworks, allowed_of
from echoic.agents.training.segments import shown
from echoic.errors import CollectorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from echoic.agents.training.config import TrainingConfig

__all__ = [
    "HELD_OUT",
    "ActorGroup",
    "Transcript",
    "checked_environment",
    "close_environment",
    "episode_seed",
]

_log = logging.getLogger("echoic.agents.training")
_MOST_FAILURES = 10
# Seeds of training are below, seeds of evaluations from here on.
HELD_OUT = 2**30
# Episodes of one actor have numbers below this.
_EPISODES = 10**10
# What a step of an environment tells, and as what.
_TOLD = {
    "next_states": np.float32,
    "rewards": np.float32,
    "earned": np.float32,
    "dones": np.bool_,
    "truncated": np.bool_,
    "valid": np.bool_,
    "success": np.bool_,
    "episode": np.int64,
    "episode_reward": np.float64,
    "episode_steps": np.int64,
}


def episode_seed(seed: int, actor: int, episode: int) -> int:
    """The seed of an actor's episode, below :data:`HELD_OUT`."""
    return int(np.random.SeedSequence([seed, actor, episode]).generate_state(1)[0]) % HELD_OUT


@dataclass
class Transcript:
    """An episode in words, for a judge.

    Attributes:
        instructions: What the environment says that the task is.
        turns: What was seen, and the command that was given.
        final: What was seen last.
    """

    instructions: str
    turns: list[tuple[str, str]] = field(default_factory=list)
    final: str = ""


@dataclass
class _Seat:
    """An actor: its environment, and where its episode stands."""

    number: int
    environment: Any
    state: Any
    allowed: Any
    states: Any
    starts: Any
    episode: int = 0
    actions: list[int] = field(default_factory=list)
    reward: float = 0.0
    failures: int = 0
    transcript: Transcript | None = None
    text: str = ""
    commands: Sequence[str] = ()

    def said(self, action: int) -> str:
        """The command that an action is."""
        return self.commands[action] if action < len(self.commands) else f"#{action}"


def checked_environment(config: TrainingConfig) -> Any:
    """Make the environment of a run, whose sizes are those of the run."""
    environment = environment_of(
        config.env_name,
        config.environment_settings,
        timeout=config.environment_timeout,
        imports=config.worker_imports,
    )
    found = environment.get_state_dim(), environment.get_action_space_size()
    if found != (config.state_dim, config.action_dim):
        environment.close()
        raise CollectorError(
            f"the environment {config.env_name!r} has states of {found[0]} numbers and "
            f"{found[1]} actions; state_dim is {config.state_dim} and action_dim "
            f"{config.action_dim}"
        )
    return environment


class ActorGroup:
    """Some of the actors of a run.

    Args:
        config: The settings of the run.
        numbers: Which actors these are.
        seed: Of the run.
        generation: How many groups had these actors before: what they draw differs.
        judge: Says what an episode is worth, in place of the environment.
    """

    def __init__(
        self,
        config: TrainingConfig,
        numbers: Sequence[int],
        seed: int,
        *,
        generation: int = 0,
        judge: Callable[[Transcript], float] | None = None,
    ) -> None:
        self.config = config
        self.networks = ActingNetworks(config)
        # None yet: the first publication has to be taken.
        self.version = -1
        self._seed = seed
        self._judge = judge
        drawn = np.random.SeedSequence([seed, numbers[0], generation, 1]).generate_state(1)
        self.generator = torch.Generator().manual_seed(int(drawn[0]))
        size = config.planning_config.state_window_size if config.use_plans else 0
        self._windows = PlanWindows(len(numbers), config.state_dim, size, device="cpu")
        self._seats = [self._seat(number, generation) for number in numbers]

    def refresh(self, subscription: Any) -> None:
        """Act by the newest weights, if there are newer ones.

        Nobody keeps the publication: a store has few of them, and waits for one to be free.
        """
        newest = subscription.latest()
        if newest is not None and newest.version != self.version:
            self.load(newest)

    def load(self, publication: Any) -> None:
        """Act by these weights from now on."""
        self.networks.load(publication.tree)
        self.version = publication.version

    def collect(self) -> dict[str, Any]:
        """Take ``train_frequency`` steps with each actor: a segment of each, as columns."""
        config = self.config
        steps = [self._step() for _ in range(config.train_frequency)]
        columns = {
            name: np.stack([step[name] for step in steps], axis=1)
            for name in steps[0]
            if name not in {"state", "start"}
        }
        for name, one in (("states", "state"), ("starts", "start")):
            taken = np.stack([step[one] for step in steps], axis=1)
            before = np.stack([getattr(seat, name) for seat in self._seats])
            columns[name] = np.concatenate([before, taken], axis=1)
            for seat, row in zip(self._seats, columns[name], strict=True):
                setattr(seat, name, row[row.shape[0] - config.context :].copy())
        columns["actor"] = np.array([seat.number for seat in self._seats], np.int64)
        columns["version"] = np.full(len(self._seats), self.version, np.int64)
        return columns

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` needs to go on, episodes that are under way included."""
        return {
            "generator": self.generator.get_state(),
            "windows": self._windows.state_dict(),
            "seats": [
                {
                    **{
                        name: getattr(seat, name)
                        for name in ("number", "state", "states", "starts", "episode")
                    },
                    "actions": list(seat.actions),
                }
                for seat in self._seats
            ],
        }

    def restore(self, state: dict[str, Any]) -> int:
        """Go on from :meth:`state`; how many episodes did not come back as they were."""
        self.generator.set_state(state["generator"])
        self._windows.load_state_dict(state["windows"])
        return sum(
            not self._bring_back(seat, kept)
            for seat, kept in zip(self._seats, state["seats"], strict=True)
        )

    def close(self) -> None:
        """Close the environments."""
        for seat in self._seats:
            close_environment(seat.environment)

    # Within an episode.

    def _seat(self, number: int, generation: int) -> _Seat:
        config = self.config
        # Another group had the first episodes of these actors.
        episode = generation * 1_000_000
        seat = _Seat(
            number,
            checked_environment(config),
            None,
            None,
            np.zeros((config.context, config.state_dim), np.float32),
            np.zeros(config.context, np.bool_),
            episode,
        )
        self._begin(seat)
        return seat

    def _begin(self, seat: _Seat) -> None:
        """Begin the episode that the seat counts."""
        seed = episode_seed(self._seed, seat.number, seat.episode)
        observation, info = seat.environment.reset(seed=seed)
        seat.actions, seat.reward = [], 0.0
        if self._judge is not None:
            seat.transcript = Transcript(str(getattr(seat.environment, "instructions", "")))
        self._see(seat, observation, info)

    def _see(self, seat: _Seat, observation: Any, info: Any) -> None:
        seat.state = np.asarray(observation["vector"], np.float32)
        seat.allowed = allowed_of(info, masked=self.config.mask_commands)
        if seat.transcript is not None:
            seat.text, seat.commands = observation["text"], info["commands"]

    def _step(self) -> dict[str, Any]:
        """One step of each actor."""
        seats = self._seats
        states = np.stack([seat.state for seat in seats])
        starts = np.array([not seat.actions for seat in seats])
        allowed = np.stack([seat.allowed for seat in seats])
        windows, masks = shown(*self._windows.push(states, starts), self.config)
        acted = self.networks.act(windows, masks, torch.from_numpy(allowed), self.generator)
        told = [
            self._do(seat, action)
            for seat, action in zip(seats, acted.actions.tolist(), strict=True)
        ]
        return {
            "state": states,
            "start": starts,
            "allowed": allowed,
            "actions": acted.actions.numpy(),
            "log_probs": acted.log_probs.numpy(),
            "plans": acted.plans.numpy(),
            "noise": acted.noise.numpy(),
            "places": masks.sum(dim=1).numpy(),
            **{name: np.array([one[name] for one in told], dtype) for name, dtype in _TOLD.items()},
        }

    def _do(self, seat: _Seat, action: int) -> dict[str, Any]:
        """Do what an actor chose; begin its next episode where this one ends."""
        before, episode = seat.state, seat.episode
        told: dict[str, Any] = {
            "next_states": before,
            "rewards": 0.0,
            "earned": 0.0,
            "dones": False,
            "truncated": True,
            "valid": False,
            "success": False,
            "episode": seat.number * _EPISODES + episode,
            "episode_reward": 0.0,
            "episode_steps": 0,
        }
        seat.actions.append(action)
        try:
            said = seat.said(action)
            seen, reward, done, cut, info = _finite(seat.environment.step(action))
        except Exception as error:  # whatever an environment raises
            self._mend(seat, error)
            return told
        seat.failures = 0
        if seat.transcript is not None:
            seat.transcript.turns.append((seat.text, said))
        self._see(seat, seen, info)
        seat.reward += float(reward)
        done = bool(done)
        cut = not done and (bool(cut) or len(seat.actions) >= self.config.max_episode_steps)
        paid = float(reward)
        if seat.transcript is not None and self._judge is not None:
            seat.transcript.final = seat.text
            paid = float(self._judge(seat.transcript)) if done or cut else 0.0
        told.update(
            next_states=seat.state,
            rewards=paid * self.config.reward_scale,
            earned=float(reward),
            dones=done,
            truncated=cut,
            valid=True,
        )
        if done or cut:
            told.update(
                success=done and bool(info["success"]),
                episode_reward=seat.reward,
                episode_steps=len(seat.actions),
            )
            seat.episode += 1
            try:
                self._begin(seat)
            except Exception as error:  # whatever an environment raises
                self._mend(seat, error)
        return told

    def _mend(self, seat: _Seat, error: Exception) -> None:
        """Make an environment that broke anew, and begin another episode in it."""
        seat.failures += 1
        # As text: a log may keep what it is told, and the error keeps all that its frames hold.
        _log.warning("the environment of actor %d broke: %s", seat.number, repr(error))
        if seat.failures > _MOST_FAILURES:
            raise CollectorError(
                f"the environment {self.config.env_name!r} broke {seat.failures} times in a row: "
                f"{error!r}"
            ) from error
        close_environment(seat.environment)
        seat.environment = checked_environment(self.config)
        seat.episode += 1
        try:
            self._begin(seat)
        except Exception as again:  # counted, and not for ever
            self._mend(seat, again)

    def _bring_back(self, seat: _Seat, kept: dict[str, Any]) -> bool:
        """Bring an episode to where it was, by its seed and its actions."""
        for name in ("states", "starts", "episode"):
            setattr(seat, name, kept[name])
        try:
            self._repeat(seat, kept["actions"])
            if seat.actions == kept["actions"] and np.array_equal(seat.state, kept["state"]):
                return True
            _log.warning("the episode of actor %d does not repeat itself", seat.number)
            seat.episode += 1
            self._begin(seat)
        except Exception as error:  # whatever an environment raises
            self._mend(seat, error)
        return False

    def _repeat(self, seat: _Seat, actions: list[int]) -> None:
        """Do what was done in an episode, from its beginning."""
        self._begin(seat)
        for action in actions:
            if seat.transcript is not None:
                seat.transcript.turns.append((seat.text, seat.said(action)))
            seen, reward, done, cut, info = seat.environment.step(action)
            seat.actions.append(action)
            seat.reward += float(reward)
            if done or cut:
                break
            self._see(seat, seen, info)


def _finite(step: tuple[Any, ...]) -> tuple[Any, ...]:
    """A step whose numbers can be learned from; another is as bad as none."""
    if not (math.isfinite(step[1]) and np.isfinite(step[0]["vector"]).all()):
        raise CollectorError(f"a step has numbers that are not finite, its reward being {step[1]}")
    return step


def close_environment(environment: Any) -> None:
    """Close an environment that may be broken."""
    try:
        environment.close()
    except Exception as error:  # it is given up anyway
        _log.debug("closing an environment: %s", repr(error))
