"""A language model learns from rewards: tasks, an engine, a run of rollouts, a token learner."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import os
import random
import shutil
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import tiers
from echoic.errors import ArgumentError, CollectorError, WaitTimeoutError
from http_server import CompletionsServer, send
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from echoic.agents.backbones import smollm2
from echoic.agents.llm import (
    Answer,
    ExecutionConfig,
    GRPOConfig,
    LLMConfig,
    LLMTrainer,
    LoRAConfig,
    Outcome,
    PPOTokenConfig,
    PromptTask,
    Replica,
    RLOOConfig,
    Task,
    TinyConfig,
    TinyTransformer,
    register_task,
    workers,
)
from echoic.agents.llm import trainer as trainers
from echoic.agents.plans import PlanningConfig
from echoic.agents.replay import ReplayConfig
from echoic.agents.training import EchoRLTrainer, PPOConfig, TrainingConfig
from echoic.cli.app import app
from test_conversation import CHATML, letters

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 9, 8]]
FAST = GRPOConfig(learning_rate=1e-2)


def sevens(answer: Answer) -> float:
    return answer.tokens.count(7) / len(answer.tokens)


def tiny() -> TinyTransformer:
    return TinyTransformer(TinyConfig(vocab_size=16, dim=32, hidden=32), device="cpu")


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config)


def trainer(
    steps: int,
    model: Any = None,
    learner: Any = FAST,
    reward: Any = sevens,
    *,
    resume: bool = False,
    **more: Any,
) -> LLMTrainer:
    config = LLMConfig(steps, 2, 8, max_new_tokens=3, learner=learner, **more)
    task = PromptTask(PROMPTS, reward, held_out=[[1, 2, 3]])
    return LLMTrainer(model or tiny(), task, config, device="cpu", resume=resume)


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what differs from run to run, and without lists, which no file has."""
    return [
        {
            name: value
            for name, value in row.items()
            if "second" not in name and not isinstance(value, list)
        }
        for row in rows
    ]


@pytest.mark.parametrize(
    ("make", "learner"),
    tiers.rotating(
        pytest.param(llama, GRPOConfig(learning_rate=3e-2, lora=LoRAConfig(rank=4)), id="lora"),
        pytest.param(tiny, FAST, id="grpo"),
        pytest.param(tiny, RLOOConfig(learning_rate=1e-2), id="rloo"),
        pytest.param(llama, PPOTokenConfig(learning_rate=1e-2), id="ppo"),
    ),
)
def test_a_model_learns_what_is_rewarded(make: Any, learner: Any) -> None:
    history = asyncio.run(trainer(15, make(), learner).train())
    assert [row["step"] for row in history] == list(range(1, 16))
    assert history[0]["reward"] < 0.3
    assert sum(row["reward"] for row in history[-3:]) / 3 > 0.7
    for row in history:
        # Engine and learner compute the same probabilities, after each update too.
        assert row["ratio_min"] == pytest.approx(1, abs=1e-3)
        assert row["ratio_max"] == pytest.approx(1, abs=1e-3)
        assert row["lag_max"] == 0
        # Sixteen answers share the eight tokens of two prompts, of which six are common.
        assert row["kv_reuse_rate"] > 0.4


def test_adapters_begin_with_the_seed_of_the_run() -> None:
    pytest.importorskip("peft")
    adapted = GRPOConfig(lora=LoRAConfig(rank=2))

    def begun(seed: int) -> torch.Tensor:
        policy = trainer(1, llama(), adapted, seed=seed).learner.policy
        return torch.cat([one.flatten() for one in policy.parameters() if one.requires_grad])

    assert torch.equal(begun(1), begun(1))
    assert not torch.equal(begun(1), begun(2))


