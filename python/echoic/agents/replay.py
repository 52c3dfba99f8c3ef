"""Surprise replay: experiences sampled by the distance of their plans from the mean plan.

The native buffer is made for the first experience, which sets shapes and dtypes. A buffer is saved
as an ``.npz`` archive of plain arrays, without pickle. Nothing here imports torch; tensors are read
in place.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from echoic import _native
from echoic.agents import _checks
from echoic.agents.kernels import EMAPlanTracker, plan_surprise_batch
from echoic.buffers._keeping import ABOUT, write
from echoic.errors import ArgumentError, ReplayError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

    Array = np.ndarray[Any, Any]

__all__ = [
    "Experience",
    "HotColdBuffer",
    "PrioritizedReplayBuffer",
    "ReplayConfig",
    "SurpriseCalculator",
]

Scale = Literal["zscore", "mean", "sum"]
Mode = Literal["softmax", "power"]


@dataclass(frozen=True)
class ReplayConfig:
    """Settings of surprise replay.

    Attributes:
        hot_buffer_size: Most hot experiences. Of more, the lowest score is removed, and of equal
            scores the oldest.
        age_threshold: Highest age of a hot experience. Ages count updates of the learner.
        temperature: Of the softmax over scores: small ones prefer high scores more.
        min_experiences: With fewer, ``sample_batch`` returns nothing, with a warning.
        priority_alpha: The exponent of scores with ``sampling_mode="power"``.
        importance_sampling_beta: The exponent of importance weights: 1 corrects all of the bias.
        hot_sample_ratio: The share of a batch that is hot, rounded down.
        score_scale: ``"zscore"`` divides squared distances by the number of dimensions, and draws
            by how many standard deviations a score is from the mean of all; ``"mean"`` divides
            only; ``"sum"`` does neither: with plans of many dimensions its softmax draws almost
            only one experience.
        score_clip: Most standard deviations that count.
        sampling_mode: ``"softmax"``, or ``"power"``: probabilities are ``score**(alpha / T)``, and
            the z-score is not used.
        refresh_per_update: Number of scores that are updated, in turns, for each update of the
            learner. Those of a batch always are.
        seed: Seed of the draws; None: random.
        cold_path: File for the cold experiences, in place of memory; removed at the end.
    """

    hot_buffer_size: int = 1_000_000
    cold_buffer_size: int = 10_000_000
    age_threshold: int = 1000
    max_replay_age: int = 100_000
    temperature: float = 1.0
    surprise_weight: float = 1.0
    reward_weight: float = 1.0
    ema_decay: float = 0.99
    min_experiences: int = 1000
    max_experiences: int = 11_000_000
    priority_alpha: float = 0.6
    importance_sampling_beta: float = 0.4
    hot_sample_ratio: float = 0.7
    score_scale: Scale = "zscore"
    score_clip: float = 3.0
    sampling_mode: Mode = "softmax"
    refresh_per_update: int = 1024
    seed: int | None = None
    cold_path: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        _checks.whole(self, "hot_buffer_size", "max_experiences")
        _checks.whole(self, "cold_buffer_size", "age_threshold", "max_replay_age", least=0)
        _checks.whole(self, "min_experiences", "refresh_per_update", least=0)
        _checks.number(self, "temperature", "score_clip", above=0)
        _checks.number(self, "surprise_weight", "reward_weight", "priority_alpha", least=0)
        _checks.number(self, "importance_sampling_beta", "hot_sample_ratio", least=0, most=1)
        _checks.number(self, "ema_decay", least=0, most=math.nextafter(1.0, 0.0))
        _checks.one_of(self, "score_scale", get_args(Scale))
        _checks.one_of(self, "sampling_mode", get_args(Mode))
        if self.seed is not None:
            _checks.whole(self, "seed", least=0, most=2**64 - 1)
        if self.cold_path is not None and self.cold_buffer_size == 0:
            raise ArgumentError("cold_path is for cold experiences, but cold_buffer_size is 0")


@dataclass(slots=True, eq=False)
class Experience:
    """One step of an agent, with its plan.

    ``timestamp`` is the number of experiences added before, ``age`` counts updates of the learner
    since, and ``index`` is for ``update_priorities``. It was sampled by ``priority``; its
    ``surprise_score`` is of that moment. ``log_prob``, ``value`` and ``policy_version`` are of the
    policy that acted. Arrays are views into the batch, which lives as long as one of them.
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


