"""Buffers that keep the last transitions in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from echoic import _native
from echoic.buffers._common import BufferStats, Common, seed_of
from echoic.buffers._keeping import StateMethods
from echoic.errors import ReplayError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

__all__ = ["PrioritizedReplayBuffer", "ReplayBuffer"]


class _Views(_native.ReplayBuffer, StateMethods, Common):
    """Methods of both buffers that are not called for each transition."""

    _seed: int

    def sample_sequences(
        self,
        n: int,
        length: int,
        *,
        seed: int | None = None,
        burn_in: int = 0,
        out: _native.Batch | None = None,
    ) -> _native.Batch:
        """Sample windows of ``length`` consecutive steps of one episode each, as R2D2 does.

        A window begins at a step drawn as in :meth:`sample`, or earlier if the episode would end
        within it. An episode shorter than ``length`` is followed by zeros.

        Args:
            n: Number of windows.
            length: Steps of a window, including ``burn_in``.
            seed: Seed of this draw; ``None`` continues the buffer's own random numbers.
            burn_in: Number of first steps of a window that only warm up a recurrent state.
            out: An earlier result to write into.

        Returns:
            A batch with every field as an array of shape ``(n, length, ...)``; ``mask``, true for
            steps of the episode; and ``learn``, true for those after the burn-in.

        Raises:
            ReplayError: If ``burn_in`` is not less than ``length``.

        >>> example = {"obs": np.zeros(1, np.float32), "terminated": False}
        >>> buffer = ReplayBuffer(example, 100, episodes=True, seed=0)
        >>> for step in range(5):
        ...     buffer.add({"obs": [step], "terminated": step == 4})
        >>> batch = buffer.sample_sequences(1, 8, burn_in=2)
        >>> batch["obs"][0, :, 0], batch["learn"][0].astype(int)
        (array([0., 1., 2., 3., 4., 0., 0., 0.], dtype=float32), array([0, 0, 1, 1, 1, 0, 0, 0]))
        """
        if not 0 <= burn_in < max(length, 1):
            raise ReplayError(f"burn_in must be from 0 to length - 1, got {burn_in} of {length}")
        target = None if out is None else out.data
        batch, lengths = self._sample_windows(n, length, seed, target)
        steps = np.arange(length)
        mask = steps < np.asarray(lengths)[:, None]
        more = {"mask": mask, "learn": mask & (steps >= burn_in)}
        return _native.Batch._of({**batch, **more}, n)

    def sample_hindsight(
        self,
        n: int,
        compute_reward: Callable[[Any, Any, dict[str, Any]], Any],
        *,
        seed: int | None = None,
        strategy: str = "future",
        share: float = 0.8,
        compute_terminated: Callable[[Any, Any, dict[str, Any]], Any] | None = None,
    ) -> _native.Batch:
        """Sample a batch in which some steps have goals that were reached later (HER).

        Observations are dicts with ``achieved_goal`` and ``desired_goal``, as Gymnasium's goal
        environments have them. For ``share`` of the steps, the desired goal is replaced by what was
        achieved at another step of the episode, and the reward is computed again
        (Andrychowicz et al., "Hindsight Experience Replay", 2017).

        Args:
            n: Number of transitions.
            compute_reward: ``(achieved_goal, desired_goal, info) -> rewards`` for arrays; the
                environment's own ``compute_reward`` if it takes arrays. ``info`` is empty.
            seed: Seed of this draw; ``None`` continues the buffer's own random numbers.
            strategy: The step whose achieved goal is used: this or a later one of the episode
                (``"future"``), the last one (``"final"``), or any (``"episode"``).
            share: Probability that a step gets another goal. Default: 0.8.
            compute_terminated: As ``compute_reward``, for ``terminated``, which is otherwise not
                changed.

        Returns:
            A batch as of :meth:`sample`, with ``relabeled``, true for steps with another goal.

        Raises:
            SpecError: If ``obs`` or ``next_obs`` is not a dict with both goals.
        """
        batch, relabeled = self._relabeled(n, seed, strategy, share)
        if relabeled.any():
            achieved = batch["next_obs"]["achieved_goal"][relabeled]
            goals = batch["obs"]["desired_goal"][relabeled]
            batch["rewards"][relabeled] = compute_reward(achieved, goals, {})
            if compute_terminated is not None:
                batch["terminated"][relabeled] = compute_terminated(achieved, goals, {})
        return _native.Batch._of({**batch, "relabeled": relabeled}, n)

    def _relabeled(
        self, n: int, seed: int | None, strategy: str, share: float
    ) -> tuple[dict[str, Any], np.ndarray[Any, np.dtype[np.bool_]]]:
        """Return a batch with the goals of other steps, and which of its steps have one."""
        both, marks = self._sample_goals(n, seed, strategy, share)
        batch = {name: _first(value) for name, value in both.items()}
        relabeled = np.asarray(marks, bool)
        obs, next_obs = batch.get("obs"), batch.get("next_obs")
        for name, value in (("obs", obs), ("next_obs", next_obs)):
            if not (isinstance(value, dict) and {"achieved_goal", "desired_goal"} <= value.keys()):
                raise SpecError(
                    f"sample_hindsight needs `{name}` to be a dict with achieved_goal and "
                    "desired_goal"
                )
        assert isinstance(obs, dict)
        assert isinstance(next_obs, dict)
        goals = both["next_obs"]["achieved_goal"][1][relabeled]
        obs["desired_goal"][relabeled] = goals
        next_obs["desired_goal"][relabeled] = goals
        return batch, relabeled

    def stats(self) -> BufferStats:
        """Return the buffer's statistics."""
        return BufferStats(len(self), self.capacity, self.nbytes, self._seed, self.num_episodes)


