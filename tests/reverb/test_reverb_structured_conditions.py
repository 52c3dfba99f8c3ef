"""Conditions of a StructuredWriter's configurations: on which steps an item is made."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from reverb_under_test import UPSTREAM, reverb, submodule

Condition = reverb.structured.Condition
STEP = {"at": None, "value": None}


if UPSTREAM:
    # Leaves TensorFlow out of the collections after each test, which would take most of the time.
    gc.freeze()


@pytest.fixture
def client(make_client):
    yield make_client(reverb.Table.queue("table", 1000))
    if UPSTREAM:
        # Its writers flush when they are collected, and wait for ever if the server is gone then.
        gc.collect()


def config(*conditions: Any, length: int = 1) -> Any:
    pattern = reverb.structured.pattern_from_transform(STEP, lambda step: step["at"][-length:])
    return reverb.structured.create_config(pattern, "table", conditions)


def items(client: Any) -> list[list[int]]:
    """Take all items out of the queue."""
    number = client.server_info()["table"].current_size
    if not number:
        return []
    samples = client.sample("table", num_samples=number, emit_timesteps=False)
    return [sample.data[0].tolist() for sample in samples]


def applied(client: Any, configs: Any, episodes: Any = (6,), *, clear_buffers: bool = True) -> Any:
    """Write steps that are numbered throughout, and give the items that came of them."""
    writer = client.structured_writer(configs if isinstance(configs, list) else [configs])
    number = 0
    for length in episodes:
        for _ in range(length):
            writer.append({"at": number, "value": number * 10})
            number += 1
        writer.end_episode(clear_buffers=clear_buffers)
    return items(client)


def steps(client: Any, *conditions: Any, **rest: Any) -> list[int]:
    """Give the numbers of the steps at which an item was made."""
    return [item[-1] for item in applied(client, config(*conditions), **rest)]


class TestMessages:
    """A condition is a message, which programs may compare and write themselves."""

    @pytest.mark.parametrize(
        ("made", "fields"),
        [
            (Condition.step_index() == 2, {"step_index": True, "eq": 2}),
            (Condition.step_index() != 2, {"step_index": True, "eq": 2, "inverse": True}),
            (Condition.step_index() >= 2, {"step_index": True, "ge": 2}),
            (Condition.step_index() > 2, {"step_index": True, "ge": 3}),
            (Condition.step_index() < 2, {"step_index": True, "ge": 2, "inverse": True}),
            (Condition.step_index() <= 2, {"step_index": True, "ge": 3, "inverse": True}),
            (Condition.steps_since_applied() >= 3, {"steps_since_applied": True, "ge": 3}),
            (Condition.is_end_episode(), {"is_end_episode": True, "eq": 1}),
            (Condition.data(STEP)["at"] == 1, {"flat_source_index": 0, "eq": 1}),
            (Condition.data(STEP)["value"] >= 1, {"flat_source_index": 1, "ge": 1}),
        ],
    )
    def test_a_condition_says_what_it_compares(self, made, fields):
        assert made == reverb.structured.ConditionProto(**fields)
        for name, value in fields.items():
            assert getattr(made, name) == value

    def test_a_remainder_is_a_message_of_its_own(self):
        made = Condition.step_index() % 3 == 1
        assert (made.mod_eq.mod, made.mod_eq.eq, made.inverse) == (3, 1, False)
        unlike = Condition.step_index() % 3 != 1
        assert (unlike.mod_eq.mod, unlike.mod_eq.eq, unlike.inverse) == (3, 1, True)
        module = submodule("cc.patterns_pb2")
        assert made == module.Condition(
            step_index=True, mod_eq=module.Condition.ModuloEq(mod=3, eq=1)
        )

    def test_a_comparison_does_not_change_what_it_compares(self):
        index = Condition.step_index()
        first = index == 1
        assert index % 2 == 0
        assert (index >= 5) == reverb.structured.ConditionProto(step_index=True, ge=5)
        assert first == reverb.structured.ConditionProto(step_index=True, eq=1)

    def test_conditions_on_data_are_nested_as_the_step(self):
        data = Condition.data({"b": (None, [None]), "a": None})
        assert type(data["b"]) is tuple
        assert [
            (leaf == 0).flat_source_index for leaf in (data["a"], data["b"][0], data["b"][1][0])
        ] == [0, 1, 2]

    def test_numbers_are_whole(self):
        with pytest.raises(TypeError):
            Condition.step_index() == 1.5  # noqa: B015 - comparing raises

    def test_a_config_lists_its_conditions(self):
        conditions = [Condition.step_index() >= 1, Condition.is_end_episode()]
        made = config(*conditions)
        assert list(made.conditions) == conditions
        assert list(config().conditions) == []


class TestStepIndex:
    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            (Condition.step_index() == 2, [2]),
            (Condition.step_index() != 2, [0, 1, 3, 4, 5]),
            (Condition.step_index() < 2, [0, 1]),
            (Condition.step_index() <= 2, [0, 1, 2]),
            (Condition.step_index() > 2, [3, 4, 5]),
            (Condition.step_index() >= 2, [2, 3, 4, 5]),
            (Condition.step_index() % 3 == 1, [1, 4]),
            (Condition.step_index() % 3 != 1, [0, 2, 3, 5]),
            (Condition.step_index() % 2 == 5, []),
        ],
    )
    def test_operators(self, client, condition, expected):
        assert steps(client, condition) == expected

    @pytest.mark.parametrize("clear_buffers", [True, False])
    def test_it_starts_again_with_an_episode(self, client, clear_buffers):
        condition = Condition.step_index() % 2 == 1
        assert steps(client, condition, episodes=(3, 3), clear_buffers=clear_buffers) == [1, 4]

    def test_all_conditions_have_to_hold(self, client):
        assert steps(client, Condition.step_index() >= 1, Condition.step_index() % 2 == 0) == [2, 4]


class TestStepsSinceApplied:
    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            (Condition.steps_since_applied() == 1, [0, 1, 2, 3, 4, 5]),
            (Condition.steps_since_applied() >= 2, [1, 3, 5]),
            (Condition.steps_since_applied() == 2, [1, 3, 5]),
            (Condition.steps_since_applied() > 2, [2, 5]),
            (Condition.steps_since_applied() % 3 == 0, [2, 5]),
            (Condition.steps_since_applied() < 1, []),
        ],
    )
    def test_operators(self, client, condition, expected):
        assert steps(client, condition) == expected

    @pytest.mark.parametrize("clear_buffers", [True, False])
    def test_it_goes_on_over_episodes(self, client, clear_buffers):
        condition = Condition.steps_since_applied() >= 2
        assert steps(client, condition, episodes=(3, 3), clear_buffers=clear_buffers) == [1, 3, 5]

    def test_windows_without_overlap(self, client):
        chosen = config(Condition.steps_since_applied() >= 3, length=3)
        assert applied(client, chosen, (5, 4)) == [[0, 1, 2], [5, 6, 7]]

    def test_each_config_counts_for_itself(self, client):
        configs = [
            config(Condition.steps_since_applied() >= 2),
            config(Condition.steps_since_applied() >= 3),
        ]
        assert sorted(applied(client, configs)) == [[1], [2], [3], [5], [5]]

    def test_steps_in_parts_are_counted_once(self, client):
        writer = client.structured_writer([config(Condition.steps_since_applied() >= 2)])
        for number in range(4):
            writer.append({"at": number, "value": None}, partial_step=True)
            writer.append({"at": None, "value": number})
        writer.flush()
        assert items(client) == [[1], [3]]


class TestEndOfEpisode:
    @pytest.mark.parametrize("clear_buffers", [True, False])
    def test_only_the_last_step_counts(self, client, clear_buffers):
        assert steps(
            client, Condition.is_end_episode(), episodes=(3, 1, 2), clear_buffers=clear_buffers
        ) == [2, 3, 5]

    def test_an_episode_that_is_too_short_gives_nothing(self, client):
        chosen = config(Condition.is_end_episode(), length=2)
        assert applied(client, chosen, (3, 1, 2)) == [[1, 2], [4, 5]]

    def test_kept_buffers_lengthen_a_short_episode(self, client):
        chosen = config(Condition.is_end_episode(), length=2)
        assert applied(client, chosen, (3, 1, 2), clear_buffers=False) == [[1, 2], [2, 3], [4, 5]]

    def test_it_combines_with_others(self, client):
        assert steps(
            client,
            Condition.is_end_episode(),
            Condition.steps_since_applied() >= 2,
            episodes=(3, 1, 2),
        ) == [2, 5]

    def test_an_end_does_not_apply_a_config_to_the_same_step_twice(self, client):
        assert steps(client, episodes=(2, 2)) == [0, 1, 2, 3]

    def test_items_are_made_before_the_flush_of_the_end(self, client):
        writer = client.structured_writer([config(Condition.is_end_episode())])
        writer.append({"at": 1, "value": 0})
        writer.flush()
        assert items(client) == []
        writer.end_episode()
        assert items(client) == [[1]]

    def test_a_second_end_makes_nothing_more(self, client):
        writer = client.structured_writer([config(Condition.is_end_episode())])
        writer.append({"at": 1, "value": 0})
        writer.end_episode()
        writer.end_episode()
        assert items(client) == [[1]]


class TestData:
    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            (Condition.data(STEP)["value"] == 20, [2]),
            (Condition.data(STEP)["value"] != 20, [0, 1, 3, 4, 5]),
            (Condition.data(STEP)["value"] > 20, [3, 4, 5]),
            (Condition.data(STEP)["value"] <= 20, [0, 1, 2]),
            (Condition.data(STEP)["value"] % 20 == 0, [0, 2, 4]),
            (Condition.data(STEP)["at"] >= 4, [4, 5]),
        ],
    )
    def test_operators(self, client, condition, expected):
        assert steps(client, condition) == expected

    @pytest.mark.parametrize(
        ("value", "holds"),
        [
            (1, True),
            (0, False),
            (True, True),
            (False, False),
            (np.int8(1), True),
            (np.uint8(1), True),
            (np.int32(1), True),
            (np.array([1]), True),
            (np.array([1, 1]), False),
            (np.float32(1), False),
            ("1", False),
            (None, False),
        ],
    )
    def test_only_whole_numbers_and_flags_are_compared(self, client, value, holds):
        writer = client.structured_writer([config(Condition.data(STEP)["value"] == 1)])
        writer.append({"at": 5, "value": value})
        writer.flush()
        assert items(client) == ([[5]] if holds else [])

    def test_a_value_that_cannot_be_compared_fails_its_negation_too(self, client):
        writer = client.structured_writer([config(Condition.data(STEP)["value"] != 1)])
        writer.append({"at": 5, "value": None})
        writer.append({"at": 6, "value": 2})
        writer.flush()
        assert items(client) == [[6]]

    def test_the_column_need_not_be_in_the_pattern(self, client):
        pattern = reverb.structured.pattern_from_transform(STEP, lambda step: step["at"][-1:])
        chosen = reverb.structured.create_config(
            pattern, "table", [Condition.data(STEP)["value"] == 30]
        )
        assert applied(client, chosen) == [[3]]

    def test_the_last_part_of_a_step_can_fulfil_it(self, client):
        writer = client.structured_writer([config(Condition.data(STEP)["value"] == 1)])
        writer.append({"at": 0, "value": None}, partial_step=True)
        writer.flush()
        assert items(client) == []
        writer.append({"at": None, "value": 1})
        writer.flush()
        assert items(client) == [[0]]

    def test_of_a_nested_step(self, client):
        step = {"obs": {"x": None}, "done": (None, None)}
        chosen = reverb.structured.create_config(
            reverb.structured.pattern_from_transform(step, lambda ref: ref["obs"]["x"][-2:]),
            "table",
            [Condition.data(step)["done"][1] == 1],
        )
        writer = client.structured_writer([chosen])
        for number in range(6):
            writer.append({"obs": {"x": number}, "done": (False, number % 2 == 1)})
        writer.flush()
        assert items(client) == [[0, 1], [2, 3], [4, 5]]


class TestBufferLength:
    """Programs of older versions had to state it, and configurations may still do."""

    def test_a_stated_length_that_is_enough_changes_nothing(self, client):
        condition = reverb.structured.ConditionProto(buffer_length=True, ge=2)
        assert applied(client, config(condition, length=2), (4,)) == [[0, 1], [1, 2], [2, 3]]

    def test_a_stated_length_that_is_too_short_is_made_enough(self, client):
        condition = reverb.structured.ConditionProto(buffer_length=True, ge=1)
        assert applied(client, config(condition, length=2), (4,)) == [[0, 1], [1, 2], [2, 3]]

    def test_the_buffer_is_as_long_as_the_pattern(self, client):
        condition = reverb.structured.ConditionProto(buffer_length=True, eq=3)
        assert applied(client, config(condition, length=3), (5,)) == [
            [0, 1, 2],
            [1, 2, 3],
            [2, 3, 4],
        ]


class TestValidation:
    @pytest.mark.parametrize(
        ("condition", "text"),
        [
            (reverb.structured.ConditionProto(), "Conditions must specify a value for `left`."),
            (reverb.structured.ConditionProto(eq=1), "Conditions must specify a value for `left`."),
            (
                reverb.structured.ConditionProto(step_index=True),
                "Conditions must specify a value for `cmp`.",
            ),
            (Condition.step_index() % -2 == 0, "`mod_eq.mod` must be > 0 but got -2."),
            (Condition.step_index() % 2 == -1, "`mod_eq.eq` must be >= 0 but got -1."),
            (
                reverb.structured.ConditionProto(is_end_episode=True, eq=0),
                "Condition must use `eq=1` when using `is_end_episode`.",
            ),
            (
                reverb.structured.ConditionProto(is_end_episode=True, eq=2),
                "Condition must use `eq=1` when using `is_end_episode`.",
            ),
            (
                reverb.structured.ConditionProto(is_end_episode=True, ge=1),
                "Condition must use `eq=1` when using `is_end_episode`.",
            ),
            (
                reverb.structured.ConditionProto(is_end_episode=True, eq=1, inverse=True),
                "Condition must use `eq=1` when using `is_end_episode`.",
            ),
            (
                reverb.structured.ConditionProto(flat_source_index=-1, eq=0),
                "flat_source_index must be >= 0 but got -1.",
            ),
        ],
    )
    def test_a_condition_that_makes_no_sense_is_refused(self, client, condition, text):
        with pytest.raises(ValueError) as raised:
            client.structured_writer([config(condition)])
        assert str(raised.value) == f"Invalid configuration at position 0: {text}"

    def test_a_remainder_by_nothing_is_refused(self, client):
        module = submodule("cc.patterns_pb2")
        condition = module.Condition(step_index=True, mod_eq=module.Condition.ModuloEq(mod=0, eq=0))
        with pytest.raises(ValueError) as raised:
            client.structured_writer([config(condition)])
        assert str(raised.value) == (
            "Invalid configuration at position 0: `mod_eq.mod` must be > 0 but got 0."
        )

    def test_each_condition_is_checked(self, client):
        with pytest.raises(ValueError, match="position 1: Conditions must specify"):
            client.structured_writer(
                [
                    config(Condition.step_index() >= 0),
                    config(Condition.step_index() >= 0, reverb.structured.ConditionProto()),
                ]
            )