def test_lock_step_repeats_itself_to_the_last_bit_after_a_kill_too(tmp_path: Path) -> None:
    whole = trainer(6)
    asyncio.run(whole.train())
    answers = 0

    def reward(answer: Answer) -> float:
        nonlocal answers
        answers += 1
        if answers == 5 * 16 + 8:
            # What a kill in the fifth update leaves: the checkpoint of the fourth.
            shutil.copytree(tmp_path / "run", tmp_path / "left")
            with ThreadPoolExecutor() as pool:
                other = trainer(6, dir=tmp_path / "run", resume=True)
                error = pool.submit(lambda: asyncio.run(other.train())).exception()
            assert "another run is training in" in str(error)
        return sevens(answer)

    often = {"save_every": 2, "evaluate_every": 3, "evaluate_prompts": 4}
    first = trainer(6, reward=reward, dir=tmp_path / "run", **often)
    asyncio.run(first.train())
    second = trainer(6, dir=tmp_path / "left", resume=True, **often)
    assert second.learner.updates == 4
    asyncio.run(second.train())
    for run in (first, second):
        assert plain(run.history) == plain(whole.history)
        for mine, other in zip(
            run.learner.policy.parameters(), whole.learner.policy.parameters(), strict=True
        ):
            assert torch.equal(mine, other)
    assert [row["step"] for row in first.evaluations] == [0, 3, 6]
    assert second.evaluations[-1]["rewards"] == first.evaluations[-1]["rewards"]
    text = (tmp_path / "left/metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "update"] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ArgumentError, match="has a run: expected another folder, or resume"):
        asyncio.run(trainer(7, dir=tmp_path / "left").train())


def test_lock_step_has_keys_and_values_once_and_none_while_it_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines: weakref.WeakSet[Any] = weakref.WeakSet()

    class Engine(workers.AsyncExecutionEngine):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            engines.add(self)
            alive.append(len(engines))

    monkeypatch.setattr(workers, "AsyncExecutionEngine", Engine)
    alive: list[int] = []
    run = trainer(3, evaluate_every=1, evaluate_prompts=2)
    run.listeners.append(lambda kind, _: alive.append(len(engines) if kind == "update" else 0))
    gc.disable()
    try:
        asyncio.run(run.train())
    finally:
        gc.enable()
    assert max(alive) == 1
    assert alive.count(1) == 7


class Talks(Task):
    """Conversations of several turns, with pauses of any length between turns."""

    name = "talks"

    def prompt(self, index: int) -> list[int]:
        return [1, 2, 3 + index % 2]

    held_out = prompt

    async def run(self, prompt: Any, talk: Any) -> Outcome:
        talk.extend(prompt)
        while len(talk.turns) < prompt[-1] - 1:
            answer = await talk.answer()
            talk.reward(sevens(answer))
            talk.extend([5])
            await asyncio.sleep(random.random() / 200)
        return Outcome(float(talk.columns()["rewards"].sum()), success=False)


def test_turns_of_a_step_go_to_the_engine_in_the_same_order_each_time() -> None:
    runs = [LLMTrainer(tiny(), Talks(), LLMConfig(2, 2, 4, max_new_tokens=3), device="cpu")]
    runs.append(LLMTrainer(tiny(), Talks(), runs[0].config, device="cpu"))
    first, second = (plain(asyncio.run(run.train())) for run in runs)
    assert first == second
    assert [row["turns"] for row in first] == [4 * 2 + 4 * 3] * 2


def test_the_first_turns_of_a_step_go_to_the_engine_together() -> None:
    async def run() -> None:
        begun, together = [], asyncio.Event()

        class Engine:
            async def generate(self, prompt: Any, _sampling: Any) -> None:
                begun.append(prompt)
                if len(begun) == 4:
                    together.set()
                await together.wait()

        engine: Any = Engine()
        steps = workers.LockStep(engine, conversations=4)

        async def hold(number: int) -> None:
            with steps.seat(number) as seat:
                await seat.generate(number, None)

        await asyncio.wait_for(workers.together(map(hold, (2, 0, 1, 3))), timeout=60)
        assert begun == [0, 1, 2, 3]

    asyncio.run(run())


def test_answers_come_while_the_model_learns_and_are_not_too_old(tmp_path: Path) -> None:
    answers = 0

    def reward(answer: Answer) -> float:
        nonlocal answers
        answers += 1
        if answers == 10 * 16:
            raise OSError("no judge")
        return sevens(answer)

    settings: dict[str, Any] = {"max_lag": 1, "dir": tmp_path, "save_every": 4}
    first = trainer(20, reward=reward, **settings)
    with pytest.raises(CollectorError, match=r"prompt \d+ of prompts failed: OSError.*no judge"):
        asyncio.run(first.train())
    assert 5 < len(first.history) < 10
    second = trainer(20, resume=True, **settings)
    history = asyncio.run(second.train())
    assert plain(history[: len(first.history)]) == plain(first.history)
    assert [row["step"] for row in history] == list(range(1, 21))
    assert {row["lag_max"] for row in history} == {0, 1}
    assert sum(row["reward"] for row in history[-3:]) / 3 > 0.7
    rows = [*first.history, *history[len(first.history) :]]
    learned = [group for row in rows for group in row["groups"]]
    assert len(set(learned)) == len(learned) == 40


@tiers.turn(0, of=3)
def test_a_killed_worker_is_replaced_and_its_groups_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "_TTL", 1.0)
    started: list[workers.Processes] = []

    class Processes(workers.Processes):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            started.append(self)

    monkeypatch.setattr(workers, "Processes", Processes)
    # No group is dropped for its age, so that each must be learned from.
    run = trainer(8, workers=1, max_lag=8, dir=tmp_path)

    async def train() -> None:
        training = asyncio.create_task(run.train())
        while len(run.history) < 2 and not training.done():  # noqa: ASYNC110 - of a thread
            await asyncio.sleep(0.005)
        os.kill(started[0].members[0].pid, signal.SIGKILL)
        await training

    asyncio.run(train())
    assert run.restarts == 1
    learned = sorted(group for row in run.history for group in row["groups"])
    assert len(set(learned)) == len(learned) == 16
    assert max(row["lag_max"] for row in run.history) <= 8
    with pytest.raises(ArgumentError, match="at the top of a module"):
        asyncio.run(trainer(1, reward=lambda _: 0.0, workers=1, max_lag=1).train())


