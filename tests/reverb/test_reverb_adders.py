"""The adders of the examples write the items that one finds by hand."""

from __future__ import annotations

import threading
from typing import Any

import echoic.reverb as reverb
import numpy as np
import pytest

from examples.reverb.adders import (
    DEFAULT_TABLE,
    EndBehavior,
    EpisodeAdder,
    NStepTransitionAdder,
    SequenceAdder,
    Step,
    Transition,
    map_structure,
    n_step_return,
)
from examples.reverb.environment import (
    Catch,
    EnvironmentSpec,
    TimeStep,
    restart,
    termination,
    transition,
    truncation,
)

# Observations count the steps, so that an item says where it is from.
SPEC = EnvironmentSpec(
    observations={"position": np.zeros(2, np.float32), "step": np.zeros((), np.int32)},
    actions=np.zeros((), np.int64),
    rewards=np.zeros((), np.float32),
    discounts=np.zeros((), np.float32),
)


def observation(step: int) -> dict[str, Any]:
    return {"position": np.full(2, step / 2, np.float32), "step": np.int32(step)}


def episode(steps: int, *, end: Any = termination) -> list[TimeStep]:
    """Make an episode of so many actions, whose rewards are 1, 2 and so on."""
    middle = [transition(t, observation(t)) for t in range(1, steps)]
    return [restart(observation(0)), *middle, end(steps, observation(steps))]


def play(adder: Any, timesteps: list[TimeStep], extras: list[Any] | None = None) -> None:
    """Tell an adder of an episode, whose actions are 100, 101 and so on."""
    adder.add_first(timesteps[0])
    for t, timestep in enumerate(timesteps[1:]):
        rest = () if extras is None else (extras[t],)
        adder.add(np.int64(100 + t), timestep, *rest)


class Tables:
    """A server whose tables are read once, the oldest item first."""

    def __init__(self, **signatures: Any) -> None:
        self.server = reverb.Server(
            [
                reverb.Table(
                    name=name,
                    sampler=reverb.selectors.Fifo(),
                    remover=reverb.selectors.Fifo(),
                    max_size=1_000,
                    max_times_sampled=1,
                    rate_limiter=reverb.rate_limiters.MinSize(1),
                    signature=signature,
                )
                for name, signature in signatures.items()
            ]
        )
        self.client = reverb.Client(f"localhost:{self.server.port}")

    def read(self, table: str = DEFAULT_TABLE) -> list[reverb.ReplaySample]:
        """Take all items out of a table."""
        size = self.client.server_info()[table].current_size
        return (
            list(
                self.client.sample(
                    table, size, emit_timesteps=False, unpack_as_table_signature=True
                )
            )
            if size
            else []
        )

    def items(self, table: str = DEFAULT_TABLE) -> list[Any]:
        return [sample.data for sample in self.read(table)]


@pytest.fixture
def tables():
    made = []

    def make(**signatures: Any) -> Tables:
        made.append(Tables(**signatures))
        return made[-1]

    yield make
    for each in made:
        each.server.stop()


# The n-step return.


def test_return_of_one_step_is_its_reward_and_its_discount() -> None:
    reward, discount = n_step_return([np.float32(3)], [np.float32(1)], 0.5)
    assert (reward, discount) == (3, 0.5)


def test_return_of_several_steps_discounts_the_later_rewards() -> None:
    reward, discount = n_step_return(np.float32([1, 2, 3]), np.float32([1, 1, 1]), 0.5)
    assert reward == 1 + 0.5 * 2 + 0.25 * 3
    assert discount == 0.125


def test_environment_s_discount_counts_from_the_next_reward_on() -> None:
    reward, discount = n_step_return(np.float32([1, 2, 3]), np.float32([0.5, 0, 1]), 0.5)
    # Nothing is expected after the second reward, so the third does not count.
    assert reward == 1 + 0.5 * 0.5 * 2
    assert discount == 0


