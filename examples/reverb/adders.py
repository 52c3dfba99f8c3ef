"""Adders: from the time steps of an environment to items, in the manner of Acme.

An actor gives each step to an adder; the adder makes items of it and puts them into tables::

    adder = NStepTransitionAdder(client, n_step=3, discount=0.99)
    timestep = environment.reset()
    adder.add_first(timestep)
    while not timestep.last():
        action = policy(timestep.observation)
        timestep = environment.step(action)
        adder.add(action, timestep)

There are three: `NStepTransitionAdder` for Q-learning and actor-critics, `SequenceAdder` for
recurrent networks, `EpisodeAdder` for what needs whole episodes. A table for them takes its
``signature`` from the adder's class::

    reverb.Table(..., signature=NStepTransitionAdder.signature(environment_spec))

All steps travel once, however many items name them: an item is a choice among the columns of
`TrajectoryWriter.history`. Left out, to stay readable: rewards that are trees, and sequences that
go on from one episode to the next.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import echoic.reverb as reverb
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from examples.reverb.environment import EnvironmentSpec, TimeStep

    # Gets an item as a tree of arrays; None stands for a priority of 1.
    PriorityFn = Callable[[Any], float] | None

#: The table that an adder without `priority_fns` writes to.
DEFAULT_TABLE = "priority_table"


class Adder(Protocol):
    """What an actor knows of its adder."""

    def add_first(self, timestep: TimeStep) -> None:
        """Take the first time step of an episode."""

    def add(self, action: Any, next_timestep: TimeStep, extras: Any = ()) -> None:
        """Take an action and the time step that it led to."""

    def reset(self) -> None:
        """Forget the episode that is not over."""


class Transition(NamedTuple):
    """An item of `NStepTransitionAdder`."""

    observation: Any
    action: Any
    reward: Any  # of n steps, discounted
    discount: Any  # what the value of `next_observation` counts for
    next_observation: Any
    extras: Any = ()


class Step(NamedTuple):
    """An item of `SequenceAdder` and `EpisodeAdder`: each leaf has an axis of time."""

    observation: Any
    action: Any
    reward: Any  # for `action`
    discount: Any  # of what comes after `reward`
    start_of_episode: Any
    extras: Any = ()


def map_structure(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to the leaves of dicts, lists and tuples that are alike."""
    if isinstance(tree, dict):
        return {
            name: map_structure(function, each, *(other[name] for other in others))
            for name, each in tree.items()
        }
    if isinstance(tree, (tuple, list)):
        leaves = [map_structure(function, *each) for each in zip(tree, *others, strict=True)]
        return type(tree)(*leaves) if hasattr(tree, "_fields") else type(tree)(leaves)
    return function(tree, *others)


def n_step_return(rewards: Any, discounts: Any, discount: float) -> tuple[Any, Any]:
    """Sum up the rewards of some steps, and say what the value of the state after them counts for.

    With the environment's discounts d and the agent's own, g, these are::

        r[0] + g d[0] r[1] + g² d[0] d[1] r[2] + …        and        gⁿ d[0] d[1] … d[n - 1]

    so that the target of a Q-function is ``reward + discount * value``. (In Acme the second has one
    factor g less, which its learners multiply by.)
    """
    total = np.zeros_like(rewards[0])
    ahead = np.ones_like(discounts[0])
    for reward, factor in zip(rewards, discounts, strict=True):
        total = total + ahead * reward
        ahead = ahead * factor * discount
    # Products with a Python float are of another dtype in numpy 1 than in numpy 2.
    return np.asarray(total, rewards[0].dtype), np.asarray(ahead, discounts[0].dtype)


