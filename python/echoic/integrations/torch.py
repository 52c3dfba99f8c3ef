"""Train native policies in torch, convert their weights, and convert batches to tensors.

Importing this module imports torch.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import IterableDataset

from echoic.errors import ClosedError, LeaseError, RolloutError, SpecError, WaitTimeoutError
from echoic.rollouts import RolloutTable
from echoic.tensors import tensors_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from echoic.rollouts import RolloutBatch

__all__ = ["ActorCritic", "RolloutDataset", "as_tensors", "load_flat", "to_flat"]


class ActorCritic(nn.Module):
    """The policy of a :class:`~echoic.collectors.CandleCollector`, as a torch module.

    ``parameters()`` come in the order of the collector's flat weights. A new module has torch's own
    initial weights; ``load_flat(module, collector.get_weights())`` sets the collector's.

    Args:
        obs_dim: How many numbers an observation has.
        n_actions: How many actions there are, or how many numbers one has.
        hidden: The width of the hidden layers.
        continuous: Whether actions are normally distributed numbers instead of one of several.
    """

    def __init__(
        self, obs_dim: int, n_actions: int, hidden: int = 64, *, continuous: bool = False
    ) -> None:
        super().__init__()
        # A parameter of the module itself comes before those of its layers.
        self.log_std = nn.Parameter(torch.zeros(n_actions)) if continuous else None
        self.actor = _network(obs_dim, hidden, n_actions)
        self.critic = _network(obs_dim, hidden, 1)

    def forward(self, observations: Any) -> tuple[Any, Any]:
        """Return the actor's outputs (..., n_actions), logits or means, and the values (...)."""
        return self.actor(observations), self.critic(observations).squeeze(-1)

    def evaluate_actions(self, observations: Any, actions: Any) -> tuple[Any, Any, Any]:
        """Return the log-probabilities of actions, the entropies, and the values, each (...).

        Args:
            observations: (..., obs_dim).
            actions: (...) of integers, or (..., n_actions) of numbers.
        """
        outputs, values = self(observations)
        if self.log_std is None:
            log_probs = torch.log_softmax(outputs, -1)
            chosen = log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
            return chosen, -(log_probs.exp() * log_probs).sum(-1), values
        distribution = torch.distributions.Normal(outputs, self.log_std.exp().expand_as(outputs))
        log_densities = distribution.log_prob(actions).sum(-1)
        return log_densities, distribution.entropy().sum(-1), values


def _network(inputs: int, hidden: int, outputs: int) -> Any:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.Tanh(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Linear(hidden, outputs),
    )


def to_flat(module: Any) -> npt.NDArray[np.float32]:
    """Return a copy of a module's parameters, concatenated, for ``sync_weights``."""
    with torch.no_grad():
        parts = [parameter.detach().reshape(-1).float().cpu() for parameter in module.parameters()]
        flat: npt.NDArray[np.float32] = torch.cat(parts).numpy()
    return flat


def load_flat(module: Any, flat: npt.ArrayLike) -> None:
    """Set a module's parameters to a result of ``get_weights``.

    Raises:
        SpecError: If there are too few or too many numbers. Nothing was changed.
    """
    given = np.asarray(flat)
    parameters = list(module.parameters())
    expected = sum(parameter.numel() for parameter in parameters)
    if given.shape != (expected,):
        raise SpecError(f"weights: expected an array of shape ({expected},), got {given.shape}")
    # A copy, because torch shares memory with arrays and warns about read-only ones.
    tensor = torch.from_numpy(given.astype(np.float32))
    with torch.no_grad():
        start = 0
        for parameter in parameters:
            part = tensor[start : start + parameter.numel()]
            parameter.copy_(part.reshape(parameter.shape))
            start += parameter.numel()


# Dtypes of numpy that older releases of torch do not have, or not in all functions.
_WIDER = {"u2": np.int32, "u4": np.int64, "u8": np.int64}