def _first(tree: Any) -> Any:
    """Return the first half of each array of a batch with two rows for each step."""
    import optree

    return optree.tree_map(lambda array: array[0], tree)


class ReplayBuffer(_Views):
    """Keep the last transitions in memory, and sample them uniformly.

    A transition is a dict with the fields of the example, each of the example's dtype and shape:
    vectors of floats, images of bytes, dicts, integers. Fields with a meaning are ``obs``,
    ``actions``, ``rewards``, ``terminated``, ``truncated`` and ``next_obs``; any of them may be
    missing, and others may be added. See ``cast`` for values of other dtypes, and
    :meth:`from_spaces` for the example of a Gymnasium environment.

    All methods may be called from several threads. No lock is held while rows are copied, and the
    GIL is released for batches of 256 KiB and more. The memory of a batch is used again when none
    of its arrays is referenced, so do not keep batches longer than needed.

    Args:
        example: One transition, as a dict. Only dtypes and shapes matter.
        capacity: Number of transitions that fit. The oldest is removed when another is added.
        seed: Seed of the buffer's own draws; random when ``None``.
        next_obs: ``"shared"`` stores an observation once if it is the ``next_obs`` of one step and
            the ``obs`` of the next, found by comparing bytes. Batches are the same; memory for
            observations is halved, and ``add`` copies half as much. Default: ``"stored"``.
        stack: Number of frames that observations have on their first axis, as those of Gymnasium's
            ``FrameStackObservation``; each frame is stored once. Implies ``"shared"``.
        n_step: Number of steps whose rewards are summed, discounted by ``gamma``, up to the end of
            the episode. ``next_obs``, ``terminated`` and ``truncated`` are those of the last step,
            and ``discounts`` is ``gamma`` to the power of the number of steps. Default: 1.
        gamma: The discount for ``n_step``. Default: 0.99.
        episodes: Whether to keep track of episodes, for :meth:`sample_sequences` and
            :meth:`sample_hindsight`. Costs 16 bytes per transition. Always on if ``n_step`` is
            above 1.
        cast: Whether to cast values of another dtype of the same kind: floats of any width to the
            field's, such as float64 observations to float32, and integers to wider ones. A float
            that is too large becomes infinite. ``False`` accepts only the field's own dtype and
            Python numbers. Flags may be numbers; no other dtypes are converted. Default: ``True``.

    >>> import numpy as np
    >>> obs = np.zeros(4, np.float32)
    >>> example = {"obs": obs, "actions": 0, "rewards": 0.0, "terminated": False, "next_obs": obs}
    >>> buffer = ReplayBuffer(example, 100_000)
    >>> buffer.add({**example, "actions": 1, "rewards": 1.0})
    >>> batch = buffer.sample(256, seed=42)
    >>> sorted(batch.data)
    ['actions', 'next_obs', 'obs', 'rewards', 'terminated']
    >>> batch["obs"].shape, batch["actions"].dtype, len(buffer)
    ((256, 4), dtype('int64'), 1)
    """

    def __new__(
        cls,
        example: Mapping[str, Any],
        capacity: int,
        *,
        seed: int | None = None,
        next_obs: Literal["stored", "shared"] = "stored",
        stack: int | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        episodes: bool = False,
        cast: bool = True,
    ) -> Self:
        seed = seed_of(seed)
        self = super().__new__(
            cls,
            capacity,
            example=example,
            seed=seed,
            next_obs=next_obs,
            stack=stack,
            n_step=n_step,
            gamma=gamma,
            episodes=episodes,
            cast=cast,
        )
        self._seed = seed
        return self


