"""Language models: an engine that generates, learners that train, and remote servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.agents._lazy import lazily

if TYPE_CHECKING:
    from echoic.agents.llm.batch import *
    from echoic.agents.llm.batcher import *
    from echoic.agents.llm.cache import *
    from echoic.agents.llm.config import *
    from echoic.agents.llm.conversation import *
    from echoic.agents.llm.engine import *
    from echoic.agents.llm.group_replay import *
    from echoic.agents.llm.learner import *
    from echoic.agents.llm.lora import *
    from echoic.agents.llm.model import *
    from echoic.agents.llm.remote import *
    from echoic.agents.llm.replica import *
    from echoic.agents.llm.requests import *
    from echoic.agents.llm.scheduler import *
    from echoic.agents.llm.soft_prefix import *
    from echoic.agents.llm.tasks import *
    from echoic.agents.llm.trainer import *
    from echoic.agents.llm.verifiers import *

_MODULES = {
    "batch": "TokenBatch",
    "batcher": "Batcher",
    "cache": "KVCacheManager RadixTree",
    "config": "ExecutionConfig",
    "conversation": "Answer Conversation TurnCounts",
    "engine": "AsyncExecutionEngine",
    "group_replay": "GroupReplay",
    "learner": "GRPOConfig GRPOLearner PPOTokenConfig PPOTokenLearner RLOOConfig RLOOLearner "
    "TokenLearner TokenLearnerConfig",
    "lora": "LoRAConfig add_lora",
    "model": "CausalModel PagedBatch TinyConfig TinyTransformer",
    "remote": "RemoteEngine",
    "replica": "DIALECTS Dialect Fault Replica",
    "requests": "RolloutRequest RolloutResult RolloutToken SamplingParams",
    "scheduler": "LatencyScheduler",
    "soft_prefix": "PlanPrefix TurnPlans",
    "tasks": "EnvironmentTask Outcome PromptTask Task make_task register_task task_names",
    "trainer": "LLMConfig LLMTrainer",
    "verifiers": "VerifiersTask",
}
__all__, __getattr__, __dir__ = lazily(__name__, _MODULES)