def as_tensors(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Copy arrays into tensors that share no memory.

    Unsigned integers of more than a byte become signed ones of the next size (uint64: int64).
    """
    copies = [np.array(a, _WIDER.get(a.dtype.str[1:]), order="C") for a in arrays.values()]
    return dict(zip(arrays, tensors_on()(copies), strict=True))


class _Delivered(NamedTuple):
    """A batch that was delivered and is not acknowledged."""

    lease: tuple[int, int, int]
    groups: list[int]


class RolloutDataset(IterableDataset):
    """Batches of rollouts for one rank of a training, until the table is closed.

    Give it to a ``DataLoader`` with ``batch_size=None``: the table makes the batches, and knows how
    old everything is. Each prefetched batch counts as delivered to the learner, and is older by the
    time it is used; so prefetch few or none.

    torchdata's ``StatefulDataLoader`` saves its state: which batches were consumed and not
    acknowledged. After :meth:`~echoic.rollouts.RolloutTable.restore` of the table and
    ``load_state_dict`` of the loader, the batches that follow the saved state come again in the
    same order, and none that it has. This needs a lease, and ``keep``.

    Args:
        table: A table, or a function that connects to one. The process that iterates calls it, so
            with workers of a ``DataLoader`` it has to be a function.
        transform: Converts a batch. By default to a dict of tensors with all columns and fields,
            ``offsets``, ``group`` (the position of each item's group in the batch), ``versions``,
            and ``target``.
        keep: How many batches before the last one stay leased, so that a learner that goes back to
            its checkpoint gets them again: at least the steps from one checkpoint to the next, and
            what the loader prefetches. The table needs capacity for their groups.
        how: Arguments of :meth:`~echoic.rollouts.RolloutTable.sample`, such as ``rank`` and
            ``ranks``. With a lease, a batch is acknowledged when the next one is requested, or
            ``keep`` batches later. Leases of batches that are kept are extended each third of
            ``lease``, which has to be twice as long as the longest step.

    Raises:
        RolloutError: If there is ``keep`` and no lease, or it is negative.

    Example::

        def connected():
            return echoic.connect("tcp://learner:5555", token=token).rollouts("math")

        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        for batch in RolloutDataset(connected, rank=rank, ranks=ranks, lease=600):
            learn(batch)
    """

    def __init__(
        self,
        table: RolloutTable | Callable[[], RolloutTable],
        *,
        transform: Callable[[RolloutBatch], Any] | None = None,
        keep: int = 0,
        **how: Any,
    ) -> None:
        super().__init__()
        if keep < 0 or (keep and how.get("lease") is None):
            raise RolloutError(
                f"keep: expected at least 0, and above 0 a lease, got keep={keep} and "
                f"lease={how.get('lease')}"
            )
        self._table = table
        self._transform = _everything if transform is None else transform
        self._keep = keep
        self._how = how
        # Oldest first. What an earlier process consumed is in `_before` until it comes again.
        self._held: deque[_Delivered] = deque()
        self._before: list[_Delivered] = []
        self._renew_at = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return which batches were delivered and are not acknowledged: plain lists of numbers."""
        held = [*self._before, *self._held]
        return {"batches": [[*one.lease, *one.groups] for one in held]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batches of a state: the next iteration does not return them."""
        self._before = [_Delivered(tuple(one[:3]), one[3:]) for one in state["batches"]]
        self._held.clear()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches until the table is closed."""
        table = self._table if isinstance(self._table, RolloutTable) else self._table()
        self._before = [one for one in self._before if not _is_acknowledged(table, one)]
        while True:
            try:
                while len(self._held) > self._keep:
                    table._native.ack(self._held[0].lease)
                    self._held.popleft()
                    # What comes again comes first, so nothing of it is left now.
                    self._before.clear()
                batch = self._next(table)
            except ClosedError:
                return
            if self._how.get("lease") is not None:
                self._held.append(_Delivered(batch.lease, batch.group_ids.tolist()))
            yield self._transform(batch)

    def _next(self, table: RolloutTable) -> RolloutBatch:
        """Wait for a batch that was not consumed before, and keep the leases of others alive."""
        while True:
            batch = self._sample(table)
            groups = set(batch.group_ids.tolist())
            consumed = [one for one in self._before if groups.issuperset(one.groups)]
            if not groups.issubset(number for one in consumed for number in one.groups):
                return batch
            batch.ack()
            self._before = [one for one in self._before if one not in consumed]

    def _sample(self, table: RolloutTable) -> RolloutBatch:
        if not self._keep:
            return table.sample(**self._how)
        lease = self._how["lease"]
        timeout = self._how.get("timeout")
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            if time.monotonic() >= self._renew_at:
                for one in self._held:
                    table._native.extend(one.lease, lease)
                self._renew_at = time.monotonic() + lease / 3
            left = lease / 3 if end is None else min(lease / 3, max(0.0, end - time.monotonic()))
            try:
                return table.sample(**{**self._how, "timeout": left})
            except WaitTimeoutError:
                if end is not None and time.monotonic() >= end:
                    raise


def _is_acknowledged(table: RolloutTable, one: _Delivered) -> bool:
    """Acknowledge a batch that another process has consumed, if its lease is still there."""
    try:
        table._native.ack(one.lease)
    except LeaseError:
        # A table that was restored has queued its groups again.
        return False
    return True


def _everything(batch: RolloutBatch) -> dict[str, Any]:
    known = {
        "offsets": batch.offsets,
        "group": batch.group,
        "versions": batch.versions,
        "target": np.array(batch.target),
    }
    return as_tensors({**known, **batch.columns, **batch.fields})
