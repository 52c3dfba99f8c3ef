"""The native buffer, made when the first experience tells what experiences look like."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _native
from echoic.agents.prioritized_replay._arrays import FREE, columns_of, example_of, plain
from echoic.agents.prioritized_replay.experience import Aged, Experience

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from echoic.agents.prioritized_replay.config import ReplayConfig

__all__ = ["Store", "experiences_of"]

FIELDS = tuple(field.name for field in dataclasses.fields(Experience))
# What the statistics of a buffer that never had anything are.
NUMBERS = (
    *("hot_size", "cold_size", "total_size", "updates", "added", "migrated", "expired", "evicted"),
    *("refreshed", "rescaled", "mean_score", "std_score", "row_bytes", "bytes_per_item"),
    *("memory_bytes", "file_bytes"),
)


class Store:
    """Experiences in their strata, as columns.

    ``computes`` says whether scores are computed here, and ``moves`` whether the mean of plans
    follows.
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
        self._seed = secrets.randbits(64) if config.seed is None else config.seed
        self.example: dict[str, Any] | None = None
        self._rows: _native.SurpriseReplay | None = None

    @property
    def rows(self) -> _native.SurpriseReplay | None:
        """The native buffer, if there was an experience."""
        return self._rows

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def begin(self, example: dict[str, Any]) -> _native.SurpriseReplay:
        """Makes the native buffer for experiences like this one."""
        config = self.config
        if self.mean is None:
            # Scores are given, and nothing is compared.
            self.mean = _native.EMAPlanTracker(len(example["latent_plan"]), config.ema_decay)
        power = config.sampling_mode == "power"
        mode = "power" if power else "standard" if config.score_scale == "zscore" else "plain"
        self._rows = _native.SurpriseReplay(
            example,
            self.mean,
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
            seed=self._seed,
            path=config.cold_path,
            overwrite=config.cold_overwrite,
        )
        self.example = example
        return self._rows

    def add(
        self, fields: dict[str, Any], *, many: bool, scores: Any | None = None
    ) -> npt.NDArray[np.int64]:
        """Adds one experience, or as many as the arrays have rows, and gives their indices."""
        fields = {name: plain(value) for name, value in fields.items() if value is not None}
        rows, example = self._rows, self.example
        if rows is None or example is None:
            dims = self.mean.dim if self.mean else int(np.shape(fields["latent_plan"])[-1])
            example = example_of(fields, dims, many=many)
            columns = columns_of(fields, example, many=many)
            rows = self.begin(example)
        else:
            columns = columns_of(fields, example, many=many)
        return rows.add(columns, many=many, scores=scores)

    def tick(self, updates: int) -> Aged:
        """So many updates of the learner have happened."""
        return Aged(0, 0, 0) if self._rows is None else Aged(*self._rows.tick(updates))

    def statistics(self) -> dict[str, Any]:
        """What is there and what has happened; of a buffer that never had anything, zeros."""
        if self._rows is not None:
            return self._rows.statistics()
        return dict.fromkeys(NUMBERS, 0)

    def update_priorities(self, experiences: Any, priorities: Any) -> int:
        """Gives experiences, or those of some indices, scores of their own."""
        if self._rows is None:
            return 0
        if not isinstance(experiences, np.ndarray):
            experiences = [one.index if isinstance(one, Experience) else one for one in experiences]
        indices = np.asarray(experiences, np.int64)
        return self._rows.update_priorities(indices, np.asarray(plain(priorities), np.float64))

    def clear(self) -> None:
        """Forgets all experiences; what they look like stays."""
        if self._rows is not None:
            self._rows.clear()


def experiences_of(batch: Mapping[str, Any]) -> list[Experience]:
    """The rows of a batch, one by one."""

    def rows(name: str) -> Any:
        array = batch[name]
        return list(array) if name in {*FREE, "latent_plan"} and array.ndim > 1 else array.tolist()

    return list(map(Experience, *map(rows, FIELDS)))
