"""Replay buffers that sample experiences by the surprise of their plans and rewards.

The native buffer is made for the first experience, which sets shapes and dtypes. Values become
arrays of numpy; tensors of torch are read in place. A buffer is saved as an ``.npz`` archive of
plain arrays, without pickle.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
import threading
import warnings
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echoic import _native
from echoic.agents.kernels import EMAPlanTracker, plan_surprise_batch
from echoic.buffers._keeping import ABOUT, write
from echoic.errors import ArgumentError, ReplayError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

    from echoic.agents.replay.config import ReplayConfig

    Array = np.ndarray[Any, Any]

__all__ = [
    "Aged",
    "Experience",
    "HotColdBuffer",
    "PrioritizedReplayBuffer",
    "SurpriseCalculator",
]


@dataclass(slots=True, eq=False)
class Experience:
    """One step of an agent, with its plan.

    Arrays of a sampled experience are views into its batch, which lives as long as one of them.

    Attributes:
        done: Whether the episode ended with this step.
        timestamp: Number of experiences added before it.
        surprise_score: Score by the mean of plans when it was sampled.
        priority: Score that it was sampled by.
        age: Updates of the learner since it was added.
        log_prob: Log-probability of the action under the policy that acted.
        value: Value by that policy's critic.
        policy_version: Version of the policy that acted.
        index: For ``update_priorities``. It is never given to another experience.
    """

    state: Any
    latent_plan: Any
    action: Any
    reward: float
    next_state: Any
    done: bool
    timestamp: int
    surprise_score: float = 0.0
    priority: float = 0.0
    age: int = 0
    log_prob: float = math.nan
    value: float = math.nan
    episode_id: int = -1
    policy_version: int = -1
    index: int = -1


class Aged(NamedTuple):
    """Numbers of experiences that became cold and that were too old, and of updated scores."""

    migrated: int
    expired: int
    refreshed: int


# Fields whose dtype the first experience sets; every other one has one dtype, and may have a value
# that stands for "not given".
_FREE = ("state", "action", "next_state")
_FIXED: dict[str, tuple[type[np.generic], Any]] = {
    "reward": (np.float32, None),
    "done": (np.bool_, None),
    "log_prob": (np.float32, np.nan),
    "value": (np.float32, np.nan),
    "episode_id": (np.int64, -1),
    "policy_version": (np.int64, -1),
}
# Fields that a caller gives.
_GIVEN = ("state", "latent_plan", "action", "reward", "next_state", "done", *list(_FIXED)[2:])
# Settings that the scores in a file depend on.
_RULES = (
    *("surprise_weight", "reward_weight", "ema_decay", "score_scale", "score_clip"),
    *("sampling_mode", "priority_alpha"),
)
_FORMAT = 1
# Statistics, all zero before the first experience.
_NUMBERS = (
    *("hot_size", "cold_size", "total_size", "updates", "added", "migrated", "expired", "evicted"),
    *("refreshed", "rescaled", "mean_score", "std_score", "row_bytes", "bytes_per_item"),
    *("memory_bytes", "file_bytes"),
)


def _plain(value: Any) -> Any:
    """Return the value; a tensor as an array of numpy."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _example(fields: Mapping[str, Any], latent_dim: int, *, many: bool) -> dict[str, Array]:
    """Return one experience like these, as zeros: floats have at most 32 bits."""
    example: dict[str, Array] = {"latent_plan": np.zeros(latent_dim, np.float32)}
    for name in _FREE:
        array = np.asarray(fields[name])
        if array.dtype.kind not in "biuf":
            raise ArgumentError(f"expected an array of numbers, got one of {array.dtype}")
        is_long = array.dtype.kind == "f" and array.dtype.itemsize > 4
        shape = array.shape[1:] if many else array.shape
        example[name] = np.zeros(shape, np.float32 if is_long else array.dtype)
    state, after = example["state"].shape, example["next_state"].shape
    if state != after:
        raise ArgumentError(f"expected next_state of shape {state}, as state has, got {after}")
    example["next_state"] = np.zeros_like(example["state"])
    return example | {name: np.zeros((), dtype) for name, (dtype, _) in _FIXED.items()}


