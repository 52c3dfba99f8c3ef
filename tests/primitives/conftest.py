"""Rollouts by chance, and the primitives as anybody would write them down first."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Rollout:
    """What happened in ``N`` sequences, as lists of one array per sequence."""

    rewards: list[Any]
    values: list[Any]
    q_values: list[Any]
    log_rhos: list[Any]
    terminated: list[Any]
    truncated: list[Any]
    final_values: list[Any]
    last: Any

    @classmethod
    def random(cls, seed: int, lengths: list[int], dtype: Any) -> Rollout:
        rng = np.random.default_rng(seed)

        def numbers() -> list[Any]:
            return [rng.normal(size=length).astype(dtype) for length in lengths]

        def flags() -> list[Any]:
            return [rng.random(length) < 0.15 for length in lengths]

        last = rng.normal(size=len(lengths)).astype(dtype)
        return cls(numbers(), numbers(), numbers(), numbers(), flags(), flags(), numbers(), last)

    def arranged(self, layout: str) -> dict[str, Any]:
        """All arrays in a layout, and the keyword that says which."""

        def arrange(arrays: list[Any]) -> Any:
            if layout == "ragged":
                return np.concatenate(arrays)
            if layout == "time":
                return np.stack(arrays, axis=1)
            return np.stack(arrays)

        arranged = {
            field.name: arrange(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name != "last"
        }
        arranged["last"] = self.last
        if layout == "ragged":
            lengths = [len(rewards) for rewards in self.rewards]
            arranged["options"] = {"offsets": np.cumsum([0, *lengths])}
        else:
            arranged["options"] = {"time_axis": 0 if layout == "time" else 1}
        return arranged

    def split(self, result: Any, layout: str) -> list[Any]:
        """The result of each sequence."""
        if layout == "ragged":
            return np.split(result, np.cumsum([len(rewards) for rewards in self.rewards])[:-1])
        return list(result.T if layout == "time" else result)

    def sequences(self) -> Iterator[Sequence]:
        for n in range(len(self.rewards)):
            yield Sequence(self, n)


class Sequence:
    """One sequence in ``float64``, and the definitions of everything that is computed on it."""

    def __init__(self, rollout: Rollout, n: int) -> None:
        double = np.float64
        self.r = rollout.rewards[n].astype(double)
        self.v = rollout.values[n].astype(double)
        self.q = rollout.q_values[n].astype(double)
        self.w = np.exp(rollout.log_rhos[n].astype(double))
        self.end = rollout.terminated[n] | rollout.truncated[n]
        self.steps = range(len(self.r))
        following = np.append(self.v[1:], rollout.last[n]) if len(self.v) else self.v
        following = np.where(rollout.truncated[n], rollout.final_values[n], following)
        self.next = np.where(rollout.terminated[n], 0.0, following)

    def window(self, t: int, n: int | None = None) -> range:
        """The steps from ``t`` on that belong to the same episode, at most ``n``."""
        stop = t
        while stop + 1 < len(self.r) and not self.end[stop] and (n is None or stop - t + 1 < n):
            stop += 1
        return range(t, stop + 1)

    def gae(self, gamma: float, lam: float) -> Any:
        delta = self.r + gamma * self.next - self.v
        return np.array(
            [sum((gamma * lam) ** (k - t) * delta[k] for k in self.window(t)) for t in self.steps]
        )

    def n_step(self, n: int, gamma: float) -> Any:
        def total(t: int) -> float:
            window = self.window(t, n)
            rewards = sum(gamma ** (k - t) * self.r[k] for k in window)
            return rewards + gamma ** len(window) * self.next[window[-1]]

        return np.array([total(t) for t in self.steps])

    def discounted(self, gamma: float, last: float, truncated: Any, final_values: Any) -> Any:
        def total(t: int) -> float:
            window = self.window(t)
            at = window[-1]
            rewards = sum(gamma ** (k - t) * self.r[k] for k in window)
            if truncated[at] and self.next[at] != 0:
                return rewards + gamma ** len(window) * final_values[at]
            return rewards + (0.0 if self.end[at] else gamma ** len(window) * last)

        return np.array([total(t) for t in self.steps])

    def vtrace(self, gamma: float, rho: float, c: float, lam: float, pg: float) -> tuple[Any, Any]:
        delta = np.minimum(rho, self.w) * (self.r + gamma * self.next - self.v)
        traces = lam * np.minimum(c, self.w)
        vs = self.v.copy()
        for t in self.steps:
            for k in self.window(t):
                vs[t] += gamma ** (k - t) * np.prod(traces[t:k]) * delta[k]
        after = [
            self.next[t] if self.end[t] or t + 1 == len(self.r) else vs[t + 1] for t in self.steps
        ]
        return vs, np.minimum(pg, self.w) * (self.r + gamma * np.array(after) - self.v)

    def retrace(self, gamma: float, lam: float) -> Any:
        delta = self.r + gamma * self.next - self.q
        traces = lam * np.minimum(1.0, self.w)
        out = self.q.copy()
        for t in self.steps:
            for k in self.window(t):
                out[t] += gamma ** (k - t) * np.prod(traces[t + 1 : k + 1]) * delta[k]
        return out

    def upgo(self, gamma: float) -> Any:
        out = np.zeros_like(self.r)
        for t in reversed(self.steps):
            after = self.next[t]
            if not self.end[t] and t + 1 < len(self.r):
                good = self.r[t + 1] + gamma * self.next[t + 1] >= self.v[t + 1]
                after = out[t + 1] if good else self.v[t + 1]
            out[t] = self.r[t] + gamma * after
        return out


@pytest.fixture
def rollouts() -> type[Rollout]:
    """Makes rollouts by chance."""
    return Rollout