# Fields of a stored row, in the order in which they are given; None: as in the first experience.
_ROW: dict[str, type[np.generic] | None] = {
    "state": None,
    "latent_plan": np.float32,
    "action": None,
    "reward": np.float32,
    "next_state": None,
    "done": np.bool_,
    "log_prob": np.float32,
    "value": np.float32,
    "episode_id": np.int64,
    "policy_version": np.int64,
}
# Settings that the scores in a file depend on.
_RULES = (
    *("surprise_weight", "reward_weight", "ema_decay", "score_scale", "score_clip"),
    *("sampling_mode", "priority_alpha"),
)


def _plain(value: Any) -> Any:
    """Return the value; a tensor as an array of numpy."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


class SurpriseCalculator:
    """The moving mean of plans, and scores by it.

    ``score = surprise_weight * |plan - mean|**2 + reward_weight * |reward|``, where the squared
    distance is divided by the number of dimensions unless ``score_scale="sum"``. Then ``mean =
    ema_decay * mean + (1 - ema_decay) * plan``; the first plan becomes the mean, which is zero
    before. Score first, then update: a plan that has moved the mean looks less surprising. A
    ``tracker`` may be shared, such as a planner's; only one part may update it.

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
        self.tracker.update(np.asarray(_plain(latent_plan), np.float32))

    def compute_surprise_score(self, latent_plan: Any, reward: Any = 0.0) -> Any:
        """Return the score of a plan and its reward, or of each of several, by the current mean."""
        plans = np.asarray(_plain(latent_plan), np.float32)
        rewards = np.broadcast_to(np.asarray(_plain(reward), np.float64), plans.shape[:-1])
        dims = 1 if self.config.score_scale == "sum" else self.latent_dim
        scores = plan_surprise_batch(
            plans.reshape(-1, plans.shape[-1]),
            self.get_ema_plan(),
            rewards.reshape(-1),
            self.config.surprise_weight / dims,
            self.config.reward_weight,
        )
        if not np.isfinite(scores).all():
            raise ArgumentError("expected finite plans and rewards, got one that is not")
        return scores if plans.ndim > 1 else float(scores[0])

    def get_ema_plan(self) -> npt.NDArray[np.float64]:
        """Return a copy of the mean; zeros before the first plan."""
        return self.tracker.get_ema() if self.tracker.initialized else np.zeros(self.latent_dim)

    def get_statistics(self) -> dict[str, Any]:
        """Return the count of plans and the norm of the mean."""
        norm = float(np.linalg.norm(self.get_ema_plan()))
        return {"ema_count": self.tracker.count, "ema_norm": norm, "latent_dim": self.latent_dim}


