"""Read the transitions of a replay buffer."""

from __future__ import annotations

from typing import Any

import numpy as np

from echoic.buffers._sources.names import wanted

__all__ = ["read_buffer"]


def read_buffer(buffer: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the rows of each environment in turn, by name, and the names of extras."""
    state = buffer.state_dict()
    rows = state["rows"]
    fields = list(dict.fromkeys(name.split("/")[0] for name in rows))
    own = wanted(list(rows), None, (), "the buffer")
    steps = len(rows["rewards"])
    envs = state.get("envs", np.zeros(steps, np.int64))
    order = np.argsort(envs, kind="stable")
    arrays = {name: values[order] for name, values in rows.items()}
    truncated = arrays.get("truncated", np.zeros(steps, np.bool_)) != 0
    if "ends" in state:
        truncated |= state["ends"][order] & (arrays["terminated"] == 0)
    # What an environment has not finished ends where the next one's steps begin.
    cut = np.flatnonzero(np.diff(envs[order]))
    truncated[cut] |= arrays["terminated"][cut] == 0
    arrays["truncated"] = truncated
    return arrays, [name for name in fields if name not in own and name != "truncated"]