def test_return_keeps_the_dtypes_of_rewards_and_discounts() -> None:
    reward, discount = n_step_return(
        np.array([1, 2], np.float16), np.array([1, 1], np.float32), 0.9
    )
    assert reward.dtype == np.float16
    assert discount.dtype == np.float32


# Transitions.


def transitions(tables: Any, n_step: int, timesteps: list[TimeStep]) -> list[Transition]:
    served = tables(**{DEFAULT_TABLE: NStepTransitionAdder.signature(SPEC)})
    with NStepTransitionAdder(served.client, n_step, discount=0.5) as adder:
        play(adder, timesteps)
    return served.items()


def test_transitions_of_one_step(tables) -> None:
    items = transitions(tables, 1, episode(3))
    assert [int(item.observation["step"]) for item in items] == [0, 1, 2]
    assert [int(item.next_observation["step"]) for item in items] == [1, 2, 3]
    assert [int(item.action) for item in items] == [100, 101, 102]
    assert [float(item.reward) for item in items] == [1, 2, 3]
    assert [float(item.discount) for item in items] == [0.5, 0.5, 0]


def test_transitions_reach_n_steps_ahead_and_the_last_ones_to_the_end(tables) -> None:
    items = transitions(tables, 3, episode(5))
    assert [int(item.observation["step"]) for item in items] == [0, 1, 2, 3, 4]
    assert [int(item.next_observation["step"]) for item in items] == [3, 4, 5, 5, 5]
    assert [int(item.action) for item in items] == [100, 101, 102, 103, 104]
    assert [float(item.reward) for item in items] == [
        1 + 0.5 * 2 + 0.25 * 3,
        2 + 0.5 * 3 + 0.25 * 4,
        3 + 0.5 * 4 + 0.25 * 5,
        4 + 0.5 * 5,
        5,
    ]
    assert [float(item.discount) for item in items] == [0.125, 0.125, 0, 0, 0]


def test_truncated_episode_expects_something_of_its_last_state(tables) -> None:
    items = transitions(tables, 3, episode(4, end=truncation))
    assert [int(item.next_observation["step"]) for item in items] == [3, 4, 4, 4]
    assert [float(item.discount) for item in items] == [0.125, 0.125, 0.25, 0.5]


@pytest.mark.parametrize("n_step", [3, 4, 10])
def test_episode_of_fewer_steps_than_n_reaches_to_its_end(tables, n_step: int) -> None:
    items = transitions(tables, n_step, episode(2, end=truncation))
    assert [int(item.observation["step"]) for item in items] == [0, 1]
    assert [int(item.next_observation["step"]) for item in items] == [2, 2]
    assert [float(item.reward) for item in items] == [1 + 0.5 * 2, 2]
    assert [float(item.discount) for item in items] == [0.25, 0.5]


@pytest.mark.parametrize("n_step", [1, 2, 5])
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_each_step_begins_one_transition(tables, n_step: int, steps: int) -> None:
    items = transitions(tables, n_step, episode(steps))
    assert [int(item.observation["step"]) for item in items] == list(range(steps))
    for start, item in enumerate(items):
        end = min(start + n_step, steps)
        assert int(item.next_observation["step"]) == end
        np.testing.assert_array_equal(item.observation["position"], [start / 2, start / 2])
        np.testing.assert_array_equal(item.next_observation["position"], [end / 2, end / 2])
        expected = sum(0.5 ** (t - start) * (t + 1) for t in range(start, end))
        assert float(item.reward) == expected


def test_transitions_do_not_reach_into_the_next_episode(tables) -> None:
    served = tables(**{DEFAULT_TABLE: NStepTransitionAdder.signature(SPEC)})
    with NStepTransitionAdder(served.client, 2, discount=0.5) as adder:
        play(adder, episode(3))
        play(adder, episode(1))
        play(adder, episode(2))
    pairs = [
        (int(item.observation["step"]), int(item.next_observation["step"]))
        for item in served.items()
    ]
    assert pairs == [(0, 2), (1, 3), (2, 3), (0, 1), (0, 2), (1, 2)]


