"""Every local buffer, collector and primitive in the call form that programs for rlox have.

What they compute is tested elsewhere; here it is that such a program runs once its import is
changed, and gets the keys, shapes and dtypes that it counts on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from echoic import rlox

if TYPE_CHECKING:
    from pathlib import Path

KEYS = ("obs", "actions", "rewards", "terminated", "truncated", "next_obs")


def shapes(batch: object) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(values) for name, values in dict(batch).items()}  # type: ignore[call-overload]


def of(obs: int, act: int, *rows: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a batch of transitions."""
    single = dict.fromkeys(KEYS, rows)
    return single | {"obs": (*rows, obs), "next_obs": (*rows, obs), "actions": (*rows, act)}


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
    pbuf.update_priorities(batch["indices"], np.linspace(0, 1, 256))
    pbuf.set_beta(0.7)


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
    assert shapes(buf.sample(batch_size=256, seed=42)) == of(3, 2, 256)
    batch = shapes(buf.sample_trajectories(batch_size=8, seq_len=20, seed=42))
    assert batch.items() >= {"obs": (8, 20, 3), "actions": (8, 20, 2), "mask": (8, 20)}.items()
    assert buf.n_episodes() == 20
    assert buf.stats()


def test_collector() -> None:
    collector = rlox.CandleCollector(
        env_id="CartPole-v1", n_envs=16, obs_dim=4, n_actions=2, n_steps=128, hidden=64, seed=42
    )
    try:
        batch = collector.recv()
        rows = 16 * 128
        for name in ("rewards", "dones", "log_probs", "values", "advantages", "returns", "actions"):
            assert np.size(batch[name]) == rows, name
        assert np.size(batch["observations"]) == rows * 4
        weights = collector.get_weights()
        collector.sync_weights(weights)
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
    batched, _ = rlox.compute_gae_batched(*flat, last, steps, *rest)
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
    for divergence in (rlox.compute_batch_token_kl, rlox.compute_batch_token_kl_schulman):
        assert divergence(log_p, log_q, 8).shape == (3,)
    packed, masks, positions = rlox.pack_sequences([3, 5, 2, 4], 8)
    assert len(packed) == len(masks) == len(positions) == 2
