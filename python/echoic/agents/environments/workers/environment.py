"""The worker program of an :class:`~echoic.agents.environments.EnvironmentProcess`."""

from __future__ import annotations

import base64
import importlib
from dataclasses import fields
from typing import Any

import gymnasium
import numpy as np

from echoic.agents.environments.base import EnvironmentConfig, make_environment
from echoic.agents.environments.workers.loop import serve

__all__ = ["as_json", "from_json", "main"]

_ARRAY = "~array"


class _Worker:
    def make(self, name: str, settings: dict[str, Any], imports: list[str]) -> dict[str, Any]:
        for module in imports:
            importlib.import_module(module)
        self._environment = made = make_environment(name, **settings)
        is_discrete = isinstance(made.action_space, gymnasium.spaces.Discrete)
        vector = made.observation_space["vector"]
        return {
            "config": {
                **{one.name: getattr(made.config, one.name) for one in fields(EnvironmentConfig)},
                # An environment may have other sizes than its settings.
                "state_encoding_dim": int(made.get_state_dim()),
                "action_space_size": int(made.get_action_space_size()),
                "action_format": "discrete" if is_discrete else "text",
            },
            "low": vector.low,
            "high": vector.high,
            "instructions": made.instructions,
        }

    def reset(self, seed: int | None, options: dict[str, Any]) -> dict[str, Any]:
        observation, info = self._environment.reset(seed=seed, options=options)
        ended = {"reward": 0.0, "ended": False, "cut": False}
        instructions = self._environment.instructions
        return {**observation, "info": info, **ended, "instructions": instructions}

    def step(self, action: Any) -> dict[str, Any]:
        observation, reward, ended, cut, info = self._environment.step(action)
        ends = {"reward": float(reward), "ended": bool(ended), "cut": bool(cut)}
        return {**observation, "info": info, **ends}

    def expert(self) -> str | None:
        command: str | None = self._environment.expert()
        return command


def as_json(value: Any) -> Any:
    """Convert arrays (their bytes in base64, little-endian) and numpy's numbers to JSON."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        text = base64.b64encode(little.tobytes()).decode()
        return {_ARRAY: [little.dtype.str, list(value.shape), text]}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"an environment returned a {type(value).__name__}, which is no JSON")


def from_json(value: dict[str, Any]) -> Any:
    """Convert the result of :func:`as_json` back."""
    if len(value) != 1 or _ARRAY not in value:
        return value
    dtype, shape, text = value[_ARRAY]
    flat = np.frombuffer(bytearray(base64.b64decode(text)), np.dtype(dtype))
    return flat.reshape(shape).astype(flat.dtype.newbyteorder("="), copy=False)


def main() -> None:
    """Serve one environment."""
    worker = _Worker()
    serve({name: getattr(worker, name) for name in ("make", "reset", "step", "expert")}, as_json)


if __name__ == "__main__":
    main()
