"""IMPALA: actors that do not wait, and V-trace for being behind (Espeholt et al., 2018).

No plans and no replay; one step along V-trace's gradient for each batch of segments.
"""

from __future__ import annotations

from typing import Any, ClassVar

from echoic.agents.baselines.trained import TrainedMethod

__all__ = ["IMPALA"]


class IMPALA(TrainedMethod):
    """Asynchronous actors and V-trace."""

    name: ClassVar[str] = "impala"
    fixed: ClassVar[dict[str, Any]] = {
        "algorithm": "impala",
        "asynchronous": True,
        "replay": "none",
        "use_plans": False,
    }