class ReverbAdder:
    """What the adders have in common: the writer, its steps, and the priorities of items.

    The observation of a step is there before its action. So each step is appended in two parts, and
    while an episode is on its newest step is open: it has an observation and nothing else.

    Args:
        client: writes the items.
        window: as many steps as items reach back, the open one included.
        priority_fns: says for each table what an item's priority is. Called with the item, a tree
            of arrays. Without it, items go to `DEFAULT_TABLE` with a priority of 1.
        max_in_flight_items: `add` waits until no more are on their way, for instance while the rate
            limiter of a table holds them back.
    """

    def __init__(
        self,
        client: reverb.Client,
        window: int,
        priority_fns: Mapping[str, PriorityFn] | None,
        max_in_flight_items: int,
    ) -> None:
        self._client = client
        self._window = window
        self._priority_fns = dict(priority_fns or {DEFAULT_TABLE: None})
        self._max_in_flight_items = max_in_flight_items
        self._writer = client.trajectory_writer(num_keep_alive_refs=window)
        self._in_episode = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            # Who failed is not to wait for tables that may never have room.
            self._writer.close()

    def add_first(self, timestep: TimeStep) -> None:
        """Take the first time step of an episode."""
        if not timestep.first():
            raise ValueError("add_first takes the first time step of an episode")
        if self._in_episode:
            raise ValueError("the episode before is not over: call reset to give it up")
        self._in_episode = True
        self._open_step(timestep)

    def add(self, action: Any, next_timestep: TimeStep, extras: Any = ()) -> None:
        """Take an action and the time step that it led to; `extras` belong to the action."""
        if not self._in_episode:
            raise ValueError("add_first must be called before add")
        self._writer.append(
            {
                "action": action,
                "reward": next_timestep.reward,
                "discount": next_timestep.discount,
                "extras": extras,
            }
        )
        self._open_step(next_timestep)
        self._on_step(action, next_timestep, extras)
        if next_timestep.last():
            self._on_last_step()
            # Waits until the tables have all items.
            self._writer.end_episode()
            self._in_episode = False
        else:
            self._on_open_episode()

    def reset(self) -> None:
        """Forget the episode that is not over; items that were made of it stay."""
        if self._in_episode:
            # The writer goes too, because its last step will never be completed.
            self.close()
            self._writer = self._client.trajectory_writer(num_keep_alive_refs=self._window)
            self._in_episode = False

    def close(self) -> None:
        """Wait until the tables have all items, and end the writer."""
        self._writer.flush()
        self._writer.close()

    def _open_step(self, timestep: TimeStep) -> None:
        self._writer.append(
            {"observation": timestep.observation, "start_of_episode": np.bool_(timestep.first())},
            partial_step=True,
        )

    def _on_step(self, action: Any, timestep: TimeStep, extras: Any) -> None:
        """Look at what was added, before anything is written."""

    def _on_open_episode(self) -> None:
        """Write what the last step completed; the episode goes on."""

    def _on_last_step(self) -> None:
        """Write what is left; the open step has the last observation of all."""

    def _create_item(self, trajectory: Any) -> None:
        arrays = None
        for table, priority_fn in self._priority_fns.items():
            priority = 1.0
            if priority_fn is not None:
                if arrays is None:
                    arrays = map_structure(lambda column: column.numpy(), trajectory)
                priority = float(priority_fn(arrays))
            self._writer.create_item(table=table, priority=priority, trajectory=trajectory)
        self._writer.flush(block_until_num_items=self._max_in_flight_items)


