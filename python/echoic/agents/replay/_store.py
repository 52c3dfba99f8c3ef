"""The native buffer, made for the first experience, and its file.

Values become arrays of numpy; tensors of torch are read in place. A buffer is saved as an ``.npz``
archive of plain arrays, without pickle.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from echoic import _native
from echoic.buffers._keeping import ABOUT, write
from echoic.errors import ArgumentError, ReplayError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from echoic.agents.replay.config import ReplayConfig
    from echoic.agents.replay.replay import PrioritizedReplayBuffer

__all__ = ["Aged", "Experience", "Store", "columns_of", "example_of", "experiences_of", "plain"]


@dataclass(slots=True, eq=False)
class Experience:
    """One step of an agent.

    Arrays of a sampled experience are views into its batch, which lives as long as one of them.

    Attributes:
        state: The observation.
        latent_plan: The plan at that time.
        action: The action.
        reward: The reward.
        next_state: The next observation.
        done: Whether the episode ended with this step.
        timestamp: Number of experiences added before it.
        surprise_score: Score by the mean of plans when it was sampled.
        priority: Score that it was sampled by.
        age: Updates of the learner since it was added.
        log_prob: Log-probability of the action under the policy that acted; NaN if not given.
        value: Value by that policy's critic; NaN if not given.
        episode_id: Its episode; -1 if not given.
        policy_version: Version of the policy that acted; -1 if not given.
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


# Every field of a row besides state, action and next_state has one dtype.
FIXED: dict[str, tuple[type[np.generic], Any]] = {
    "reward": (np.float32, None),
    "done": (np.bool_, None),
    "log_prob": (np.float32, np.nan),
    "value": (np.float32, np.nan),
    "episode_id": (np.int64, -1),
    "policy_version": (np.int64, -1),
}
FREE = ("state", "action", "next_state")
ORDER = ("state", "latent_plan", "action", "reward", "next_state", "done")


def plain(value: Any) -> Any:
    """Return the value; a tensor as an array of numpy."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _kept(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in the buffer: floats have at most 32 bits, all else is unchanged."""
    if dtype.kind == "f" and dtype.itemsize > 4:
        return np.dtype(np.float32)
    if dtype.kind in "biuf":
        return dtype
    raise ArgumentError(f"expected an array of numbers, got one of {dtype}")


def example_of(fields: dict[str, Any], latent_dim: int, *, many: bool) -> dict[str, Any]:
    """Return one experience like these, as zeros."""
    example: dict[str, Any] = {}
    for name in ORDER:
        if name == "latent_plan":
            example[name] = np.zeros(latent_dim, np.float32)
        elif name in FREE:
            array = np.asarray(fields[name])
            example[name] = np.zeros(array.shape[1:] if many else array.shape, _kept(array.dtype))
    if example["state"].shape != example["next_state"].shape:
        state, after = example["state"].shape, example["next_state"].shape
        raise ArgumentError(f"expected next_state of shape {state}, as state has, got {after}")
    example["next_state"] = np.zeros_like(example["state"])
    example |= {name: np.zeros((), dtype) for name, (dtype, _) in FIXED.items()}
    return example