def _columns(
    fields: Mapping[str, Any], example: Mapping[str, Array], *, many: bool
) -> dict[str, Array]:
    """Return the fields in the shapes and dtypes of the example, with defaults for missing ones.

    Floats may be rounded, integers must be exact, ``done`` takes any number. Axes of length one may
    be missing or too many.
    """
    columns = {}
    lead = (len(fields["state"]),) if many else ()
    for name, like in example.items():
        shape = (*lead, *like.shape)
        given = fields.get(name)
        array = np.full(shape, _FIXED[name][1], like.dtype) if given is None else np.asarray(given)
        if array.size != math.prod(shape) or (many and array.shape[:1] != lead):
            raise ArgumentError(f"`{name}`: expected shape {shape}, got {array.shape}")
        cast = array
        if array.dtype != like.dtype:
            is_flag = name == "done" and array.dtype.kind in "biuf"
            if not is_flag and not np.can_cast(array.dtype, like.dtype, "same_kind"):
                raise ArgumentError(f"`{name}`: expected {like.dtype}, got {array.dtype}")
            cast = array.astype(like.dtype)
            if not is_flag and like.dtype.kind in "biu" and (cast != array).any():
                odd = array[cast != array].flat[0]
                raise ArgumentError(
                    f"`{name}`: expected numbers in the range of {like.dtype}, got {odd}"
                )
        columns[name] = np.ascontiguousarray(cast).reshape(shape)
    return columns


class SurpriseCalculator:
    """The moving mean of plans, and scores by it.

    ``score = surprise_weight * |plan - mean|**2 + reward_weight * |reward|``, where the squared
    distance is divided by the number of dimensions unless ``score_scale="sum"``. Then ``mean =
    ema_decay * mean + (1 - ema_decay) * plan``; the first plan becomes the mean, which is zero
    before. Score first, then update: a plan that has moved the mean looks less surprising.

    Args:
        config: The settings.
        latent_dim: Numbers of a plan.
        tracker: The mean of plans, with ``config.ema_decay``, such as a planner's; only one part
            may update a shared one. None makes a new one.

    >>> from echoic.agents.replay import ReplayConfig
    >>> config = ReplayConfig(reward_weight=0.1, score_scale="sum")
    >>> calculator = SurpriseCalculator(config, latent_dim=3)
    >>> round(calculator.compute_surprise_score([1.0, 2.0, 3.0], reward=0.5), 6)
    14.05
    """

    def __init__(
        self, config: ReplayConfig, latent_dim: int = 512, *, tracker: EMAPlanTracker | None = None
    ) -> None:
        self.config = config
        self.latent_dim = latent_dim
        self.tracker = tracker or EMAPlanTracker(latent_dim, config.ema_decay)
        if (self.tracker.dim, self.tracker.decay) != (latent_dim, config.ema_decay):
            raise ArgumentError(
                f"expected a tracker with dim={latent_dim} and decay={config.ema_decay}, "
                f"got {self.tracker!r}"
            )

    def update_ema_plan(self, latent_plan: Any) -> None:
        """Move the mean by a plan, or by each of several."""
        self.tracker.update(self._plans(latent_plan))

    def compute_surprise_score(self, latent_plan: Any, reward: Any = 0.0) -> Any:
        """Return the score of a plan and its reward, or of each of several, by the current mean."""
        plans = self._plans(latent_plan)
        rewards = np.broadcast_to(np.asarray(_plain(reward), np.float64), plans.shape[:-1])
        dims = 1 if self.config.score_scale == "sum" else self.latent_dim
        scores = plan_surprise_batch(
            plans.reshape(-1, self.latent_dim),
            self.get_ema_plan(),
            rewards.reshape(-1),
            self.config.surprise_weight / dims,
            self.config.reward_weight,
        )
        if not np.isfinite(scores).all():
            raise ArgumentError("expected finite plans and rewards, got one that is not")
        return scores if plans.ndim > 1 else float(scores[0])

    def _plans(self, latent_plan: Any) -> Array:
        plans = np.asarray(_plain(latent_plan), np.float32)
        if plans.shape[-1:] != (self.latent_dim,):
            raise ArgumentError(
                f"expected plans of {self.latent_dim} numbers, got an array of shape {plans.shape}"
            )
        return plans

    def get_ema_plan(self) -> npt.NDArray[np.float64]:
        """Return a copy of the mean; zeros before the first plan."""
        return self.tracker.get_ema() if self.tracker.initialized else np.zeros(self.latent_dim)

    def get_statistics(self) -> dict[str, Any]:
        """Return the count of plans and the norm of the mean."""
        return {
            "count": self.tracker.count,
            "ema_norm": float(np.linalg.norm(self.get_ema_plan())),
            "ema_decay": self.config.ema_decay,
            "latent_dim": self.latent_dim,
        }

    def reset(self) -> None:
        """Forget all plans."""
        self.tracker.reset()