class NStepTransitionAdder(ReverbAdder):
    """Writes for each step a transition to the step that is `n_step` later.

    Where the episode ends before, the transition is as much shorter: its reward is of the steps
    that there are, and `n_step_return` has the right discount for them. So each step begins exactly
    one item. (Acme has shorter ones at the beginning of episodes too.)

    Args:
        client: writes the items.
        n_step: how many rewards go into one item.
        discount: the agent's own, for one step.
        priority_fns: as in `ReverbAdder`; they get a `Transition`.
        max_in_flight_items: as in `ReverbAdder`.
    """

    def __init__(
        self,
        client: reverb.Client,
        n_step: int,
        discount: float,
        priority_fns: Mapping[str, PriorityFn] | None = None,
        max_in_flight_items: int = 50,
    ) -> None:
        if n_step < 1:
            raise ValueError(f"n_step is {n_step}: it must be at least 1")
        super().__init__(client, n_step + 1, priority_fns, max_in_flight_items)
        self._n_step = n_step
        self._discount = discount
        # Of the latest steps: those that the next item begins with.
        self._rewards: deque[Any] = deque(maxlen=n_step)
        self._discounts: deque[Any] = deque(maxlen=n_step)

    @classmethod
    def signature(cls, environment_spec: EnvironmentSpec, extras_spec: Any = ()) -> Transition:
        """Make the signature of a table for this adder's items."""
        spec = environment_spec
        return map_structure(
            lambda leaf: reverb.TensorSpec(tuple(leaf.shape), leaf.dtype),
            Transition(
                observation=spec.observations,
                action=spec.actions,
                reward=spec.rewards,
                discount=spec.discounts,
                next_observation=spec.observations,
                extras=extras_spec,
            ),
        )

    def reset(self) -> None:
        """Forget the episode that is not over; items that were made of it stay."""
        super().reset()
        self._rewards.clear()
        self._discounts.clear()

    def _on_step(self, action: Any, timestep: TimeStep, extras: Any) -> None:
        del action, extras
        self._rewards.append(np.asarray(timestep.reward))
        self._discounts.append(np.asarray(timestep.discount))

    def _on_open_episode(self) -> None:
        if len(self._rewards) == self._n_step:
            self._write(steps_after_the_end=0, partial_step=True)

    def _on_last_step(self) -> None:
        # Each item's return needs a step to be in: the first has the open one, and the others have
        # steps of their own, after the end.
        for after in range(len(self._rewards)):
            self._write(steps_after_the_end=after, partial_step=False)
            self._rewards.popleft()
            self._discounts.popleft()

    def _write(self, steps_after_the_end: int, *, partial_step: bool) -> None:
        reward, discount = n_step_return(self._rewards, self._discounts, self._discount)
        self._writer.append(
            {"n_step_return": reward, "n_step_discount": discount}, partial_step=partial_step
        )
        history = self._writer.history
        end = -1 - steps_after_the_end
        start = end - len(self._rewards)
        self._create_item(
            Transition(
                observation=map_structure(lambda column: column[start], history["observation"]),
                action=map_structure(lambda column: column[start], history["action"]),
                reward=history["n_step_return"][-1],
                discount=history["n_step_discount"][-1],
                next_observation=map_structure(lambda column: column[end], history["observation"]),
                extras=map_structure(lambda column: column[start], history["extras"]),
            )
        )


class _StepsAdder(ReverbAdder):
    """What writes items of whole steps, the one with the last observation included.

    Nothing was done at the last observation: its action, reward, discount and extras are zeros.
    """

    @classmethod
    def signature(
        cls, environment_spec: EnvironmentSpec, extras_spec: Any = (), length: int | None = None
    ) -> Step:
        """Make the signature of a table for this adder's items, of any length or of this one."""
        spec = environment_spec
        return map_structure(
            lambda leaf: reverb.TensorSpec((length, *leaf.shape), leaf.dtype),
            Step(
                observation=spec.observations,
                action=spec.actions,
                reward=spec.rewards,
                discount=spec.discounts,
                start_of_episode=np.zeros((), np.bool_),
                extras=extras_spec,
            ),
        )

    def _on_step(self, action: Any, timestep: TimeStep, extras: Any) -> None:
        self._newest = {
            "observation": timestep.observation,
            "start_of_episode": np.bool_(False),
            "action": action,
            "reward": timestep.reward,
            "discount": timestep.discount,
            "extras": extras,
        }

    def _complete_last_step(self) -> None:
        zeros = map_structure(np.zeros_like, self._newest)
        del zeros["observation"], zeros["start_of_episode"]
        self._writer.append(zeros)

    def _append_zeros(self, count: int) -> None:
        zeros = map_structure(np.zeros_like, self._newest)
        for _ in range(count):
            self._writer.append(zeros)

    def _write(self, steps: slice) -> None:
        history = self._writer.history
        self._create_item(
            Step(
                **{
                    name: map_structure(lambda column: column[steps], history[name])
                    for name in Step._fields
                }
            )
        )


