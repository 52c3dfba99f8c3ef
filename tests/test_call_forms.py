"""Every local buffer, collector and primitive in the call form that programs for rlox have.

What they compute is tested elsewhere; here it is that such a program runs once its import is
changed, and gets the keys, shapes and dtypes that it counts on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from echoic import rlox
from polling import until

if TYPE_CHECKING:
    from pathlib import Path

KEYS = ("obs", "actions", "rewards", "terminated", "truncated", "next_obs")


def shapes(batch: object) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(values) for name, values in dict(batch).items()}  # type: ignore[call-overload]


def of(obs: int, act: int, *rows: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a batch of transitions."""
    single = dict.fromkeys(KEYS, rows)
    actions = rows if act == 1 and len(rows) == 1 else (*rows, act)
    return single | {"obs": (*rows, obs), "next_obs": (*rows, obs), "actions": actions}


def test_replay_buffers() -> None:
    obs, action = np.ones(4, np.float32), np.zeros(1, np.float32)
    transition = (obs, action, 1.0, False, False, obs + 1)

    buf = rlox.ReplayBuffer(capacity=100_000, obs_dim=4, act_dim=1)
    buf.push(*transition)
    assert shapes(buf.sample(batch_size=256, seed=42)) == of(4, 1, 256)
    assert len(buf) == 1

    pbuf = rlox.PrioritizedReplayBuffer(capacity=100_000, obs_dim=4, act_dim=1, alpha=0.6, beta=0.4)
    pbuf.push(*transition, priority=1.0)
    batch = pbuf.sample(batch_size=256, seed=42)
    assert shapes(batch) == of(4, 1, 256) | {"weights": (256,), "indices": (256,)}
    pbuf.update_priorities(indices=batch["indices"], priorities=np.linspace(0, 1, 256))
    pbuf.set_beta(0.7)
    assert {name: batch[name].dtype.str for name in ("terminated", "weights", "indices")} == {
        "terminated": "|u1",
        "weights": "<f4",
        "indices": "<u8",
    }


def test_a_missing_next_observation_is_zeros(tmp_path: Path) -> None:
    obs, action = np.ones(4, np.float32), np.zeros(1, np.float32)
    for buf in (
        rlox.ReplayBuffer(10, 4, 1),
        rlox.PrioritizedReplayBuffer(10, 4, 1),
        rlox.MmapReplayBuffer(4, 10, 4, 1, str(tmp_path / "cold.bin")),
    ):
        buf.push(obs=obs, action=action, reward=1.0, terminated=True, truncated=False)
        batch = buf.sample(2, 1)
        assert (batch["next_obs"].tolist(), batch["terminated"].tolist()) == ([[0] * 4] * 2, [1, 1])


def test_errors_have_the_classes_of_rlox(tmp_path: Path) -> None:
    obs, action = np.ones(4, np.float32), np.zeros(1, np.float32)
    mapped = rlox.MmapReplayBuffer(4, 10, 4, 1, str(tmp_path / "cold.bin"))
    prioritized, table = rlox.PrioritizedReplayBuffer(10, 4, 1), rlox.ExperienceTable(4, 1)
    for buf in (rlox.ReplayBuffer(10, 4, 1), prioritized, mapped, table):
        for wrong in ((obs[:3], action), (obs, np.zeros(2, np.float32))):
            with pytest.raises(RuntimeError, match="expected"):
                buf.push(*wrong, 1.0, False, False, obs)
        with pytest.raises(RuntimeError, match="next_obs"):
            buf.push(obs, action, 1.0, False, False, obs[:2])
        assert len(buf) == 0
        if buf is not table:
            with pytest.raises(RuntimeError, match="empty"):
                buf.sample(1, 1)
    with pytest.raises(RuntimeError, match="priority"):
        prioritized.push(obs, action, 1.0, False, False, obs, -1.0)
    with pytest.raises(RuntimeError, match="index 9"):
        prioritized.update_priorities(np.array([9], np.uint64), np.ones(1))
    flags = np.zeros(3, np.uint8)
    with pytest.raises(RuntimeError, match="reshape"):
        mapped.push_batch(np.ones(11), np.ones(12), np.ones(3), np.ones(3), flags, flags)
    with pytest.raises(RuntimeError, match="`terminated`"):
        rlox.OfflineDatasetBuffer(obs, obs, obs, obs, flags, flags)
    with pytest.raises(RuntimeError, match="shape"):
        rlox.compute_vtrace(obs, obs[:2], obs, obs, 0.0, 0.9)
    with pytest.raises(RuntimeError, match="3 tokens"):
        rlox.pack_sequences([np.arange(3, dtype=np.uint32)], max_length=2)
    with pytest.raises(ValueError, match="group_size"):
        rlox.compute_batch_group_advantages(rewards=obs, group_size=3)
    with pytest.raises(AttributeError, match="no 'Trainer'"):
        rlox.Trainer