class _Tiers:
    """Experiences in a hot and a cold tier: what both buffers share."""

    def __init__(
        self, config: ReplayConfig, mean: EMAPlanTracker | None, *, computes: bool, moves: bool
    ) -> None:
        self.config = config
        self._mean = mean
        # Whether scores are computed by the mean, and whether experiences move it.
        self._computes, self._moves = computes, moves
        # Seed of the draws, from the first experience on.
        self._seed = secrets.randbits(64) if config.seed is None else config.seed
        # Held while the native buffer is made.
        self._beginning = threading.Lock()
        # The native buffer and its example: one value, so that other threads see both or none.
        self._begun: tuple[_native.SurpriseReplay, dict[str, Array]] | None = None

    @property
    def _rows(self) -> _native.SurpriseReplay | None:
        begun = self._begun
        return None if begun is None else begun[0]

    def __len__(self) -> int:
        rows = self._rows
        return 0 if rows is None else len(rows)

    def _begin(
        self, example: dict[str, Array], first: Callable[[_native.SurpriseReplay], Any]
    ) -> Any:
        """Make the native buffer, and call a function with it. The caller holds the lock."""
        config = self.config
        mean = self._mean or EMAPlanTracker(len(example["latent_plan"]), config.ema_decay)
        power = config.sampling_mode == "power"
        rows = _native.SurpriseReplay(
            example,
            mean,
            hot=config.hot_buffer_size,
            cold=config.cold_buffer_size,
            total=config.max_experiences,
            age_threshold=config.age_threshold,
            max_age=config.max_replay_age,
            mode="power" if power else "standard" if config.score_scale == "zscore" else "plain",
            mode_number=config.priority_alpha if power else config.score_clip,
            surprise_weight=config.surprise_weight,
            reward_weight=config.reward_weight,
            mean_over_dims=config.score_scale != "sum",
            computes_scores=self._computes,
            moves_mean=self._moves,
            refresh=config.refresh_per_update,
            seed=self._seed,
            path=config.cold_path,
            overwrite=config.cold_overwrite,
        )
        try:
            done = first(rows)
        except BaseException:
            # Otherwise its file would block the next one.
            rows.close()
            raise
        # Last: other threads use it from here on.
        self._mean, self._begun = mean, (rows, example)
        return done

    def _add(
        self, values: Iterable[Any], *, many: bool, scores: Any | None = None
    ) -> npt.NDArray[np.int64]:
        """Add one experience, or a row of the arrays for each of many; return their indices."""
        given = zip(_GIVEN, values, strict=True)
        fields = {name: _plain(value) for name, value in given if value is not None}
        while (begun := self._begun) is None:
            dims = self._mean.dim if self._mean else int(np.shape(fields["latent_plan"])[-1])
            example = _example(fields, dims, many=many)
            # Before the lock: reading a value may run the user's code.
            columns = _columns(fields, example, many=many)
            with self._beginning:
                if self._begun is None:
                    found: npt.NDArray[np.int64] = self._begin(
                        example, methodcaller("add", columns, many=many, scores=scores)
                    )
                    return found
        return begun[0].add(_columns(fields, begun[1], many=many), many=many, scores=scores)

    def _tick(self, updates: int) -> Aged:
        if updates < 0:
            raise ArgumentError(f"updates must be at least 0, got {updates}")
        rows = self._rows
        return Aged(0, 0, 0) if rows is None else Aged(*rows.tick(updates))

    def _statistics(self) -> dict[str, Any]:
        rows = self._rows
        return dict.fromkeys(_NUMBERS, 0) if rows is None else rows.statistics()

    def _sample(self, batch_size: int, temperature: float, **settings: Any) -> dict[str, Any]:
        """Sample a batch; settings that are None are the configuration's."""
        rows, config = self._rows, self.config
        if rows is None:
            raise ReplayError("the buffer has no experiences")
        chosen = {name: value for name, value in settings.items() if value is not None}
        defaults = {"hot_ratio": config.hot_sample_ratio, "beta": config.importance_sampling_beta}
        return rows.sample(batch_size, temperature=temperature, **{**defaults, **chosen})

    def update_priorities(
        self, experiences: Iterable[Experience | int], priorities: Iterable[float]
    ) -> int:
        """Set the scores of experiences, or of indices, for good; return how many were found."""
        rows = self._rows
        if rows is None:
            return 0
        indices = [one.index if isinstance(one, Experience) else one for one in experiences]
        return rows.update_priorities(
            np.asarray(indices, np.int64), np.asarray(_plain(priorities), np.float64)
        )