def test_transition_has_the_extras_of_its_first_step(tables) -> None:
    extras_spec = {"logits": np.zeros(2, np.float32)}
    served = tables(**{DEFAULT_TABLE: NStepTransitionAdder.signature(SPEC, extras_spec)})
    extras = [{"logits": np.full(2, t, np.float32)} for t in range(3)]
    with NStepTransitionAdder(served.client, 2, discount=0.5) as adder:
        play(adder, episode(3), extras)
    assert [item.extras["logits"].tolist() for item in served.items()] == [[0, 0], [1, 1], [2, 2]]


def test_items_are_there_when_the_episode_has_ended(tables) -> None:
    served = tables(**{DEFAULT_TABLE: NStepTransitionAdder.signature(SPEC)})
    adder = NStepTransitionAdder(served.client, 2, discount=0.5)
    play(adder, episode(4))
    assert len(served.items()) == 4
    adder.close()


def test_n_step_of_zero_is_refused(tables) -> None:
    served = tables(**{DEFAULT_TABLE: None})
    with pytest.raises(ValueError, match="n_step is 0"):
        NStepTransitionAdder(served.client, 0, discount=0.5)


# Sequences. Of an episode of n actions there are n + 1 steps.


def sequences(tables: Any, length: int, period: int, end: EndBehavior, actions: int) -> list[Step]:
    served = tables(**{DEFAULT_TABLE: SequenceAdder.signature(SPEC)})
    with SequenceAdder(served.client, length, period, end) as adder:
        play(adder, episode(actions))
    return served.items()


def steps_of(items: list[Step]) -> list[list[int]]:
    """Say which steps each item has, counted from 1; 0 is one of zeros."""
    # Only the first step of the episode is counted 0 among those that are real.
    return [
        [
            int(step) + 1 if step or first else 0
            for step, first in zip(item.observation["step"], item.start_of_episode, strict=True)
        ]
        for item in items
    ]


@pytest.mark.parametrize(
    ("end", "last"),
    [
        (EndBehavior.ZERO_PAD, [5, 6, 0]),
        (EndBehavior.WRITE, [4, 5, 6]),
        (EndBehavior.TRUNCATE, [5, 6]),
    ],
)
def test_steps_left_at_the_end_of_an_episode(tables, end: EndBehavior, last: list[int]) -> None:
    items = sequences(tables, length=3, period=2, end=end, actions=5)
    assert steps_of(items) == [[1, 2, 3], [3, 4, 5], last]


@pytest.mark.parametrize("end", EndBehavior)
def test_no_steps_left_at_the_end_of_an_episode(tables, end: EndBehavior) -> None:
    items = sequences(tables, length=3, period=2, end=end, actions=4)
    assert steps_of(items) == [[1, 2, 3], [3, 4, 5]]


@pytest.mark.parametrize(
    ("end", "only"),
    [
        (EndBehavior.ZERO_PAD, [1, 2, 0, 0]),
        (EndBehavior.WRITE, [1, 2]),
        (EndBehavior.TRUNCATE, [1, 2]),
    ],
)
def test_episode_shorter_than_a_sequence_is_one_item(
    tables, end: EndBehavior, only: list[int]
) -> None:
    assert steps_of(sequences(tables, length=4, period=1, end=end, actions=1)) == [only]


@pytest.mark.parametrize(
    ("end", "last"),
    [
        (EndBehavior.ZERO_PAD, [5, 0]),
        (EndBehavior.WRITE, [4, 5]),
        (EndBehavior.TRUNCATE, [5]),
    ],
)
def test_sequences_that_do_not_overlap(tables, end: EndBehavior, last: list[int]) -> None:
    items = sequences(tables, length=2, period=2, end=end, actions=4)
    assert steps_of(items) == [[1, 2], [3, 4], last]


