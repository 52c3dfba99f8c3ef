"""A replay buffer for RLlib that keeps transitions in a table: here, on a server or in a cluster.

RLlib's DQN, in its driver, adds episodes to a buffer and draws from it. Here that buffer is a
client of a table, in which each step is an item: :mod:`~echoic.integrations.ray.nsteps` makes them.
So the table may have other clients, and be there before and after the driver.

It is for policies that act on single observations: stateful modules and several agents are refused.
"""

from __future__ import annotations

import copy
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
from echoic.client import connect
from echoic.errors import ArgumentError
from echoic.integrations.ray.nsteps import NSteps
from echoic.selectors import Prioritized, Uniform
from echoic.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EchoicEpisodeReplayBuffer", "transition_table"]

# RLlib's own least priority: what is never drawn again can't be told that it was wrong.
_LEAST = 1e-12


def transition_table(
    name: str,
    observation_space: Any,
    action_space: Any,
    *,
    max_size: int,
    alpha: float = 0.6,
    **options: Any,
) -> Table:
    """Return a table for the transitions of an environment, to be given to a server or a cluster.

    Args:
        name: The table's.
        observation_space: Gymnasium's, of what the policy sees.
        action_space: The same of actions.
        max_size: How many transitions it keeps.
        alpha: The exponent of priorities when drawing; 0 draws all alike.
        **options: Further ones of :class:`~echoic.Table`, such as ``durability`` or ``limiter``.
    """
    observation, action = (_example(space) for space in (observation_space, action_space))
    spec = {
        "obs": observation,
        "actions": action,
        "rewards": np.float32(0),
        "new_obs": observation,
        "terminateds": np.bool_(0),
        "truncateds": np.bool_(0),
        "n_step": np.int32(1),
    }
    sampler = Prioritized(alpha) if alpha else Uniform()
    return Table(name, spec, max_size=max_size, sampler=sampler, **options)