class EndBehavior(enum.Enum):
    """What a `SequenceAdder` does when an episode ends and its next sequence is not complete.

    Sequences of 3 steps, every 2, of an episode of 6, begin with ``1 2 3`` and ``3 4 5``. Then:
    """

    #: ``5 6 0``: zeros fill the sequence.
    ZERO_PAD = "zero_pad"
    #: ``4 5 6``: the last sequence begins earlier.
    WRITE = "write"
    #: ``5 6``: the last sequence is shorter.
    TRUNCATE = "truncate"


class SequenceAdder(_StepsAdder):
    """Writes sequences of `length` steps, one every `period` steps, which overlap if that is less.

    An episode that is shorter than a sequence is one item: filled up with `EndBehavior.ZERO_PAD`,
    of its own length with the others.

    Args:
        client: writes the items.
        length: of a sequence, in steps.
        period: from the beginning of a sequence to that of the next.
        end_of_episode: what becomes of the steps that are left.
        priority_fns: as in `ReverbAdder`; they get a `Step` whose leaves have an axis of time.
        max_in_flight_items: as in `ReverbAdder`.
    """

    def __init__(
        self,
        client: reverb.Client,
        length: int,
        period: int,
        end_of_episode: EndBehavior = EndBehavior.ZERO_PAD,
        priority_fns: Mapping[str, PriorityFn] | None = None,
        max_in_flight_items: int = 25,
    ) -> None:
        if length < 1 or period < 1:
            raise ValueError(f"length is {length} and period {period}: both must be at least 1")
        super().__init__(client, length + 1, priority_fns, max_in_flight_items)
        self._length = length
        self._period = period
        self._end_of_episode = end_of_episode

    def _next_end(self) -> int:
        """How many steps the episode has when the next sequence is complete, or now if it is."""
        periods = -(-(self._writer.episode_steps - self._length) // self._period)
        return self._length + max(0, periods) * self._period

    def _on_open_episode(self) -> None:
        if self._writer.episode_steps == self._next_end():
            self._write(slice(-1 - self._length, -1))

    def _on_last_step(self) -> None:
        # The step before the last one may be the end of a sequence too.
        self._on_open_episode()
        self._complete_last_step()
        steps = self._writer.episode_steps
        missing = self._next_end() - steps
        left = self._length - missing
        if left <= 0:
            return  # With a period longer than a sequence some steps are in none.
        if self._end_of_episode is EndBehavior.ZERO_PAD:
            self._append_zeros(missing)
            left = self._length
        elif self._end_of_episode is EndBehavior.WRITE:
            left = min(self._length, steps)
        self._write(slice(-left, None))


class EpisodeAdder(_StepsAdder):
    """Writes each episode as one item, when it is over.

    Args:
        client: writes the items.
        max_length: of an episode in steps, the one with the last observation included. The `add`
            that exceeds it raises a `ValueError`.
        pad: whether zeros fill episodes up to `max_length`.
        priority_fns: as in `ReverbAdder`; they get a `Step` whose leaves have an axis of time.
        max_in_flight_items: as in `ReverbAdder`.
    """

    def __init__(
        self,
        client: reverb.Client,
        max_length: int,
        *,
        pad: bool = False,
        priority_fns: Mapping[str, PriorityFn] | None = None,
        max_in_flight_items: int = 1,
    ) -> None:
        if max_length < 2:
            raise ValueError(f"max_length is {max_length}: an episode has at least 2 steps")
        super().__init__(client, max_length, priority_fns, max_in_flight_items)
        self._max_length = max_length
        self._pad = pad

    def add(self, action: Any, next_timestep: TimeStep, extras: Any = ()) -> None:
        """Take an action and the time step that it led to; `extras` belong to the action."""
        if self._in_episode and self._writer.episode_steps + 2 > self._max_length:
            raise ValueError(f"the episode is longer than max_length, {self._max_length} steps")
        super().add(action, next_timestep, extras)

    def _on_last_step(self) -> None:
        self._complete_last_step()
        if self._pad:
            self._append_zeros(self._max_length - self._writer.episode_steps)
        self._write(slice(None))
