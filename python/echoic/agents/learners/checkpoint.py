"""A learner's state in one file, without pickle: tensors by safetensors, all else as JSON.

:func:`save` takes a tree of dicts, lists, tuples, numbers, texts, tensors and numpy arrays, as
``state_dict()`` of modules and optimizers are, and :func:`load` gives the same tree back: keys that
are no texts, tuples, integers of any size, infinities and dtypes included. The tree without its
arrays is JSON in the metadata of a safetensors file, so that a checkpoint is one file.

Invariants:

1. Loading a file executes nothing of it. Whatever is wrong with one is a ``CheckpointError``.
2. A file is complete or not there: it is written beside its place, synced, and then renamed.
3. Arrays come back bit for bit, on the CPU.

4. A state that does not fit its owner changes nothing of it (:func:`all_or_nothing`).

What a tree means is its owner's business; a ``kind`` keeps a planner from loading a learner's file.
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
# What reading a tree raises that is not the one expected.
_UNFIT = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
# A leaf of the JSON that is none of JSON's own is a list whose first item is one of these.
_TENSOR, _ARRAY, _TUPLE, _LIST, _MAP, _FLOAT = "tensor", "array", "tuple", "list", "map", "float"


def save(path: str | os.PathLike[str], tree: Any, *, kind: str) -> None:
    """Write ``tree`` to ``path``, replacing what is there at once or not at all.

    Args:
        path: The file. Its folder is made if it is not there.
        tree: Dicts, lists, tuples, ``None``, booleans, numbers, texts, tensors and numpy arrays.
        kind: What this is the state of; :func:`load` has to name the same.

    Raises:
        ArgumentError: The tree has something else. Nothing was written.

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
        save_file(
            tensors,
            beside,
            metadata={"format": _FORMAT, "kind": kind, "tree": json.dumps(skeleton)},
        )
        with Path(beside).open("rb") as written:
            os.fsync(written.fileno())
        Path(beside).replace(place)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], *, kind: str) -> Any:
    """Read what :func:`save` wrote, its tensors on the CPU.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: It is no checkpoint, is damaged, or is of another kind.
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
            f"{os.fspath(path)!r} is no checkpoint of echoic.agents: expected the format "
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
        CheckpointError: A tensor is missing, is too much, or has another shape or dtype.
    """
    for part, module in modules.items():
        expected = {name: _describe(one) for name, one in module.state_dict().items()}
        found = {name: _describe(one) for name, one in state[part].items()}
        for name in sorted({*expected, *found}):
            if expected.get(name) != found.get(name):
                raise CheckpointError(
                    f"the checkpoint doesn't fit: {part}.{name} is expected to be "
                    f"{expected.get(name, 'absent')}, and is {found.get(name, 'absent')}"
                )


def check_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Compare the averages of a state of Adam with the parameters they are of.

    Raises:
        CheckpointError: They are of parameters of other shapes.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    for index, kept in state["state"].items():
        expected = tuple(parameters[index].shape)
        for name in ("exp_avg", "exp_avg_sq"):
            if tuple(kept[name].shape) != expected:
                raise CheckpointError(
                    f"the checkpoint doesn't fit: {name} of parameter {index} is expected to be of "
                    f"shape {expected}, and is of {tuple(kept[name].shape)}"
                )


@contextmanager
def all_or_nothing(put: Callable[[Any], None], now: Any, *, kind: str) -> Iterator[None]:
    """Load a state in here; if that fails, what was there comes back.

    Args:
        put: Takes a state like ``now``.
        now: The state before.
        kind: Whose state it is, for the error.

    Raises:
        CheckpointError: The state did not fit. Nothing was changed.
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
    """The state of the process-wide generators: of torch (CUDA's too), numpy and Python."""
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        # The learner and its user may both draw from these, so resuming has to bring them back.
        "numpy": list(np.random.get_state(legacy=True)),
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        state["cuda"] = list(torch.cuda.get_rng_state_all())
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Continue where :func:`get_random_state` was called."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(tuple(state["numpy"]))
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def _describe(tensor: Any) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _take_apart(node: Any, tensors: dict[str, Any], where: str) -> Any:
    """The JSON of a node, its arrays put into ``tensors``."""
    if node is None or isinstance(node, bool | str):
        return node
    if isinstance(node, torch.Tensor):
        name = str(len(tensors))
        # Parameters may share memory, which safetensors refuses.
        tensors[name] = node.detach().to("cpu", copy=True).contiguous()
        return [_TENSOR, name]
    if isinstance(node, np.ndarray):
        name = str(len(tensors))
        try:
            tensors[name] = torch.from_numpy(np.ascontiguousarray(node).copy())
        except TypeError as error:
            raise ArgumentError(f"{where}: arrays of {node.dtype} can't be saved") from error
        return [_ARRAY, name, list(node.shape)]
    if isinstance(node, int | np.integer):
        return int(node)
    if isinstance(node, float | np.floating):
        value = float(node)
        return value if math.isfinite(value) else [_FLOAT, repr(value)]
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
