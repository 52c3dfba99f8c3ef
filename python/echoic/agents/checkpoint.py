"""A learner's state in one file, without pickle: tensors by safetensors, all else as JSON.

:func:`save` takes a tree, such as ``state_dict()`` of modules and optimizers, and :func:`load`
returns the same: keys that are integers, tuples, integers of any size, infinities and dtypes
included. The tree without its arrays is JSON in the metadata of a safetensors file.

Invariants:

1. Loading a file executes nothing of it. Any fault of a file is a ``CheckpointError``.
2. A file is complete or absent: it is written beside its place, synced, and then renamed.
3. Arrays are restored bit for bit, on the CPU.
4. A state that does not fit its owner changes nothing of it (:func:`all_or_nothing`).

A ``kind`` keeps a planner from loading a learner's file.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from echoic.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "all_or_nothing",
    "check_fit",
    "check_optimizer",
    "get_random_state",
    "load",
    "save",
    "set_random_state",
]

_FORMAT = "echoic-agents-1"
# Errors of reading a tree that is not the one expected.
_UNFIT = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
# A leaf that JSON has no type for is a list whose first item is one of these.
_TENSOR, _ARRAY, _TUPLE, _LIST, _MAP, _FLOAT = "tensor", "array", "tuple", "list", "map", "float"


def save(path: str | os.PathLike[str], tree: Any, *, kind: str) -> None:
    """Write ``tree`` to ``path``, replacing what is there at once or not at all.

    Args:
        path: The file. Its folder is made if it is missing.
        tree: Dicts, lists, tuples, ``None``, booleans, numbers, texts, tensors and numpy arrays.
        kind: Name of the owner, which :func:`load` has to give again.

    Raises:
        ArgumentError: If the tree has something else. Nothing was written.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/a.ckpt", {"w": torch.ones(2), 3: (1, float("inf"))}, kind="example")
    ...     load(f"{folder}/a.ckpt", kind="example")
    {'w': tensor([1., 1.]), 3: (1, inf)}
    """
    tensors: dict[str, Any] = {}
    skeleton = _take_apart(tree, tensors, kind)
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    os.close(handle)
    try:
        metadata = {"format": _FORMAT, "kind": kind, "tree": json.dumps(skeleton)}
        save_file(tensors, beside, metadata=metadata)
        with Path(beside).open("rb") as written:
            os.fsync(written.fileno())
        Path(beside).replace(place)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], *, kind: str) -> Any:
    """Read what :func:`save` wrote, its tensors on the CPU.

    Raises:
        FileNotFoundError: If the file does not exist.
        CheckpointError: If it is not a checkpoint, is damaged, or is of another kind.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no checkpoint at {os.fspath(path)!r}")
    try:
        with safe_open(os.fspath(path), framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            # A handle gives out its tensors' names only through this method.
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{os.fspath(path)!r} can't be read: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(
            f"{os.fspath(path)!r} is not a checkpoint of echoic.agents: expected the format "
            f"{_FORMAT!r}, got {metadata.get('format')!r}"
        )
    if metadata.get("kind") != kind:
        raise CheckpointError(
            f"{os.fspath(path)!r} holds the state of a {metadata.get('kind')!r}, not of a {kind!r}"
        )
    try:
        return _put_together(json.loads(metadata["tree"]), tensors)
    except (*_UNFIT, RecursionError) as error:
        raise CheckpointError(f"{os.fspath(path)!r} is damaged: {error!r}") from error


