"""Methods and statistics of all local buffers."""

from __future__ import annotations

import copy
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from echoic._native import Batch

__all__ = ["BufferStats", "Common", "Drawn", "seed_of", "transition_of"]


def seed_of(seed: int | None) -> int:
    """Return the seed, or a random one for ``None``."""
    return secrets.randbits(64) if seed is None else seed


def transition_of(observation_space: Any, action_space: Any) -> dict[str, Any]:
    """Return an example of a transition of an environment with these spaces."""
    # Copied, since sampling changes the random state of a space.
    obs, action = (copy.deepcopy(space).sample() for space in (observation_space, action_space))
    ends = {"terminated": False, "truncated": False}
    return {"obs": obs, "actions": action, "rewards": np.float32(0), **ends, "next_obs": obs}


@dataclass(frozen=True)
class BufferStats:
    """A snapshot of the statistics of a local buffer.

    Attributes:
        size: Number of transitions in the buffer.
        capacity: Number of transitions that fit.
        memory_bytes: Bytes of memory that hold transitions.
        seed: Seed of the buffer's own draws.
        episodes: Number of episodes with transitions in the buffer; ``None`` without
            ``episodes=True``.
        written: Number of transitions in the file; ``None`` without a file.
    """

    size: int
    capacity: int
    memory_bytes: int
    seed: int
    episodes: int | None = None
    written: int | None = None


class Drawn:
    """Iterate over batches of any buffer."""

    def _repr_html_(self) -> str:
        """Show the buffer in a notebook."""
        from echoic.views.notebook import buffer_html

        return buffer_html(self)

    def batches(self: Any, n: int, *, device: Any = None, **options: Any) -> Iterator[Batch]:
        """Yield batches of ``n`` transitions, each drawn when it is asked for.

        The iteration ends when the buffer is closed.

        Args:
            n: Number of transitions in a batch.
            device: Where batches get tensors of PyTorch; numpy arrays when ``None``. For a device
                other than the CPU, the next batch is drawn and copied while one is used.
            options: More arguments of :meth:`sample`.

        Raises:
            ReplayError: If the buffer is empty.
        """
        if device is not None:
            from echoic.tensors import iterate

            yield from iterate(lambda _: self.sample(n, **options), device)
            return
        while True:
            try:
                batch = self.sample(n, **options)
            except ClosedError:
                return
            yield batch


class Common(Drawn):
    """Methods of buffers that take transitions."""

    @classmethod
    def from_spaces(
        cls, observation_space: Any, action_space: Any, capacity: int, **settings: Any
    ) -> Self:
        """Make a buffer for transitions of a Gymnasium environment.

        Fields are ``obs``, ``actions``, ``rewards`` (float32), ``terminated``, ``truncated`` and
        ``next_obs``; observations and actions have the dtypes and shapes of the spaces.

        Args:
            observation_space: A space of arrays or numbers, or a ``Dict`` or ``Tuple`` of them.
            action_space: As ``observation_space``.
            capacity: Number of transitions that fit.
            settings: More arguments of the class.

        Raises:
            SpecError: If a space has values that are not arrays or numbers.
        """
        example = transition_of(observation_space, action_space)
        make: Any = cls
        buffer: Self = make(example, capacity, **settings)
        return buffer
