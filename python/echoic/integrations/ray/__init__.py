"""Run Echoic on a Ray cluster: Ray places, names and restarts servers; data uses our transports.

- ``cluster``: :class:`ReplayCluster`, which starts shards and manages them. ``shard``: one of them,
  a server in an actor. ``registry``: the actor that has their addresses. ``manifest``: the list of
  the shards in a directory.
- ``collectors``: :class:`Collectors`, workers that step environments. ``worker``: one of them.
  ``envs``: the environments, and the items that their rollouts become.
- ``rllib``: :class:`EchoicEpisodeReplayBuffer` for RLlib's algorithms, and
  :class:`EchoicMultiAgentEpisodeReplayBuffer` for several agents. ``transitions``: the transitions
  that they store, and :func:`transition_table`.
- ``stream_server``: :class:`StreamServer`, a stream in its learner's process. ``stream_client``:
  :class:`StreamClient`, which sends to it. ``stream_registry``: the actor that has its address.
- ``client``: :class:`Client`, which finds them by name. ``addresses``: chooses the nearest address.

A module is imported when it is first used. It needs Ray: ``pip install "echoic[ray]"``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from echoic.errors import ArgumentError

if TYPE_CHECKING:
    from echoic.integrations.ray.client import Client
    from echoic.integrations.ray.cluster import ReplayCluster
    from echoic.integrations.ray.collectors import Collectors
    from echoic.integrations.ray.envs import agent_environment, segments, transitions
    from echoic.integrations.ray.rllib import (
        EchoicEpisodeReplayBuffer,
        EchoicMultiAgentEpisodeReplayBuffer,
    )
    from echoic.integrations.ray.stream_client import StreamClient
    from echoic.integrations.ray.stream_server import StreamServer
    from echoic.integrations.ray.transitions import transition_table

__all__ = [
    "Client",
    "Collectors",
    "EchoicEpisodeReplayBuffer",
    "EchoicMultiAgentEpisodeReplayBuffer",
    "ReplayCluster",
    "StreamClient",
    "StreamServer",
    "agent_environment",
    "segments",
    "transition_table",
    "transitions",
]

_HOMES = {
    **dict.fromkeys(("agent_environment", "segments", "transitions"), "envs"),
    **dict.fromkeys(("EchoicEpisodeReplayBuffer", "EchoicMultiAgentEpisodeReplayBuffer"), "rllib"),
    "Client": "client",
    "Collectors": "collectors",
    "ReplayCluster": "cluster",
    "StreamClient": "stream_client",
    "StreamServer": "stream_server",
    "transition_table": "transitions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ArgumentError(
            f'{__name__}.{name} needs Ray, which is not installed: pip install "echoic[ray]"'
        ) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