class HotColdBuffer:
    """Experiences with given scores, hot while they are young and cold after that.

    An experience is hot if its age is at most ``age_threshold``. It is removed when it is older
    than ``max_replay_age``, or, if there are too many, when its score is the lowest; of equal
    scores the oldest is removed. Settings of surprise are not used.

    >>> buffer = HotColdBuffer(ReplayConfig(hot_buffer_size=3, seed=0))
    >>> for score in (1.0, 5.0, 2.0, 3.0):
    ...     step = Experience([0.0], [0.0], 0, 0.0, [0.0], False, 0, priority=score)
    ...     index = buffer.add_experience(step)
    >>> experiences, weights = buffer.sample_experiences(100)
    >>> sorted({one.priority for one in experiences})
    [2.0, 3.0, 5.0]
    """

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        # By which scores are computed, if there is one, and whether experiences move it.
        self._mean: EMAPlanTracker | None = None
        self._moves = False
        self._least = 1
        self._seed = secrets.randbits(64) if config.seed is None else config.seed
        # Held while the native buffer is made or changed as a whole.
        self._lock = threading.Lock()
        self._rows: _native.SurpriseReplay | None = None

    def __len__(self) -> int:
        return 0 if (rows := self._rows) is None else len(rows)

    @property
    def ready(self) -> bool:
        """Whether there are enough experiences to sample some."""
        return len(self) >= self._least

    def _make(self, columns: Mapping[str, Array], *, many: bool) -> _native.SurpriseReplay:
        """Make the native buffer for experiences like these."""
        example = {}
        for name, array in columns.items():
            own = np.float32 if array.dtype.kind == "f" else array.dtype
            example[name] = np.zeros(array.shape[many:], _ROW[name] or own)
        example["next_state"] = np.zeros_like(example["state"])
        config, power = self.config, self.config.sampling_mode == "power"
        return _native.SurpriseReplay(
            example,
            self._mean or EMAPlanTracker(example["latent_plan"].size),
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
            computes_scores=self._mean is not None,
            moves_mean=self._moves,
            refresh=config.refresh_per_update,
            seed=self._seed,
            path=config.cold_path,
        )

    def _change(
        self,
        columns: Mapping[str, Array],
        change: Callable[[_native.SurpriseReplay], Any],
        *,
        many: bool,
    ) -> Any:
        """Call a function with the native buffer; one that is new stays only if this succeeds."""
        with self._lock:
            rows = self._make(columns, many=many) if self._rows is None else self._rows
            try:
                done = change(rows)
            except BaseException:
                if self._rows is None:
                    # Otherwise its file would block the next one.
                    rows.close()
                raise
            self._rows = rows
            return done

    def _add(
        self, values: Iterable[Any], *, many: bool, scores: Any | None = None
    ) -> npt.NDArray[np.int64]:
        """Add one experience, or a row of the arrays for each of many; return their indices."""
        columns: dict[str, Array] = {}
        for name, value in zip(_ROW, values, strict=True):
            # Floats may be rounded and made of any number; all else is checked by the native side.
            dtype = np.float32 if _ROW[name] is np.float32 else None
            array = np.asarray(_plain(value), dtype)
            # One number may stand for all rows.
            stands = many and columns and not array.ndim
            columns[name] = np.full(len(columns["state"]), array) if stands else array
        action = columns["action"]
        if action.ndim == many and np.can_cast(action.dtype, np.int64):
            # Another number may need more bits.
            columns["action"] = action.astype(np.int64)
        added: npt.NDArray[np.int64] = self._change(
            columns, lambda rows: rows.add(columns, many=many, scores=scores), many=many
        )
        return added

    def add_experience(self, experience: Experience) -> int:
        """Add an experience, and return its index, for :meth:`update_priorities`.

        Its score is its ``priority``, or its ``surprise_score`` if that is zero.
        """
        score = experience.priority or experience.surprise_score
        values = [getattr(experience, name) for name in _ROW]
        return int(self._add(values, many=False, scores=[score])[0])

    def advance_ages(self, updates: int = 1) -> tuple[int, int, int]:
        """Count updates of the learner.

        Experiences older than ``age_threshold`` become cold, those older than ``max_replay_age``
        are removed, and some computed scores are updated. Returns the number of each.
        """
        if updates < 0:
            raise ArgumentError(f"updates must be at least 0, got {updates}")
        return (0, 0, 0) if (rows := self._rows) is None else rows.tick(updates)

    def migrate_aged_experiences(self) -> int:
        """Make old experiences cold, as :meth:`advance_ages` does; return how many became so."""
        return self.advance_ages(0)[0]

    def evict_stale_experiences(self) -> int:
        """Remove experiences older than ``max_replay_age``, as :meth:`advance_ages` does too."""
        return self.advance_ages(0)[1]

    def sample_columns(
        self,
        batch_size: int,
        temperature: float | None = None,
        *,
        hot_ratio: float | None = None,
        beta: float | None = None,
    ) -> dict[str, Any]:
        """Sample a batch as a dict of arrays, hot experiences first.

        Every field of :class:`Experience` is an array with a row for each; so are ``weight``,
        ``probability``, that a row is drawn, and ``hot``. Arguments are used in place of the
        settings; another temperature than before recomputes the weights of all experiences.

        Raises:
            ReplayError: If there are not enough experiences; see :attr:`ready`.
        """
        config = self.config
        if (rows := self._rows) is None or not self.ready:
            raise ReplayError(f"the buffer has {len(self)} of min_experiences={self._least}")
        return rows.sample(
            batch_size,
            temperature=config.temperature if temperature is None else temperature,
            hot_ratio=config.hot_sample_ratio if hot_ratio is None else hot_ratio,
            beta=config.importance_sampling_beta if beta is None else beta,
        )

    def sample_experiences(
        self, batch_size: int, temperature: float | None = 1.0, hot_ratio: float | None = None
    ) -> tuple[list[Experience], npt.NDArray[np.float32] | list[float]]:
        """Sample experiences, hot ones first, and their weights; ``([], [])`` if there are none.

        ``floor(batch_size * hot_ratio)`` are hot; if one tier is empty, all are of the other.
        """
        if not self.ready:
            return [], []
        batch = self.sample_columns(batch_size, temperature, hot_ratio=hot_ratio)
        columns = (batch[field.name] for field in fields(Experience))
        rows = (list(one) if one.ndim > 1 else one.tolist() for one in columns)
        return list(map(Experience, *rows)), batch["weight"]

    def get_statistics(self) -> dict[str, Any]:
        """Return sizes, counts, scores and bytes; nothing before the first experience."""
        return {} if (rows := self._rows) is None else rows.statistics()

    def update_priorities(
        self, experiences: Iterable[Experience | int], priorities: Iterable[float]
    ) -> int:
        """Set the scores of experiences, or of indices, for good; return how many were found."""
        if (rows := self._rows) is None:
            return 0
        indices = [one.index if isinstance(one, Experience) else one for one in experiences]
        return rows.update_priorities(
            np.asarray(indices, np.int64), np.asarray(_plain(priorities), np.float64)
        )


