"""Store RLlib's transitions in tables: in this process, on a server or in a cluster.

RLlib's DQN and SAC, in their driver, add episodes to a buffer and draw from it. These buffers are
clients of tables in which each step is an item, made by
:mod:`~echoic.integrations.ray.transitions`. So the tables may have other clients, and exist before
and after the driver.

They are for policies that act on single observations; stateful modules are rejected. With several
agents there is a table for each module, since RLlib maps agents to modules: the steps of an agent
are an episode of its own and go to the table of its module. Each module is drawn from by itself: a
batch has as many transitions of one as of the other, not of the same moment (RLlib's
``"independent"`` mode).
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import (
    ACTUAL_N_STEP,
    NUM_ENV_STEPS_ADDED,
    NUM_ENV_STEPS_ADDED_LIFETIME,
    NUM_ENV_STEPS_PER_SAMPLE,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_STORED,
    NUM_MODULE_STEPS_ADDED,
    NUM_MODULE_STEPS_SAMPLED,
)
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer

from echoic import _trees
from echoic.connection import connect
from echoic.errors import ArgumentError, WaitTimeoutError
from echoic.integrations.ray.transitions import Settings, Transitions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["EchoicEpisodeReplayBuffer", "EchoicMultiAgentEpisodeReplayBuffer"]

# The name of the one module of a buffer for one agent.
_ONLY = ""
# What tables do not store, so that `sample` can't be asked for it.
_LACKS = ("include_extra_model_outputs", "include_infos", "lookback", "min_batch_length_T")


class _Named(ABCMeta):
    """The metaclass of buffers.

    Tune makes classes from names in a configuration, and RLlib then looks for
    ``"EpisodeReplayBuffer"`` in the class as if it were a name. SAC looks for the class in a list
    of the names that it accepts, so the class equals one of them.
    """

    def __contains__(cls, part: object) -> bool:
        return str(part) in cls.__name__

    def __eq__(cls, other: object) -> bool:
        return cls is other or other == "EpisodeReplayBuffer"

    __hash__ = ABCMeta.__hash__


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
        self._table_name = table
        self._modules: dict[str, Transitions] = {}
        self._begin()

    def _begin(self) -> None:
        """Make what is there before the first episode."""
        self._module(_ONLY)

    def _module(self, name: str) -> Transitions:
        """Return the transitions of a module."""
        if name not in self._modules:
            table = f"{self._table_name}/{name}" if name else self._table_name
            found = None if self._client is None else self._client.table(table)
            self._modules[name] = Transitions(self._settings, table, found)
        return self._modules[name]

    @property
    def table(self) -> Any:
        """The table; ``None`` before the first episode if it is in this process."""
        return self._modules[_ONLY].table

    @property
    def waiting(self) -> int:
        """The number of transitions left over by timeouts; they are inserted before new ones."""
        return sum(one.waiting for one in self._modules.values())

    def add(self, episodes: Any, weight: float | Mapping[str, float] | None = None) -> None:
        """Add the steps of episodes since they were last added.

        Args:
            episodes: One or a list of RLlib's episodes.
            weight: The priority of their steps, or with several agents that of each module; the
                highest so far of its module if ``None``.

        Raises:
            WaitTimeoutError: If a table did not accept all within ``timeout``; ``stored`` says how
                many transitions were inserted into such tables. The others are kept, and are
                inserted first by the next ``add``, which may be ``add([])``: don't add the same
                episodes again. If not even these can be inserted then, the new episodes are not
                taken, as the message says; so at most one ``add`` is kept.
        """
        episodes = episodes if isinstance(episodes, list) else [episodes]
        shares = self._shares(episodes)
        try:
            self._deliver()
        except WaitTimeoutError as error:
            late = WaitTimeoutError(f"{error}; {len(episodes)} new episodes were not taken")
            late.reason, late.stored = error.reason, error.stored
            raise late from error
        before = {name: self._modules[name].made for name in shares}

        def put(name: str) -> None:
            own = weight.get(name) if isinstance(weight, Mapping) else weight
            self._modules[name].add(shares[name], own)

        try:
            _each(shares, put)
        finally:
            self._log_added({name: self._modules[name].made - before[name] for name in shares})

    def _shares(self, episodes: Sequence[Any]) -> dict[str, list[SingleAgentEpisode]]:
        """Split episodes by module."""
        for episode in episodes:
            if not isinstance(episode, SingleAgentEpisode):
                raise ArgumentError(
                    f"expected episodes of one agent, got a {type(episode).__name__}; those of "
                    "several are for EchoicMultiAgentEpisodeReplayBuffer"
                )
        return {_ONLY: list(episodes)}

    def _log_added(self, made: Mapping[str, int]) -> None:
        count, log = sum(made.values()), self.metrics.log_value
        self._num_timesteps_added += count
        if count:
            log(NUM_ENV_STEPS_ADDED, count, reduce="sum")
            log(NUM_ENV_STEPS_ADDED_LIFETIME, count, reduce="lifetime_sum")
        for name, own in made.items():
            if name:
                log((NUM_MODULE_STEPS_ADDED, name), own, reduce="sum")

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
        modules_to_sample: Collection[str] | None = None,
        **rest: Any,
    ) -> list[SingleAgentEpisode]:
        """Draw transitions, as RLlib's prioritized buffer returns them: episodes of one step.

        Their ``extra_model_outputs`` are ``weights`` and ``n_step``. Transitions are drawn with
        replacement, so as many are returned as requested, however few there are.

        Args:
            num_items: How many, with several agents of each module.
            batch_size_B: The same; give one of the two.
            batch_length_T: Must be 0, 1 or ``None``: there are no sequences.
            n_step: Must be the buffer's.
            beta: The buffer's if ``None``.
            gamma: Must be the buffer's, if transitions have several steps.
            to_numpy: Whether the episodes have arrays instead of lists.
            modules_to_sample: With several agents, which modules; if ``None``, all that have
                transitions.
            **rest: RLlib's other arguments; ``lookback``, ``min_batch_length_T`` and those for data
                that is not stored (``include_infos``, ``include_extra_model_outputs``) must be 0,
                and ``replay_mode`` must be ``"independent"``.

        Raises:
            ArgumentError: If the algorithm asks for what the tables do not have.
            WaitTimeoutError: If a table blocked samples for too long.
        """
        if num_items is not None and batch_size_B is not None:
            raise ArgumentError("expected num_items or batch_size_B, got both")
        count = num_items or batch_size_B or self.batch_size_B
        self._check(n_step, gamma, batch_length_T, rest)
        chosen = self._chosen(modules_to_sample)
        beta = self._beta if beta is None else beta
        batches = {name: self._modules[name].draw(count, beta) for name in chosen}
        self.sampled_timesteps += count
        self._log_sampled(list(batches.values()))
        drawn: list[SingleAgentEpisode] = []
        for name, batch in batches.items():
            ids = {"agent_id": name, "module_id": name} if name else {}
            episodes = one_step_episodes(batch, len(drawn), **ids)
            drawn += episodes
            if name:
                self.metrics.log_value((NUM_MODULE_STEPS_SAMPLED, name), count, reduce="sum")
                for one in episodes:
                    # RLlib uses this to tell the rows of a batch apart.
                    one.multi_agent_episode_id = one.id_
        return [one.to_numpy() for one in drawn] if to_numpy else drawn

    def _chosen(self, _modules: Collection[str] | None) -> Collection[str]:
        """Return the names of the modules to draw from."""
        return (_ONLY,)

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
        asked = [name for name in _LACKS if rest.get(name)]
        if (length or 0) > 1:
            asked.append("batch_length_T")
        if asked:
            raise ArgumentError(
                f"can't sample with {', '.join(asked)}: the table does not store what that needs"
            )
        if rest.get("replay_mode", "independent") != "independent":
            raise ArgumentError(
                f"expected replay_mode 'independent', got {rest['replay_mode']!r}: tables don't "
                "know what happened at the same moment"
            )

    def _log_sampled(self, batches: list[Any]) -> None:
        log, window = self.metrics.log_value, self._metrics_num_episodes_for_smoothing
        there = sum(batch.info.table_size for batch in batches)
        count = sum(len(batch.keys) for batch in batches)
        others = sum(len(np.unique(batch.keys)) for batch in batches)
        spans = np.concatenate([batch.data["n_step"] for batch in batches])
        log(NUM_ENV_STEPS_STORED, there, reduce="mean", window=window)
        log(NUM_ENV_STEPS_SAMPLED, count, reduce="sum")
        log(NUM_ENV_STEPS_SAMPLED_LIFETIME, count, reduce="lifetime_sum")
        log(NUM_ENV_STEPS_PER_SAMPLE, others, reduce="mean", window=window)
        log(ACTUAL_N_STEP, float(spans.mean()), reduce="mean", window=window)

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Set the priorities of a module's last draw, usually the errors of the learners.

        Args:
            priorities: One for each, in the order in which learners return them.
            module_id: The module, with several agents.
        """
        self._modules[_ONLY].update_priorities(priorities)

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return how many transitions the tables have, or that of a module, of all clients."""
        return sum(map(len, self._modules.values()))

    def get_state(self) -> dict[str, Any]:
        """Return the buffer's counts, what is kept, and the transitions of tables made here.

        A server saves its tables itself, in checkpoints and a journal.
        """
        return {
            "num_timesteps_added": self._num_timesteps_added,
            "sampled_timesteps": self.sampled_timesteps,
            "modules": {name: one.get_state() for name, one in self._modules.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; tables of this process then have exactly its transitions."""
        self._modules.clear()
        for name, own in state["modules"].items():
            self._module(name).set_state(own)
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
        """Insert what is kept."""
        _each(self._modules, lambda name: self._modules[name].deliver())