class PrioritizedReplayBuffer(_Tiers):
    """Experiences in two tiers, sampled by their surprise; see :class:`SurpriseCalculator`.

    Within a tier an experience is drawn with ``softmax(z / T)``, with replacement, where ``z`` is
    its score in standard deviations from the mean of all, at most ``score_clip``. Of a batch of
    ``B``, ``n = floor(B * hot_sample_ratio)`` are hot. So ``P = n / B * softmax``, and the weight
    is ``(N * P)**-beta``, divided by the largest of the batch.

    The first experience sets the shapes and dtypes of states and actions: floats have at most 32
    bits, all else is unchanged. All methods may be called from several threads.

    Args:
        config: The settings.
        latent_dim: Numbers of a plan.
        surprise_calculator: A mean of plans that is shared; None makes a new one.
        update_ema: Whether added experiences move the mean. False if another part of the agent
            updates a shared one.

    >>> import numpy as np
    >>> from echoic.agents.replay import ReplayConfig
    >>> rng = np.random.default_rng(0)
    >>> buffer = PrioritizedReplayBuffer(ReplayConfig(min_experiences=100, seed=0), latent_dim=16)
    >>> plans = rng.normal(size=(500, 16))
    >>> states = rng.normal(size=(501, 4))
    >>> indices = buffer.add_batch(
    ...     states[:-1], plans, np.zeros(500, int), np.zeros(500), states[1:], np.zeros(500, bool)
    ... )
    >>> experiences, weights = buffer.sample_batch(32)
    >>> experiences[0].state.shape, float(max(weights))
    ((4,), 1.0)
    """

    def __init__(
        self,
        config: ReplayConfig,
        latent_dim: int = 512,
        *,
        surprise_calculator: SurpriseCalculator | None = None,
        update_ema: bool = True,
    ) -> None:
        calculator = surprise_calculator or SurpriseCalculator(config, latent_dim)
        if calculator.latent_dim != latent_dim:
            raise ArgumentError(
                f"expected a surprise_calculator of {latent_dim} dimensions, "
                f"got one of {calculator.latent_dim}"
            )
        super().__init__(config, calculator.tracker, computes=True, moves=update_ema)
        self.latent_dim = latent_dim
        self.surprise_calculator = calculator

    @property
    def ready(self) -> bool:
        """Whether there are ``min_experiences``, and at least one."""
        return len(self) >= max(self.config.min_experiences, 1)

    def add_experience(
        self,
        state: Any,
        latent_plan: Any,
        action: Any,
        reward: float,
        next_state: Any,
        done: bool,
        *,
        log_prob: float | None = None,
        value: float | None = None,
        episode_id: int | None = None,
        policy_version: int | None = None,
    ) -> int:
        """Add an experience; return its index, for :meth:`update_priorities`.

        In a full buffer it may be removed at once, as the lowest.
        """
        given = (state, latent_plan, action, reward, next_state, done)
        known = (log_prob, value, episode_id, policy_version)
        return int(self._add(given + known, many=False)[0])

    def add_batch(
        self,
        states: Any,
        latent_plans: Any,
        actions: Any,
        rewards: Any,
        next_states: Any,
        dones: Any,
        *,
        log_probs: Any | None = None,
        values: Any | None = None,
        episode_ids: Any | None = None,
        policy_versions: Any | None = None,
    ) -> npt.NDArray[np.int64]:
        """Add an experience for each row of the arrays; return their indices."""
        given = (states, latent_plans, actions, rewards, next_states, dones)
        known = (log_probs, values, episode_ids, policy_versions)
        return self._add(given + known, many=True)

    def sample_columns(
        self,
        batch_size: int,
        temperature: float | None = None,
        *,
        hot_ratio: float | None = None,
        beta: float | None = None,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """Sample a batch as a dict of arrays, hot experiences first.

        Args:
            batch_size: Number of experiences.
            temperature: Used in place of the configured one. A change from one call to the next
                recomputes the weights of all experiences.
            hot_ratio: Used in place of ``hot_sample_ratio``.
            beta: Used in place of ``importance_sampling_beta``.
            seed: Seed of this draw; None continues the buffer's own random numbers.

        Returns:
            Every field of :class:`Experience` as an array with a row for each; ``weight``;
            ``probability`` of each row to be drawn; ``hot``, true for those that are.

        Raises:
            ReplayError: If there are fewer than ``min_experiences``, or none.
        """
        if not self.ready:
            least = max(self.config.min_experiences, 1)
            raise ReplayError(f"the buffer has {len(self)} of min_experiences={least}")
        temperature = self.config.temperature if temperature is None else temperature
        return self._sample(batch_size, temperature, hot_ratio=hot_ratio, beta=beta, seed=seed)

    def sample_batch(
        self, batch_size: int, temperature: float | None = None
    ) -> tuple[list[Experience], npt.NDArray[np.float32] | list[float]]:
        """Sample a batch as experiences and their importance weights.

        Returns ``([], [])`` if the buffer is empty, or, with a warning, if it has fewer than
        ``min_experiences``. :meth:`sample_columns` raises instead.
        """
        if not self.ready:
            if len(self):
                warnings.warn(
                    f"the buffer has {len(self)} of min_experiences={self.config.min_experiences}: "
                    "nothing is sampled before",
                    UserWarning,
                    stacklevel=2,
                )
            return [], []
        batch = self.sample_columns(batch_size, temperature)
        return _experiences(batch), batch["weight"]

    def update_experience_ages(self, updates: int = 1) -> Aged:
        """Count updates of the learner.

        Experiences older than ``age_threshold`` become cold, those older than ``max_replay_age``
        are removed, and some scores are updated.
        """
        return self._tick(updates)

    def effective_sample_size(
        self, temperature: float | None = None, hot_ratio: float | None = None
    ) -> dict[str, float]:
        """Return ``1 / sum(P**2)`` of both tiers as ``total``, and of ``hot`` and ``cold``."""
        rows, config = self._rows, self.config
        sizes = (0.0, 0.0, 0.0)
        if rows is not None:
            sizes = rows.effective_sizes(
                config.temperature if temperature is None else temperature,
                config.hot_sample_ratio if hot_ratio is None else hot_ratio,
            )
        return dict(zip(("total", "hot", "cold"), sizes, strict=True))

    def get_buffer_statistics(self) -> dict[str, Any]:
        """Return sizes, counts, scores, bytes, and the mean of plans."""
        ema = self.surprise_calculator.get_statistics()
        return {
            **self._statistics(),
            "ready": self.ready,
            "temperature": self.config.temperature,
            "hot_ratio": self.config.hot_sample_ratio,
            "ema_norm": ema["ema_norm"],
            "ema_count": ema["count"],
            "latent_dim": self.latent_dim,
        }

    def clear_buffer(self) -> None:
        """Remove all experiences, and reset the mean of plans if this buffer moves it.

        Shapes, ages and random numbers are kept.
        """
        rows = self._rows
        if rows is not None:
            rows.clear()
        if self._moves:
            self.surprise_calculator.reset()

    def _about(self) -> dict[str, Any]:
        """Return what a file and a buffer must agree on."""
        rules = {name: getattr(self.config, name) for name in _RULES}
        return {"format": _FORMAT, "latent_dim": self.latent_dim, **rules}

    def save_buffer(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file, which appears whole or not at all, without pickle."""
        rows, leaves, mean = self._rows, None, self.surprise_calculator
        arrays: dict[str, Any] = {"mean": mean.get_ema_plan(), "mean_count": mean.tracker.count}
        if rows is not None:
            leaves, arrays = rows.leaves(), rows.state()
            columns = zip(leaves, arrays.pop("rows"), strict=True)
            arrays |= {f"rows/{leaf[0]}": column for leaf, column in columns}
        about = {**self._about(), "leaves": leaves, "seed": self._seed}
        write(path, about, {name: np.asarray(value) for name, value in arrays.items()})

    def load_buffer(self, path: str | os.PathLike[str]) -> None:
        """Replace everything by the contents of a file, and continue its random numbers.

        A mean of plans that another part of the agent moves is not changed.

        Raises:
            ReplayError: If the file is not of a buffer, or of other experiences, settings of scores
                or a larger size. Nothing was changed.
        """
        try:
            with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                state = {name: file[name] for name in file}
            about = json.loads(bytes(state.pop(ABOUT)))
            seed, found = int(about["seed"]), about["leaves"]
            state["mean_count"] = int(state["mean_count"])
            leaves = [(name, dtype, tuple(shape)) for name, dtype, shape in found or ()]
            state["rows"] = [np.ascontiguousarray(state.pop(f"rows/{leaf[0]}")) for leaf in leaves]
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged archive fails in many ways
            raise ReplayError(f"{path} is not a buffer that was saved: {error}") from error
        for name, expected in self._about().items():
            if (got := about.get(name)) != expected:
                raise ReplayError(f"{path} has {name}={got!r}, and the buffer {expected!r}")

        def fill(rows: _native.SurpriseReplay) -> None:
            own = [(name, dtype, tuple(shape)) for name, dtype, shape in rows.leaves()]
            if own != leaves:
                raise ReplayError(f"{path} has other experiences: {leaves}, and the buffer {own}")
            try:
                rows.load(state)
            except (KeyError, TypeError) as error:
                raise ReplayError(f"{path} is not a buffer that was saved: {error}") from error

        with self._beginning:
            begun = self._begun
            if begun is None and found:
                self._begin({name: np.zeros(shape, dtype) for name, dtype, shape in leaves}, fill)
            elif not found:
                # As before the first experience.
                self._begun, self._seed = None, seed
        if found:
            if begun is not None:
                fill(begun[0])
            return
        if begun is not None:
            # Otherwise its file would block the next one.
            begun[0].close()
        if self._moves:
            ema = {"decay": self.config.ema_decay, "count": state["mean_count"]}
            self.surprise_calculator.tracker.load_state_dict({**ema, "ema": state["mean"]})


class HotColdBuffer(_Tiers):
    """Experiences with given scores, hot while they are young and cold after that.

    An experience is hot if its age is at most ``age_threshold``. It is removed when it is older
    than ``max_replay_age``, or, if there are too many, when its score is the lowest; of equal
    scores the oldest is removed.

    Args:
        config: The settings. Those of surprise are not used.

    >>> from echoic.agents.replay import Experience, ReplayConfig
    >>> buffer = HotColdBuffer(ReplayConfig(hot_buffer_size=3, min_experiences=1, seed=0))
    >>> for score in (1.0, 5.0, 2.0, 3.0):
    ...     step = Experience([0.0], [0.0], 0, 0.0, [0.0], False, 0, priority=score)
    ...     index = buffer.add_experience(step)
    >>> experiences, weights = buffer.sample_experiences(100)
    >>> sorted({one.priority for one in experiences})
    [2.0, 3.0, 5.0]
    """

    def __init__(self, config: ReplayConfig) -> None:
        super().__init__(config, None, computes=False, moves=False)

    def add_experience(self, experience: Experience) -> int:
        """Add an experience, and return its index, for :meth:`update_priorities`.

        Its score is its ``priority``, or its ``surprise_score`` if that is zero.
        """
        score = experience.priority or experience.surprise_score
        values = [getattr(experience, name) for name in _GIVEN]
        return int(self._add(values, many=False, scores=[score])[0])

    def advance_ages(self, updates: int = 1) -> Aged:
        """Count updates of the learner: old experiences become cold, or are removed."""
        return self._tick(updates)

    def migrate_aged_experiences(self) -> int:
        """Make old experiences cold, and return how many became so.

        :meth:`advance_ages` does this already: there are some only after an error of the disk.
        """
        return self._tick(0).migrated

    def evict_stale_experiences(self) -> int:
        """Remove experiences older than ``max_replay_age``, as :meth:`advance_ages` does too."""
        return self._tick(0).expired

    def sample_experiences(
        self, batch_size: int, temperature: float = 1.0, hot_ratio: float | None = None
    ) -> tuple[list[Experience], npt.NDArray[np.float32] | list[float]]:
        """Sample experiences, hot ones first, and their weights; ``([], [])`` if there are none.

        ``floor(batch_size * hot_ratio)`` are hot; if one tier is empty, all are of the other.
        """
        if not len(self):
            return [], []
        batch = self._sample(batch_size, temperature, hot_ratio=hot_ratio)
        return _experiences(batch), batch["weight"]

    def get_statistics(self) -> dict[str, Any]:
        """Return sizes, counts, scores and bytes."""
        return self._statistics()


def _experiences(batch: Mapping[str, Any]) -> list[Experience]:
    """Return the rows of a batch as experiences."""

    def rows(name: str) -> Any:
        array = batch[name]
        return list(array) if name in {*_FREE, "latent_plan"} and array.ndim > 1 else array.tolist()

    return list(map(Experience, *(rows(field.name) for field in dataclasses.fields(Experience))))
