"""The settings of a rollout table, as the core has them and as users give them."""

from __future__ import annotations

from typing import Any

from echoic.limiters import RateLimiter

__all__ = ["as_arguments"]


def as_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the core was told as arguments of :class:`~echoic.rollouts.RolloutTable`."""
    limiter = settings["limiter"]
    if limiter is not None:
        # Whatever it was made as, the core knows it by its four numbers.
        _, (min_size, *ratio) = limiter
        limiter = RateLimiter(int(min_size), *ratio)
    return {
        **settings,
        "columns": dict(settings["columns"]),
        "fields": dict(settings["fields"]),
        "limiter": limiter,
    }
