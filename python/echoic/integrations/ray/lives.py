"""How often Ray has started an actor anew.

Ray keeps the number with the actor and shows it in its dashboard, which need not run. There is no
public way to it without that: this reads what Ray's ``was_current_actor_reconstructed`` reads.
"""

from __future__ import annotations

from typing import Any

import ray
from ray._private.state import actors as told_of_actors

__all__ = ["own_restarts", "restarts_of"]


def restarts_of(actor: Any) -> int:
    """Return how often an actor was started anew, given its handle."""
    return _restarts(actor._actor_id.hex())  # noqa: SLF001 - a handle has no public id


def own_restarts() -> int:
    """Return how often the actor that calls this was started anew."""
    return _restarts(ray.get_runtime_context().get_actor_id())


def _restarts(actor_id: str) -> int:
    told = told_of_actors(actor_id=actor_id)
    return int(told["NumRestarts"]) if told else 0
