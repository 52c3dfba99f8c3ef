"""Buffers that keep the last transitions in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from echoic import _native
from echoic.buffers import _keeping
from echoic.buffers._common import BufferStats, Common, seed_of
from echoic.errors import ReplayError, SpecError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

__all__ = ["PrioritizedReplayBuffer", "ReplayBuffer"]


class _Views(_native.ReplayBuffer, Common):
    """What both buffers add to the native ones: it does not run for every transition."""

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
        """Windows of ``length`` consecutive steps, each of one episode, as R2D2 replays them.

        A window begins at a step drawn as :meth:`sample` draws, or so much earlier that it is full.
        An episode shorter than ``length`` comes whole, with zeros behind its end.

        Args:
            n: How many windows.
            length: Steps of each, those of ``burn_in`` included.
            seed: Of this draw; the buffer's own stream goes on when ``None``.
            burn_in: So many first steps of each window only warm up a recurrent state.
            out: An earlier result to be written into.

        Returns:
            A batch with every field as an array of shape ``(n, length, ...)``; ``mask``, true for
            steps that are there; and ``learn``, true for those of them behind the burn-in.

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
        """A batch in which some steps have goals that were reached later: hindsight replay.

        Observations are dicts with ``achieved_goal`` and ``desired_goal``, as Gymnasium's goal
        environments have them. For ``share`` of the steps, the desired goal is replaced by what was
        achieved at another step of the episode, and the reward is computed again
        (Andrychowicz et al., "Hindsight Experience Replay", 2017).

        Args:
            n: How many transitions.
            compute_reward: ``(achieved_goal, desired_goal, info) -> rewards``, for many at once;
                the environment's own ``compute_reward``, if it takes arrays. ``info`` is empty.
            seed: Of this draw; the buffer's own stream goes on when ``None``.
            strategy: Whose achievement becomes the goal: that of the step or a later one
                (``"future"``), of the last one (``"final"``), or of any (``"episode"``).
            share: How likely a step gets another goal.
            compute_terminated: As ``compute_reward``, for ``terminated``, which otherwise stays.

        Returns:
            What :meth:`sample` returns, and ``relabeled``, true for steps with another goal.
        """
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
        if relabeled.any():
            achieved = next_obs["achieved_goal"][relabeled]
            batch["rewards"][relabeled] = compute_reward(achieved, goals, {})
            if compute_terminated is not None:
                batch["terminated"][relabeled] = compute_terminated(achieved, goals, {})
        return _native.Batch._of({**batch, "relabeled": relabeled}, n)

    def stats(self) -> BufferStats:
        """Return the buffer's numbers."""
        return BufferStats(len(self), self.capacity, self.nbytes, self._seed, self.num_episodes)

    def state_dict(self) -> dict[str, Any]:
        """All that the buffer holds, copied: arrays by path, numbers and strings, nothing else.

        Writers wait when they get a sixteenth of the capacity ahead of the copy.
        """
        return _keeping.state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces what the buffer holds by what another one, of the same fields, held.

        The draws go on as the other's would have. Of more rows than there is room for the last are
        kept. Nothing is changed if anything is wrong.

        Raises:
            ReplayError: the state is not one, or of other transitions; the text says which.
        """
        _keeping.load(self, state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`state_dict` to a file, which appears whole or not at all.

        It is an ``.npz`` archive of plain arrays, which numpy reads without pickle.
        """
        _keeping.save(self, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replaces what the buffer holds by what a file has, as :meth:`load_state_dict`.

        Raises:
            ReplayError: the file is not one, or of other transitions.
        """
        _keeping.load(self, _keeping.read(path))


def _first(tree: Any) -> Any:
    """The first half of each array of a batch that has two rows for each step."""
    import optree

    return optree.tree_map(lambda array: array[0], tree)


class ReplayBuffer(_Views):
    """The last transitions, drawn evenly.

    A transition is a dict. Its fields are those of the example, and each has the dtype and shape
    that it has there: vectors of floats, images of bytes, dicts, whole numbers. Fields with a
    meaning are ``obs``, ``actions``, ``rewards``, ``terminated``, ``truncated`` and ``next_obs``;
    any of them may be missing, and others may be added. See ``cast`` for values of other dtypes,
    and :meth:`from_spaces` for the example of a Gymnasium environment.

    All methods may be called from several threads. No lock is held while rows are copied, and the
    GIL is released for batches of 256 KiB and more. Batches lie in memory that is used again when
    none of their arrays is left: keep a batch for as long as it is needed, and no longer.

    Args:
        example: One transition, as a dict. Its values don't matter.
        capacity: Transitions that fit. The oldest is removed when another is added.
        seed: Of the buffer's own draws; random when ``None``.
        next_obs: ``"shared"`` stores an observation once where it is both what one step led to and
            what the next began with, found by comparing bytes. What is read is the same; memory for
            observations is halved, and an addition copies half as much.
        stack: Observations are stacks of so many frames on their first axis, as Gymnasium's
            ``FrameStackObservation`` gives them; each frame is stored once. Includes ``"shared"``.
        n_step: Rewards of so many steps are summed, discounted by ``gamma``, as long as the episode
            lasts; ``next_obs``, ``terminated`` and ``truncated`` are those of the last of them, and
            ``discounts`` has the factor of its value, ``gamma`` to the power of the steps summed.
        gamma: The discount of ``n_step``.
        episodes: Keep track of which transitions follow each other, for :meth:`sample_sequences`
            and :meth:`sample_hindsight`. Costs 16 bytes a transition. Always on with ``n_step``
            above 1.
        cast: Values of another dtype are cast where that keeps their kind: floats of any width to
            the field's, as float64 observations to float32, and integers to wider ones. Where a
            float is too large for a narrower one it becomes infinite. ``False`` refuses all but the
            field's own dtype and Python numbers. No other dtypes are converted, but for numbers as
            flags.

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
    """The last transitions, drawn in proportion to a power of their priorities.

    The probability of a transition is ``p**alpha / sum(p**alpha)``, and its weight in an update
    ``(N * P)**-beta``, divided by that of the least likely one, so at most 1 (Schaul et al.,
    "Prioritized Experience Replay", 2016). ``beta`` is an argument of :meth:`sample`. Everything
    else is as in :class:`ReplayBuffer`.

    A batch has ``weights``, and ``keys`` for :meth:`update_priorities`. A key is never given to
    another transition, so the update of one that is not there any more is left out instead of
    hitting its successor.

    Args:
        example: As in :class:`ReplayBuffer`.
        capacity: As in :class:`ReplayBuffer`.
        alpha: The exponent of priorities: 0 draws evenly.
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
