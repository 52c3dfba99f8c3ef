"""Actors and evaluations: environments side by side, served by one forward pass.

- The seed of an episode follows from the run's seed, the actor and the number of the episode. So an
  episode that was under way when a run was saved is restored from its seed and its actions. If the
  environment is not deterministic, a new episode starts instead.
- An environment that raises is closed and replaced. The step that failed is marked as not valid.
  An environment that can't be made, or fails more than ten times in a row, ends the actor.
- With ``environment_timeout``, each environment runs in its own process. One that hangs within a
  step is killed, which counts as raising.
- A judge, if there is one, pays an episode when it ends, in place of the environment. Metrics still
  report what the environment paid.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.environments.processes import environment_of
from echoic.agents.episodes import run_episode
from echoic.agents.training.acting import ActingNetworks, allowed_of
from echoic.agents.training.segments import example_of, windows_for
from echoic.errors import CollectorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from echoic.agents.episodes import Episode
    from echoic.agents.training.acting import TrainedPolicy
    from echoic.agents.training.config import TrainingConfig

__all__ = ["HELD_OUT", "ActorGroup", "Evaluator", "Transcript", "episode_seed"]

_log = logging.getLogger("echoic.agents.training")
_MOST_FAILURES = 10
# Seeds of training are below, seeds of evaluations from here on.
HELD_OUT = 2**30
# Episodes of one actor have numbers below this.
_EPISODES = 10**10
# What is known of a step whose environment failed.
_FAILED: dict[str, Any] = {
    **dict.fromkeys(("rewards", "earned", "episode_reward", "episode_steps"), 0),
    **dict.fromkeys(("dones", "valid", "success"), False),
    "truncated": True,
}


def episode_seed(seed: int, actor: int, episode: int) -> int:
    """Return the seed of an actor's episode, below :data:`HELD_OUT`."""
    return int(np.random.SeedSequence([seed, actor, episode]).generate_state(1)[0]) % HELD_OUT


@dataclass
class Transcript:
    """An episode in words, for a judge.

    Attributes:
        instructions: The environment's description of the task.
        turns: Each observation, and the command that followed it.
        final: The last observation.
    """

    instructions: str
    turns: list[tuple[str, str]] = field(default_factory=list)
    final: str = ""


