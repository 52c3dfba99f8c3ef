"""Any loop over Gymnasium environments fills a table with exactly the steps that were made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import echoic
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
from echoic.collectors import VectorEnv
from echoic.errors import ArgumentError, ClosedError, DisconnectedError, SpecError
from echoic.integrations.gymnasium import RecordToTable, VectorRecordToTable
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset, PassiveEnvChecker
from polling import until

BOX = spaces.Box(-1e9, 1e9, (2,), np.float32)
KINDS = {
    "box": (BOX, spaces.Discrete(1000)),
    "image": (spaces.Box(0, 255, (3, 4, 1), np.uint8), spaces.Box(-1e9, 1e9, (), np.float32)),
    "discrete": (spaces.Discrete(1_000_000), spaces.MultiDiscrete([1000, 2])),
    "dict": (
        spaces.Dict({"a": BOX, "b": spaces.Tuple((spaces.Discrete(1_000_000), BOX))}),
        spaces.Dict({"x": BOX, "y": spaces.Discrete(1000)}),
    ),
    "tuple": (spaces.Tuple((BOX, spaces.MultiBinary(3))), spaces.Tuple((BOX,))),
}
MODES = list(AutoresetMode)


def fill(space, number, into=None):
    """A value of a space that says a number, in the arrays of an earlier one if there is one."""
    if isinstance(space, spaces.Dict):
        parts = into or dict.fromkeys(space)
        return {name: fill(part, number, parts[name]) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        parts = into or [None] * len(space)
        return tuple(fill(part, number, one) for part, one in zip(space, parts, strict=True))
    if isinstance(space, spaces.Discrete):
        return np.int64(number)
    into = np.zeros(space.shape, space.dtype) if into is None else into
    values = number // 2 ** np.arange(3) % 2 if isinstance(space, spaces.MultiBinary) else number
    if space.dtype == np.uint8:
        values = number % 256
    into[...] = values
    return into


def plain(tree):
    """A tree as nested tuples of numbers, which compare and sort."""
    if isinstance(tree, dict):
        return tuple((name, plain(tree[name])) for name in sorted(tree))
    if isinstance(tree, (tuple, list)):
        return tuple(plain(part) for part in tree)
    return tuple(np.asarray(tree, np.float64).ravel().tolist())


class Numbered(gymnasium.Env):
    """Episodes of random lengths, whose observations are numbers that never repeat.

    `made` has a plain copy of each step. With `reuses` all are written into the same arrays.
    """

    def __init__(self, kind="box", start=0, reuses=True):
        self.observation_space, self.action_space = KINDS[kind]
        self._reuses = reuses
        self._random = np.random.default_rng(start)
        self._number, self._obs = start * 1000, None
        self.made = []

    def _next(self):
        self._number += 1
        into = self._obs if self._reuses else None
        self._obs = fill(self.observation_space, self._number, into)
        return self._obs

    def reset(self, *, seed=None, options=None):
        self._left = int(self._random.integers(1, 6))
        return self._next(), {}

    def step(self, action):
        before, action = plain(self._obs), plain(action)
        self._left -= 1
        over = self._left == 0
        truncated = over and bool(self._random.integers(2))
        terminated = over and not truncated
        reward = float(self._number) / 4
        self.made.append(
            (before, action, (reward,), (terminated,), (truncated,), plain(self._next()))
        )
        return self._obs, reward, terminated, truncated, {"some": 1}


FIELDS = ("obs", "actions", "rewards", "terminated", "truncated", "next_obs")


def rows(data):
    """The transitions of a batch, each as the environment wrote it down."""
    count = len(data["rewards"])

    def row(tree, at):
        if isinstance(tree, dict):
            return {name: row(part, at) for name, part in tree.items()}
        return tuple(row(part, at) for part in tree) if isinstance(tree, tuple) else tree[at]

    return [tuple(plain(row(data[name], at)) for name in FIELDS) for at in range(count)]


def stored(table):
    """All transitions of a table."""
    return sorted(rows(table.get(table.items().keys).data))


def table_for(env, **settings):
    vector = isinstance(env, (gymnasium.vector.VectorEnv, gymnasium.vector.VectorWrapper))
    names = ("single_observation_space", "single_action_space")
    made = (getattr(env, name if vector else name.removeprefix("single_")) for name in names)
    return echoic.Table.from_spaces(*made, capacity=settings.pop("capacity", 10_000), **settings)


def play(env, steps, seed=0):
    """The loop of a user who uses the array of actions again."""
    random = np.random.default_rng(seed)
    env.reset()
    action = None
    for _ in range(steps):
        action = fill(env.action_space, int(random.integers(1000)), action)
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_has_exactly_the_steps_that_were_made(kind):
    env = Numbered(kind)
    table = table_for(env)
    recorded = RecordToTable(env, table)
    play(recorded, 200)
    recorded.close()
    assert len(env.made) == 200
    assert stored(table) == sorted(env.made)


@pytest.mark.parametrize("scheme", ["tcp", "shm", "sharded"])
def test_a_table_of_servers_has_them_when_the_environment_is_closed(scheme):
    envs = [Numbered(start=start) for start in (0, 1)]
    tables = [table_for(envs[0]) for _ in range(2)]
    listen = f"shm://record-{os.getpid()}" if scheme == "shm" else "tcp://127.0.0.1:0"
    with (
        echoic.Server(tables[0], listen=listen) as one,
        echoic.Server(tables[1], listen="tcp://127.0.0.1:0") as two,
    ):
        to = [one.address, two.address] if scheme == "sharded" else one.address
        for env in envs:
            recorded = RecordToTable(env, echoic.connect(to).table("replay"))
            play(recorded, 150)
            recorded.close()
        kept = stored(tables[0]) + (stored(tables[1]) if scheme == "sharded" else [])
        assert sorted(kept) == sorted(envs[0].made + envs[1].made)
        assert (len(tables[1]) > 0) == (scheme == "sharded")
        # After the end of its connection too.
        connection = echoic.connect(to)
        recorded = RecordToTable(envs[0], connection.table("replay"))
        play(recorded, 5)
        connection.close()
        recorded.close()


def act(envs, random):
    """A batch of random actions."""
    most = getattr(envs.single_action_space, "n", 1000)
    numbers = random.integers(most, size=envs.num_envs)
    values = [fill(envs.single_action_space, int(number)) for number in numbers]
    return gymnasium.vector.utils.concatenate(
        envs.single_action_space,
        values,
        gymnasium.vector.utils.create_empty_array(envs.single_action_space, envs.num_envs),
    )


def vector(mode, kind="box", count=3, **settings):
    """Environments, and the vector of them.

    With `SAME_STEP` Gymnasium itself loses the last observation of those that reuse their arrays.
    """
    reuses = mode != AutoresetMode.SAME_STEP
    single = [Numbered(kind, start, reuses) for start in range(count)]
    made = [lambda one=one: one for one in single]
    return single, SyncVectorEnv(made, autoreset_mode=mode, **settings)


def play_vector(envs, steps, mode, seed=0):
    """The loop of a user of a vector environment."""
    random = np.random.default_rng(seed)
    envs.reset()
    for _ in range(steps):
        _, _, terminated, truncated, _ = envs.step(act(envs, random))
        ended = terminated | truncated
        if mode == AutoresetMode.DISABLED and ended.any():
            envs.reset(options={"reset_mask": ended})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_vector_of_environments_gives_the_steps_of_each(mode, kind):
    single, envs = vector(mode, kind, copy=False)
    table = table_for(envs)
    recorded = VectorRecordToTable(envs, table)
    play_vector(recorded, 60, mode)
    made = sorted(step for one in single for step in one.made)
    # In the mode that resets in a step of its own, that step is not one of the environment.
    assert (len(made) < 180) == (mode == AutoresetMode.NEXT_STEP)
    assert stored(table) == made
    recorded.close()


@pytest.mark.parametrize("mode", MODES)
def test_processes_that_share_their_memory_give_what_one_process_gives(mode):
    def played(make):
        reuses = mode != AutoresetMode.SAME_STEP
        envs = make([lambda start=start: Numbered("box", start, reuses) for start in range(2)])
        table = table_for(envs)
        recorded = VectorRecordToTable(envs, table)
        play_vector(recorded, 40, mode)
        recorded.close()
        return stored(table)

    alone = played(lambda made: SyncVectorEnv(made, autoreset_mode=mode))
    assert len(alone) > 50
    assert played(lambda made: AsyncVectorEnv(made, copy=False, autoreset_mode=mode)) == alone


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("native", [False, True], ids=["gymnasium", "echoic"])
def test_transitions_of_cartpole_follow_from_each_other(mode, native):
    if native:
        envs = VectorEnv("CartPole-v1", 8, autoreset_mode=mode)
    else:
        settings = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": mode}}
        envs = gymnasium.make_vec("CartPole-v1", num_envs=8, **settings)
    table = table_for(envs)
    recorded = VectorRecordToTable(envs, table)
    play_vector(recorded, 120, mode)
    data = table.get(table.items().keys).data
    # The cart moves by its speed, which no first observation of another episode would do.
    moved = data["obs"][:, 0] + 0.02 * data["obs"][:, 1]
    np.testing.assert_allclose(data["next_obs"][:, 0], moved, atol=1e-5)
    fallen = np.abs(data["next_obs"][:, 2]) > 12 * 2 * np.pi / 360
    np.testing.assert_array_equal(data["terminated"], fallen)
    assert fallen.sum() > 20
    recorded.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_buffer_sums_no_rewards_over_an_end_or_a_reset(mode):
    single, envs = vector(mode)
    buffer = echoic.ReplayBuffer.from_spaces(*KINDS["box"], 10_000, n_step=3, gamma=1.0)
    recorded = VectorRecordToTable(envs, buffer)
    for seed in range(20):
        # Each begins anew in the middle of episodes.
        play_vector(recorded, 7, mode, seed)
    later = {step[0]: step for one in single for step in one.made}
    batch = buffer.sample(2000, seed=1)
    for obs, _, reward, terminated, truncated, after in rows(batch.data):
        total, at = 0.0, obs
        while at != after:
            _, _, (own,), ends, cuts, at = later[at]
            total += own
        assert (reward[0], terminated, truncated) == (pytest.approx(total), ends, cuts)


@pytest.mark.parametrize("next_obs", ["stored", "shared"])
@pytest.mark.parametrize("kind", ["box", "dict"])
def test_a_buffer_that_joins_nothing_has_the_steps_too(kind, next_obs):
    single, envs = vector(AutoresetMode.NEXT_STEP, kind)
    buffer = echoic.ReplayBuffer.from_spaces(*KINDS[kind], 10_000, next_obs=next_obs)
    one = Numbered(kind, 5)
    for seed in range(5):
        play_vector(VectorRecordToTable(envs, buffer), 7, AutoresetMode.NEXT_STEP, seed)
        play(RecordToTable(one, buffer), 7, seed)
    made = {step for env in (*single, one) for step in env.made}
    assert len(buffer) == len(made)
    assert set(rows(buffer.sample(5000, seed=1).data)) == made


def test_one_environment_in_a_buffer_that_is_reset_before_its_end():
    env = Numbered()
    buffer = echoic.ReplayBuffer.from_spaces(*KINDS["box"], 1000, n_step=2, gamma=1.0)
    recorded = RecordToTable(env, buffer)
    for _ in range(50):
        env._left = 6
        play(recorded, 3)
    joined = {(row[0], row[-1]) for row in rows(buffer.sample(2000, seed=1).data)}
    firsts = {step[0] for step in env.made}
    assert all(0 < after[0] - before[0] <= 2 for before, after in joined)
    assert {before for before, _ in joined} <= firsts


def test_the_step_with_which_a_wrapper_begins_an_episode_is_left_out():
    env = Numbered()
    table = table_for(env)
    recorded = RecordToTable(Autoreset(env), table)
    recorded.reset()
    for _ in range(100):
        recorded.step(1)
    assert 50 < len(env.made) < 100
    assert stored(table) == sorted(env.made)


def test_only_the_environments_of_a_mask_begin_anew():
    single, envs = vector(AutoresetMode.DISABLED)
    table = table_for(envs)
    recorded = VectorRecordToTable(envs, table)
    recorded.reset()
    for mask in ([True, False, False], [False, True, True]):
        for one in single:
            one._left = 6
        recorded.step(np.arange(3))
        recorded.reset(options={"reset_mask": np.array(mask)})
    assert stored(table) == sorted(step for one in single for step in one.made)
    recorded.close()


# It advises on the spaces of Gymnasium's own environments, and against wrappers.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasiums_own_checks_pass():
    for name in ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1"):
        env = gymnasium.make(name)
        table = table_for(env)
        recorded = RecordToTable(env, table)
        check_env(recorded, skip_render_check=True)
        assert len(table) > 0
        checked = PassiveEnvChecker(recorded)
        checked.reset(seed=1)
        checked.step(checked.action_space.sample())
        assert recorded.spec.id == name
        assert recorded.unwrapped is env.unwrapped


def test_numbers_are_converted_to_the_dtypes_of_the_spaces():
    class Loose(Numbered):
        def step(self, action):
            obs, *rest = super().step(action)
            return obs.astype(np.float64), np.float64(rest[0]), *map(np.bool_, rest[1:3]), {}

    env = Loose()
    table = table_for(env)
    recorded = RecordToTable(env, table)
    recorded.reset()
    env._left = 5
    for action in (3, np.int32(4), np.array(5)):
        recorded.step(action)
    assert [step[1] for step in stored(table)] == [(3.0,), (4.0,), (5.0,)]
    with pytest.raises(SpecError, match=r"`actions`: expected int64\[\], got float64"):
        recorded.step(0.5)
    recorded.step(6)
    assert len(table) == 4
    assert stored(table)[-1] == env.made[-1]


def test_a_step_waits_while_the_table_is_full_and_nothing_is_lost():
    env = Numbered()
    table = echoic.Table.from_spaces(
        *KINDS["box"], capacity=10, limiter=echoic.limiters.Queue(10), max_times_sampled=1,
        sampler=echoic.selectors.Fifo(),
    )  # fmt: skip
    with echoic.Server(table, listen="tcp://127.0.0.1:0") as server:
        connection = echoic.connect(server.address, window_bytes=1)
        recorded = RecordToTable(env, connection.table("replay"))
        done = threading.Event()

        def work():
            play(recorded, 100)
            recorded.close()
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        assert not done.wait(0.3)
        assert len(env.made) < 50
        assert len(table) == 10
        taken = [row for _ in range(100) for row in rows(table.sample(1, timeout=20.0).data)]
        thread.join(20)
        assert done.is_set()
        # In order, each once.
        assert taken == env.made
        connection.close()


WORKER = """
import sys, echoic
sys.path[:0] = sys.argv[2:]
from test_gymnasium import Numbered, play
from echoic.integrations.gymnasium import RecordToTable
env = RecordToTable(Numbered(start=7), echoic.connect(sys.argv[1]).table("replay"))
play(env, 10**9)
"""


def test_a_worker_that_is_killed_leaves_whole_steps_and_the_next_goes_on():
    table = echoic.Table.from_spaces(*KINDS["box"], capacity=1_000_000)
    with echoic.Server(table, listen="tcp://127.0.0.1:0") as server:
        here = Path(__file__).parent
        command = [sys.executable, "-c", WORKER, server.address, here, here.parent]
        worker = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            table.sample(1, timeout=60.0)
            until(lambda: len(table) >= 500 or worker.poll() is not None)
        finally:
            worker.send_signal(signal.SIGKILL)
            _, said = worker.communicate()
        assert worker.returncode == -signal.SIGKILL, said.decode()
        kept = stored(table)
        again = Numbered(start=7)
        play(again, len(kept))
        # The first so many steps, and no step twice.
        assert kept == sorted(again.made)
        env = Numbered(start=8)
        recorded = RecordToTable(env, echoic.connect(server.address).table("replay"))
        play(recorded, 20)
        recorded.close()
        assert len(table) == len(kept) + 20


def test_what_does_not_fit_is_said_where_it_is_seen():
    class Words(Numbered):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Dict({"text": spaces.Text(5)})

    with pytest.raises(SpecError, match="arrays or numbers, got Text"):
        RecordToTable(Words(), None)
    with pytest.raises(SpecError):
        echoic.Table.from_spaces(spaces.Text(5), spaces.Discrete(2), capacity=1)
    env = Numbered()
    example = {"obs": np.zeros(2, np.float32), "actions": 0}
    recorded = RecordToTable(env, echoic.Table("other", example, capacity=10))
    recorded.reset()
    with pytest.raises(SpecError, match="next_obs"):
        recorded.step(1)
    table = table_for(env)
    recorded = RecordToTable(env, table)
    recorded.reset()
    table.close()
    with pytest.raises(ClosedError):
        recorded.step(1)
    recorded.close()


@pytest.mark.parametrize("many", [False, True])
def test_closing_raises_if_the_server_stays_away_and_closes_the_environment(many):
    env = vector(AutoresetMode.NEXT_STEP)[1] if many else Numbered()
    closed = []
    env.close = lambda: closed.append(True)
    with echoic.Server(table_for(env), listen="tcp://127.0.0.1:0") as server:
        connection = echoic.connect(server.address, reconnect=0.5)
        recorded = (VectorRecordToTable if many else RecordToTable)(env, connection.table("replay"))
        recorded.reset()
    recorded.step(np.zeros(3, np.int64) if many else 0)
    with pytest.raises(DisconnectedError):
        recorded.close()
    assert closed
    # The step was not sent.
    with pytest.raises(DisconnectedError):
        connection.close()


def test_a_vector_must_say_when_its_episodes_begin():
    envs = SyncVectorEnv([Numbered] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.metadata = {"autoreset_mode": "SameStep"}
    with pytest.raises(ArgumentError, match=r"an AutoresetMode in .* got 'SameStep'"):
        VectorRecordToTable(envs, table_for(envs))
    envs.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    class Forgets(gymnasium.vector.VectorWrapper):
        def step(self, actions):
            return *super().step(actions)[:4], {}

    recorded = VectorRecordToTable(Forgets(envs), table_for(envs))
    recorded.reset()
    with pytest.raises(ArgumentError, match=r"environment 0 in infos\['final_obs'\]"):
        play_vector(recorded, 10, AutoresetMode.SAME_STEP)


def test_tables_and_buffers_have_one_form_of_a_transition():
    table = echoic.Table.from_spaces(
        *KINDS["dict"], capacity=7, name="mine", sampler=echoic.selectors.Prioritized(0.6), seed=3
    )
    assert (table.name, table.capacity, table.stats().seed) == ("mine", 7, 3)
    found = {leaf.path: (leaf.dtype, leaf.shape) for leaf in table.spec.leaves}
    assert found["rewards"] == ("float32", ())
    assert found["obs/b/1"] == found["next_obs/b/1"] == ("float32", (2,))
    buffer = echoic.ReplayBuffer.from_spaces(*KINDS["dict"], 7)
    assert {path: (kind, tuple(shape)) for path, kind, shape in buffer._leaves()} == found