def test_servers_answer_and_load_what_is_learned() -> None:
    loads: list[str] = []

    class Server(CompletionsServer):
        """It has vLLM's addresses for weights, too."""

        async def answer(self, target: str, headers: Any, body: bytes, writer: Any) -> None:
            if target in ("POST /v1/completions", "POST /reset_prefix_cache"):
                await super().answer(target, headers, body, writer)
                return
            loads.append(target)
            await send(writer, 200, "{}")

    model = TinyTransformer(TinyConfig(), device="cpu")
    task = PromptTask(PROMPTS, lambda answer: answer.tokens.count(97))
    server = Server()
    for lag, count in ((1, 4), (None, 0)):
        loads.clear()
        one = Replica(server.url, model="formula", dialect="vllm")
        config = LLMConfig(3, 2, 2, max_new_tokens=3, max_lag=lag, max_length=64, servers=(one,))
        history = asyncio.run(LLMTrainer(model, task, config, device="cpu").train())
        assert [row["step"] for row in history] == [1, 2, 3]
        assert lag is None or max(row["lag_max"] for row in history) <= lag
        assert 0 <= loads.count("POST /collective_rpc") <= count
        assert bool(loads) == bool(count)
    server.close()
    silent = Replica("http://127.0.0.1:1/v1", model="formula", dialect="llama.cpp")
    config = LLMConfig(3, 2, 2, max_lag=1, servers=(silent,))
    with pytest.raises(ArgumentError, match=r"expected servers of vllm or sglang"):
        asyncio.run(LLMTrainer(model, task, config, device="cpu").train())


def fails(answer: Answer) -> float:
    raise OSError("no judge")


@pytest.mark.nightly
def test_a_worker_whose_task_fails_ends_the_run_with_its_error() -> None:
    run = trainer(2, reward=fails, workers=1, max_lag=1)
    with pytest.raises(CollectorError, match=r"(?s)worker-0 failed:.*prompt \d .*no judge"):
        asyncio.run(run.train())
    assert run.restarts == 0


def test_a_run_that_was_saved_goes_on(tmp_path: Path) -> None:
    first = trainer(2)
    asyncio.run(first.train())
    first.save(tmp_path / "run.ckpt")
    second = trainer(4)
    assert second.resume(tmp_path / "run.ckpt") == 2
    history = asyncio.run(second.train())
    assert [row["step"] for row in history] == [3, 4]
    assert second.learner.updates == 4
    # The engine runs the weights that were loaded.
    assert history[0]["ratio_max"] == pytest.approx(1, abs=1e-3)


def test_an_answer_that_fails_ends_the_run_with_its_reason() -> None:
    for lag in (0, 1):
        run = trainer(1, max_lag=lag, execution=ExecutionConfig(timeout=1e-9))
        with pytest.raises(CollectorError, match=r"prompt \d of prompts: .* not done after"):
            asyncio.run(run.train())


class Hanging(Talks):
    """Episodes that never end."""

    async def run(self, prompt: Any, talk: Any) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError


