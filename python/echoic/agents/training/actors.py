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
from echoic.agents.training.acting import ActingNetworks, allowed_of
from echoic.agents.training.segments import shown, windows_for
from echoic.errors import CollectorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from echoic.agents.training.config import TrainingConfig

__all__ = ["HELD_OUT", "ActorGroup", "Evaluated", "Evaluator", "Transcript", "episode_seed"]

_log = logging.getLogger("echoic.agents.training")
_MOST_FAILURES = 10
# Seeds of training are below, seeds of evaluations from here on.
HELD_OUT = 2**30
# Episodes of one actor have numbers below this.
_EPISODES = 10**10
# Most episodes of an evaluation at a time.
_SIDE_BY_SIDE = 16
# Dtypes of what a step of an environment returns.
_STEP = {
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


@dataclass
class _Actor:
    """An actor: its environment, and the state of its episode."""

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

    def command(self, action: int) -> str:
        """Return the command of an action."""
        return self.commands[action] if action < len(self.commands) else f"#{action}"


def _environment(config: TrainingConfig) -> Any:
    """Make the environment of a run, and check its sizes."""
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
        self._actors = [self._actor(number, generation) for number in numbers]

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
        config = self.config
        steps = [self._step() for _ in range(config.train_frequency)]
        columns = {
            name: np.stack([step[name] for step in steps], axis=1)
            for name in steps[0]
            if name not in {"state", "start"}
        }
        for name, one in (("states", "state"), ("starts", "start")):
            taken = np.stack([step[one] for step in steps], axis=1)
            before = np.stack([getattr(actor, name) for actor in self._actors])
            columns[name] = np.concatenate([before, taken], axis=1)
            for actor, row in zip(self._actors, columns[name], strict=True):
                setattr(actor, name, row[row.shape[0] - config.context :].copy())
        columns["actor"] = np.array([actor.number for actor in self._actors], np.int64)
        columns["version"] = np.full(len(self._actors), self.version, np.int64)
        return columns

    def state(self) -> dict[str, Any]:
        """Return the state for :meth:`restore`, with the episodes under way."""
        return {
            "generator": self.generator.get_state(),
            "windows": self._windows.state_dict(),
            "actors": [
                {
                    **{
                        name: getattr(actor, name)
                        for name in ("number", "state", "states", "starts", "episode")
                    },
                    "actions": list(actor.actions),
                }
                for actor in self._actors
            ],
        }

    def restore(self, state: dict[str, Any]) -> int:
        """Continue from :meth:`state`; return how many episodes could not be restored."""
        self.generator.set_state(state["generator"])
        self._windows.load_state_dict(state["windows"])
        return sum(
            not self._replay(actor, kept)
            for actor, kept in zip(self._actors, state["actors"], strict=True)
        )

    def close(self) -> None:
        """Close the environments."""
        for actor in self._actors:
            _close(actor.environment)

    # Within an episode.

    def _actor(self, number: int, generation: int) -> _Actor:
        config = self.config
        # An earlier group had the first episodes of these actors.
        episode = generation * 1_000_000
        actor = _Actor(
            number,
            _environment(config),
            None,
            None,
            np.zeros((config.context, config.state_dim), np.float32),
            np.zeros(config.context, np.bool_),
            episode,
        )
        self._begin(actor)
        return actor

    def _begin(self, actor: _Actor) -> None:
        """Start the actor's current episode."""
        seed = episode_seed(self._seed, actor.number, actor.episode)
        observation, info = actor.environment.reset(seed=seed)
        actor.actions, actor.reward = [], 0.0
        if self._judge is not None:
            actor.transcript = Transcript(str(getattr(actor.environment, "instructions", "")))
        self._see(actor, observation, info)

    def _see(self, actor: _Actor, observation: Any, info: Any) -> None:
        actor.state = np.asarray(observation["vector"], np.float32)
        actor.allowed = allowed_of(info, masked=self.config.mask_commands)
        if actor.transcript is not None:
            actor.text, actor.commands = observation["text"], info["commands"]

    def _step(self) -> dict[str, Any]:
        """Take one step with each actor."""
        actors = self._actors
        states = np.stack([actor.state for actor in actors])
        starts = np.array([not actor.actions for actor in actors])
        allowed = np.stack([actor.allowed for actor in actors])
        windows, masks = shown(*self._windows.push(states, starts), self.config)
        acted = self.networks.act(windows, masks, torch.from_numpy(allowed), self.generator)
        steps = [
            self._do(actor, action)
            for actor, action in zip(actors, acted.actions.tolist(), strict=True)
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
            **{
                name: np.array([one[name] for one in steps], dtype) for name, dtype in _STEP.items()
            },
        }

    def _do(self, actor: _Actor, action: int) -> dict[str, Any]:
        """Do an action; start the next episode when this one ends."""
        before, episode = actor.state, actor.episode
        step: dict[str, Any] = {
            "next_states": before,
            "rewards": 0.0,
            "earned": 0.0,
            "dones": False,
            "truncated": True,
            "valid": False,
            "success": False,
            "episode": actor.number * _EPISODES + episode,
            "episode_reward": 0.0,
            "episode_steps": 0,
        }
        actor.actions.append(action)
        try:
            command = actor.command(action)
            seen, reward, done, cut, info = _finite(actor.environment.step(action))
        except Exception as error:  # whatever an environment raises
            self._replace(actor, error)
            return step
        actor.failures = 0
        if actor.transcript is not None:
            actor.transcript.turns.append((actor.text, command))
        self._see(actor, seen, info)
        actor.reward += float(reward)
        done = bool(done)
        cut = not done and (bool(cut) or len(actor.actions) >= self.config.max_episode_steps)
        paid = float(reward)
        if actor.transcript is not None and self._judge is not None:
            actor.transcript.final = actor.text
            paid = float(self._judge(actor.transcript)) if done or cut else 0.0
        step.update(
            next_states=actor.state,
            rewards=paid * self.config.reward_scale,
            earned=float(reward),
            dones=done,
            truncated=cut,
            valid=True,
        )
        if done or cut:
            step.update(
                success=done and bool(info["success"]),
                episode_reward=actor.reward,
                episode_steps=len(actor.actions),
            )
            actor.episode += 1
            try:
                self._begin(actor)
            except Exception as error:  # whatever an environment raises
                self._replace(actor, error)
        return step

    def _replace(self, actor: _Actor, error: Exception) -> None:
        """Replace an environment that failed, and start another episode in it."""
        actor.failures += 1
        # As text: a log may keep its arguments, and an error keeps all that its frames hold.
        _log.warning("the environment of actor %d broke: %s", actor.number, repr(error))
        if actor.failures > _MOST_FAILURES:
            raise CollectorError(
                f"the environment {self.config.env_name!r} broke {actor.failures} times in a row: "
                f"{error!r}"
            ) from error
        _close(actor.environment)
        actor.environment = _environment(self.config)
        actor.episode += 1
        try:
            self._begin(actor)
        except Exception as again:  # counted, up to the limit
            self._replace(actor, again)

    def _replay(self, actor: _Actor, kept: dict[str, Any]) -> bool:
        """Restore an episode from its seed and its actions."""
        for name in ("states", "starts", "episode"):
            setattr(actor, name, kept[name])
        try:
            self._repeat(actor, kept["actions"])
            if actor.actions == kept["actions"] and np.array_equal(actor.state, kept["state"]):
                return True
            _log.warning("the episode of actor %d can not be repeated", actor.number)
            actor.episode += 1
            self._begin(actor)
        except Exception as error:  # whatever an environment raises
            self._replace(actor, error)
        return False

    def _repeat(self, actor: _Actor, actions: list[int]) -> None:
        """Repeat the actions of an episode from its start."""
        self._begin(actor)
        for action in actions:
            if actor.transcript is not None:
                actor.transcript.turns.append((actor.text, actor.command(action)))
            seen, reward, done, cut, info = actor.environment.step(action)
            actor.actions.append(action)
            actor.reward += float(reward)
            if done or cut:
                break
            self._see(actor, seen, info)


def _finite(step: tuple[Any, ...]) -> tuple[Any, ...]:
    """Check that the numbers of a step are finite."""
    if not (math.isfinite(step[1]) and np.isfinite(step[0]["vector"]).all()):
        raise CollectorError(f"a step has numbers that are not finite, its reward being {step[1]}")
    return step


def _close(environment: Any) -> None:
    """Close an environment that may have failed."""
    try:
        environment.close()
    except Exception as error:  # it is not used again
        _log.debug("closing an environment: %s", repr(error))


@dataclass
class Evaluated:
    """Results of the episodes of an evaluation, in the order of their seeds."""

    rewards: list[float] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    #: Episodes whose environment failed: they are in none of the lists.
    broken: int = 0

    @property
    def success_rate(self) -> float:
        """Share of successes."""
        return float(np.mean(self.successes))


class Evaluator:
    """Plays the same held-out episodes each time.

    Args:
        config: Settings of the run.
        seed: Seed of what is drawn while acting.
    """

    def __init__(self, config: TrainingConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._environments: list[Any] = []
        try:
            for _ in range(min(_SIDE_BY_SIDE, config.evaluation_episodes)):
                self._environments.append(_environment(config))
        except BaseException:
            self.close()
            raise

    def play(self, networks: ActingNetworks) -> Evaluated:
        """Play all episodes."""
        generator = torch.Generator().manual_seed(self._seed)
        found = Evaluated()
        episodes, width = self._config.evaluation_episodes, len(self._environments)
        for first in range(0, episodes, width):
            seeds = range(HELD_OUT + first, HELD_OUT + min(first + width, episodes))
            self._play(networks, generator, seeds, found)
        return found

    def close(self) -> None:
        """Close the environments."""
        for environment in self._environments:
            _close(environment)

    def _play(self, networks: Any, generator: Any, seeds: range, found: Evaluated) -> None:
        """Play one episode in each of the first environments, until all have ended."""
        config, count = self._config, len(seeds)
        windows = windows_for(config, count)
        rewards, steps = np.zeros(count), np.zeros(count, int)
        success, over, broken = (np.zeros(count, bool) for _ in range(3))
        starts = np.ones(count, bool)
        # An environment that fails at once has no state, and its episode is over.
        states = np.zeros((count, config.state_dim), np.float32)
        allowed = np.ones((count, config.action_dim), bool)

        def step(i: int, function: str, *args: Any, **named: Any) -> Any:
            """Call an environment, and show its state; None if it failed."""
            try:
                result = getattr(self._environments[i], function)(*args, **named)
                states[i] = result[0]["vector"]
                allowed[i] = allowed_of(result[-1], masked=config.mask_commands)
            except Exception as error:  # any error of an environment
                _log.warning("the environment of an evaluation broke: %s", repr(error))
                over[i] = broken[i] = True
                _close(self._environments[i])
                self._environments[i] = _environment(config)
                return None
            return result

        for i, seed in enumerate(seeds):
            step(i, "reset", seed=seed)
        while not over.all():
            acted = networks.act(
                *shown(*windows.push(states, starts), config),
                torch.from_numpy(allowed),
                generator,
                greedy=config.evaluation_greedy,
            )
            starts[:] = False
            for i in np.flatnonzero(~over).tolist():
                result = step(i, "step", int(acted.actions[i]))
                if result is None:
                    continue
                _, reward, done, cut, info = result
                rewards[i] += float(reward)
                steps[i] += 1
                success[i] = bool(done and info["success"])
                over[i] = done or cut or steps[i] >= config.max_episode_steps
        found.rewards += rewards[~broken].tolist()
        found.successes += success[~broken].tolist()
        found.steps += steps[~broken].tolist()
        found.broken += int(broken.sum())
