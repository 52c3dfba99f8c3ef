"""An engine that runs rollouts of a local model, many at a time, and computes no prefix twice.

``TransformersModel`` is in ``echoic.agents.async_execution.transformers``, which imports that
library; the engine wraps such models by itself.
"""

from echoic.agents.async_execution.batcher import Batcher
from echoic.agents.async_execution.cache import KVCacheManager, PagePool
from echoic.agents.async_execution.config import ExecutionConfig
from echoic.agents.async_execution.engine import AsyncExecutionEngine
from echoic.agents.async_execution.model import (
    CausalModel,
    KVShape,
    PagedBatch,
    Span,
    TinyConfig,
    TinyTransformer,
)
from echoic.agents.async_execution.radix import RadixTree
from echoic.agents.async_execution.rollouts import (
    RolloutRequest,
    RolloutResult,
    RolloutToken,
    SamplingParams,
)
from echoic.agents.async_execution.scheduler import LatencyScheduler

__all__ = [
    "AsyncExecutionEngine",
    "Batcher",
    "CausalModel",
    "ExecutionConfig",
    "KVCacheManager",
    "KVShape",
    "LatencyScheduler",
    "PagePool",
    "PagedBatch",
    "RadixTree",
    "RolloutRequest",
    "RolloutResult",
    "RolloutToken",
    "SamplingParams",
    "Span",
    "TinyConfig",
    "TinyTransformer",
]