class _Seat:
    """An environment, and the state of its episode."""

    def __init__(self, config: TrainingConfig, number: int, episode: int = 0) -> None:
        self.config, self.number, self.episode = config, number, episode
        self.failures = 0
        self.reward, self.actions = 0.0, list[int]()
        # The states before the next segment.
        self.states = np.zeros((config.context, config.state_dim), np.float32)
        self.starts = np.zeros(config.context, np.bool_)
        self.environment = self._make()

    def reset(self, seed: int) -> None:
        """Start an episode."""
        self.actions, self.reward = [], 0.0
        self._see(*self.environment.reset(seed=seed))
        self.transcript = Transcript(str(getattr(self.environment, "instructions", "")))

    def step(self, action: int) -> tuple[float, bool, bool, bool]:
        """Do an action; return the reward, whether it ended or cut the episode, and success.

        Raises:
            CollectorError: If a number is not finite.
        """
        listed = self._commands
        command = listed[action] if action < len(listed) else f"#{action}"
        self.actions.append(action)
        self.transcript.turns.append((self._text, command))
        seen, reward, done, cut, info = self.environment.step(action)
        if not math.isfinite(reward):
            raise CollectorError(f"the reward of a step is not finite: {reward}")
        self._see(seen, info)
        self.transcript.final = self._text
        self.reward += float(reward)
        done = bool(done)
        cut = not done and (bool(cut) or len(self.actions) >= self.config.max_episode_steps)
        return float(reward), done, cut, done and bool(info["success"])

    def replace(self, error: str) -> None:
        """Replace an environment that failed."""
        _log.warning("the environment of actor %d broke: %s", self.number, error)
        self.close()
        self.environment = self._make()

    def close(self) -> None:
        """Close the environment, which may have failed."""
        try:
            self.environment.close()
        except Exception as error:  # it is not used again
            _log.debug("closing an environment: %s", repr(error))

    def _see(self, observation: Any, info: Any) -> None:
        # A copy: the environment may write its next vector to the same place.
        self.state = np.array(observation["vector"], np.float32)
        if not np.isfinite(self.state).all():
            raise CollectorError("an observation has numbers that are not finite")
        self.allowed = allowed_of(info, masked=self.config.mask_commands)
        self._text, self._commands = observation["text"], info["commands"]

    def _make(self) -> Any:
        config = self.config
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
        config: Settings of the run.
        numbers: Numbers of these actors.
        seed: Seed of the run.
        generation: Number of earlier groups of these actors; what they draw differs.
        judge: Pays episodes in place of the environment.
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
        self._windows = windows_for(config, len(numbers))
        self._dtypes = {name: one.dtype for name, one in example_of(config).items()}
        # An earlier group had the first episodes of these actors.
        self._actors: list[_Seat] = []
        try:
            for number in numbers:
                self._actors.append(_Seat(config, number, generation * 1_000_000))
                self._begin(self._actors[-1])
        except BaseException:
            self.close()
            raise

    def refresh(self, subscription: Any) -> None:
        """Load the newest weights, if there are newer ones.

        The publication is not kept: a store has few of them, and waits for a free one.
        """
        newest = subscription.latest()
        if newest is not None and newest.version != self.version:
            self.load(newest)

    def load(self, publication: Any) -> None:
        """Load published weights."""
        self.networks.load(publication.tree)
        self.version = publication.version

    def collect(self) -> dict[str, Any]:
        """Take ``train_frequency`` steps with each actor, and return the segments as columns."""
        actors, context = self._actors, self.config.context
        steps = [self._step() for _ in range(self.config.train_frequency)]
        columns = {name: np.stack([one[name] for one in steps], axis=1) for name in steps[0]}
        for name in ("states", "starts"):
            before = np.stack([getattr(actor, name) for actor in actors])
            columns[name] = np.concatenate([before, columns[name]], axis=1)
            for actor, row in zip(actors, columns[name], strict=True):
                setattr(actor, name, row[len(row) - context :].copy())
        columns["actor"] = np.array([actor.number for actor in actors], np.int64)
        columns["version"] = np.full(len(actors), self.version, np.int64)
        return columns

    def state(self) -> dict[str, Any]:
        """Return the state for :meth:`restore`, with the episodes under way."""
        kept = ("number", "state", "states", "starts", "episode", "actions")
        return {
            "generator": self.generator.get_state(),
            "windows": self._windows.state_dict(),
            "actors": [{name: getattr(actor, name) for name in kept} for actor in self._actors],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self.generator.set_state(state["generator"])
        self._windows.load_state_dict(state["windows"])
        for actor, kept in zip(self._actors, state["actors"], strict=True):
            self._replay(actor, kept)

    def close(self) -> None:
        """Close the environments."""
        for actor in self._actors:
            actor.close()

    def _begin(self, actor: _Seat) -> None:
        """Start the actor's current episode."""
        actor.reset(episode_seed(self._seed, actor.number, actor.episode))

    def _step(self) -> dict[str, Any]:
        """Take one step with each actor."""
        actors = self._actors
        states = np.stack([actor.state for actor in actors])
        starts = np.array([not actor.actions for actor in actors])
        allowed = np.stack([actor.allowed for actor in actors])
        windows, masks = self._windows.push(states, starts)
        acted = self.networks.act(windows, masks, torch.from_numpy(allowed), self.generator)
        actions, log_probs, plans, noise = (one.numpy() for one in acted)
        pairs = zip(actors, actions.tolist(), strict=True)
        done = [self._do(actor, action) for actor, action in pairs]
        return {
            "states": states,
            "starts": starts,
            "action_masks": allowed,
            "actions": actions,
            "log_probs": log_probs,
            "latent_plans": plans,
            "plan_noise": noise,
            "places": masks.sum(dim=1).numpy(),
            **{name: np.array([one[name] for one in done], self._dtypes[name]) for name in done[0]},
        }

    def _do(self, actor: _Seat, action: int) -> dict[str, Any]:
        """Do an action; start the next episode when this one ends."""
        number = actor.number * _EPISODES + actor.episode
        step = {**_FAILED, "next_states": actor.state, "episode": number}
        try:
            reward, done, cut, success = actor.step(action)
        except Exception as error:  # whatever an environment raises
            self._replace(actor, error)
            return step
        actor.failures, paid = 0, reward
        if self._judge is not None:
            paid = float(self._judge(actor.transcript)) if done or cut else 0.0
        step |= {
            "next_states": actor.state,
            "rewards": paid * self.config.reward_scale,
            "earned": reward,
            "dones": done,
            "truncated": cut,
            "valid": True,
        }
        if done or cut:
            step |= {"success": success, "episode_reward": actor.reward}
            step["episode_steps"] = len(actor.actions)
            actor.episode += 1
            try:
                self._begin(actor)
            except Exception as error:  # whatever an environment raises
                self._replace(actor, error)
        return step

    def _replace(self, actor: _Seat, error: Exception) -> None:
        """Replace an environment that failed, and start another episode in it."""
        actor.failures += 1
        if actor.failures > _MOST_FAILURES:
            raise CollectorError(
                f"the environment {self.config.env_name!r} broke {actor.failures} times in a row: "
                f"{error!r}"
            ) from error
        # As text: a log may keep its arguments, and an error keeps all that its frames hold.
        actor.replace(repr(error))
        actor.episode += 1
        try:
            self._begin(actor)
        except Exception as again:  # counted, up to the limit
            self._replace(actor, again)

    def _replay(self, actor: _Seat, kept: dict[str, Any]) -> None:
        """Restore an episode from its seed and its actions; if it differs, start another one."""
        for name in ("states", "starts", "episode"):
            setattr(actor, name, kept[name])
        try:
            self._begin(actor)
            ended = any(any(actor.step(action)[1:3]) for action in kept["actions"])
            if ended or not np.array_equal(actor.state, kept["state"]):
                _log.warning("the episode of actor %d can not be repeated", actor.number)
                actor.episode += 1
                self._begin(actor)
        except Exception as error:  # whatever an environment raises
            self._replace(actor, error)


class Evaluator:
    """Plays the same held-out episodes each time, one after the other."""

    def __init__(self, config: TrainingConfig) -> None:
        self._config = config
        self.seat = _Seat(config, 0)

    async def play(self, policy: TrainedPolicy) -> list[Episode]:
        """Play the episodes, and leave out those that failed."""
        played = []
        for seed in range(HELD_OUT, HELD_OUT + self._config.evaluation_episodes):
            most, environment = self._config.max_episode_steps, self.seat.environment
            episode = await run_episode(environment, policy, seed, max_steps=most, timeout=math.inf)
            # What was cut off has no success.
            episode.success &= episode.ended == "terminated"
            if episode.error is None:
                played.append(episode)
            else:
                self.seat.replace(episode.error)
        return played