@pytest.mark.parametrize("end", EndBehavior)
def test_steps_between_sequences_are_in_none(tables, end: EndBehavior) -> None:
    items = sequences(tables, length=2, period=4, end=end, actions=7)
    assert steps_of(items) == [[1, 2], [5, 6]]


def test_every_step_begins_a_sequence_with_a_period_of_one(tables) -> None:
    items = sequences(tables, length=3, period=1, end=EndBehavior.TRUNCATE, actions=5)
    assert steps_of(items) == [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]


def test_last_step_has_an_observation_and_zeros_else(tables) -> None:
    [item] = sequences(tables, length=3, period=3, end=EndBehavior.ZERO_PAD, actions=2)
    assert item.observation["position"].tolist() == [[0, 0], [0.5, 0.5], [1, 1]]
    assert item.action.tolist() == [100, 101, 0]
    assert item.reward.tolist() == [1, 2, 0]
    assert item.discount.tolist() == [1, 0, 0]
    assert item.start_of_episode.tolist() == [True, False, False]


def test_padding_is_zeros_in_all_leaves(tables) -> None:
    [item] = sequences(tables, length=4, period=4, end=EndBehavior.ZERO_PAD, actions=1)
    for leaf in (*item.observation.values(), item.action, item.reward, item.start_of_episode):
        assert len(leaf) == 4
        assert not leaf[2:].any()
    assert item.action.dtype == np.int64
    assert item.start_of_episode.dtype == np.bool_


def test_each_episode_begins_its_own_sequences(tables) -> None:
    served = tables(**{DEFAULT_TABLE: SequenceAdder.signature(SPEC)})
    with SequenceAdder(served.client, 3, 2, EndBehavior.TRUNCATE) as adder:
        play(adder, episode(3))
        play(adder, episode(1))
        play(adder, episode(4))
    assert steps_of(served.items()) == [[1, 2, 3], [3, 4], [1, 2], [1, 2, 3], [3, 4, 5]]


def test_sequences_have_extras(tables) -> None:
    served = tables(**{DEFAULT_TABLE: SequenceAdder.signature(SPEC, np.zeros(1, np.float32), 3)})
    with SequenceAdder(served.client, 3, 3) as adder:
        play(adder, episode(2), [np.ones(1, np.float32), np.full(1, 2, np.float32)])
    [item] = served.items()
    assert item.extras.tolist() == [[1], [2], [0]]


@pytest.mark.parametrize(("length", "period"), [(0, 1), (1, 0)])
def test_length_and_period_of_zero_are_refused(tables, length: int, period: int) -> None:
    served = tables(**{DEFAULT_TABLE: None})
    with pytest.raises(ValueError, match="both must be at least 1"):
        SequenceAdder(served.client, length, period)


# Episodes.


def test_episodes_are_whole_items_of_their_own_length(tables) -> None:
    served = tables(**{DEFAULT_TABLE: EpisodeAdder.signature(SPEC)})
    with EpisodeAdder(served.client, max_length=6) as adder:
        for actions in (2, 5, 1):
            play(adder, episode(actions))
    items = served.items()
    assert steps_of(items) == [[1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2]]
    assert items[0].reward.tolist() == [1, 2, 0]
    assert items[0].discount.tolist() == [1, 0, 0]


def test_nothing_is_written_before_the_episode_is_over(tables) -> None:
    served = tables(**{DEFAULT_TABLE: EpisodeAdder.signature(SPEC)})
    timesteps = episode(3)
    with EpisodeAdder(served.client, max_length=6) as adder:
        adder.add_first(timesteps[0])
        adder.add(np.int64(0), timesteps[1])
        adder.add(np.int64(0), timesteps[2])
        assert served.items() == []
        adder.add(np.int64(0), timesteps[3])
        assert len(served.items()) == 1