def check_fit(modules: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Compare modules with their states of the same names, before anything is copied.

    Raises:
        CheckpointError: If a tensor is missing, unknown, or has another shape or dtype.
    """
    for part, module in modules.items():
        check_tensors(part, module.state_dict(), state[part])


def check_tensors(part: str, mine: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Compare tensors with saved ones of the same names, as :func:`check_fit` does."""
    expected, found = (
        {name: f"{one.dtype} of shape {tuple(one.shape)}" for name, one in of.items()}
        for of in (mine, state)
    )
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            raise CheckpointError(
                f"the checkpoint doesn't fit: expected {part}.{name} to be "
                f"{expected.get(name, 'absent')}, got {found.get(name, 'absent')}"
            )


def check_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Raise a ``CheckpointError`` if a state of Adam has other groups or shapes."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    groups, found = (
        [len(group["params"]) for group in one["param_groups"]] for one in (vars(optimizer), state)
    )
    if groups != found:
        raise CheckpointError(
            f"the checkpoint doesn't fit: expected groups of {groups} parameters, got {found}"
        )
    for index, kept in state["state"].items():
        if index >= len(parameters) or {"step", "exp_avg", "exp_avg_sq"} - kept.keys():
            raise CheckpointError(f"the checkpoint's state of parameter {index} is damaged")
        expected = tuple(parameters[index].shape)
        for name in ("exp_avg", "exp_avg_sq"):
            if tuple(kept[name].shape) != expected:
                raise CheckpointError(
                    f"the checkpoint doesn't fit: expected {name} of parameter {index} to have the "
                    f"shape {expected}, got {tuple(kept[name].shape)}"
                )


@contextmanager
def all_or_nothing(put: Callable[[Any], None], now: Any, *, kind: str) -> Iterator[None]:
    """Restore the state ``now`` by ``put(now)`` if loading another one in this block fails.

    Raises:
        CheckpointError: If the state did not fit. Nothing was changed.
    """
    before = copy.deepcopy(now)
    try:
        yield
    except _UNFIT as error:
        put(before)
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the checkpoint doesn't fit this {kind}: {error!r}") from error


def get_random_state() -> dict[str, Any]:
    """Return the states of the process-wide generators of torch, CUDA, numpy and Python."""
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": list(np.random.get_state(legacy=True)),
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        state["cuda"] = list(torch.cuda.get_rng_state_all())
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the states of :func:`get_random_state`."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(tuple(state["numpy"]))
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def _take_apart(node: Any, tensors: dict[str, Any], where: str) -> Any:
    """Return the JSON of a node; its arrays are added to ``tensors``."""
    if node is None or isinstance(node, bool | str):
        return node
    name = str(len(tensors))
    if isinstance(node, torch.Tensor):
        # Parameters may share memory, which safetensors refuses.
        tensors[name] = node.detach().to("cpu", copy=True).contiguous()
        return [_TENSOR, name]
    if isinstance(node, np.ndarray):
        try:
            tensors[name] = torch.from_numpy(node.copy(order="C"))
        except TypeError as error:
            raise ArgumentError(f"{where}: arrays of {node.dtype} can't be saved") from error
        return [_ARRAY, name, list(node.shape)]
    if isinstance(node, int | np.integer):
        return int(node)
    if isinstance(node, float | np.floating):
        return float(node) if math.isfinite(node) else [_FLOAT, repr(float(node))]
    if isinstance(node, tuple | list):
        mark = _TUPLE if isinstance(node, tuple) else _LIST
        return [mark, [_take_apart(one, tensors, f"{where}[{i}]") for i, one in enumerate(node)]]
    if isinstance(node, dict):
        pairs = []
        for key, value in node.items():
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise ArgumentError(f"{where}: keys are texts or integers, got {key!r}")
            pairs.append([key, _take_apart(value, tensors, f"{where}[{key!r}]")])
        return [_MAP, pairs]
    raise ArgumentError(
        f"{where}: expected dicts, lists, tuples, None, booleans, numbers, texts, tensors or numpy "
        f"arrays, got a {type(node).__name__}"
    )


def _put_together(node: Any, tensors: dict[str, Any]) -> Any:
    """The inverse of :func:`_take_apart`."""
    if not isinstance(node, list):
        return node
    mark, held, *rest = node
    if mark == _TENSOR:
        return tensors[held]
    if mark == _ARRAY:
        return tensors[held].numpy().reshape(rest[0])
    if mark == _FLOAT:
        return float(held)
    if mark == _MAP:
        return {key: _put_together(value, tensors) for key, value in held}
    if mark in {_TUPLE, _LIST}:
        items = [_put_together(one, tensors) for one in held]
        return tuple(items) if mark == _TUPLE else items
    raise ValueError(f"a node is marked {mark!r}")