def test_columns_and_batches() -> None:
    buf = rlox.ReplayBuffer(8, 2, 2)
    rows = np.arange(6, dtype=np.float32)
    columns = (rows.repeat(2), rows.repeat(2) + 1, rows.repeat(2), rows, rows == 5, np.zeros(6))
    buf.push_batch(*columns)
    log_prob = buf.register_column("log_prob", 1)
    vector = buf.register_column("vector", 2)
    for number in range(6, 12):
        obs = np.full(2, number, np.float32)
        buf.push(obs, obs, float(number), False, False, obs + 1)
        buf.push_extra(log_prob, np.full(1, number, np.float32))
        buf.push_extra(vector, obs)
    buf.push_batch(*(column[-len(column) // 6 :] for column in columns))
    # What was pushed in another way has zeros: the newest, and the oldest that are left.
    for batch in (buf.sample(64, 1), buf.sample_recent(64, 7, 1)):
        own = batch["rewards"] > 5
        assert own.any()
        np.testing.assert_array_equal(batch["log_prob"], np.where(own, batch["rewards"], 0))
        np.testing.assert_array_equal(batch["vector"], batch["obs"] * own[:, None])
        np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 1)
    assert set(buf.sample_recent(64, 3)["rewards"]) == {5, 10, 11}
    mixed = rlox.py_sample_mixed(buf, rlox.ReplayBuffer(1, 2, 2), 1.0, 4, 7)
    assert mixed["vector"].shape == (4, 2)


def test_sequences_and_hindsight() -> None:
    buf = rlox.SequenceReplayBuffer(100, 2, 1)
    # Goals: the first number is what was reached, the second what was wanted.
    her = rlox.HERBuffer(100, 2, 1, 1, 0, 1, strategy="final")
    for episode, length in enumerate((3, 5, 2)):
        for step in range(length):
            obs = np.array([10 * episode + step, -1], np.float32)
            last = step == length - 1
            for one in (buf, her):
                one.push(obs, obs + np.float32([1, 0]), obs[:1], float(step), last, False)
    assert buf.num_complete_episodes() == her.num_complete_episodes() == 3
    batch = buf.sample_sequences(16, 4, seed=1)
    assert shapes(batch) == of(2, 1, 16, 4)
    assert set(batch["obs"][:, 0, 0]) == {10, 11}
    assert (np.diff(batch["rewards"]) == 1).all()
    with pytest.raises(RuntimeError, match="6 steps"):
        buf.sample_sequences(16, 6, seed=1)
    batch = her.sample(200, her_ratio=0.5, seed=1)
    wanted, reached = batch["next_obs"][:, 1], batch["next_obs"][:, 0]
    assert set(wanted) == {-1, 3, 15, 22}
    relabeled = wanted != -1
    np.testing.assert_array_equal(
        batch["rewards"][relabeled], np.where(reached == wanted, 0, -1)[relabeled]
    )
    assert (batch["rewards"][~relabeled] >= 0).all()
    with pytest.raises(ValueError, match="strategy"):
        rlox.HERBuffer(10, 2, 1, 1, 0, 1, strategy="past")


def test_plain_stores() -> None:
    table = rlox.ExperienceTable(obs_dim=2, act_dim=1)
    for number in range(3):
        obs = np.full(2, number, np.float32)
        table.push(obs, np.zeros(1, np.float32), number, False, False)
    obs[:] = 9
    assert table.observations().tolist() == [[0, 0], [1, 1], [2, 2]]
    assert (table.rewards().tolist(), table.rewards().dtype, len(table)) == ([0, 1, 2], "f4", 3)
    table.clear()
    assert (table.observations().shape, len(table)) == ((0, 2), 0)
    store = rlox.VarLenStore()
    for length in (3, 1):
        store.push(np.arange(length, dtype=np.uint32))
    assert (store.num_sequences(), store.total_elements()) == (2, 4)
    assert (store.get(0).tolist(), store.get(0).dtype) == ([0, 1, 2], "u4")
    with pytest.raises(RuntimeError, match="no sequence 2"):
        store.get(2)
    pair = rlox.DPOPair(prompt_tokens=[1], chosen_tokens=[2, 3], rejected_tokens=[4, 5, 6])
    assert (pair.chosen_len(), pair.rejected_len()) == (2, 3)


def test_mapped_buffer(tmp_path: Path) -> None:
    buf = rlox.MmapReplayBuffer(
        hot_capacity=4, total_capacity=1_000, obs_dim=8, act_dim=1, cold_path=tmp_path / "cold.bin"
    )
    for number in range(10):
        obs = np.full(8, number, np.float32)
        buf.push(obs, np.zeros(1, np.float32), float(number), False, False, obs + 1)
    assert shapes(buf.sample(32)) == of(8, 1, 32)
    buf.close()
    assert not list(tmp_path.iterdir()), "closing cleans up"


def test_offline_buffer() -> None:
    count = 1000
    obs = np.arange(count * 3, dtype=np.float32)
    ends = np.arange(count) % 50 == 49
    buf = rlox.OfflineDatasetBuffer(
        obs,
        obs + 1,
        np.ones(count * 2, np.float32),
        np.ones(count, np.float32),
        ends,
        np.zeros(count, bool),
        normalize=True,
    )
    batch = buf.sample(batch_size=256, seed=42)
    steps = of(3, 2, 256)
    del steps["truncated"]
    assert (shapes(batch), batch["terminated"].dtype) == (steps, "f4")
    batch = buf.sample_trajectories(batch_size=8, seq_len=20, seed=42)
    single = dict.fromkeys(("rewards", "returns_to_go", "timesteps", "mask"), (8, 20))
    assert shapes(batch) == single | {"obs": (8, 20, 3), "actions": (8, 20, 2)}
    assert (batch["timesteps"].dtype, batch["mask"].dtype) == ("u4", "u1")
    assert buf.n_episodes() == 20
    assert buf.stats()


def test_collector() -> None:
    collector = rlox.CandleCollector(
        "CartPole-v1", n_envs=4, obs_dim=4, n_actions=2, n_steps=32, lr=1e-3, gae_lambda=0.9, seed=4
    )
    try:
        batch = collector.recv()
        rows = 4 * 32
        sizes = {"obs_dim": 4, "act_dim": 1, "n_steps": 32, "n_envs": 4}
        assert batch.items() >= sizes.items()
        for name in ("rewards", "dones", "log_probs", "values", "advantages", "returns"):
            assert (batch[name].shape, batch[name].dtype) == ((rows,), "f8"), name
        assert (batch["actions"].shape, batch["actions"].dtype) == ((rows,), "f4")
        assert (batch["observations"].shape, batch["observations"].dtype) == ((rows * 4,), "f4")
        until(lambda: len(collector) >= 2)
        second = collector.recv()["observations"].reshape(32, 4, 4)
        # Step after step of all environments: none moves far in one.
        assert np.abs(np.diff(second[:8], axis=0)[..., 0]).max() < 0.2
        weights = collector.get_weights()
        collector.sync_weights(weights=weights)
        with pytest.raises(RuntimeError, match="weights"):
            collector.sync_weights(weights[1:])
    finally:
        collector.stop()


def test_advantages() -> None:
    steps, envs = 64, 4
    rng = np.random.default_rng(0)
    rewards, values, dones = rng.random(steps), rng.random(steps), np.zeros(steps)
    rest = (0.99, 0.95)
    advantages, returns = rlox.compute_gae(rewards, values, dones, 0.5, *rest)
    np.testing.assert_allclose(returns, advantages + values)
    flat = [np.tile(array, envs) for array in (rewards, values, dones)]
    last = np.full(envs, 0.5)
    names = ("rewards", "values", "dones", "last_values")
    named = dict(zip(names, [*flat, last], strict=True))
    batched, _ = rlox.compute_gae_batched(**named, n_steps=steps, gamma=0.99, lam=0.95)
    np.testing.assert_allclose(batched, np.tile(advantages, envs))
    singles = [array.astype(np.float32) for array in (*flat, last)]
    single, _ = rlox.compute_gae_batched_f32(*singles, steps, *rest)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, batched, rtol=1e-4)
    targets, _ = rlox.compute_vtrace(np.zeros(steps), rewards, values, dones, 0.5, 0.99, 1.0, 1.0)
    assert targets.shape == (steps,)


def test_language() -> None:
    rng = np.random.default_rng(0)
    advantages = rlox.compute_batch_group_advantages(rng.random(12), 4)
    np.testing.assert_allclose(advantages.reshape(3, 4).mean(1), 0, atol=1e-12)
    log_p, log_q = -rng.random(24), -rng.random(24)
    logs = {"log_probs_policy": log_p, "log_probs_ref": log_q}
    terms = np.exp(log_p) * (log_p - log_q)
    np.testing.assert_allclose(rlox.compute_token_kl(**logs), terms.sum())
    rows = terms.reshape(3, 8).sum(1)
    np.testing.assert_allclose(rlox.compute_batch_token_kl(**logs, seq_len=8), rows)
    singles = {name: values.astype(np.float32) for name, values in logs.items()}
    found = rlox.compute_batch_token_kl_f32(**singles, seq_len=8)
    assert found.dtype == "f4"
    np.testing.assert_allclose(found, rows, rtol=1e-5)


def test_packing() -> None:
    sequences = [np.arange(length, dtype=np.uint32) + 10 for length in (3, 5, 2, 4)]
    first, second = rlox.pack_sequences(sequences=sequences, max_length=8)
    assert {name: values.tolist() for name, values in first.items()} == {
        "input_ids": [10, 11, 12, 13, 14, 10, 11, 12],
        "attention_mask": [1] * 8,
        "position_ids": [0, 1, 2, 3, 4, 0, 1, 2],
        "sequence_starts": [0, 5],
    }
    assert (second["input_ids"].dtype, second["sequence_starts"].tolist()) == ("u4", [0, 4])
    # Lengths, as on rlox's page.
    packed, masks, positions = rlox.pack_sequences([3, 5, 2, 4], 8)
    assert len(packed) == len(masks) == len(positions) == 2


def test_schulmans_estimator_has_our_sign_unless_rloxs_is_wanted() -> None:
    log_p, log_q = -np.random.default_rng(0).random((2, 24))
    d = log_q - log_p
    names = ("compute_token_kl_schulman", "compute_batch_token_kl_schulman")
    try:
        for use, formula in ((False, np.exp(d) - 1 - d), (True, np.exp(-d) - 1 + d)):
            rlox.use_rlox_k3(use)
            rows = formula.reshape(3, 8).sum(1)
            for suffix, tolerance in (("", 1e-12), ("_f32", 1e-4)):
                one, batch = (getattr(rlox, name + suffix) for name in names)
                np.testing.assert_allclose(one(log_p, log_q), rows.sum(), rtol=tolerance)
                np.testing.assert_allclose(batch(log_p, log_q, 8), rows, rtol=tolerance)
    finally:
        rlox.use_rlox_k3(False)


PROGRAM = """
import sys
import numpy as np
import rlox
from rlox import ReplayBuffer, compute_token_kl_schulman

assert rlox.ReplayBuffer is ReplayBuffer and rlox.__version__ == "1.2.0"
print(sys.argv[1:], round(compute_token_kl_schulman(np.array([-1.0]), np.array([-2.0])), 3))
"""


def test_a_program_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "echoic.rlox", "program.py", "--flag"]
    environment = {**os.environ, "ECHOIC_RLOX_K3": "1"}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("['--flag'] 0.718\n", "")