def test_padded_episodes_are_all_of_the_greatest_length(tables) -> None:
    served = tables(**{DEFAULT_TABLE: EpisodeAdder.signature(SPEC, length=5)})
    with EpisodeAdder(served.client, max_length=5, pad=True) as adder:
        play(adder, episode(2))
        play(adder, episode(4))
    assert steps_of(served.items()) == [[1, 2, 3, 0, 0], [1, 2, 3, 4, 5]]


def test_episode_that_is_too_long_is_refused_and_can_be_given_up(tables) -> None:
    served = tables(**{DEFAULT_TABLE: EpisodeAdder.signature(SPEC)})
    with EpisodeAdder(served.client, max_length=4) as adder:
        with pytest.raises(ValueError, match="longer than max_length, 4 steps"):
            play(adder, episode(4))
        adder.reset()
        play(adder, episode(3))
    assert steps_of(served.items()) == [[1, 2, 3, 4]]


def test_episode_of_one_step_is_refused(tables) -> None:
    served = tables(**{DEFAULT_TABLE: None})
    with pytest.raises(ValueError, match="max_length is 1"):
        EpisodeAdder(served.client, max_length=1)


# Tables and priorities.


def test_priority_is_one_by_default(tables) -> None:
    served = tables(**{DEFAULT_TABLE: NStepTransitionAdder.signature(SPEC)})
    with NStepTransitionAdder(served.client, 1, discount=0.5) as adder:
        play(adder, episode(2))
    assert [sample.info.priority for sample in served.read()] == [1, 1]


def test_each_table_has_priorities_of_its_own(tables) -> None:
    signature = NStepTransitionAdder.signature(SPEC)
    served = tables(by_reward=signature, by_step=signature, plain=signature)
    priority_fns = {
        "by_reward": lambda item: float(item.reward),
        "by_step": lambda item: 10 * item.observation["step"],
        "plain": None,
    }
    with NStepTransitionAdder(served.client, 2, 0.5, priority_fns) as adder:
        play(adder, episode(3))
    priorities = {
        table: [sample.info.priority for sample in served.read(table)] for table in priority_fns
    }
    assert priorities == {
        "by_reward": [1 + 0.5 * 2, 2 + 0.5 * 3, 3],
        "by_step": [0, 10, 20],
        "plain": [1, 1, 1],
    }


def test_tables_share_the_data_of_an_item(tables) -> None:
    signature = NStepTransitionAdder.signature(SPEC)
    served = tables(one=signature, other=signature)
    with NStepTransitionAdder(served.client, 2, 0.5, {"one": None, "other": None}) as adder:
        play(adder, episode(3))
    one, other = served.items("one"), served.items("other")
    assert len(one) == len(other) == 3
    for left, right in zip(one, other, strict=True):
        map_structure(np.testing.assert_array_equal, tuple(left), tuple(right))


def test_priority_of_a_sequence_sees_all_of_its_steps(tables) -> None:
    served = tables(t=SequenceAdder.signature(SPEC))
    seen = []

    def longest(item: Step) -> float:
        seen.append(item)
        return float(item.reward.max())

    with SequenceAdder(served.client, 2, 2, priority_fns={"t": longest}) as adder:
        play(adder, episode(4))
    assert [sample.info.priority for sample in served.read("t")] == [2, 4, 0]
    assert all(isinstance(item, Step) for item in seen)
    assert [item.observation["step"].tolist() for item in seen] == [[0, 1], [2, 3], [4, 0]]
    assert [item.start_of_episode.tolist() for item in seen] == [[1, 0], [0, 0], [0, 0]]


# Signatures.


def test_signature_of_transitions_is_that_of_the_environment() -> None:
    signature = NStepTransitionAdder.signature(SPEC, extras_spec={"value": np.zeros(3)})
    assert isinstance(signature, Transition)
    shapes = map_structure(lambda spec: tuple(spec.shape), signature)
    assert shapes == Transition(
        observation={"position": (2,), "step": ()},
        action=(),
        reward=(),
        discount=(),
        next_observation={"position": (2,), "step": ()},
        extras={"value": (3,)},
    )
    assert signature.action.dtype == np.int64
    assert signature.next_observation["step"].dtype == np.int32


