"""Step environments and collect experience from them.

- ``vector_env``: :class:`VectorEnv`, many copies of a classic control task, stepped together.
- ``candle``: :class:`CandleCollector`, a native thread that collects rollouts with a built-in
  policy; :func:`parameter_shapes` and :func:`split_weights`, the layout of its weights.
- ``gymnasium``: :class:`GymnasiumCollector`, any Gymnasium environment in worker processes.

:class:`VectorEnv` is a ``gymnasium.vector.VectorEnv`` if Gymnasium is installed. Gymnasium, and the
modules of worker processes, are imported when a class that needs them is first used.
"""

from typing import TYPE_CHECKING, Any

from echoic.collectors.candle import CandleCollector, parameter_shapes, split_weights

if TYPE_CHECKING:
    from echoic.collectors.gymnasium import GymnasiumCollector
    from echoic.collectors.vector_env import VectorEnv

__all__ = [
    "CandleCollector",
    "GymnasiumCollector",
    "VectorEnv",
    "parameter_shapes",
    "split_weights",
]


def __getattr__(name: str) -> Any:
    if name == "VectorEnv":
        from echoic.collectors.vector_env import VectorEnv

        return VectorEnv
    if name == "GymnasiumCollector":
        from echoic.collectors.gymnasium import GymnasiumCollector

        return GymnasiumCollector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
