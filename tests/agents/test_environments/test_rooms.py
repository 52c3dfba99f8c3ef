"""Worlds of rooms: always solvable, not by chance, and the same by seed."""

import pytest
from conformance import (
    cannot_be_farmed,
    index_is_command,
    is_deterministic,
    is_gymnasium,
    is_hard_for_chance,
    is_patient,
    is_solved,
)
from echoic.agents.environments import RoomsConfig, RoomsEnvironment, base
from echoic.errors import ArgumentError


def make(**settings):
    return RoomsEnvironment(RoomsConfig(**settings))


def test_it_conforms():
    is_gymnasium(make)
    is_solved(make, range(20))
    is_hard_for_chance(make, range(20))
    is_deterministic(make)
    is_patient(make)
    cannot_be_farmed(make, range(5), most=1.0)
    index_is_command(make)


@pytest.mark.parametrize(
    "sizes", [(2, 0, 0), (2, 1, 4), (4, 3, 1), (16, 3, 4)], ids=lambda s: "-".join(map(str, s))
)
def test_worlds_of_every_size_are_solvable(sizes):
    rooms, doors, containers = sizes
    is_solved(
        lambda: make(num_rooms=rooms, locked_doors=doors, containers=containers), range(15), 90
    )


def test_the_score_is_the_share_of_what_is_reached():
    environment = make(locked_doors=3)
    environment.reset(seed=2)
    rewards, scores, ended = [], [0.0], False
    while not ended:
        _, reward, ended, _, info = environment.step(environment.expert())
        rewards.append(reward)
        scores.append(info["score"])
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
    assert sorted(set(scores)) == [number / 8 for number in range(9)]


def test_the_mask_tells_what_does_something():
    environment = make()
    _, info = environment.reset(seed=4)
    commands = info["commands"]
    for index, command in enumerate(commands):
        mask = environment.reset(seed=4)[1]["command_mask"]
        assert environment.step(command)[-1]["valid"] == mask[index]
        assert environment.reset(seed=9)[1]["commands"] == commands


def test_what_is_in_a_closed_container_is_not_seen():
    environment = make(num_rooms=2, locked_doors=0, containers=4)
    for seed in range(20):
        text = environment.reset(seed=seed)[0]["text"]
        assert "a trophy" not in text or "On the floor: a trophy" in text


def test_settings_are_checked():
    for settings, message in (
        ({"num_rooms": 17}, "num_rooms must be from 2 to 16, not 17"),
        ({"containers": 5}, "containers must be from 0 to 4, not 5"),
        ({"num_rooms": 2, "locked_doors": 2}, "2 rooms have 1 doors, fewer than the 2"),
    ):
        with pytest.raises(ArgumentError, match=message):
            RoomsConfig(**settings)


def test_vectors_are_remembered_once_for_all_environments():
    few, more = (RoomsEnvironment(RoomsConfig(num_rooms=3, state_encoding_dim=d)) for d in (64, 96))
    for environment in (few, more):
        environment.reset(seed=0)
    before = base._kept.cache_info()
    for other in (64, 96):
        one = RoomsEnvironment(RoomsConfig(num_rooms=3, state_encoding_dim=other))
        one.reset(seed=0)[0]["vector"][:] = 7
        assert (one.reset(seed=0)[0]["vector"] != 7).all()
    after = base._kept.cache_info()
    assert after.misses == before.misses
    assert after.hits > before.hits
    assert after.maxsize is not None