class EchoicMultiAgentEpisodeReplayBuffer(EchoicEpisodeReplayBuffer):
    """A ``type`` for RLlib's ``replay_buffer_config`` with several agents.

    The table of module ``"red"`` is ``"replay/red"``, each with its own observations and actions;
    :func:`transition_table` makes one from the spaces of its module.

    Args:
        capacity: How many transitions of each module fit; for tables of this process.
        modules: The modules whose transitions are stored, such as those that are trained; all if
            ``None``.
        **rest: Arguments of :class:`EchoicEpisodeReplayBuffer`; ``table`` is the prefix of the
            tables' names.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        modules: Collection[str] | None = None,
        **rest: Any,
    ) -> None:
        self._wanted = None if modules is None else frozenset(modules)
        super().__init__(capacity, **rest)

    def _begin(self) -> None:
        """Make nothing: tables are made with the first episodes of their modules."""

    @property
    def table(self) -> dict[str, Any]:
        """The tables by module, of the modules whose episodes were added."""
        return {name: one.table for name, one in self._modules.items()}

    def _shares(self, episodes: Sequence[Any]) -> dict[str, list[SingleAgentEpisode]]:
        shares: dict[str, list[SingleAgentEpisode]] = {}
        for episode in episodes:
            if not isinstance(episode, MultiAgentEpisode):
                raise ArgumentError(
                    f"expected episodes of several agents, got a {type(episode).__name__}; those "
                    "of one are for EchoicEpisodeReplayBuffer"
                )
            for agent, own in episode.agent_episodes.items():
                name = str(episode.module_for(agent))
                if self._wanted is None or name in self._wanted:
                    self._module(name)
                    shares.setdefault(name, []).append(own)
        return shares

    def _chosen(self, modules: Collection[str] | None) -> Collection[str]:
        if modules is None:
            modules = [name for name, one in self._modules.items() if one.made]
        if not modules or not self._modules.keys() >= set(modules):
            raise ArgumentError(
                f"expected episodes of modules {sorted(modules)} to be added before the first "
                f"sample, got those of {sorted(self._modules)}"
            )
        return modules

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Set the priorities of a module's last draw, as with one agent."""
        if module_id not in self._modules:
            raise ArgumentError(
                f"expected one of the modules {sorted(self._modules)}, got {module_id!r}"
            )
        self._modules[module_id].update_priorities(priorities)

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return how many transitions the table of a module has, or all, of all clients."""
        if module_id is None:
            return super().get_num_timesteps()
        return len(self._modules[module_id]) if module_id in self._modules else 0


def _each(names: Collection[str], work: Callable[[str], None]) -> None:
    """Call a function for each module; a timeout of one does not keep the others from theirs."""
    stored, late = 0, None
    for name in names:
        try:
            work(name)
        except WaitTimeoutError as error:
            late, stored = error, stored + error.stored
    if late is not None:
        late.stored = stored
        raise late


def _span(n_step: int | Sequence[int]) -> int | tuple[int, int]:
    """Convert ``n_step`` to one number or two; configurations also have numpy's, and lists."""
    if not isinstance(n_step, Sequence):
        return int(n_step)
    least, end = n_step
    return int(least), int(end)


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
