"""Values of users as arrays of numpy: tensors of torch are taken from where they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from echoic.errors import ArgumentError

__all__ = ["columns_of", "example_of", "plain"]

# Every field of a row besides state, action and next_state has one dtype.
FIXED: dict[str, tuple[type[np.generic], Any]] = {
    "reward": (np.float32, None),
    "done": (np.bool_, None),
    "log_prob": (np.float32, np.nan),
    "value": (np.float32, np.nan),
    "episode_id": (np.int64, -1),
    "policy_version": (np.int64, -1),
}
FREE = ("state", "action", "next_state")
ORDER = ("state", "latent_plan", "action", "reward", "next_state", "done")


def plain(value: Any) -> Any:
    """The value, or what numpy can read of it if it is a tensor."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _kept(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """In which dtype values are kept: floats in 32 bits, everything else as it is."""
    if dtype.kind == "f" and dtype.itemsize > 4:  # noqa: PLR2004 - bytes
        return np.dtype(np.float32)
    if dtype.kind in "biuf":
        return dtype
    raise ArgumentError(f"expected an array of numbers, got one of {dtype}")


def example_of(fields: dict[str, Any], latent_dim: int, *, many: bool) -> dict[str, Any]:
    """One experience like these, as zeros."""
    example: dict[str, Any] = {}
    for name in ORDER:
        if name == "latent_plan":
            example[name] = np.zeros(latent_dim, np.float32)
        elif name in FREE:
            array = np.asarray(fields[name])
            example[name] = np.zeros(array.shape[1:] if many else array.shape, _kept(array.dtype))
    if example["state"].shape != example["next_state"].shape:
        state, after = example["state"].shape, example["next_state"].shape
        raise ArgumentError(f"expected next_state of shape {state}, as state has, got {after}")
    example["next_state"] = np.zeros_like(example["state"])
    example |= {name: np.zeros((), dtype) for name, (dtype, _) in FIXED.items()}
    return example


def _cast(name: str, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The same numbers in another dtype: floats may be rounded, and only a flag is no number."""
    if name == "done" and array.dtype.kind in "biuf":
        return array.astype(dtype)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ArgumentError(f"`{name}`: expected {dtype}, got {array.dtype}")
    cast = array.astype(dtype)
    if dtype.kind in "biu" and not np.array_equal(cast, array):
        odd = array[cast != array].flat[0]
        raise ArgumentError(f"`{name}`: expected numbers that {dtype} has, got {odd}")
    return cast


def columns_of(
    fields: dict[str, Any], example: dict[str, Any], *, many: bool
) -> dict[str, np.ndarray[Any, Any]]:
    """The fields as the example has them; what was not told gets its place-holder."""
    columns = {}
    rows = len(fields["state"]) if many else None
    for name, like in example.items():
        value = fields.get(name)
        lead = () if rows is None else (rows,)
        if value is None:
            columns[name] = np.full(lead, FIXED[name][1], like.dtype)
            continue
        array = np.asarray(value)
        if array.dtype != like.dtype:
            array = _cast(name, array, like.dtype)
        expected = lead + like.shape
        if array.shape != expected:
            if array.size != like.size * (rows or 1) or (many and array.shape[:1] != lead):
                raise ArgumentError(f"`{name}`: expected shape {expected}, got {array.shape}")
            # One number as an array of one, the other way round, or an axis of length one.
            array = array.reshape(expected)
        columns[name] = np.ascontiguousarray(array).reshape(expected)
    return columns
