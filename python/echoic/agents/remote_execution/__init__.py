"""Rollouts on servers that speak OpenAI's protocol: vLLM, SGLang, llama.cpp, and others like them.

>>> from echoic.agents.remote_execution import RemoteEngine, Replica
>>> engine = RemoteEngine([Replica("http://127.0.0.1:8000/v1", model="smol", dialect="vllm")])
>>> engine.version
0
"""

from echoic.agents.remote_execution.engine import RemoteEngine
from echoic.agents.remote_execution.replica import DIALECTS, Dialect, Fault, Replica
from echoic.agents.remote_execution.routing import PrefixRouter, RemoteConfig

__all__ = [
    "DIALECTS",
    "Dialect",
    "Fault",
    "PrefixRouter",
    "RemoteConfig",
    "RemoteEngine",
    "Replica",
]
