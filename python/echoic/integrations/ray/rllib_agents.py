"""Store transitions of RLlib's algorithms with several agents: a table for each module.

RLlib maps agents to modules. The steps of an agent are an episode of its own, as with one agent,
and go to the table of its module. Each module is drawn from by itself: a batch has as many
transitions of one as of the other, not of the same moment (RLlib's ``"independent"`` mode).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.metrics import NUM_MODULE_STEPS_ADDED, NUM_MODULE_STEPS_SAMPLED

from echoic.errors import ArgumentError, WaitTimeoutError
from echoic.integrations.ray.rllib import (
    EchoicEpisodeReplayBuffer,
    deliver_before,
    one_step_episodes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    from echoic.integrations.ray.transitions import Transitions

__all__ = ["EchoicMultiAgentEpisodeReplayBuffer"]


class EchoicMultiAgentEpisodeReplayBuffer(EchoicEpisodeReplayBuffer):
    """A ``type`` for RLlib's ``replay_buffer_config`` with several agents.

    The table of module ``"red"`` is ``"replay/red"``, each with its own observations and actions;
    :func:`transition_table` makes one from the spaces of its module.

    Args:
        capacity: How many transitions of each module fit; for tables of this process.
        table: The prefix of the tables' names.
        modules: The modules whose transitions are stored, such as those that are trained; all if
            ``None``.
        **rest: Arguments of :class:`EchoicEpisodeReplayBuffer`.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        table: str = "replay",
        modules: Collection[str] | None = None,
        **rest: Any,
    ) -> None:
        self._wanted = None if modules is None else frozenset(modules)
        super().__init__(capacity, table=table, **rest)

    def _begin(self, table: str) -> None:
        self._prefix = table
        self._modules: dict[str, Transitions] = {}

    @property
    def table(self) -> dict[str, Any]:
        """The tables by module, of the modules whose episodes were added."""
        return {name: one.table for name, one in self._modules.items()}

    @property
    def waiting(self) -> int:
        """The number of transitions left over by timeouts; they are inserted before new ones."""
        return sum(one.waiting for one in self._modules.values())

    def _module(self, name: str) -> Transitions:
        if name not in self._modules:
            self._modules[name] = self._transitions_in(f"{self._prefix}/{name}")
        return self._modules[name]

    def add(self, episodes: Any, weight: float | Mapping[str, float] | None = None) -> None:
        """Add the steps of episodes since they were last added.

        Args:
            episodes: One or a list of ``MultiAgentEpisode``.
            weight: The priority of their steps, or that of each module; the highest so far of its
                module if ``None``.

        Raises:
            WaitTimeoutError: If a table did not accept all within ``timeout``; ``stored`` says how
                many transitions were inserted into such tables. What is kept, and when episodes are
                not taken, is as in :meth:`EchoicEpisodeReplayBuffer.add`.
        """
        episodes = episodes if isinstance(episodes, list) else [episodes]
        shares = self._shares(episodes)
        deliver_before(self._deliver, len(episodes))
        before = {name: one.made for name, one in self._modules.items()}

        def put(name: str) -> None:
            of_it = weight.get(name) if isinstance(weight, Mapping) else weight
            self._modules[name].add(shares[name], of_it)

        try:
            _each(shares, put)
        finally:
            made = {name: self._modules[name].made - before[name] for name in shares}
            self._log_added(sum(made.values()))
            for name, count in made.items():
                self.metrics.log_value((NUM_MODULE_STEPS_ADDED, name), count, reduce="sum")

    def _shares(self, episodes: Sequence[Any]) -> dict[str, list[SingleAgentEpisode]]:
        """Split the agents' episodes by module."""
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
        """Draw transitions of each module; see :meth:`EchoicEpisodeReplayBuffer.sample`.

        Args:
            num_items: How many of each module.
            batch_size_B: The same; give one of the two.
            batch_length_T: Must be 0, 1 or ``None``.
            n_step: Must be the buffer's.
            beta: The buffer's if ``None``.
            gamma: Must be the buffer's, if transitions have several steps.
            to_numpy: Whether the episodes have arrays instead of lists.
            modules_to_sample: Which modules; if ``None``, all that have transitions.
            **rest: As there; ``replay_mode`` must be ``"independent"``.

        Raises:
            ArgumentError: If the algorithm asks for what the tables do not have.
            WaitTimeoutError: If a table blocked samples for too long.
        """
        count = self._count(num_items, batch_size_B)
        self._check(n_step, gamma, batch_length_T, rest)
        if rest.get("replay_mode", "independent") != "independent":
            raise ArgumentError(
                f"expected replay_mode 'independent', got {rest['replay_mode']!r}: tables don't "
                "know what happened at the same moment"
            )
        chosen = modules_to_sample
        if chosen is None:
            chosen = [name for name, one in self._modules.items() if one.made]
        if not chosen or not self._modules.keys() >= set(chosen):
            raise ArgumentError(
                f"expected episodes of modules {sorted(chosen)} to be added before the first "
                f"sample, got those of {sorted(self._modules)}"
            )
        beta = self._beta if beta is None else beta
        batches = {name: self._modules[name].draw(count, beta) for name in chosen}
        self.sampled_timesteps += count
        self._log_sampled(list(batches.values()))
        drawn: list[SingleAgentEpisode] = []
        for name, batch in batches.items():
            self.metrics.log_value((NUM_MODULE_STEPS_SAMPLED, name), count, reduce="sum")
            drawn += one_step_episodes(batch, len(drawn), agent_id=name, module_id=name)
        for one in drawn:
            # RLlib uses this to tell the rows of a batch apart.
            one.multi_agent_episode_id = one.id_
        return [one.to_numpy() for one in drawn] if to_numpy else drawn

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Set the priorities of a module's last draw, usually the errors of the learners.

        Args:
            priorities: One for each, in the order in which learners return them.
            module_id: The module.
        """
        if module_id not in self._modules:
            raise ArgumentError(
                f"expected one of the modules {sorted(self._modules)}, got {module_id!r}"
            )
        self._modules[module_id].update_priorities(priorities)

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return how many transitions the table of a module has, or all, of all clients."""
        if module_id is not None:
            return len(self._modules[module_id]) if module_id in self._modules else 0
        return sum(map(len, self._modules.values()))

    def get_state(self) -> dict[str, Any]:
        """Return this buffer's counts, and the state of each module."""
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

    def _deliver(self) -> None:
        _each(self._modules, lambda name: self._modules[name].deliver())


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
