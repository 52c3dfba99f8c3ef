"""What runs in the worker of an :class:`~echoic.agents.environments.EnvironmentProcess`."""

from __future__ import annotations

import base64
import importlib
from typing import Any

import gymnasium
import numpy as np

from echoic.agents.environments.base import make_environment
from echoic.agents.environments.workers.loop import serve

__all__ = ["as_json", "from_json", "main"]

_ARRAY = "~array"


class _Worker:
    def __init__(self) -> None:
        self._environment: Any = None

    def make(self, name: str, settings: dict[str, Any], imports: list[str]) -> dict[str, Any]:
        for module in imports:
            importlib.import_module(module)
        self._environment = made = make_environment(name, **settings)
        config = made.config
        names = (
            "max_steps", "reward_scale", "success_threshold", "timeout_penalty", "device", "seed",
            "action_format", "state_encoding_dim", "action_space_size",
        )  # fmt: skip
        return {
            "config": {one: getattr(config, one) for one in names},
            # What wraps it may have changed these.
            "state_dim": int(made.get_state_dim()),
            "action_space_size": int(made.get_action_space_size()),
            "discrete": isinstance(made.action_space, gymnasium.spaces.Discrete),
            "low": made.observation_space["vector"].low,
            "high": made.observation_space["vector"].high,
            "instructions": made.instructions,
        }

    def reset(self, seed: int | None, options: dict[str, Any]) -> dict[str, Any]:
        observation, info = self._environment.reset(seed=seed, options=options)
        return {
            **_seen(observation, info),
            "instructions": self._environment.instructions,
        }

    def step(self, action: Any) -> dict[str, Any]:
        observation, reward, ended, cut, info = self._environment.step(action)
        return {
            **_seen(observation, info),
            "reward": float(reward),
            "ended": bool(ended),
            "cut": bool(cut),
        }

    def expert(self) -> str | None:
        command: str | None = self._environment.expert()
        return command

    def render(self) -> str:
        return str(self._environment.render())


def _seen(observation: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    return {"text": observation["text"], "vector": observation["vector"], "info": info}


def as_json(value: Any) -> Any:
    """Arrays and numpy's numbers, which JSON has not: their bytes in base64, little-endian."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        text = base64.b64encode(little.tobytes()).decode()
        return {_ARRAY: [little.dtype.str, list(value.shape), text]}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} in what an environment tells is no JSON")


def from_json(value: dict[str, Any]) -> Any:
    """What :func:`as_json` made, back."""
    if len(value) != 1 or _ARRAY not in value:
        return value
    dtype, shape, text = value[_ARRAY]
    flat = np.frombuffer(bytearray(base64.b64decode(text)), np.dtype(dtype))
    return flat.reshape(shape).astype(flat.dtype.newbyteorder("="), copy=False)


def main() -> None:
    """Serve one environment."""
    worker = _Worker()
    names = ("make", "reset", "step", "expert", "render")
    serve({name: getattr(worker, name) for name in names}, as_json)


if __name__ == "__main__":
    main()