def _cast(name: str, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Cast numbers: floats may be rounded, integers must be exact, ``done`` takes any number."""
    if name == "done" and array.dtype.kind in "biuf":
        return array.astype(dtype)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ArgumentError(f"`{name}`: expected {dtype}, got {array.dtype}")
    cast = array.astype(dtype)
    if dtype.kind in "biu" and not np.array_equal(cast, array):
        odd = array[cast != array].flat[0]
        raise ArgumentError(f"`{name}`: expected numbers in the range of {dtype}, got {odd}")
    return cast


def columns_of(
    fields: dict[str, Any], example: dict[str, Any], *, many: bool
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the fields in the shapes and dtypes of the example, with defaults for missing ones."""
    columns = {}
    rows = len(fields["state"]) if many else None
    for name, like in example.items():
        value = fields.get(name)
        lead = () if rows is None else (rows,)
        if value is None:
            columns[name] = np.full(lead, FIXED[name][1], like.dtype)
            continue
        array = np.asarray(value)
        if array.dtype != like.dtype:
            array = _cast(name, array, like.dtype)
        expected = lead + like.shape
        if array.shape != expected:
            if array.size != like.size * (rows or 1) or (many and array.shape[:1] != lead):
                raise ArgumentError(f"`{name}`: expected shape {expected}, got {array.shape}")
            # Axes of length one may be missing or too many.
            array = array.reshape(expected)
        columns[name] = np.ascontiguousarray(array).reshape(expected)
    return columns


Done = TypeVar("Done")
FIELDS = tuple(field.name for field in dataclasses.fields(Experience))
# Statistics, all zero before the first experience.
NUMBERS = (
    *("hot_size", "cold_size", "total_size", "updates", "added", "migrated", "expired", "evicted"),
    *("refreshed", "rescaled", "mean_score", "std_score", "row_bytes", "bytes_per_item"),
    *("memory_bytes", "file_bytes"),
)


class Store:
    """Experiences in their tiers, as columns.

    With ``computes`` scores are computed here; with ``moves`` experiences move the mean of plans.
    """

    def __init__(
        self,
        config: ReplayConfig,
        mean: _native.EMAPlanTracker | None,
        *,
        computes: bool,
        moves: bool,
    ) -> None:
        self.config = config
        self.mean = mean
        self._computes = computes
        self._moves = moves
        # Seed of the draws, from the first experience on.
        self.seed = secrets.randbits(64) if config.seed is None else config.seed
        # Held while the native buffer is made.
        self.beginning = threading.Lock()
        # The native buffer and its example: one value, so that other threads see both or none.
        self._begun: tuple[_native.SurpriseReplay, dict[str, Any]] | None = None

    @property
    def rows(self) -> _native.SurpriseReplay | None:
        """The native buffer; None before the first experience."""
        begun = self._begun
        return None if begun is None else begun[0]

    def __len__(self) -> int:
        rows = self.rows
        return 0 if rows is None else len(rows)

    def begin(
        self, example: dict[str, Any], first: Callable[[_native.SurpriseReplay], Done]
    ) -> Done:
        """Make the native buffer for experiences like this one, and call a function with it.

        If that fails, the buffer is closed. The caller holds ``beginning``.
        """
        mean = self.mean
        if mean is None:
            # Scores are given, and not computed.
            mean = _native.EMAPlanTracker(len(example["latent_plan"]), self.config.ema_decay)
        rows = self._made(example, mean)
        try:
            done = first(rows)
        except BaseException:
            # Otherwise its file would block the next one.
            rows.close()
            raise
        self.mean = mean
        # Last: other threads use it from here on.
        self._begun = (rows, example)
        return done

    def _made(
        self, example: dict[str, Any], mean: _native.EMAPlanTracker
    ) -> _native.SurpriseReplay:
        config = self.config
        power = config.sampling_mode == "power"
        mode = "power" if power else "standard" if config.score_scale == "zscore" else "plain"
        return _native.SurpriseReplay(
            example,
            mean,
            hot=config.hot_buffer_size,
            cold=config.cold_buffer_size,
            total=config.max_experiences,
            age_threshold=config.age_threshold,
            max_age=config.max_replay_age,
            mode=mode,
            mode_number=config.priority_alpha if power else config.score_clip,
            surprise_weight=config.surprise_weight,
            reward_weight=config.reward_weight,
            mean_over_dims=config.score_scale != "sum",
            computes_scores=self._computes,
            moves_mean=self._moves,
            refresh=config.refresh_per_update,
            seed=self.seed,
            path=config.cold_path,
            overwrite=config.cold_overwrite,
        )

    def add(
        self, fields: dict[str, Any], *, many: bool, scores: Any | None = None
    ) -> npt.NDArray[np.int64]:
        """Add one experience, or a row of the arrays for each of many; return their indices."""
        fields = {name: plain(value) for name, value in fields.items() if value is not None}
        if self._begun is None:
            dims = self.mean.dim if self.mean else int(np.shape(fields["latent_plan"])[-1])
            example = example_of(fields, dims, many=many)
            # Before the lock: reading a value may run the user's code.
            columns = columns_of(fields, example, many=many)
            with self.beginning:
                if self._begun is None:
                    return self.begin(
                        example, lambda made: made.add(columns, many=many, scores=scores)
                    )
        begun = self._begun
        if begun is None:
            # Another thread has reset it meanwhile.
            return self.add(fields, many=many, scores=scores)
        rows, example = begun
        columns = columns_of(fields, example, many=many)
        return rows.add(columns, many=many, scores=scores)

    def tick(self, updates: int) -> Aged:
        """Count updates of the learner."""
        rows = self.rows
        return Aged(0, 0, 0) if rows is None else Aged(*rows.tick(updates))

    def statistics(self) -> dict[str, Any]:
        """Return sizes and counts; zeros before the first experience."""
        rows = self.rows
        return dict.fromkeys(NUMBERS, 0) if rows is None else rows.statistics()

    def update_priorities(self, experiences: Any, priorities: Any) -> int:
        """Set the scores of experiences, or of indices."""
        rows = self.rows
        if rows is None:
            return 0
        if not isinstance(experiences, np.ndarray):
            experiences = [one.index if isinstance(one, Experience) else one for one in experiences]
        indices = np.asarray(experiences, np.int64)
        return rows.update_priorities(indices, np.asarray(plain(priorities), np.float64))

    def reset(self, seed: int) -> None:
        """Return to the state before the first experience, with this seed of the draws."""
        with self.beginning:
            begun, self._begun, self.seed = self._begun, None, seed
        if begun is not None:
            # Otherwise its file would block the next one.
            begun[0].close()

    def clear(self) -> None:
        """Remove all experiences; their shapes and dtypes are kept."""
        if self.rows is not None:
            self.rows.clear()

    def sample(self, batch_size: int, temperature: float, **settings: Any) -> dict[str, Any]:
        """Sample a batch; settings that are None are the configuration's."""
        rows, config = self.rows, self.config
        if rows is None:
            raise ReplayError("the buffer has no experiences")
        chosen = {name: value for name, value in settings.items() if value is not None}
        defaults = {"hot_ratio": config.hot_sample_ratio, "beta": config.importance_sampling_beta}
        return rows.sample(batch_size, temperature=temperature, **{**defaults, **chosen})


def experiences_of(batch: Mapping[str, Any]) -> list[Experience]:
    """Return the rows of a batch as experiences."""

    def rows(name: str) -> Any:
        array = batch[name]
        return list(array) if name in {*FREE, "latent_plan"} and array.ndim > 1 else array.tolist()

    return list(map(Experience, *map(rows, FIELDS)))


FORMAT = 1
# Settings that the scores in a file depend on.
RULES = (
    *("surprise_weight", "reward_weight", "ema_decay", "score_scale", "score_clip"),
    *("sampling_mode", "priority_alpha"),
)


def save_buffer(buffer: PrioritizedReplayBuffer, path: str | os.PathLike[str]) -> None:
    """Write a buffer to a file, which appears whole or not at all."""
    rows = buffer._store.rows
    config = dataclasses.asdict(buffer.config)
    about: dict[str, Any] = {
        "format": FORMAT,
        "latent_dim": buffer.latent_dim,
        "rules": {name: config[name] for name in RULES},
        "leaves": None,
        "seed": buffer._store.seed,
    }
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    if rows is None:
        calculator = buffer.surprise_calculator
        arrays["mean"] = calculator.get_ema_plan()
        arrays["mean_count"] = np.asarray(calculator.get_statistics()["count"])
    else:
        leaves = rows.leaves()
        about["leaves"] = [[name, dtype, list(shape)] for name, dtype, shape in leaves]
        state = rows.state()
        columns = zip(leaves, state.pop("rows"), strict=True)
        arrays |= {f"rows/{name}": array for (name, _, _), array in columns}
        arrays |= {name: np.asarray(value) for name, value in state.items()}
    write(path, about, arrays)


def load_buffer(buffer: PrioritizedReplayBuffer, path: str | os.PathLike[str]) -> None:
    """Replace the contents of a buffer by those of a file."""
    about, arrays = _read(path)
    config = dataclasses.asdict(buffer.config)
    if about["latent_dim"] != buffer.latent_dim:
        got, expected = about["latent_dim"], buffer.latent_dim
        raise ReplayError(f"{path} has plans of {got} dimensions, and the buffer of {expected}")
    for name in RULES:
        if about["rules"][name] != config[name]:
            got, expected = about["rules"][name], config[name]
            raise ReplayError(f"{path} was made with {name}={got!r}, and the buffer {expected!r}")
    store = buffer._store
    if about["leaves"] is None:
        store.reset(about["seed"])
        if buffer._moves:
            ema = {"decay": buffer.config.ema_decay, "count": int(arrays["mean_count"])}
            buffer.surprise_calculator.tracker.load_state_dict({**ema, "ema": arrays["mean"]})
    else:
        leaves = [(name, dtype, tuple(shape)) for name, dtype, shape in about["leaves"]]
        with store.beginning:
            rows = store.rows
            if rows is None:
                example = {name: np.zeros(shape, dtype) for name, dtype, shape in leaves}
                store.begin(example, lambda made: _fill(made, path, leaves, arrays))
        if rows is not None:
            _fill(rows, path, leaves, arrays)


def _fill(
    rows: _native.SurpriseReplay,
    path: str | os.PathLike[str],
    leaves: list[tuple[str, str, tuple[int, ...]]],
    arrays: dict[str, Any],
) -> None:
    """Load arrays into a native buffer."""
    own = [(name, dtype, tuple(shape)) for name, dtype, shape in rows.leaves()]
    if sorted(own) != sorted(leaves):
        odd = [leaf for leaf in leaves if leaf not in own]
        raise ReplayError(f"{path} has other experiences: {odd}, and the buffer has {own}")
    try:
        state = {name: array for name, array in arrays.items() if "/" not in name}
        state["mean_count"] = int(arrays["mean_count"])
        columns = [np.ascontiguousarray(arrays[f"rows/{name}"]) for name, _, _ in own]
        rows.load({**state, "rows": columns})
    except (KeyError, TypeError) as error:
        raise ReplayError(f"{path} is not a buffer that was saved: {error}") from error


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file}
        about = json.loads(bytes(arrays.pop(ABOUT)))
        missing = {"format", "latent_dim", "rules", "leaves", "seed"} - about.keys()
        if missing or set(RULES) - about["rules"].keys():
            raise ValueError("its description is incomplete")
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise ReplayError(f"{path} is not a buffer that was saved: {error}") from error
    if about["format"] != FORMAT:
        raise ReplayError(f"{path} has format {about['format']}, and this reads format {FORMAT}")
    return about, arrays
