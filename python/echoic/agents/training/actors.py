"""Actors: environments side by side, served by one forward pass, and what they did.

- The seed of an episode follows from the run's seed, the actor and the number of the episode.
- A step in which an environment raises, or is killed after ``environment_timeout``, is marked as
  not valid, and another episode starts: nothing is learned from the step, and it counts as cut off
  where it started. An environment that can't start an episode ends the run.
- A judge, if there is one, pays an episode when it ends, in place of the environment. Metrics still
  report what the environment paid.
"""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from echoic.agents.environments.processes import environment_of
from echoic.agents.episodes import Decision, run_episode
from echoic.agents.plans import PlanWindows, shown
from echoic.agents.training.ppo import Batch, masked
from echoic.errors import CollectorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from echoic.agents.episodes import Episode
    from echoic.agents.training.config import TrainingConfig

__all__ = ["ActingNetworks", "ActorGroup", "Seat", "TrainedPolicy", "Transcript"]

_log = logging.getLogger("echoic.agents.training")
# Seeds of training are below, seeds of evaluations from here on.
HELD_OUT = 2**30
# Episodes of one actor have numbers below this.
_EPISODES = 10**10


def episode_seed(seed: int, actor: int, episode: int) -> int:
    """Return the seed of an actor's episode, below :data:`HELD_OUT`."""
    return int(np.random.SeedSequence([seed, actor, episode]).generate_state(1)[0]) % HELD_OUT


@dataclass
class Transcript:
    """An episode in words, for a judge."""

    #: The environment's description of the task.
    instructions: str
    #: Each observation, and the command that followed it.
    turns: list[tuple[str, str]] = field(default_factory=list)
    #: The last observation.
    final: str = ""


class ActingNetworks:
    """Acts on windows of states with an encoder of plans, which may be None, and a policy."""

    def __init__(self, config: TrainingConfig, encoder: Any, policy: Any) -> None:
        self.config, self.encoder, self.policy = config, encoder, policy

    def windows(self, count: int) -> PlanWindows:
        """Return empty windows for some environments."""
        size, history = self.config.planning_config.state_window_size, self.config.plan_history
        if self.encoder is None:
            size, history = 0, None
        return PlanWindows(count, self.config.state_dim, size, history=history, device="cpu")

    @torch.no_grad()
    def act(
        self, windows: Any, masks: Any, allowed: Any, generator: Any, *, greedy: bool = False
    ) -> tuple[Any, ...]:
        """Draw a plan and an action for each window, or take the likeliest of both.

        ``masks`` say which places of ``windows`` ``(n, places, state_dim)`` hold a state, and
        ``allowed`` ``(n, action_dim)`` which actions there are.

        Returns:
            Actions ``(n,)``, their log-probabilities, the plans acted on, and the plans' noise.
        """
        device = next(self.policy.parameters()).device
        windows, masks, allowed = (one.to(device) for one in (windows, masks, allowed))
        noise = torch.zeros(len(windows), self.config.plan_dim)
        plans = noise.to(device)
        if self.encoder is not None:
            if not greedy:
                noise.normal_(generator=generator)
            plans = self.encoder.posterior(windows, masks).at(noise.to(device))
        log_probs = masked(self.policy(windows[:, -1], plans), allowed).cpu()
        if greedy:
            actions = log_probs.argmax(dim=-1)
        else:
            actions = torch.multinomial(log_probs.exp(), 1, generator=generator).squeeze(-1)
        chosen = log_probs.gather(-1, actions[:, None]).squeeze(-1)
        return actions, chosen, plans.cpu(), noise


