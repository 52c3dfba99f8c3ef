"""A learner's state in one file, without pickle: arrays by safetensors, all else as JSON.

:func:`save` takes a tree, such as ``state_dict()`` of modules and optimizers, and :func:`load`
returns the same, bit for bit: tuples, keys that are integers, infinities and dtypes included.
Loading executes nothing of a file. What has another form is a ``CheckpointError``; values have no
checksum. A ``kind`` keeps a planner from loading a learner's file.
"""

from __future__ import annotations

import copy
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from echoic.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["all_or_nothing", "check_fit", "check_optimizer", "fitting", "load", "save"]

_FORMAT = "echoic-agents-2"
# Errors of reading a tree that is not the one expected.
_UNFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def save(path: str | os.PathLike[str], tree: Any, *, kind: str) -> None:
    """Write ``tree`` to ``path``, replacing what is there at once or not at all.

    Args:
        path: The file. Its folder is made if it is missing.
        tree: Dicts, lists, tuples, tensors, numpy arrays, and what JSON has.
        kind: Name of the owner, which :func:`load` has to give again.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/a.ckpt", {"w": torch.ones(2), 3: (1, float("inf"))}, kind="example")
    ...     load(f"{folder}/a.ckpt", kind="example")
    {'w': tensor([1., 1.]), 3: (1, inf)}
    """
    tensors: dict[str, Any] = {}
    rest = json.dumps(_take_apart(tree, tensors))
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        save_file(tensors, beside, metadata={"format": _FORMAT, "kind": kind, "tree": rest})
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], *, kind: str) -> Any:
    """Read what :func:`save` wrote, its tensors on the CPU.

    Raises:
        FileNotFoundError: If the file does not exist.
        CheckpointError: If it is not a checkpoint, is damaged, or is of another kind.
    """
    name = os.fspath(path)
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no checkpoint at {name!r}")
    try:
        with safe_open(name, framework="pt", device="cpu") as file:
            found = file.metadata() or {}
            # A handle gives out its tensors' names only through this method.
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{name!r} can't be read: {error}") from error
    if found.get("format") != _FORMAT:
        raise CheckpointError(
            f"{name!r} is not a checkpoint of echoic.agents: its format is not {_FORMAT!r}"
        )
    if (other := found.get("kind")) != kind:
        raise CheckpointError(f"{name!r} holds the state of a {other!r}, not of a {kind!r}")

    def put_together(node: dict[str, Any]) -> Any:
        if "tuple" in node:
            return tuple(node["tuple"])
        if "tensor" in node:
            return tensors[node["tensor"]]
        if "array" in node:
            return tensors[node["array"]].numpy()
        return {json.loads(key): one for key, one in node.items()}

    try:
        return json.loads(found["tree"], object_hook=put_together)
    except (*_UNFIT, RecursionError) as error:
        raise CheckpointError(f"{name!r} is damaged: {error!r}") from error


def check_fit(modules: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Compare modules with their states of the same names, as :func:`check_tensors` does."""
    for part, module in modules.items():
        check_tensors(part, module.state_dict(), state[part])


def check_tensors(part: str, mine: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise a ``CheckpointError`` if a saved tensor is missing, unknown, or does not fit mine."""
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
    groups, found = (
        [group["params"] for group in one["param_groups"]]
        for one in (optimizer.state_dict(), state)
    )
    if groups != found or not state["state"].keys() <= {number for of in groups for number in of}:
        sizes, others = ([len(group) for group in of] for of in (groups, found))
        raise CheckpointError(
            f"the checkpoint doesn't fit: expected groups of {sizes} parameters, got {others}"
        )
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    for index, kept in state["state"].items():
        like = parameters[index]
        averages = {"step": torch.zeros(()), "exp_avg": like, "exp_avg_sq": like}
        check_tensors(f"optimizer.{index}", averages, kept)


@contextmanager
def all_or_nothing(put: Callable[[Any], None], now: Any, *, kind: str) -> Iterator[None]:
    """Restore the state ``now`` by ``put(now)`` if another one does not fit in this block."""
    before = copy.deepcopy(now)
    try:
        with fitting(kind):
            yield
    except CheckpointError:
        put(before)
        raise


@contextmanager
def fitting(kind: str) -> Iterator[None]:
    """Raise a ``CheckpointError`` if a state that is read in this block is not one of ``kind``."""
    try:
        yield
    except CheckpointError:
        raise
    except _UNFIT as error:
        raise CheckpointError(f"the checkpoint doesn't fit this {kind}: {error!r}") from error


def _take_apart(node: Any, tensors: dict[str, Any]) -> Any:
    """Return a node as JSON; its arrays are added to ``tensors``.

    Keys of dicts are JSON themselves; plain words as keys mark what JSON has no type for.
    """
    name = str(len(tensors))
    if isinstance(node, torch.Tensor):
        # Parameters may share memory, which safetensors refuses.
        tensors[name] = node.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(node, np.ndarray):
        tensors[name] = torch.from_numpy(node.copy())
        return {"array": name}
    if isinstance(node, tuple | list):
        items = [_take_apart(one, tensors) for one in node]
        return items if isinstance(node, list) else {"tuple": items}
    if isinstance(node, dict):
        return {json.dumps(key): _take_apart(one, tensors) for key, one in node.items()}
    return node.item() if isinstance(node, np.generic) else node
