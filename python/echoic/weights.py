"""Publish the parameters of a policy from the learner to its workers.

A learner publishes trees of arrays, each with a version. Workers read the latest, without a copy if
they share memory with the server. Slow workers skip versions and delay no other. A policy that is
distributed in another way can publish versions alone.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from echoic import _native, _trees
from echoic._native import Publication, Subscription

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Publication", "RemoteWeightStore", "Subscription", "WeightStore"]


def _arrays(tree: Any) -> Any:
    """Return the tree with torch tensors as arrays; without torch, the tree itself."""
    torch = sys.modules.get("torch")
    if torch is None:
        return tree

    from echoic.tensors import bfloat16_array

    tensor, bfloat16 = torch.Tensor, torch.bfloat16

    def array(leaf: Any) -> Any:
        if not isinstance(leaf, tensor):
            return leaf
        if leaf.requires_grad:
            leaf = leaf.detach()
        if leaf.dtype is bfloat16:
            return bfloat16_array(leaf)
        try:
            # Numpy's way to read an array takes ten times as long, and models have many.
            return leaf.numpy()
        except (TypeError, RuntimeError):
            return leaf  # the error names the leaf

    return _trees.tree_map(array, tree)


class WeightStore(_native.WeightStore):
    """The latest weights, in the learner's process; ``Server(store)`` serves them to others.

    A publication is copied once, into memory that workers on this machine map. That memory does not
    change while a reader holds it: the next publication goes to other memory, of a fixed amount.

    Args:
        capacity: How many publications may have memory, at least 2, the one being written
            included. While all are held, :meth:`publish` waits.

    Examples:
        >>> import numpy as np
        >>> from echoic.weights import WeightStore
        >>> store = WeightStore()
        >>> subscription = store.subscribe()
        >>> store.publish({"w": np.arange(3, dtype=np.float32)}, version=1)
        >>> publication = subscription.wait()
        >>> publication.version, publication.tree["w"]
        (1, array([0., 1., 2.], dtype=float32))
    """

    def __new__(cls, *, capacity: int = 3) -> Self:
        """Make an empty store; see the class for the arguments."""
        return super().__new__(cls, capacity)

    def publish(self, tree: Any, version: int, *, timeout: float | None = None) -> None:
        """Publish a tree as the latest; see the native class."""
        super().publish(_arrays(tree), version, timeout=timeout)

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    def __repr__(self) -> str:
        """Return the version, and how much memory is taken."""
        numbers = self.metrics()
        held = f"{numbers['held_publications']} of {numbers['capacity']}"
        return f"WeightStore(version={self.version}, bytes={numbers['bytes']}, held={held})"

    def _repr_html_(self) -> str:
        """Show the weights in a notebook."""
        from echoic.views.notebook import weights_html

        return weights_html(self)


class RemoteWeightStore(_native.RemoteWeightStore):
    """The weights of a remote server: for workers, and for a learner in another process.

    ``connect(address).weights()`` returns one. It connects when it is first used. Over ``shm://``
    the arrays of a publication are in the server's memory; over other addresses the chunks are
    copied that changed since the last publication. Either way arrays stay valid for as long as they
    are referenced.

    Examples:
        >>> import numpy as np
        >>> from echoic import Server, connect
        >>> from echoic.weights import WeightStore
        >>> store = WeightStore()
        >>> with Server(store, listen="shm://learner") as server:
        ...     with connect(server.address).weights() as weights:
        ...         subscription = weights.subscribe()
        ...         store.publish({"w": np.ones(3)}, version=1)
        ...         publication = subscription.wait(timeout=10)
        >>> publication.tree["w"]
        array([1., 1., 1.])
    """

    def publish(self, tree: Any, version: int, *, timeout: float | None = None) -> None:
        """Publish a tree as the server's latest; see the native class."""
        super().publish(_arrays(tree), version, timeout=timeout)

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the link."""
        self.close()

    def __repr__(self) -> str:
        """Return where the server is, and whether the link is closed."""
        return f"RemoteWeightStore({self.address}{', closed' if self.closed else ''})"
