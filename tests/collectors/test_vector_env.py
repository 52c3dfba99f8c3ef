"""The native environments against Gymnasium's, step by step, in all modes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from echoic.collectors import VectorEnv
from echoic.errors import ClosedError, SpecError

gymnasium = pytest.importorskip("gymnasium")

IDS = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Acrobot-v1"]
MODES = list(gymnasium.vector.AutoresetMode)
COUNT = 4


def peers(env_id: str, mode: Any, count: int = COUNT) -> Any:
    make = [lambda: gymnasium.make(env_id, disable_env_checker=True)] * count
    return gymnasium.vector.SyncVectorEnv(make, autoreset_mode=mode)


def states(peer: Any) -> np.ndarray:
    return np.array([env.unwrapped.state for env in peer.envs], np.float64)


def skilled(env_id: str, observation: np.ndarray) -> Any:
    """Choose an action that keeps the pole up, or gets the car and the links to their goals."""
    match env_id:
        case "CartPole-v1":
            return int(observation @ [0.1, 0.3, 1.0, 1.0] > 0)
        case "MountainCar-v0":
            return 2 * int(observation[1] >= 0)
        case "Acrobot-v1":
            return 2 * int(observation[5] > 0)
        case _:
            return [np.clip(-observation[2], -2, 2)]


def lockstep(env_id: str, mode: Any, steps: int) -> dict[str, int]:
    """Step both with the same actions and compare all they say; how often episodes ended."""
    rng = np.random.default_rng(5)
    peer, ours = peers(env_id, mode), VectorEnv(env_id, COUNT, autoreset_mode=mode)
    peer.action_space.seed(5)
    seen, _ = peer.reset(seed=5)
    got, _ = ours.reset(options={"state": states(peer)})
    # Acrobot's peer tells its first observation in single precision.
    np.testing.assert_allclose(got, seen, rtol=1e-5, atol=1e-6)
    ended = np.zeros(COUNT, bool)
    counts = {"terminated": 0, "truncated": 0}
    for _ in range(steps):
        actions = peer.action_space.sample()
        # Two know what they do, and one of them not always.
        for env in range(2):
            if env == 0 or rng.random() < 0.7:
                actions[env] = skilled(env_id, seen[env])
        seen, *results, infos = peer.step(actions)
        got, *our_results, our_infos = ours.step(actions)
        began = {"NextStep": ended, "Disabled": np.zeros(COUNT, bool)}.get(mode.value)
        ended = results[1] | results[2]
        began = ended if began is None else began
        np.testing.assert_allclose(got[~began], seen[~began], rtol=1e-5, atol=1e-6)
        for result, our_result in zip(results, our_results, strict=True):
            assert our_result.dtype == result.dtype
            np.testing.assert_allclose(our_result, result, rtol=1e-6, atol=1e-9)
        same_infos(our_infos, infos)
        counts["terminated"] += int(results[1].sum())
        counts["truncated"] += int(results[2].sum())
        if mode.value == "Disabled" and ended.any():
            seen, _ = peer.reset(options={"reset_mask": ended})
            options = {"reset_mask": ended, "state": states(peer)}
            got, _ = ours.reset(options=options)
            np.testing.assert_allclose(got, seen, rtol=1e-5, atol=1e-6)
        elif began.any():
            ours.reset(options={"reset_mask": began, "state": states(peer)})
    return counts


def same_infos(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        if key == "final_obs":
            for got, expected in zip(ours[key], value, strict=True):
                assert (got is None) == (expected is None)
                if got is not None:
                    assert got.dtype == expected.dtype
                    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        elif isinstance(value, dict):
            assert ours[key] == value
        else:
            np.testing.assert_array_equal(ours[key], value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", IDS)
def test_long_rollouts_agree_with_gymnasium(env_id: str, mode: Any) -> None:
    counts = lockstep(env_id, mode, 700)
    assert counts["truncated"] > 0
    assert (counts["terminated"] > 0) == (env_id != "Pendulum-v1")


@pytest.mark.parametrize("env_id", IDS)
def test_spaces_and_limits_are_gymnasiums(env_id: str) -> None:
    peer, ours = peers(env_id, MODES[0]), VectorEnv(env_id, COUNT)
    for name in (
        "single_observation_space",
        "observation_space",
        "single_action_space",
        "action_space",
    ):
        assert getattr(ours, name) == getattr(peer, name), name
    assert ours.max_episode_steps == gymnasium.spec(env_id).max_episode_steps
    assert ours.metadata["autoreset_mode"] is MODES[0]
    assert isinstance(ours, gymnasium.vector.VectorEnv)
    observations, _ = ours.reset(seed=1)
    assert ours.observation_space.contains(observations)


@pytest.mark.parametrize("env_id", IDS)
def test_starts_are_in_gymnasiums_ranges_and_reach_their_ends(env_id: str) -> None:
    count = 2000
    ours = VectorEnv(env_id, count)
    ours.reset(seed=0)
    peer = np.concatenate([states_after_reset(env_id, seed) for seed in range(300)])
    low, high = ours.state.min(0), ours.state.max(0)
    spread = high - low
    # 300 even draws leave out more than a twentieth at either end once in a million times.
    np.testing.assert_array_less(np.abs(peer.min(0) - low), 0.05 * spread + 1e-9)
    np.testing.assert_array_less(np.abs(peer.max(0) - high), 0.05 * spread + 1e-9)


def states_after_reset(env_id: str, seed: int) -> np.ndarray:
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=seed)
    return np.array([env.state], np.float64)


def test_options_move_the_range_of_starts() -> None:
    cart = VectorEnv("CartPole-v1", 50)
    cart.reset(seed=1, options={"low": 0.1, "high": 0.2})
    assert (cart.state >= 0.1).all()
    assert (cart.state < 0.2).all()
    car = VectorEnv("MountainCar-v0", 50)
    car.reset(seed=1, options={"low": -0.45})
    assert (car.state[:, 0] >= -0.45).all()
    assert (car.state[:, 1] == 0).all()
    pendulum = VectorEnv("Pendulum-v1", 50)
    pendulum.reset(seed=1, options={"x_init": 0.5})
    assert np.abs(pendulum.state[:, 0]).max() < 0.5 < np.abs(pendulum.state[:, 1]).max()
    for options in ({"low": 1.0}, {"low": "wide"}, {"low": float("nan")}):
        with pytest.raises(SpecError):
            cart.reset(options=options)


def test_a_seed_tells_the_starts_and_no_seed_tells_others() -> None:
    envs = [VectorEnv("CartPole-v1", 3) for _ in range(4)]
    one, other, listed, random = (
        env.reset(seed=seed)[0] for env, seed in zip(envs, [7, 7, [7, 8, 9], None], strict=True)
    )
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, listed)
    assert not np.array_equal(one, random)
    assert len(np.unique(one[:, 0])) == 3
    # Streams go on where they are.
    again = envs[0].reset()[0]
    assert not np.array_equal(again, one)
    np.testing.assert_array_equal(again, envs[1].reset()[0])


def test_a_seed_reaches_only_those_that_begin_and_nothing_when_an_option_is_wrong() -> None:
    envs, others = VectorEnv("CartPole-v1", 2), VectorEnv("CartPole-v1", 2)
    envs.reset(seed=1)
    others.reset(seed=1)
    with pytest.raises(SpecError):
        envs.reset(seed=5, options={"low": 2.0, "high": 1.0})
    with pytest.raises(SpecError):
        envs.reset(seed=5, options={"state": np.full((2, 4), np.nan)})
    envs.reset(seed=5, options={"reset_mask": np.array([True, False])})
    np.testing.assert_array_equal(envs.reset()[0][1], others.reset()[0][1])
    assert not np.array_equal(envs.state[0], others.state[0])


def test_a_torque_beyond_single_precision_is_the_bound() -> None:
    envs, others = VectorEnv("Pendulum-v1", 1), VectorEnv("Pendulum-v1", 1)
    envs.reset(seed=1)
    others.reset(seed=1)
    np.testing.assert_array_equal(envs.step([[1e300]])[0], others.step([[2]])[0])


def test_a_seed_gives_these_starts_in_every_release() -> None:
    env = VectorEnv("CartPole-v1", 2)
    env.reset(seed=42)
    state = 42
    expected = np.array([starts(state), starts(state + 1)])
    np.testing.assert_array_equal(env.state, expected)


def starts(seed: int) -> list[float]:
    """Return what the documented generator makes of a seed, written a second time."""
    mask = 2**64 - 1
    words = []
    for _ in range(4):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        mixed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 & mask
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & mask
        words.append(mixed ^ (mixed >> 31))
    numbers = []
    for _ in range(4):
        total = (words[0] + words[3]) & mask
        result = ((total << 23 | total >> 41) + words[0]) & mask
        shifted = words[1] << 17 & mask
        words[2] ^= words[0]
        words[3] ^= words[1]
        words[1] ^= words[2]
        words[0] ^= words[3]
        words[2] ^= shifted
        words[3] = (words[3] << 45 | words[3] >> 19) & mask
        numbers.append(-0.05 + 0.1 * ((result >> 11) / 2**53))
    return numbers


@pytest.mark.parametrize(
    ("env_id", "actions"),
    [
        ("CartPole-v1", [0, 2]),
        ("CartPole-v1", [0, -1]),
        ("CartPole-v1", [0.0, 1.0]),
        ("CartPole-v1", [0]),
        ("CartPole-v1", [[0], [1]]),
        ("CartPole-v1", None),
        ("CartPole-v1", np.array([0, 2**64 - 1], np.uint64)),
        ("Pendulum-v1", [[0.0], [float("nan")]]),
        ("Pendulum-v1", [0.0, 0.0]),
        ("Pendulum-v1", [[0.0, 0.0], [0.0, 0.0]]),
        ("Pendulum-v1", [["left"], ["right"]]),
    ],
)
def test_a_wrong_action_steps_no_environment(env_id: str, actions: Any) -> None:
    envs = VectorEnv(env_id, 2)
    envs.reset(seed=0)
    before = envs.state
    with pytest.raises(SpecError, match="action"):
        envs.step(actions)
    np.testing.assert_array_equal(envs.state, before)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_actions_may_be_integers_of_any_kind(dtype: Any) -> None:
    envs, others = VectorEnv("CartPole-v1", 3), VectorEnv("CartPole-v1", 3)
    envs.reset(seed=0)
    others.reset(seed=0)
    wide = np.array([1, 9, 0, 9, 1, 9], dtype)[::2]
    np.testing.assert_array_equal(envs.step(wide)[0], others.step([1, 0, 1])[0])


def test_an_environment_that_ended_needs_a_reset_when_that_is_left_to_the_caller() -> None:
    envs = VectorEnv("CartPole-v1", 2, autoreset_mode="Disabled", max_episode_steps=1)
    with pytest.raises(ClosedError, match=r"environment 0 .* reset"):
        envs.step([0, 0])
    envs.reset(seed=0)
    assert envs.step([0, 0])[3].all()
    with pytest.raises(ClosedError, match=r"environment 0 .* reset"):
        envs.step([0, 0])
    envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ClosedError, match=r"environment 1 .* reset"):
        envs.step([0, 0])


def test_arguments_that_do_not_fit_are_refused_with_their_values() -> None:
    with pytest.raises(SpecError, match=r"`Pong`.*CartPole-v1"):
        VectorEnv("Pong")
    with pytest.raises(SpecError, match=r"num_envs.*0"):
        VectorEnv("CartPole-v1", 0)
    with pytest.raises(SpecError, match=r"num_envs.*-1"):
        VectorEnv("CartPole-v1", -1)
    with pytest.raises(SpecError, match=r"`Sometimes`"):
        VectorEnv("CartPole-v1", autoreset_mode="Sometimes")
    with pytest.raises(SpecError, match=r"max_episode_steps.*0"):
        VectorEnv("CartPole-v1", max_episode_steps=0)
    envs = VectorEnv("CartPole-v1", 2)
    with pytest.raises(SpecError, match="2 seeds, got 3"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(SpecError, match="-1"):
        envs.reset(seed=-1)
    for mask in ([True], np.array([1, 0]), np.zeros(2, bool)):
        with pytest.raises(SpecError, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})
    for state in (np.zeros((2, 3)), np.full((2, 4), np.inf)):
        with pytest.raises(SpecError, match="state"):
            envs.reset(options={"state": state})


def test_closed_environments_are_closed() -> None:
    envs = VectorEnv("CartPole-v1", 2)
    envs.reset(seed=0)
    with envs:
        pass
    envs.close()
    assert envs.closed
    for call in (envs.reset, lambda: envs.step([0, 0])):
        with pytest.raises(ClosedError):
            call()


def test_gymnasiums_wrappers_work_on_it() -> None:
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(VectorEnv("CartPole-v1", 4))
    envs.reset(seed=3)
    lengths = []
    for _ in range(200):
        *_, infos = envs.step(envs.action_space.sample())
        if "episode" in infos:
            lengths.extend(infos["episode"]["l"][infos["_episode"]])
    assert lengths
    assert min(lengths) >= 8


def test_many_environments_give_what_few_give() -> None:
    few, many = VectorEnv("Acrobot-v1", 3), VectorEnv("Acrobot-v1", 200)
    few.reset(seed=0)
    many.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(50):
        actions = rng.integers(0, 3, 200)
        np.testing.assert_array_equal(few.step(actions[:3])[0], many.step(actions)[0][:3])


def test_results_are_the_callers() -> None:
    envs = VectorEnv("CartPole-v1", 2)
    first, _ = envs.reset(seed=0)
    kept = first.copy()
    second = envs.step([0, 1])[0]
    second[:] = 9
    assert not (envs.step([0, 1])[0] == 9).any()
    np.testing.assert_array_equal(first, kept)


def test_the_class_can_be_named_by_its_module() -> None:
    assert pickle.loads(pickle.dumps(VectorEnv)) is VectorEnv


def test_importing_collectors_imports_no_gymnasium(run_script: Any) -> None:
    done = run_script(
        "import sys, echoic.collectors\n"
        "print('gymnasium' in sys.modules, hasattr(echoic.collectors, 'Pong'))\n"
        "from echoic.collectors import VectorEnv\n"
        "print('gymnasium' in sys.modules)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False False\nTrue\n", "")


def test_without_gymnasium_it_steps_all_the_same(run_script: Any) -> None:
    done = run_script(
        "import sys\n"
        "sys.modules['gymnasium'] = None\n"
        "from echoic.collectors import VectorEnv\n"
        "envs = VectorEnv('Pendulum-v1', 2, autoreset_mode='SameStep')\n"
        "envs.reset(seed=1)\n"
        "print(envs.step([[0.5], [-0.5]])[0].shape, envs.metadata['autoreset_mode'])\n"
        "envs.close()\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(2, 3) SameStep\n", "")