class TrainedPolicy:
    """Acts with trained networks, in one episode after the other.

    ``greedy`` takes the likeliest plan and action instead of drawing them.
    """

    def __init__(self, networks: ActingNetworks, *, greedy: bool = False) -> None:
        self._networks = networks
        self._greedy = greedy
        self.begin("", 0)

    def begin(self, instructions: str, seed: int) -> None:
        """Start an episode. The instructions are not used: the policy was trained for the task."""
        del instructions
        self._windows = self._networks.windows(1)
        self._generator = torch.Generator().manual_seed(seed)
        self._starts = [True]

    async def act(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Decision:
        """Return the index of a command. Uses no tokens of a language model, and costs nothing."""
        state = np.asarray(observation["vector"], np.float32)[None]
        seen = self._windows.push(state, self._starts)
        self._starts = [False]
        allowed = torch.from_numpy(_allowed(info))[None]
        actions, *_ = self._networks.act(*seen, allowed, self._generator, greedy=self._greedy)
        return Decision(int(actions[0]))


def _allowed(info: Mapping[str, Any]) -> Any:
    """Return which actions there are: those listed, or all if none is."""
    mask = np.asarray(info["command_mask"], bool)
    return mask if mask.any() else np.ones_like(mask)


class Seat:
    """An environment, and the state of its episode; ``number`` is that of the actor."""

    def __init__(
        self,
        config: TrainingConfig,
        seed: int = 0,
        number: int = 0,
        episode: int = 0,
        judge: Callable[[Transcript], float] | None = None,
    ) -> None:
        self.config, self.seed, self.number, self.episode = config, seed, number, episode
        self.judge = judge
        # Reward, steps and success of each episode that ended.
        self.ended: list[tuple[float, int, bool]] = []
        self.environment = environment_of(
            config.env_name, config.environment_settings, timeout=config.environment_timeout
        )
        found = self.environment.get_state_dim(), self.environment.get_action_space_size()
        if found != (config.state_dim, config.action_dim):
            self.environment.close()
            raise CollectorError(
                f"the environment {config.env_name!r} has states of {found[0]} numbers and "
                f"{found[1]} actions; state_dim is {config.state_dim} and action_dim "
                f"{config.action_dim}"
            )

    def begin(self) -> None:
        """Start the next episode."""
        self.episode += 1
        seed = episode_seed(self.seed, self.number, self.episode)
        self._see(*self.environment.reset(seed=seed))
        self.reward, self.steps = 0.0, 0
        self.transcript = Transcript(str(getattr(self.environment, "instructions", "")))

    def step(self, action: int) -> dict[str, Any]:
        """Do an action, and start the next episode if this one ends; return the step's row."""
        row: dict[str, Any] = {
            "next_states": self.state,
            "episode": self.number * _EPISODES + self.episode,
            **dict.fromkeys(("rewards", "earned"), 0.0),
            "truncated": True,
            "dones": False,
            "valid": False,
        }
        command = self._commands[action] if action < len(self._commands) else f"#{action}"
        self.transcript.turns.append((self._text, command))
        try:
            seen, reward, done, cut, info = self.environment.step(action)
            self._see(seen, info, reward)
        except Exception as error:  # whatever an environment raises
            # As text: a log may keep its arguments, and an error keeps all that its frames hold.
            _log.warning("the environment of actor %d broke: %s", self.number, repr(error))
            self.begin()
            return row
        self.transcript.final, paid = self._text, float(reward)
        self.steps += 1
        self.reward += paid
        done = bool(done)
        cut = not done and (bool(cut) or self.steps >= self.config.max_episode_steps)
        row |= {"next_states": self.state, "earned": paid, "rewards": paid}
        row |= {"dones": done, "truncated": cut, "valid": True}
        if self.judge is not None:
            row["rewards"] = float(self.judge(self.transcript)) if done or cut else 0.0
        if done or cut:
            self.ended.append((self.reward, self.steps, done and bool(info["success"])))
            self.begin()
        return row

    async def play(self, policy: TrainedPolicy) -> list[Episode]:
        """Play the held-out episodes, the same each time, and leave out those that failed."""
        played, most = [], self.config.max_episode_steps
        for seed in range(HELD_OUT, HELD_OUT + self.config.evaluation_episodes):
            episode = await run_episode(
                self.environment, policy, seed, max_steps=most, timeout=math.inf
            )
            # What was cut off has no success.
            episode.success &= episode.ended == "terminated"
            if episode.error is None and math.isfinite(episode.reward):
                played.append(episode)
            else:
                why = episode.error or f"a reward of {episode.reward}"
                _log.warning("the environment of evaluations broke: %s", why)
        return played

    def _see(self, observation: Any, info: Any, reward: float = 0.0) -> None:
        # A copy: the environment may write its next vector to the same place.
        self.state = np.array(observation["vector"], np.float32)
        if not (np.isfinite(self.state).all() and math.isfinite(reward)):
            raise CollectorError("an observation or a reward has numbers that are not finite")
        self.allowed = _allowed(info)
        self._text, self._commands = observation["text"], info["commands"]


class ActorGroup:
    """All actors of a run.

    ``first`` is how many steps the run has taken before: what is drawn differs by it.
    """

    def __init__(
        self,
        config: TrainingConfig,
        networks: ActingNetworks,
        seed: int,
        *,
        first: int = 0,
        judge: Callable[[Transcript], float] | None = None,
    ) -> None:
        self.config, self.networks = config, networks
        drawn = np.random.SeedSequence([seed, first, 1]).generate_state(1)
        self._generator = torch.Generator().manual_seed(int(drawn[0]))
        self._windows = networks.windows(config.num_actors)
        # Windows of the latest step, and their masks.
        self._latest: Any = None
        self.seats: list[Seat] = []
        with contextlib.ExitStack() as stack:
            for number in range(config.num_actors):
                self.seats.append(Seat(config, seed, number, first, judge))
                stack.callback(self.seats[-1].environment.close)
                self.seats[-1].begin()
            self.close = stack.pop_all().close

    def collect(self) -> Batch:
        """Take ``train_frequency`` steps with each actor.

        Returns:
            Tensors ``(T, N, ...)``, time first: fields of a ``PPOTrainingStep``, ``next_states``
            (what steps led to), ``earned`` (the environment's rewards), ``dones``, ``truncated``,
            ``valid``, ``episode`` (a number), ``places`` (states in the plan's window), and with
            plans ``next_windows`` and ``next_masks``. And ``ended``: reward, steps and success of
            each episode that ended.
        """
        rows = [self._step() for _ in range(self.config.train_frequency)]
        batch = Batch(**{name: torch.stack([row[name] for row in rows]) for name in rows[0]})
        batch.ended = [one for seat in self.seats for one in seat.ended]
        for seat in self.seats:
            seat.ended = []
        windows, masks = batch.windows, batch.masks
        before = self._latest or (windows[0], masks[0])
        self._latest = windows[-1], masks[-1]
        batch.previous_windows = torch.cat([before[0][None], windows[:-1]])
        batch.previous_masks = torch.cat([before[1][None], masks[:-1]])
        after = torch.cat([windows[:, :, 1:], batch.next_states[:, :, None]], dim=2)
        seen = torch.cat([masks[:, :, 1:], torch.ones_like(masks[:, :, :1])], dim=2)
        batch.next_windows, batch.next_masks = shown(after, seen, self._windows.history)
        return batch

    def _step(self) -> dict[str, Any]:
        """Take one step with each actor."""
        states = torch.from_numpy(np.stack([seat.state for seat in self.seats]))
        allowed = torch.from_numpy(np.stack([seat.allowed for seat in self.seats]))
        starts = torch.tensor([seat.steps == 0 for seat in self.seats])
        windows, masks = self._windows.push(states, starts)
        acted = self.networks.act(windows, masks, allowed, self._generator)
        pairs = zip(self.seats, acted[0].tolist(), strict=True)
        done = [seat.step(action) for seat, action in pairs]
        following = np.stack([one.pop("next_states") for one in done])
        return {
            "states": states,
            "pairs": ~starts,
            "windows": windows,
            "masks": masks,
            "action_masks": allowed,
            "places": masks.sum(dim=1),
            **dict(zip(("actions", "log_probs", "latent_plans", "plan_noise"), acted, strict=True)),
            "next_states": torch.from_numpy(following),
            **{name: torch.tensor([one[name] for one in done]) for name in done[0]},
        }
