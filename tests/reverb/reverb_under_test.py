"""The module that the tests of this folder call `reverb`, and what they need around it.

The tests run against `echoic.reverb`, or against the module that ECHOIC_TEST_REVERB names. Naming
`reverb` itself there is how each expectation was checked against dm-reverb 0.14.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import numpy as np

NAME = os.environ.get("ECHOIC_TEST_REVERB", "echoic.reverb")
UPSTREAM = NAME == "reverb"
# Whether datasets are TensorFlow's.
TENSORFLOW = importlib.util.find_spec("tensorflow") is not None

reverb = importlib.import_module(NAME)

# A wait that should have ended fails its own test after this, long before the whole run does.
PATIENCE = 30.0


def submodule(name: str) -> Any:
    """Import a module of the package, as in `from reverb import replay_sample`."""
    return importlib.import_module(f"{NAME}.{name}")


def spec(shape: Any, dtype: Any, name: str | None = None) -> Any:
    """Describe an array as programs do: with TensorFlow's TensorSpec, or with ours."""
    if UPSTREAM:
        tf = importlib.import_module("tensorflow")
        return tf.TensorSpec(shape, tf.as_dtype(dtype), name)
    return reverb.TensorSpec(shape, np.dtype(dtype), name)


def dtype_of(described: Any) -> np.dtype:
    """Give the numpy dtype of a spec, whichever library made it."""
    return np.dtype(getattr(described.dtype, "as_numpy_dtype", described.dtype))


def sample_values(client: Any, table: str, count: int = 1) -> list[int]:
    """Give the value of each of `count` samples of items that are one number."""
    return [int(steps[0].data[0]) for steps in client.sample(table, count)]


def sample_info(client: Any, table: str) -> Any:
    """Give the SampleInfo of one sample."""
    return next(client.sample(table))[0].info


def drain(client: Any, table: str) -> list[int]:
    """Empty a table, and give the values of its items in the order that its sampler chose."""
    values = []
    while client.server_info()[table].current_size:
        (step,) = next(client.sample(table))
        values.append(int(step.data[0]))
        client.mutate_priorities(table, deletes=[step.info.key])
    return values