class PrioritizedReplayBuffer(_native.PrioritizedReplayBuffer, _Views):
    """Keep the last transitions in memory, and sample them by priority.

    The probability of a transition is ``p**alpha / sum(p**alpha)``, and its weight in an update
    ``(N * P)**-beta``, divided by that of the least likely one, so at most 1 (Schaul et al.,
    "Prioritized Experience Replay", 2016). ``beta`` is an argument of :meth:`sample`. Everything
    else is as in :class:`ReplayBuffer`.

    A batch has ``weights``, and ``keys`` for :meth:`update_priorities`. A key is never used for
    another transition, so updates of removed transitions are ignored.

    Args:
        example: As in :class:`ReplayBuffer`.
        capacity: As in :class:`ReplayBuffer`.
        alpha: Exponent of priorities: 0 samples uniformly. Default: 0.6.
        seed: As in :class:`ReplayBuffer`.
        next_obs: As in :class:`ReplayBuffer`.
        stack: As in :class:`ReplayBuffer`.
        n_step: As in :class:`ReplayBuffer`.
        gamma: As in :class:`ReplayBuffer`.
        episodes: As in :class:`ReplayBuffer`.
        cast: As in :class:`ReplayBuffer`.

    >>> import numpy as np
    >>> step = {"obs": np.zeros(4, np.float32), "actions": 0, "rewards": 1.0, "terminated": False}
    >>> buffer = PrioritizedReplayBuffer(step, 1000, alpha=0.6)
    >>> for priority in (1.0, 2.0):
    ...     buffer.add(step, priority=priority)
    >>> batch = buffer.sample(32, beta=0.4, seed=7)
    >>> buffer.update_priorities(batch.keys, np.abs(batch["rewards"]) + 1e-6)
    32
    """

    def __new__(
        cls,
        example: Mapping[str, Any],
        capacity: int,
        *,
        alpha: float = 0.6,
        seed: int | None = None,
        next_obs: Literal["stored", "shared"] = "stored",
        stack: int | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        episodes: bool = False,
        cast: bool = True,
    ) -> Self:
        seed = seed_of(seed)
        self = super().__new__(
            cls,
            capacity,
            alpha=alpha,
            example=example,
            seed=seed,
            next_obs=next_obs,
            stack=stack,
            n_step=n_step,
            gamma=gamma,
            episodes=episodes,
            cast=cast,
        )
        self._seed = seed
        return self
