"""Store RLlib's transitions in a table: in this process, on a server or in a cluster.

RLlib's DQN, in its driver, adds episodes to a buffer and draws from it. This buffer is a client of
a table in which each step is an item, made by :mod:`~echoic.integrations.ray.transitions`. So the
table may have other clients, and exist before and after the driver.

It is for policies that act on single observations; stateful modules are rejected. For several
agents use :mod:`~echoic.integrations.ray.rllib_agents`.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import (
    ACTUAL_N_STEP,
    NUM_ENV_STEPS_ADDED,
    NUM_ENV_STEPS_ADDED_LIFETIME,
    NUM_ENV_STEPS_PER_SAMPLE,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_STORED,
)
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer

from echoic import _trees
from echoic.connection import connect
from echoic.errors import ArgumentError, WaitTimeoutError
from echoic.integrations.ray.transitions import Settings, Transitions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["EchoicEpisodeReplayBuffer"]


class _Named(ABCMeta):
    """The metaclass of buffers.

    Tune makes classes from names in a configuration, and RLlib then looks for
    ``"EpisodeReplayBuffer"`` in the class as if it were a name.
    """

    def __contains__(cls, part: object) -> bool:
        return str(part) in cls.__name__


class EchoicEpisodeReplayBuffer(PrioritizedEpisodeReplayBuffer, metaclass=_Named):
    """A ``type`` for RLlib's ``replay_buffer_config``, whose other entries are the arguments.

    An item of the table is a transition of ``n_step`` steps, or of as many as its episode has left.
    They are made when episodes are added, so ``n_step`` and ``gamma`` must be those of the
    algorithm. New ones get the highest priority that this buffer has set.

    Args:
        capacity: How many transitions fit; for a table of this process.
        client: Where the table is: the client of a :class:`ReplayCluster`, an address, or several.
            If ``None``, a table in this process is made with the first episode.
        table: The table's name; see :func:`transition_table`.
        options: Options of the connection to an address, such as ``{"token": …}``.
        alpha: The exponent of priorities; for a table of this process. With 0 priorities are never
            updated, in any table.
        beta: The exponent of the importance weights, the largest of which in a batch is 1.
        n_step: The algorithm's.
        gamma: The algorithm's; it matters if ``n_step`` is not 1.
        num_learners: The algorithm's. RLlib splits a batch among learners and returns their errors
            in another order.
        timeout: Seconds to wait while the table blocks inserts or samples.
        seed: Seed of draws from a table of this process, and of random ``n_step``.
        batch_size_B: How many transitions are drawn by default.
        metrics_num_episodes_for_smoothing: RLlib's.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        client: Any = None,
        table: str = "replay",
        options: Mapping[str, Any] | None = None,
        alpha: float = 0.6,
        beta: float = 0.4,
        n_step: int | Sequence[int] = 1,
        gamma: float = 0.99,
        num_learners: int = 0,
        timeout: float | None = 60.0,
        seed: int | None = None,
        batch_size_B: int = 16,
        metrics_num_episodes_for_smoothing: int = 100,
    ) -> None:
        # The base class would allocate memory for all of its capacity, which the table has.
        super().__init__(
            1,
            batch_size_B=batch_size_B,
            alpha=alpha,
            metrics_num_episodes_for_smoothing=metrics_num_episodes_for_smoothing,
        )
        self.capacity = capacity
        self._beta = beta
        self._settings = Settings(
            capacity, alpha, _span(n_step), gamma, max(1, num_learners), timeout, seed
        )
        self._client: Any = client
        if isinstance(client, str | list):
            self._client = connect(client, **(options or {}))
        self._begin(table)

    def _begin(self, table: str) -> None:
        self._transitions = self._transitions_in(table)

    def _transitions_in(self, table: str) -> Transitions:
        found = None if self._client is None else self._client.table(table)
        return Transitions(self._settings, table, found)

    @property
    def table(self) -> Any:
        """The table; ``None`` before the first episode if it is in this process."""
        return self._transitions.table

    @property
    def waiting(self) -> int:
        """The number of transitions left over by a timeout; they are inserted before new ones."""
        return self._transitions.waiting

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Add the steps of episodes since they were last added.

        Args:
            episodes: One or a list of ``SingleAgentEpisode``.
            weight: The priority of their steps; the highest so far if ``None``.

        Raises:
            WaitTimeoutError: If the table did not accept all within ``timeout``; ``stored`` says
                how many transitions were inserted. The others are kept, and are inserted first by
                the next ``add``, which may be ``add([])``: don't add the same episodes again. If
                not even these can be inserted then, the new episodes are not taken, as the message
                says; so at most one ``add`` is kept.
        """
        episodes = episodes if isinstance(episodes, list) else [episodes]
        for episode in episodes:
            if not isinstance(episode, SingleAgentEpisode):
                raise ArgumentError(
                    f"expected episodes of one agent, got a {type(episode).__name__}; those of "
                    "several are for EchoicMultiAgentEpisodeReplayBuffer"
                )
        deliver_before(self._deliver, len(episodes))
        before = self._transitions.made
        try:
            self._transitions.add(episodes, weight)
        finally:
            self._log_added(self._transitions.made - before)

    def _log_added(self, count: int) -> None:
        self._num_timesteps_added += count
        if count:
            self.metrics.log_value(NUM_ENV_STEPS_ADDED, count, reduce="sum")
            self.metrics.log_value(NUM_ENV_STEPS_ADDED_LIFETIME, count, reduce="lifetime_sum")

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | Sequence[int] | None = None,
        beta: float | None = None,
        gamma: float | None = None,
        to_numpy: bool = False,
        **rest: Any,
    ) -> list[SingleAgentEpisode]:
        """Draw transitions, as RLlib's prioritized buffer returns them: episodes of one step.

        Their ``extra_model_outputs`` are ``weights`` and ``n_step``. Transitions are drawn with
        replacement, so as many are returned as requested, however few there are.

        Args:
            num_items: How many.
            batch_size_B: The same; give one of the two.
            batch_length_T: Must be 0, 1 or ``None``: there are no sequences.
            n_step: Must be the buffer's.
            beta: The buffer's if ``None``.
            gamma: Must be the buffer's, if transitions have several steps.
            to_numpy: Whether the episodes have arrays instead of lists.
            **rest: RLlib's other arguments; ``lookback``, ``min_batch_length_T`` and those for data
                that is not stored (``include_infos``, ``include_extra_model_outputs``) must be 0.

        Raises:
            ArgumentError: If the algorithm asks for what the table does not have.
            WaitTimeoutError: If the table blocked samples for too long.
        """
        count = self._count(num_items, batch_size_B)
        self._check(n_step, gamma, batch_length_T, rest)
        batch = self._transitions.draw(count, self._beta if beta is None else beta)
        self.sampled_timesteps += count
        self._log_sampled([batch])
        episodes = one_step_episodes(batch)
        return [episode.to_numpy() for episode in episodes] if to_numpy else episodes

    def _count(self, num_items: int | None, batch_size: int | None) -> int:
        if num_items is not None and batch_size is not None:
            raise ArgumentError("expected num_items or batch_size_B, got both")
        return num_items or batch_size or self.batch_size_B

    def _check(
        self, n_step: Any, gamma: float | None, length: int | None, rest: Mapping[str, Any]
    ) -> None:
        """Check that the request matches the table's transitions."""
        made, discount = self._settings.n_step, self._settings.gamma
        if n_step is not None and _span(n_step) != made:
            raise ArgumentError(
                f"transitions were made with n_step={made}, and the algorithm wants "
                f"{n_step}: replay_buffer_config needs the algorithm's n_step"
            )
        if gamma is not None and gamma != discount and made != 1:
            raise ArgumentError(
                f"rewards were summed with gamma={discount}, and the algorithm wants {gamma}: "
                "replay_buffer_config needs the algorithm's gamma"
            )
        lacks = {"lookback", "min_batch_length_T", "include_infos", "include_extra_model_outputs"}
        asked = [name for name in sorted(lacks) if rest.get(name)]
        if (length or 0) > 1:
            asked.append("batch_length_T")
        if asked:
            raise ArgumentError(
                f"can't sample with {', '.join(asked)}: the table does not store what that needs"
            )

    def _log_sampled(self, batches: list[Any]) -> None:
        tell, window = self.metrics.log_value, self._metrics_num_episodes_for_smoothing
        there = sum(batch.info.table_size for batch in batches)
        count = sum(len(batch.keys) for batch in batches)
        others = sum(len(np.unique(batch.keys)) for batch in batches)
        spans = np.concatenate([batch.data["n_step"] for batch in batches])
        tell(NUM_ENV_STEPS_STORED, there, reduce="mean", window=window)
        tell(NUM_ENV_STEPS_SAMPLED, count, reduce="sum")
        tell(NUM_ENV_STEPS_SAMPLED_LIFETIME, count, reduce="lifetime_sum")
        tell(NUM_ENV_STEPS_PER_SAMPLE, others, reduce="mean", window=window)
        tell(ACTUAL_N_STEP, float(spans.mean()), reduce="mean", window=window)

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Set the priorities of the last draw, usually the errors of the learners.

        Args:
            priorities: One for each, in the order in which learners return them.
            module_id: Ignored.
        """
        self._transitions.update_priorities(priorities)

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return how many transitions the table has, of all clients."""
        return len(self._transitions)

    def get_state(self) -> dict[str, Any]:
        """Return the buffer's counts, what is kept, and the transitions of a table made here.

        A server saves its tables itself, in checkpoints and a journal.
        """
        return {
            "num_timesteps_added": self._num_timesteps_added,
            "sampled_timesteps": self.sampled_timesteps,
            **self._transitions.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; a table of this process then has exactly its transitions."""
        self._transitions.set_state(state)
        self._num_timesteps_added = state["num_timesteps_added"]
        self.sampled_timesteps = state["sampled_timesteps"]

    def close(self) -> None:
        """Deliver what is kept or not yet acknowledged, and close; RLlib does not call it."""
        if self._client is None:
            return
        try:
            self._deliver()
        finally:
            self._client.close(self._settings.timeout)

    def _deliver(self) -> None:
        self._transitions.deliver()


def _span(n_step: int | Sequence[int]) -> int | tuple[int, int]:
    """Convert ``n_step`` to one number or two; configurations also have numpy's, and lists."""
    if not isinstance(n_step, Sequence):
        return int(n_step)
    least, end = n_step
    return int(least), int(end)


def deliver_before(deliver: Callable[[], None], count: int) -> None:
    """Insert what is kept before new episodes are taken; if that fails, say they were not."""
    try:
        deliver()
    except WaitTimeoutError as error:
        late = WaitTimeoutError(f"{error}; {count} new episodes were not taken")
        late.reason, late.stored = error.reason, error.stored
        raise late from error


def one_step_episodes(batch: Any, begin: int = 0, **more: Any) -> list[SingleAgentEpisode]:
    """Make RLlib's episodes of one step each.

    Args:
        batch: A batch of the table.
        begin: The number of the first one, which is its name: an item drawn twice has two names.
        **more: Further outputs that all of them have.
    """
    data = batch.data
    firsts, lasts, actions = (_split(data[name]) for name in ("obs", "new_obs", "actions"))
    plain = ("rewards", "terminateds", "truncateds", "n_step")
    rewards, terminateds, truncateds, spans = (data[name].tolist() for name in plain)
    return [
        SingleAgentEpisode(
            id_=str(begin + number),
            observations=[firsts[number], lasts[number]],
            actions=[actions[number]],
            rewards=[rewards[number]],
            terminated=terminateds[number],
            truncated=truncateds[number],
            extra_model_outputs={"weights": [weight], "n_step": [spans[number]]},
            len_lookback_buffer=0,
            **more,
        )
        for number, weight in enumerate(batch.weights.tolist())
    ]


def _split(tree: Any) -> list[Any]:
    """Split a tree of arrays along the first axis."""
    if isinstance(tree, np.ndarray):
        return list(tree)
    leaves, form = _trees.tree_flatten(tree)
    return [_trees.tree_unflatten(form, row) for row in zip(*leaves, strict=True)]