class PrioritizedReplayBuffer(HotColdBuffer):
    """Experiences in two tiers, sampled by their surprise; see :class:`SurpriseCalculator`.

    Within a tier an experience is drawn with ``softmax(z / T)``, with replacement, where ``z`` is
    its score in standard deviations from the mean of all, at most ``score_clip``. Of a batch of
    ``B``, ``n = floor(B * hot_sample_ratio)`` are hot. So ``P = n / B * softmax``, and the weight
    is ``(N * P)**-beta``, divided by the largest of the batch.

    The first experience sets the shapes and dtypes of states and actions: floats have 32 bits,
    and a whole number as an action 64. All methods may be called from several threads. With
    ``update_ema=False`` another part of the agent updates the mean of ``surprise_calculator``.

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
        super().__init__(config)
        self._mean, self._moves = calculator.tracker, update_ema
        self._least = max(config.min_experiences, 1)
        self.latent_dim = calculator.latent_dim
        self.surprise_calculator = calculator

    def add_experience(  # type: ignore[override]  # EchoRL's buffers differ in this
        self,
        state: Any,
        latent_plan: Any,
        action: Any,
        reward: float,
        next_state: Any,
        done: bool,
        *,
        log_prob: float = math.nan,
        value: float = math.nan,
        episode_id: int = -1,
        policy_version: int = -1,
    ) -> int:
        """Add an experience; return its index. A full buffer may remove it at once."""
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
        log_probs: Any = math.nan,
        values: Any = math.nan,
        episode_ids: Any = -1,
        policy_versions: Any = -1,
    ) -> npt.NDArray[np.int64]:
        """Add an experience for each row; one number may stand for all. Return the indices."""
        given = (states, latent_plans, actions, rewards, next_states, dones)
        known = (log_probs, values, episode_ids, policy_versions)
        return self._add(given + known, many=True)

    def sample_batch(
        self, batch_size: int, temperature: float | None = None
    ) -> tuple[list[Experience], npt.NDArray[np.float32] | list[float]]:
        """Sample a batch as experiences and their importance weights.

        Returns ``([], [])`` if the buffer is empty, or, with a warning, if it has fewer than
        ``min_experiences``. :meth:`sample_columns` raises instead.
        """
        if 0 < len(self) < self._least:
            text = f"the buffer has {len(self)} of min_experiences={self._least}"
            warnings.warn(f"{text}: nothing is sampled before", UserWarning, stacklevel=2)
        return self.sample_experiences(batch_size, temperature)

    update_experience_ages = HotColdBuffer.advance_ages

    def effective_sample_size(self, temperature: float | None = None) -> dict[str, float]:
        """Return ``1 / sum(P**2)`` of both tiers as ``total``, and of ``hot`` and ``cold``."""
        temperature = self.config.temperature if temperature is None else temperature
        sizes, ratio = (0.0, 0.0, 0.0), self.config.hot_sample_ratio
        if (rows := self._rows) is not None:
            sizes = rows.effective_sizes(temperature, ratio)
        return dict(zip(("total", "hot", "cold"), sizes, strict=True))

    def get_buffer_statistics(self) -> dict[str, Any]:
        """Return sizes, counts, scores, bytes, and the mean of plans."""
        ema = self.surprise_calculator.get_statistics()
        return {**self.get_statistics(), "ready": self.ready, **ema}

    def clear_buffer(self) -> None:
        """Remove all experiences, and reset the mean of plans if this buffer moves it.

        Shapes, ages and random numbers are kept.
        """
        if (rows := self._rows) is not None:
            rows.clear()
        if self._moves:
            self.surprise_calculator.tracker.reset()

    def _about(self) -> dict[str, Any]:
        """Return what a file and a buffer must agree on."""
        rules = {name: getattr(self.config, name) for name in _RULES}
        return {"format": 2, "latent_dim": self.latent_dim, **rules}

    def save_buffer(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file, which appears whole or not at all, without pickle."""
        mean = self.surprise_calculator
        state: dict[str, Any] = {"mean": mean.get_ema_plan(), "mean_count": mean.tracker.count}
        if (rows := self._rows) is not None:
            state = rows.state()
            columns = zip(_ROW, state.pop("rows"), strict=True)
            state |= {f"rows/{name}": column for name, column in columns}
        arrays = {name: np.asarray(value) for name, value in state.items()}
        write(path, {**self._about(), "seed": self._seed}, arrays)

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
            seed = int(about.pop("seed"))
            if about != self._about():
                raise ReplayError(f"it has {about}, and the buffer {self._about()}")
            state["mean_count"] = int(state["mean_count"])
            if "numbers" in state:
                columns = {name: state.pop(f"rows/{name}") for name in _ROW}
                state["rows"] = list(columns.values())
                self._change(columns, lambda rows: rows.load(state), many=True)
                return
            if self._moves:
                ema = {"decay": self.config.ema_decay, "count": state["mean_count"]}
                self.surprise_calculator.tracker.load_state_dict({**ema, "ema": state["mean"]})
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged archive fails in many ways
            raise ReplayError(f"{path} can't be loaded: {error}") from error
        # As before the first experience.
        with self._lock:
            if self._rows is not None:
                self._rows.close()
            self._rows, self._seed = None, seed
