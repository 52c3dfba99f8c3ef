"""Take the weights of a model, and put weights into one."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic import _trees
from echoic.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["load_tree", "tree_of"]


def tree_of(model: Any) -> Any:
    """Return the weights of a module, or of a tree, with tensors of other devices on the CPU."""
    torch = sys.modules.get("torch")
    if torch is None:
        return model
    if isinstance(model, torch.nn.Module):
        model = dict(model.state_dict())

    def host(leaf: Any) -> Any:
        return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf

    return _trees.tree_map(host, model)


def load_tree(model: Any, tree: Any) -> None:
    """Copy a tree of arrays into a module, or into the tensors and arrays of a tree like it.

    Raises:
        SpecError: If the names or shapes differ, or a leaf can't be written. Nothing was copied.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        into = model.state_dict()
        if not isinstance(tree, dict):
            raise SpecError(
                f"expected the weights of a module by name, got a {type(tree).__name__}"
            )
        _check_names(into, tree)
        pairs = [(name, into[name], tree[name]) for name in into]
    else:
        leaves, structure = _trees.tree_flatten(model)
        arrays, published = _trees.tree_flatten(tree)
        if structure != published:
            raise SpecError(f"expected weights of the structure {structure}, got {published}")
        pairs = [
            (f"leaf {at}", leaf, array)
            for at, (leaf, array) in enumerate(zip(leaves, arrays, strict=True))
        ]
    for name, leaf, array in pairs:
        is_array = isinstance(leaf, np.ndarray)
        if is_array:
            is_writable = leaf.flags.writeable and np.can_cast(array.dtype, leaf.dtype, "same_kind")
        else:
            is_writable = torch is not None and isinstance(leaf, torch.Tensor)
        if not is_writable:
            kind = f"a {leaf.dtype} array" if is_array else f"a {type(leaf).__name__}"
            raise SpecError(
                f"expected {name} to be a tensor or an array that {array.dtype} can be written to, "
                f"got {kind}"
            )
        if tuple(leaf.shape) != tuple(array.shape):
            raise SpecError(
                f"expected {name} of shape {tuple(leaf.shape)}, got {tuple(array.shape)} in the "
                "published weights"
            )
    for _, leaf, array in pairs:
        if isinstance(leaf, np.ndarray):
            np.copyto(leaf, array)
        else:
            _copy(torch, leaf, array)


def _copy(torch: Any, tensor: Any, array: Any) -> None:
    """Copy an array, which can't be written, into a tensor."""
    array = np.asarray(array)
    is_bfloat16 = array.dtype.name == "bfloat16"
    with warnings.catch_warnings():
        # torch says that the array can't be written, which it is not.
        warnings.simplefilter("ignore")
        source = torch.from_numpy(array.view(np.int16) if is_bfloat16 else array)
    if is_bfloat16:
        source = source.view(torch.bfloat16)
    with torch.no_grad():
        tensor.copy_(source)


def _check_names(expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    missing = [name for name in expected if name not in got]
    surplus = [name for name in got if name not in expected]
    if missing or surplus:
        raise SpecError(
            f"the module and the published weights differ: {len(missing)} names are not in the "
            f"weights ({', '.join(missing[:3])}), {len(surplus)} are not in the module "
            f"({', '.join(surplus[:3])})"
        )
