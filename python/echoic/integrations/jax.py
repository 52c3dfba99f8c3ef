"""Batches of any store as arrays of JAX, on their devices before they are asked for.

In a function that ``jax.jit`` compiles, use Flashbax, whose buffers are arrays of JAX: a store of
Echoic has a state of its own, which a compiled function reaches only by a callback to the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from echoic.batches import Batches
from echoic.stream import Stream
from echoic.table_methods import TableMethods
from echoic.tensors import to_jax

if TYPE_CHECKING:
    from echoic._native import Batch

__all__ = ["batches"]


def batches(store: Any, n: int | None = None, *, device: Any = None, **options: Any) -> Batches:
    """Iterate over batches with arrays of JAX.

    While one is used, a thread draws the next one and starts to copy it to the device. On the CPU
    nothing is copied, and each batch is drawn when it is asked for. As in
    :meth:`echoic.Batch.as_jax`, ``keys`` stay a numpy array.

    Args:
        store: A table, a local buffer, a data set or a stream.
        n: Number of items in a batch; not for a stream, whose batches have one size.
        device: A device or a sharding of JAX; JAX's default device when ``None``.
        options: More arguments of the store's ``sample``, such as ``beta``.

    Raises:
        ValueError: If a stream is given ``n``, or another store is not.
    """
    if isinstance(store, Stream) != (n is None):
        kind = type(store).__name__
        raise ValueError(f"expected n for all stores but a Stream, got a {kind} and n={n}")

    default = jax.config.jax_default_device

    def sample(timeout: float | None) -> Batch:
        if isinstance(store, Stream):
            batch = store.sample(timeout, **options)
        elif isinstance(store, TableMethods):
            batch = store.sample(n, timeout, **options)  # type: ignore[attr-defined]
        else:
            batch = store.sample(n, **options)
        # Which is of a thread, as `jax.default_device` sets it.
        with jax.default_device(default):
            return to_jax(batch, device)

    return Batches(sample, prefetch=0 if _is_on_cpu(device) else 1)


def _is_on_cpu(device: Any) -> bool:
    """Return whether all devices of a sharding, or the device, are the CPU."""
    if device is None:
        return bool(jax.default_backend() == "cpu")
    return all(one.platform == "cpu" for one in getattr(device, "device_set", [device]))
