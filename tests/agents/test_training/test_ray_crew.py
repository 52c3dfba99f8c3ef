"""Workers of a language model's run on Ray."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
import ray
from echoic.agents.llm import (
    GRPOConfig,
    LLMConfig,
    LLMTrainer,
    PromptTask,
    TinyConfig,
    TinyTransformer,
    workers,
)
from echoic.integrations.ray import addresses

# Ray leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def path_of_workers(no_shared_ray, monkeypatch):
    """Ray's processes are started with the environment of the one that begins it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Not one that other tests have begun; and a busy machine is given time to start this one.
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setenv("RAY_agent_register_timeout_ms", "120000")


def sevens(answer):
    return answer.tokens.count(7)


@pytest.mark.nightly
def test_a_language_model_learns_from_what_workers_on_ray_answer(path_of_workers):
    task = PromptTask([[1, 2, 3]], sevens)
    model = TinyTransformer(TinyConfig(vocab_size=16, dim=32, hidden=32), device="cpu")
    learner = GRPOConfig(learning_rate=1e-2)
    config = LLMConfig(
        6, 2, 4, learner=learner, max_new_tokens=3, max_lag=2, workers=2, backend="ray"
    )
    history = asyncio.run(LLMTrainer(model, task, config, device="cpu").train())
    assert [row["step"] for row in history] == [1, 2, 3, 4, 5, 6]
    assert max(row["lag_max"] for row in history) <= 2
    assert max(row["ratio_max"] for row in history) > 1.01
    assert not ray.is_initialized()


def test_workers_on_ray_ask_for_the_gpus_that_it_has(monkeypatch):
    asked = []

    def remote(*, num_gpus, **_):
        asked.append(num_gpus)
        return lambda _: SimpleNamespace(remote=lambda *given: asked.append(given[-1]))

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "remote", remote)
    monkeypatch.setattr(addresses, "open_transports", lambda *_, **__: None)
    for gpus, cuda, wanted in (
        ({"GPU": 8.0}, True, [1, "cuda", "cuda", "cuda"]),
        ({"GPU": 2.0}, True, [0.5, "cuda", "cuda", "cuda"]),
        ({}, True, [0, "cpu", "cpu", "cpu"]),
        ({"GPU": 8.0}, False, [0, "cpu", "cpu", "cpu"]),
    ):
        monkeypatch.setattr(ray, "cluster_resources", lambda found=gpus: found)
        workers.RayTasks(None, (None, None), 3, cuda=cuda)
        assert asked == wanted
        asked.clear()