class EchoicEpisodeReplayBuffer(PrioritizedEpisodeReplayBuffer):
    """What RLlib's ``replay_buffer_config`` names as ``type``; its other entries are the arguments.

    An entry of the table is a transition of ``n_step`` steps, or of as many as its episode has
    left. They are made when episodes are added, so ``n_step`` and ``gamma`` must be those of the
    algorithm. New ones get the greatest priority that this buffer has given.

    Args:
        capacity: How many transitions there may be; for a table of this process.
        client: Where the table is: the client of a :class:`ReplayCluster`, an address, or several.
            In this process, made with the first episode, when ``None``.
        table: The table's name; see :func:`transition_table`.
        options: How a server is reached that is given by its address, such as ``{"token": …}``.
        alpha: The exponent of priorities; for a table of this process. With 0 no priority is told
            to any table.
        beta: That of the importance weights, of which the largest in a batch is 1.
        n_step: The algorithm's.
        gamma: The algorithm's; it matters when ``n_step`` is not 1.
        num_learners: The algorithm's. RLlib deals a batch out to learners and has their errors
            back in another order.
        timeout: For how many seconds to wait while the table lets nothing in, or out.
        seed: Of draws from a table of this process, and of random ``n_step``.
        batch_size_B: How many transitions are drawn when it is not said.
        metrics_num_episodes_for_smoothing: RLlib's.
    """

    def __init__(  # noqa: PLR0913 - one argument for each option
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
        batch_size_B: int = 16,  # noqa: N803 - RLlib's
        metrics_num_episodes_for_smoothing: int = 100,
    ) -> None:
        """Connect, if there is something to connect to; see the class."""
        # What is below would take memory for all that may come, and Echoic's table has that.
        super().__init__(
            1,
            batch_size_B=batch_size_B,
            alpha=alpha,
            metrics_num_episodes_for_smoothing=metrics_num_episodes_for_smoothing,
        )
        self.capacity = capacity
        self._max_priority = 1.0
        self._name = table
        self._seed = seed
        self._beta = beta
        self._n_step = _span(n_step)
        self._gamma = gamma
        self._num_learners = max(1, num_learners)
        self._timeout = timeout
        self._makes = NSteps(self._n_step, gamma, seed)
        # Those that were drawn last.
        self._keys = np.zeros(0, np.uint64)
        self._client: Any = client
        if isinstance(client, str | list):
            self._client = connect(client, **(options or {}))
        self._table: Any = None if client is None else self._client.table(table)
        if self._table is not None and self._table.spec is None:
            raise ArgumentError(
                f"expected table {table!r} to be a transition_table, it has no spec"
            )

    @property
    def table(self) -> Any:
        """The table; ``None`` before the first episode if it is in this process."""
        return self._table

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Add what happened in episodes since they were added last.

        Args:
            episodes: One or a list of ``SingleAgentEpisode``.
            weight: The priority of their steps; the greatest so far when ``None``.

        Raises:
            WaitTimeoutError: The table let not all in within ``timeout``; ``stored`` says how many
                of the transitions. The others are lost: adding the episodes again would insert the
                first ones twice.
        """
        episodes = episodes if isinstance(episodes, list) else [episodes]
        for episode in episodes:
            if not isinstance(episode, SingleAgentEpisode):
                raise ArgumentError(
                    f"expected episodes of one agent, got a {type(episode).__name__}"
                )
        rows = self._makes.take(episodes)
        if rows is None:
            return
        self._insert(rows, self._max_priority if weight is None else weight)
        count = len(rows["n_step"])
        self._num_timesteps_added += count
        self.metrics.log_value(NUM_ENV_STEPS_ADDED, count, reduce="sum")
        self.metrics.log_value(NUM_ENV_STEPS_ADDED_LIFETIME, count, reduce="lifetime_sum")

    def _insert(self, rows: Any, priorities: Any) -> None:
        if self._table is None:
            self._table = self._make_table(rows)
        priorities = np.broadcast_to(np.asarray(priorities, np.float64), len(rows["n_step"]))
        self._table.insert_batch(_fitted(rows, self._table.spec), priorities, None, self._timeout)

    def _make_table(self, rows: Any) -> Table:
        spec = _trees.tree_map(lambda leaf: leaf[0], rows)
        sampler = Prioritized(self._alpha) if self._alpha else Uniform()
        return Table(self._name, spec, max_size=self.capacity, sampler=sampler, seed=self._seed)

    def sample(  # noqa: PLR0913 - RLlib's arguments
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,  # noqa: N803 - RLlib's
        batch_length_T: int | None = None,  # noqa: N803 - RLlib's
        n_step: int | Sequence[int] | None = None,
        beta: float | None = None,
        gamma: float | None = None,
        to_numpy: bool = False,
        **rest: Any,
    ) -> list[SingleAgentEpisode]:
        """Draw transitions, as RLlib's prioritized buffer gives them: each an episode of one step.

        Their ``extra_model_outputs`` are ``weights`` and ``n_step``.

        Args:
            num_items: How many.
            batch_size_B: The same; give one of the two.
            batch_length_T: Must be 0, 1 or ``None``: there are no sequences.
            n_step: Must be the buffer's.
            beta: That of the buffer when ``None``.
            gamma: Must be the buffer's, if transitions have several steps.
            to_numpy: Whether the episodes have arrays instead of lists.
            **rest: What else RLlib asks for; ``lookback``, ``min_batch_length_T`` and what is not
                kept (``include_infos``, ``include_extra_model_outputs``) must be 0.

        Raises:
            ArgumentError: The algorithm wants something else than the table has.
            WaitTimeoutError: The table let nothing out in time.
        """
        if num_items is not None and batch_size_B is not None:
            raise ArgumentError("expected num_items or batch_size_B, got both")
        self._check(n_step, gamma, batch_length_T, rest)
        if self._table is None:
            raise ArgumentError("expected episodes to be added before the first sample, got none")
        count = num_items or batch_size_B or self.batch_size_B
        beta = self._beta if beta is None else beta
        batch = self._table.sample(count, self._timeout, beta)
        self._keys = batch.info.key
        self.sampled_timesteps += count
        self._tell_of(batch)
        episodes = _episodes(batch.data, batch.info.weight.tolist())
        return [episode.to_numpy() for episode in episodes] if to_numpy else episodes

    def _check(
        self, n_step: Any, gamma: float | None, length: int | None, rest: Mapping[str, Any]
    ) -> None:
        """Refuse what the table's transitions are not."""
        if n_step is not None and _span(n_step) != self._n_step:
            raise ArgumentError(
                f"transitions were made with n_step={self._n_step}, and the algorithm wants "
                f"{n_step}: replay_buffer_config needs the algorithm's n_step"
            )
        if gamma is not None and gamma != self._gamma and self._n_step != 1:
            raise ArgumentError(
                f"rewards were summed with gamma={self._gamma}, and the algorithm wants {gamma}: "
                "replay_buffer_config needs the algorithm's gamma"
            )
        lacks = {"lookback", "min_batch_length_T", "include_infos", "include_extra_model_outputs"}
        asked = [name for name in sorted(lacks) if rest.get(name)]
        if (length or 0) > 1:
            asked.append("batch_length_T")
        if asked:
            raise ArgumentError(f"the table has transitions without {', '.join(asked)}")

    def _tell_of(self, batch: Any) -> None:
        keys, tell = batch.info.key, self.metrics.log_value
        window = self._metrics_num_episodes_for_smoothing
        tell(NUM_ENV_STEPS_STORED, batch.info.table_size, reduce="mean", window=window)
        tell(NUM_ENV_STEPS_SAMPLED, len(keys), reduce="sum")
        tell(NUM_ENV_STEPS_SAMPLED_LIFETIME, len(keys), reduce="lifetime_sum")
        tell(NUM_ENV_STEPS_PER_SAMPLE, len(set(keys.tolist())), reduce="mean", window=window)
        tell(ACTUAL_N_STEP, float(batch.data["n_step"].mean()), reduce="mean", window=window)

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:  # noqa: ARG002 - RLlib's
        """Give what was drawn last its priorities, usually the errors of the learners.

        Args:
            priorities: One for each, in the order in which learners give them back.
            module_id: Ignored.
        """
        keys, self._keys = self._keys, np.zeros(0, np.uint64)
        if len(priorities) != len(keys):
            raise ArgumentError(
                f"expected a priority for each of the {len(keys)} that were drawn last, got "
                f"{len(priorities)}"
            )
        if not self._alpha:
            return
        if self._num_learners > 1:
            if len(keys) % self._num_learners:
                raise ArgumentError(
                    f"expected a batch that {self._num_learners} learners share evenly, got "
                    f"{len(keys)} transitions: whose error is whose can't be told"
                )
            keys = np.concatenate([keys[one :: self._num_learners] for one in self._ranks])
        values = np.maximum(np.asarray(priorities, np.float64), _LEAST)
        self._table.update_priorities(keys, values, False)
        self._max_priority = max(self._max_priority, float(values.max()))

    @property
    def _ranks(self) -> range:
        return range(self._num_learners)

    def get_num_timesteps(self, module_id: Any = None) -> int:  # noqa: ARG002 - RLlib's
        """Return how many transitions the table has, whoever added them."""
        return 0 if self._table is None else len(self._table)

    def get_state(self) -> dict[str, Any]:
        """Return what this buffer counted, and the transitions if they are in this process.

        A server keeps its tables itself, in checkpoints and a journal.
        """
        state = {
            "max_priority": self._max_priority,
            "num_timesteps_added": self._num_timesteps_added,
            "sampled_timesteps": self.sampled_timesteps,
            "transitions": None,
        }
        if self._client is None and self._table is not None:
            known = self._table.items()
            state["transitions"] = self._table.get(known.key).data, known.priority
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; a table of this process has its transitions and no others."""
        self._makes = NSteps(self._n_step, self._gamma, self._seed)
        self._keys = np.zeros(0, np.uint64)
        if self._client is None:
            self._table = None
            if state["transitions"] is not None:
                self._insert(*state["transitions"])
        self._max_priority = state["max_priority"]
        self._num_timesteps_added = state["num_timesteps_added"]
        self.sampled_timesteps = state["sampled_timesteps"]

    def close(self) -> None:
        """Deliver what is on its way, and end the connection; RLlib does not call it."""
        if self._client is not None:
            self._client.close(self._timeout)


def _span(n_step: int | Sequence[int]) -> int | tuple[int, int]:
    """Tell a number of steps from two; configurations have numbers of numpy, and lists, as well."""
    if not isinstance(n_step, Sequence):
        return int(n_step)
    least, end = n_step
    return int(least), int(end)


def _example(space: Any) -> Any:
    # Drawing from a space changes it.
    return copy.deepcopy(space).sample()


def _fitted(rows: Any, spec: Any) -> Any:
    """Convert numbers to the table's, as far as these are of one kind: RLlib's actions differ."""
    leaves, form = _trees.tree_flatten(rows)
    wanted = [np.dtype(leaf.dtype) for leaf in spec.leaves]
    if len(wanted) == len(leaves):
        leaves = [
            leaf.astype(dtype, copy=False) if np.can_cast(leaf.dtype, dtype, "same_kind") else leaf
            for leaf, dtype in zip(leaves, wanted, strict=True)
        ]
    return _trees.tree_unflatten(form, leaves)


def _episodes(data: Any, weights: list[float]) -> list[SingleAgentEpisode]:
    """Make RLlib's episodes of one step each."""
    firsts, lasts, actions = (_split(data[name]) for name in ("obs", "new_obs", "actions"))
    plain = ("rewards", "terminateds", "truncateds", "n_step")
    rewards, terminateds, truncateds, spans = (data[name].tolist() for name in plain)
    return [
        SingleAgentEpisode(
            # One that is drawn twice is two.
            id_=str(number),
            observations=[firsts[number], lasts[number]],
            actions=[actions[number]],
            rewards=[rewards[number]],
            terminated=terminateds[number],
            truncated=truncateds[number],
            extra_model_outputs={"weights": [weight], "n_step": [spans[number]]},
            len_lookback_buffer=0,
        )
        for number, weight in enumerate(weights)
    ]


def _split(tree: Any) -> list[Any]:
    """Return the trees that a tree of arrays has along its first axis."""
    if isinstance(tree, np.ndarray):
        return list(tree)
    leaves, form = _trees.tree_flatten(tree)
    return [_trees.tree_unflatten(form, row) for row in zip(*leaves, strict=True)]
