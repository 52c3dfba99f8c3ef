"""Replay buffers for ``replay_buffer_class=`` of Stable-Baselines3's off-policy algorithms.

Each is a subclass of the class of the same name there, since algorithms ask for it, and holds the
transitions in a buffer of Echoic, or in a table of a server (``table=``). Of arrays such as
``observations`` there are copies only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optree
from gymnasium import spaces
from stable_baselines3.common import buffers as theirs
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.her import her_replay_buffer
from stable_baselines3.her.goal_selection_strategy import (
    KEY_TO_GOAL_STRATEGY,
    GoalSelectionStrategy,
)

from echoic import buffers
from echoic.errors import ReplayError, SpecError
from echoic.integrations._baselines import BaselinesBuffer

if TYPE_CHECKING:
    from echoic import Table

__all__ = [
    "DictReplayBuffer",
    "HerReplayBuffer",
    "NStepReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "ReplayBuffer",
]


class ReplayBuffer(BaselinesBuffer, theirs.ReplayBuffer):
    """Keep the last transitions, and sample them uniformly.

    Args:
        buffer_size: Number of transitions that fit.
        observation_space: The environment's; a ``Dict`` too.
        action_space: The environment's.
        device: Where batches are.
        n_envs: Number of environments.
        optimize_memory_usage: Whether to store an observation once that is the next one of one step
            and the first of another. Unlike Stable-Baselines3's, it works with
            ``handle_timeout_termination``, and with all classes but :class:`HerReplayBuffer`.
        handle_timeout_termination: Whether values count after episodes that a time limit ended.
        table: A table of any connection with these transitions, which other processes may fill:
            see :meth:`echoic.Table.from_spaces`. Its capacity counts, not ``buffer_size``.
            Actions are those of the environment there, not scaled to -1 and 1.
        seed: Seed of the draws. Default: drawn from numpy's, which the algorithm's ``seed`` sets.
        n_steps: Number of steps whose rewards are summed; the ``discounts`` of a batch say how many
            they were. With a ``VecNormalize``, sums are clipped as ``n_steps`` rewards would be at
            most. Not with a table. Default: 1.
        gamma: The discount of ``n_steps``; 1 step has the algorithm's. Default: 0.99.

    Raises:
        SpecError: If the table does not have the fields of the spaces.
        ReplayError: If ``n_steps`` is above 1 and there is a table.
    """

    _scales_actions = True

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        table: Table | None = None,
        seed: int | None = None,
        n_steps: int = 1,
        gamma: float = 0.99,
        **settings: Any,
    ) -> None:
        if table is not None and n_steps > 1:
            raise ReplayError(
                f"n_steps={n_steps} needs the order of steps, which the table {table.name!r} does "
                "not keep: have its writers sum rewards, or leave `table` out"
            )
        self.n_steps, self.gamma = n_steps, gamma
        # Without the arrays that the class between would allocate.
        theirs.BaseBuffer.__init__(
            self, buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        is_dict = isinstance(observation_space, spaces.Dict)
        self._samples = DictReplayBufferSamples if is_dict else ReplayBufferSamples
        self._open(table, seed, n_step=n_steps, gamma=gamma, **settings)

    def _tensors(self, data: Any, env: Any) -> tuple[Any, ...]:
        tensors = super()._tensors(data, env)
        if self.n_steps == 1:
            return (*tensors, None)
        return (*tensors, self._tensor(data["discounts"][:, None]))

    def _normalized(self, rewards: Any, env: Any) -> Any:
        if self.n_steps == 1 or not env.norm_reward:
            return super()._normalized(rewards, env)
        most = env.clip_reward * sum(self.gamma**step for step in range(self.n_steps))
        scaled = rewards / math.sqrt(env.ret_rms.var + env.epsilon)
        return np.clip(scaled, -most, most).astype(np.float32)


class DictReplayBuffer(ReplayBuffer, theirs.DictReplayBuffer):
    """A :class:`ReplayBuffer` of dicts, for programs that ask for this class."""


class NStepReplayBuffer(ReplayBuffer, theirs.NStepReplayBuffer):
    """A :class:`ReplayBuffer` with ``n_steps=3``, for programs that ask for this class."""

    def __init__(self, *args: Any, n_steps: int = 3, **settings: Any) -> None:
        super().__init__(*args, n_steps=n_steps, **settings)


class PrioritizedReplayBufferSamples(NamedTuple):
    """A batch of :class:`PrioritizedReplayBuffer`.

    Attributes:
        observations: As of Stable-Baselines3's samples, and so on.
        weights: Importance weights, of the shape ``(batch, 1)``.
        keys: What :meth:`PrioritizedReplayBuffer.update_priorities` takes.
    """

    observations: Any
    actions: Any
    next_observations: Any
    dones: Any
    rewards: Any
    discounts: Any
    weights: Any
    keys: Any


class PrioritizedReplayBuffer(ReplayBuffer):
    """Sample transitions by priority, see :class:`echoic.PrioritizedReplayBuffer`.

    Stable-Baselines3's algorithms do not set priorities: use the ``weights`` and ``keys`` of
    batches in a ``train`` of your own.

    Args:
        args: As of :class:`ReplayBuffer`.
        alpha: Exponent of priorities. A table has its own. Default: 0.6.
        beta: Exponent of weights, which may be changed as :attr:`beta`. Default: 0.4.
        settings: As of :class:`ReplayBuffer`.
    """

    _kind = buffers.PrioritizedReplayBuffer

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.6,
        beta: float = 0.4,
        **settings: Any,
    ) -> None:
        self.beta = beta
        super().__init__(*args, alpha=alpha, **settings)
        self._samples = PrioritizedReplayBufferSamples

    def sample(self, batch_size: int, env: Any = None) -> PrioritizedReplayBufferSamples:
        """Draw transitions by priority; see :meth:`ReplayBuffer.sample`."""
        batch = self._store.sample(batch_size, beta=self.beta)
        weights = self._tensor(np.asarray(batch.weights, np.float32)[:, None])
        samples: PrioritizedReplayBufferSamples = self._samples(
            *self._tensors(batch.data, env), weights, batch.keys
        )
        return samples

    def update_priorities(self, keys: Any, priorities: Any) -> int:
        """Set priorities of transitions, such as absolute errors.

        Args:
            keys: Those of a batch.
            priorities: A number >= 0 for each; a tensor on any device or an array.

        Returns:
            How many of the transitions are still there.
        """
        if hasattr(priorities, "detach"):
            priorities = priorities.detach().cpu().numpy()
        found: int = self._store.update_priorities(keys, np.reshape(priorities, -1))
        return found


class HerReplayBuffer(her_replay_buffer.HerReplayBuffer, DictReplayBuffer):
    """Sample transitions of which some have goals that were reached later.

    It keeps account of episodes and draws from numpy's random numbers as Stable-Baselines3's does,
    so a run with the same seed has the same batches.

    Args:
        buffer_size: As of :class:`ReplayBuffer`.
        observation_space: A ``Dict`` with ``achieved_goal`` and ``desired_goal``.
        action_space: The environment's.
        env: The environment, whose ``compute_reward`` is called.
        device: Where batches are.
        n_envs: Number of environments.
        optimize_memory_usage: Not supported, as in Stable-Baselines3.
        handle_timeout_termination: As of :class:`ReplayBuffer`.
        n_sampled_goal: Number of transitions with other goals for each one with its own.
        goal_selection_strategy: ``"future"``, ``"final"`` or ``"episode"``.
        copy_info_dict: Whether to keep the infos, and give them to ``compute_reward``.

    Raises:
        SpecError: If the observations have no goals.
        ReplayError: If ``optimize_memory_usage`` is true.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
    ) -> None:
        missing = {"achieved_goal", "desired_goal"} - set(getattr(observation_space, "spaces", {}))
        if missing:
            raise SpecError(
                f"expected observations with {sorted(missing)}, got {observation_space}"
            )
        if optimize_memory_usage:
            raise ReplayError("HerReplayBuffer has no optimize_memory_usage: leave it out")
        if isinstance(goal_selection_strategy, str):
            goal_selection_strategy = KEY_TO_GOAL_STRATEGY[goal_selection_strategy.lower()]
        self.env = env
        self.copy_info_dict = copy_info_dict
        self.n_sampled_goal = n_sampled_goal
        self.her_ratio = 1 - 1 / (n_sampled_goal + 1)
        self.goal_selection_strategy = goal_selection_strategy
        # Not the class between: it would make a dict for each transition.
        DictReplayBuffer.__init__(
            self,
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            handle_timeout_termination=handle_timeout_termination,
            seed=0,
            episodes=True,
        )
        self._forget()

    def _forget(self) -> None:
        """Make the arrays that the class between keeps, for no steps."""
        shape = (self.buffer_size, self.n_envs)
        self.ep_start, self.ep_length = np.zeros((2, *shape), np.int64)
        self._current_ep_start = np.zeros(self.n_envs, np.int64)
        self.infos = np.empty(shape if self.copy_info_dict else 0, object)
        self._steps = 0

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Add one transition of each environment; see :meth:`ReplayBuffer.add`."""
        super().add(obs, next_obs, action, reward, done, infos)
        self._steps += 1

    def sample(self, batch_size: int, env: Any = None) -> DictReplayBufferSamples:
        """Draw transitions of ended episodes, some with goals that were reached.

        Args:
            batch_size: Number of transitions.
            env: A ``VecNormalize``, which normalizes observations and rewards.

        Raises:
            ReplayError: If no episode has ended, or there is no environment.
        """
        if self.env is None:
            raise ReplayError("expected an environment to compute rewards with: call set_env first")
        valid = np.flatnonzero(self.ep_length)
        if not len(valid):
            raise ReplayError(
                "expected an episode that has ended, got none: set learning_starts above its length"
            )
        rows, envs = np.divmod(np.random.choice(valid, batch_size), self.n_envs)
        count = int(self.her_ratio * batch_size)
        goal_rows = self._goal_rows(rows[:count], envs[:count])
        # Transitions with their own goals come first, and the rows that goals are from last.
        rows, envs = np.roll(rows, -count), np.roll(envs, -count)
        relabeled = slice(batch_size - count, batch_size)
        at = np.concatenate([rows, goal_rows])
        steps = at + (self._steps - 1 - at) // self.buffer_size * self.buffer_size
        positions = steps * self.n_envs + np.concatenate([envs, envs[relabeled]])
        found = self._store._rows([self._store], np.zeros(len(at), np.int64), positions)
        goals = found["next_obs"]["achieved_goal"][batch_size:]
        data: Any = optree.tree_map(lambda array: array[:batch_size], found)
        if count:
            obs, next_obs = data["obs"], data["next_obs"]
            obs["desired_goal"][relabeled] = next_obs["desired_goal"][relabeled] = goals
            infos: Any = [{} for _ in range(count)]
            if self.copy_info_dict:
                infos = self.infos[rows[relabeled], envs[relabeled]]
            achieved = next_obs["achieved_goal"][relabeled]
            data["rewards"][relabeled] = self.env.env_method(
                "compute_reward", achieved, goals, infos, indices=[0]
            )[0]
        return self._samples(*self._tensors(data, env))

    def _goal_rows(self, rows: Any, envs: Any) -> Any:
        """Draw the rows of which the achieved goals are taken."""
        start, length = self.ep_start[rows, envs], self.ep_length[rows, envs]
        if self.goal_selection_strategy == GoalSelectionStrategy.FINAL:
            return (start + length - 1) % self.buffer_size
        future = self.goal_selection_strategy == GoalSelectionStrategy.FUTURE
        first = (rows - start) % self.buffer_size if future else 0
        return (start + np.random.randint(first, length)) % self.buffer_size

    def reset(self) -> None:
        """Remove all transitions."""
        self._make(0)
        self._bind()
        self.pos, self.full = 0, False
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the environment, which often can't be pickled."""
        return {**DictReplayBuffer.__getstate__(self), "env": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make a buffer with these contents; it needs ``set_env`` then."""
        DictReplayBuffer.__setstate__(self, state)