@pytest.mark.parametrize("adder", [SequenceAdder, EpisodeAdder])
def test_signature_of_steps_has_an_axis_of_time(adder: Any) -> None:
    of_any_length = adder.signature(SPEC)
    assert isinstance(of_any_length, Step)
    assert list(of_any_length.observation["position"].shape) == [None, 2]
    of_this_length = adder.signature(SPEC, length=7)
    assert list(of_this_length.observation["position"].shape) == [7, 2]
    assert list(of_this_length.start_of_episode.shape) == [7]
    assert of_this_length.start_of_episode.dtype == np.bool_


def test_items_that_differ_from_the_signature_do_not_get_into_the_table(tables) -> None:
    served = tables(**{DEFAULT_TABLE: NStepTransitionAdder.signature(Catch.SPEC)})
    adder = NStepTransitionAdder(served.client, 1, discount=0.5)
    with pytest.raises(ValueError, match="priority_table"):
        play(adder, episode(1))
    assert served.items() == []


# Order of calls.


@pytest.fixture
def adder(tables):
    served = tables(**{DEFAULT_TABLE: NStepTransitionAdder.signature(SPEC)})
    with NStepTransitionAdder(served.client, 2, discount=0.5) as made:
        made.served = served
        yield made


def test_add_needs_a_first_time_step(adder) -> None:
    with pytest.raises(ValueError, match="add_first must be called before add"):
        adder.add(np.int64(0), transition(1, observation(1)))


def test_add_first_takes_no_other_time_step(adder) -> None:
    with pytest.raises(ValueError, match="the first time step of an episode"):
        adder.add_first(transition(1, observation(1)))


def test_add_first_in_the_middle_of_an_episode_is_refused(adder) -> None:
    adder.add_first(restart(observation(0)))
    with pytest.raises(ValueError, match="call reset"):
        adder.add_first(restart(observation(0)))


def test_reset_gives_an_episode_up_and_keeps_its_items(adder) -> None:
    timesteps = episode(5)
    adder.add_first(timesteps[0])
    for timestep in timesteps[1:4]:
        adder.add(np.int64(0), timestep)
    adder.reset()
    play(adder, episode(1))
    pairs = [
        (int(item.observation["step"]), int(item.next_observation["step"]))
        for item in adder.served.items()
    ]
    assert pairs == [(0, 2), (1, 3), (0, 1)]


def test_reset_between_episodes_changes_nothing(adder) -> None:
    adder.reset()
    play(adder, episode(1))
    adder.reset()
    play(adder, episode(1))
    assert len(adder.served.items()) == 2


def test_adder_waits_while_too_many_items_are_on_their_way() -> None:
    server = reverb.Server([reverb.Table.queue("queue", 2)])
    client = reverb.Client(f"localhost:{server.port}")
    adder = NStepTransitionAdder(client, 1, 0.5, {"queue": None}, max_in_flight_items=3)
    added = 0

    def act() -> None:
        nonlocal added
        timesteps = episode(10)
        adder.add_first(timesteps[0])
        for timestep in timesteps[1:]:
            adder.add(np.int64(0), timestep)
            added += 1
        adder.close()

    actor = threading.Thread(target=act, daemon=True)
    actor.start()
    actor.join(0.1)
    # Two items are in the queue and three on their way.
    assert added <= 5
    got = [sample.data[3] for sample in client.sample("queue", 4, emit_timesteps=False)]
    actor.join(0.05)
    assert added <= 9
    got += [sample.data[3] for sample in client.sample("queue", 6, emit_timesteps=False)]
    actor.join(20)
    assert added == 10
    assert got == list(range(1, 11))
    server.stop()