def test_a_task_that_hangs_ends_the_run_after_its_timeout() -> None:
    for more in ({}, {"evaluate_every": 1}, {"max_lag": 1}):
        config = LLMConfig(1, 1, 2, timeout=0.1, **more)
        run = LLMTrainer(tiny(), Hanging(), config, device="cpu")
        with pytest.raises(WaitTimeoutError, match=r"(not answered in|no batch within) 0\.1 s"):
            asyncio.run(run.train())


def test_a_run_that_ends_early_goes_on() -> None:
    rewards = iter([0.0] * 20 + [float("nan")])
    run = trainer(3, learner=GRPOConfig(), reward=lambda _: next(rewards, 1.0))
    with pytest.raises(ArgumentError, match=r"prompt \d of prompts: .*finite reward, got nan"):
        asyncio.run(run.train())
    assert run.learner.updates == 1

    update, begun, go_on = run.learner.update, threading.Event(), threading.Event()

    def wait(batch: Any) -> dict[str, float]:
        begun.set()
        go_on.wait(60)
        return update(batch)

    async def cancel() -> None:
        run.learner.update = wait  # type: ignore[method-assign]
        training = asyncio.create_task(run.train())
        await asyncio.to_thread(begun.wait)
        training.cancel()
        await asyncio.wait({training}, timeout=0.1)
        assert not training.done()
        go_on.set()
        await training

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    assert run.learner.updates == 2
    assert [row["step"] for row in asyncio.run(run.train())] == [1, 2, 3]


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model of transformers and a tokenizer of letters."""
    config = transformers.LlamaConfig(
        vocab_size=102, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, bos_token_id=4, eos_token_id=5,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "little"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    letters(CHATML).save_pretrained(folder)
    return folder


def test_an_agent_is_a_language_model_where_its_backbone_is_one(
    tmp_path: Path, little: Path
) -> None:
    sizes = PlanningConfig(embedding_dim=8, num_layers=1, num_heads=2, hidden_dim=8)
    config = TrainingConfig(
        env_name="gsm8k-like", backbone=str(little), total_timesteps=24, num_actors=16,
        latent_dim=8, planning_config=sizes, state_dim=32, evaluation_episodes=2, seed=1,
        device="cpu", checkpoint_dir=str(tmp_path / "saved"), results_dir=str(tmp_path / "shown"),
        tensorboard_log="", replay_config=ReplayConfig(min_experiences=1),
    )  # fmt: skip
    with EchoRLTrainer(config) as agent:
        metrics = asyncio.run(agent.train())
        # Two updates of sixteen answers with one turn each.
        assert (metrics.total_timesteps, metrics.total_episodes) == (32, 32)
        assert len(metrics.policy_losses) == 2
        assert len(metrics.episode_rewards) == 32
        assert min(metrics.kv_cache_hit_rates) > 0.3
        assert metrics.history["step"] == [0, 32]
        assert 0 <= metrics.evaluation_results["success_rate"] <= 1
        policy: Any = agent.policy(greedy=True)
        policy.begin("Add.", 3)
        decided = asyncio.run(policy.act({"text": "1 + 2"}, {"commands": ("3", "4")}))
        assert decided.usage.tokens_out > 0
        policy.engine.shutdown()
    assert (tmp_path / "shown/metrics.jsonl").read_text().count('"update"') == 2
    with EchoRLTrainer(config, resume=True) as again:
        # Measurements are those of the checkpoint, also if it is loaded twice.
        assert again.resume() == 32
        metrics = asyncio.run(again.train())
        assert (metrics.total_timesteps, len(metrics.policy_losses)) == (32, 2)
        assert metrics.history["step"] == [0, 32]
        # Each of them has the tokens of eight episodes.
        assert again._agent.replay.config.max_experiences == 1024
    # An evaluation that was good enough ends the run that is resumed, too.
    lines = tmp_path / "saved/metrics.jsonl"
    lines.write_text(lines.read_text().replace('"success_rate": 0.0', '"success_rate": 1.0'))
    good = dataclasses.replace(config, total_timesteps=999, early_stop_success=0.9)
    with EchoRLTrainer(good, resume=True) as again:
        assert asyncio.run(again.train()).total_timesteps == 32
    with pytest.raises(ArgumentError, match="there is no task 'nowhere'; there are"):
        EchoRLTrainer(dataclasses.replace(config, env_name="nowhere"))


@pytest.mark.nightly
def test_a_benchmark_trains_a_language_model_and_names_it(tmp_path: Path, little: Path) -> None:
    from echoic.agents.evaluation import BenchmarkConfig, EchoRLBenchmark

    config = BenchmarkConfig(
        tasks=["cruxeval"], backbones=[], baselines=["ppo"], num_seeds=1, num_episodes=2,
        max_steps_per_episode=2, output_dir=str(tmp_path / "results"), generate_report=False,
        echo_rl_configs={"backbone": str(little), "total_timesteps": 8, "num_actors": 8,
                         "device": "cpu", "evaluation_episodes": 2, "latent_dim": 8},
    )  # fmt: skip
    result = asyncio.run(EchoRLBenchmark(config).run_benchmark())
    (one,) = result.tasks
    assert (one.arm, one.model, one.errors) == (f"echo-rl ({little})", str(little), 0)
    assert one.tokens is not None
    assert one.computed_tokens_per_second is not None
    # A policy of vectors can't say what is not listed.
    assert [row["method"] for row in result.not_applicable] == ["ppo"]
    assert result.failed == []


def test_the_command_trains_a_model_of_a_folder_and_goes_on(tmp_path: Path, little: Path) -> None:
    chats = [[{"role": "user", "content": one}] for one in "abcd"]
    register_task(
        "short", lambda most=9: PromptTask(chats, lambda one: len(one.text) < most, held_out=["x"])
    )

    def train(*given: str) -> Any:
        return CliRunner().invoke(
            app,
            ["train", "--model", str(little), "--task", "short", "--device", "cpu",
             "--lora", "2", "--output-dir", str(tmp_path), "--json", "--setting",
             "max_new_tokens=8", "--setting", "evaluate_prompts=2", *given],
            env={"COLUMNS": "200", "TERM": "dumb"},
        )  # fmt: skip

    ran = train("--updates", "2", "--task-setting", "most=4", "--algo", "rloo")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["updates"] == 2
    assert "update 2: reward" in ran.stderr
    folder = tmp_path / "results/short_little"
    assert {"metrics.jsonl", "learner.ckpt", "model", "tensorboard"} <= {
        one.name for one in folder.iterdir()
    }
    # What was written is the whole model, adapters merged.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    assert type(model) is transformers.LlamaForCausalLM
    assert "has a run: expected another folder" in train("--updates", "3", "--algo", "rloo").stderr
    again = train("--updates", "3", "--algo", "rloo", "--max-lag", "1", "--resume")
    assert json.loads(again.stdout)["held-out success before"] is not None
    assert json.loads(again.stdout)["updates"] == 3
    assert "learning_rate must be" in train("--learning-rate", "0").stderr
    assert "expected one of grpo, rloo, ppo, not 'dpo'" in train("--algo", "dpo").output


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_smollm2_learns_to_add_in_minutes(tmp_path: Path) -> None:
    if (reason := smollm2.available()) is not None:
        pytest.skip(reason)
    ran = CliRunner().invoke(
        app,
        ["train", "--model", "local:SmolLM2-135M", "--task", "gsm8k-like", "--updates", "16",
         "--setting", "max_new_tokens=12", "--device", "cpu", "--json",
         "--output-dir", str(tmp_path)],
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["reward at last"] > found["reward at first"] + 0.3
    assert found["held-out success after"] > found["held-out success before"]


def test_what_makes_no_sense_is_an_error_before_anything_runs() -> None:
    for wrong, said in (
        ({"learner": PPOConfig()}, "expected a GRPOConfig or .* as learner, got a PPOConfig"),
        ({"workers": 2}, "max_lag must be at least 1"),
        ({"backend": "threads"}, "backend must be one of processes, ray"),
        ({"steps": 0}, "steps must be at least 1"),
    ):
        with pytest.raises(ArgumentError, match=said):
            LLMConfig(**wrong)
    with pytest.raises(ArgumentError, match="there is no task 'nonsense'; there are"):
        LLMTrainer(tiny(), "nonsense", device="cpu")
    with pytest.raises(ArgumentError, match="there is no model 'local:gpt'"):
        LLMTrainer("local:gpt", PromptTask([[1]], sevens), device="cpu")
    task = PromptTask([[2] * 4091], sevens)
    long = LLMTrainer(tiny(), task, LLMConfig(max_new_tokens=6), device="cpu")
    with pytest.raises(ArgumentError, match=r"prompt \d of prompts: .* 4097 .* limit is 4096"):
        asyncio.run(long.train())
    text = LLMTrainer(tiny(), PromptTask(["2 3"], sevens), device="cpu")
    with pytest.raises(ArgumentError, match="needs a tokenizer"):
        asyncio.run(text.train())
