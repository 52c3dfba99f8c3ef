"""The adapters with the libraries that they are for: ``make frameworks`` runs this."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echoic.errors import RolloutError
from echoic.integrations.trl import Sample
from echoic.integrations.verifiers import add_rollout, to_columns
from polling import free_port

if TYPE_CHECKING:
    from echoic.rollouts import RolloutTable

# What these libraries warn of is theirs.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]


# Programs of torch start for minutes where others run.
@pytest.mark.timeout(1800)
def test_trl_trains_on_groups_of_workers_that_load_its_weights_whoever_is_killed(
    tmp_path: Path,
) -> None:
    pytest.importorskip("trl")
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    ours = {field.name for field in dataclasses.fields(Sample)}
    assert {field.name for field in dataclasses.fields(RolloutSample)} == ours - {"blobs"}

    steps, log, end = 24, tmp_path / "log", tmp_path / "end"
    address = f"tcp://127.0.0.1:{free_port()}"
    programs: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: Any) -> subprocess.Popen[bytes]:
        file = Path(__file__).with_name(name)
        words = [sys.executable, str(file), address, str(tmp_path), *map(str, arguments)]
        programs.append(subprocess.Popen(words))
        return programs[-1]

    def wait_for(step: int) -> None:
        while not log.exists() or log.read_text().count("\n") < step:
            assert programs[0].poll() is None
            time.sleep(0.1)

    try:
        trainer = start("trl_trainer.py", steps)
        killed, worker = (start("trl_worker.py", 7, seed) for seed in (1, 2))
        wait_for(6)
        killed.kill()
        wait_for(9)
        # In the middle of a step, most likely.
        trainer.kill()
        trainer.wait()
        assert not end.exists()
        assert start("trl_trainer.py", steps).wait() == 0
        assert worker.wait(60) == 0
    finally:
        for program in programs:
            program.kill()
            program.wait()
    entries = [
        entry for line in log.read_text().splitlines() if "reward" in (entry := json.loads(line))
    ]
    # A step whose checkpoint was not written is repeated.
    assert sorted({entry["step"] for entry in entries}) == list(range(1, steps + 1))
    assert len(entries) <= steps + 1
    # Weights, tokens and log-probabilities meet: at first the trainer's policy is the workers'.
    assert entries[0]["ratio"] == pytest.approx(1, abs=1e-4)
    assert max(entry["kl"] for entry in entries) < 0.2
    assert np.mean([entry["reward"] for entry in entries[:3]]) < 0.1
    assert np.mean([entry["reward"] for entry in entries[-3:]]) > 0.5
    assert max(entry["echoic/lag_oldest_max"] for entry in entries) == 2
    assert not any("sample/dropped_stale_total" in entry for entry in entries)
    # The weights have every group once that was acknowledged, of both trainers.
    assert json.loads(end.read_text()) == {"version": steps, "acked": steps * 8, "overdue": 0}


def test_a_trace_of_verifiers_is_a_sequence(table: RolloutTable) -> None:
    pytest.importorskip("verifiers.v1")
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.task import TaskData
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, UserMessage

    def node(parent: int | None, tokens: list[int], drawn: int, message: Any) -> MessageNode:
        return MessageNode(
            parent=parent,
            message=message,
            sampled=bool(drawn),
            token_ids=tokens,
            mask=[False] * (len(tokens) - drawn) + [True] * drawn,
            logprobs=[-token / 8 for token in tokens[len(tokens) - drawn :]] if drawn else [],
        )

    asked, said = UserMessage(content="?"), AssistantMessage(content="!")
    trace = Trace(
        task=TraceTask(type="Task", data=TaskData(prompt="?")),
        agent=AgentInfo(config=AgentConfig()),
        nodes=[
            node(None, [1, 2], 0, asked),
            node(0, [90, 3, 4], 2, said),
            node(1, [91], 0, asked),
            node(2, [90, 5], 1, said),
        ],
        ok=True,
    )
    found = to_columns(trace)
    assert found["tokens"].tolist() == [1, 2, 90, 3, 4, 91, 90, 5]
    assert found["mask"].tolist() == [0, 0, 0, 1, 1, 0, 0, 1]
    assert found["logprobs"].tolist() == [0, 0, 0, -3 / 8, -4 / 8, 0, 0, -5 / 8]
    reservation = table.reserve()
    with pytest.raises(RolloutError, match="no reward"):
        add_rollout(reservation, trace, {"prompt": 0})
    trace.record_reward("right", 0.5)
    add_rollout(reservation, trace, {"prompt": 0}, messages=True)
    add_rollout(reservation, trace, {"prompt": 0})
    assert table.sample(1)["reward"].tolist() == [0.5, 0.5]
    trace.nodes.append(node(0, [90, 9], 1, said))
    with pytest.raises(RolloutError, match="2 branches to learn from"):
        to_columns(trace)
    assert to_columns(trace.branches[1])["tokens"].tolist() == [1, 2, 90, 9]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stateful_loader_resumes_bit_for_bit(workers: int, tmp_path: Path) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    import torch
    from echoic import Server, connect
    from echoic.integrations.torch import RolloutDataset
    from echoic.rollouts import RolloutTable

    columns = {"tokens": "int32", "logprobs": "float32"}
    with (
        RolloutTable("math", columns, batch_groups=2, max_lag=100) as table,
        Server(table, listen=f"unix://{tmp_path}/learner.sock") as server,
    ):
        address = server.address

        def connected() -> RolloutTable:
            return connect(address).rollouts("math")

        def ranks() -> list[Any]:
            return [
                loaders.StatefulDataLoader(
                    RolloutDataset(connected, rank=rank, ranks=2, lease=60, keep=20),
                    batch_size=None,
                    num_workers=workers,
                )
                for rank in (0, 1)
            ]

        def steps(readers: list[Any], count: int) -> list[Any]:
            return [[next(reader) for reader in readers] for _ in range(count)]

        draw = np.random.default_rng(0)
        for token in range(40):
            logprobs = draw.normal(size=3).astype(np.float32)
            table.reserve().add({"tokens": np.full(3, token, np.int32), "logprobs": logprobs})
        whole = ranks()
        readers = [iter(loader) for loader in whole]
        steps(readers, 5)
        torch.save([loader.state_dict() for loader in whole], tmp_path / "checkpoint")
        lost = steps(readers, 3)
        del readers, whole

        again = ranks()
        for loader, state in zip(again, torch.load(tmp_path / "checkpoint"), strict=True):
            loader.load_state_dict(state)
        table.restore(0)
        found = steps([iter(loader) for loader in again], 15)
        for resumed, expected in zip(found, lost, strict=False):
            for own, theirs in zip(resumed, expected, strict=True):
                assert own.keys() == theirs.keys()
                assert all(torch.equal(own[n], theirs[n]) for n in own)
        tokens = [share["tokens"].tolist() for step in found for share in step]
        assert tokens == [[token] * 3 for token in range(10, 40)]


@pytest.mark.parametrize("tool", [False, True], ids=["single turn", "tool"])
def test_environments_of_verifiers_fill_a_run(
    tool: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("verifiers.v1")
    import echoic.rl
    import renderers.client
    import verifiers.v1 as vf
    import verifiers_world as world
    from echoic.integrations import verifiers as ours
    from renderers.configs import Qwen3RendererConfig

    monkeypatch.setattr(ours, "_LOOK", 0.02)
    # A lock of that module belongs to the loop that first waits for it.
    monkeypatch.setattr(renderers.client, "_max_prompt_len_lock", asyncio.Lock())
    tokenizer = world.save_tokenizer(tmp_path / "tokenizer")
    model = world.Model(tokenizer)
    config = vf.SingleAgentEnvConfig.model_validate(
        {
            "taskset": {"id": "verifiers_world", "tool": tool},
            "agent": {"harness": {"id": "verifiers_world"}, "runtime": {"type": "subprocess"}},
        }
    )
    environment = vf.load_environment(config)
    client = vf.TrainClientConfig(
        base_url=model.url,
        api_key_var="NO_KEY",
        renderer=Qwen3RendererConfig(enable_thinking=False),
        renderer_model_name=str(tmp_path / "tokenizer"),
    )
    context = vf.ModelContext(model="toy", client=client)
    columns = {"tokens": "int32", "logprobs": "float32", "mask": "uint8"}
    fields = {"reward": "float32", "turns": "int64"}
    with (
        echoic.rl.Run(columns, fields, group=2, batch=4, max_lag=1000) as run,
        echoic.rl.join(run) as worker,
    ):

        def run_all(**options: Any) -> int:
            tasks = environment.taskset
            return asyncio.run(ours.run_environment(worker, environment, tasks, context, **options))

        sent = run_all(version=lambda: model.version, messages=True)
        assert sent == 4
        batch = run.sample(timeout=30)
        assert batch["reward"].tolist() == [1] * 8
        assert batch["turns"].tolist() == [1 + tool] * 8
        keys = {task.key for task in environment.taskset}
        assert set(batch.keys) == keys
        for item in range(8):
            cells = batch.cells(item)
            tokens, mask = batch["tokens"][cells], batch["mask"][cells].astype(bool)
            drawn, versions = -batch["logprobs"][cells], batch.versions[cells]
            text = tokenizer.decode(tokens)
            assert text.startswith("<|im_start|>")
            assert ("<tool_response>" in text) == tool
            assert (drawn[~mask] == 0).all()
            # What counts as older than it is may be, nothing counts as younger.
            assert (versions[mask] <= drawn[mask]).all()
            turns = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])) == 1)
            assert len(turns) == 1 + tool
            if tool:
                first, second = turns
                assert versions[0] == versions[first] < versions[second - 1] == versions[second]
                assert drawn[first] < drawn[second]
            said = json.loads(batch.blobs(item)["messages"])
            assert [one["role"] for one in said][-1] == "assistant"
        model.close()
        with pytest.raises(RolloutError, match=r"[2-4] groups in a row failed, .* episode failed"):
            run_all(max_failures=2)
        worker.flush()
        assert run.stats().rejected >= 2


@pytest.mark.parametrize("tool", [False, True])
def test_a_conversation_plays_an_environment_of_verifiers_unchanged(
    tool: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("verifiers.v1")
    import renderers.client
    import verifiers.v1 as vf
    import verifiers_world as world
    from echoic.agents.llm import Conversation, SamplingParams
    from echoic.agents.llm.requests import RolloutResult
    from echoic.agents.llm.verifiers import VerifiersTask, _answer
    from echoic.errors import CollectorError
    from renderers.configs import Qwen3RendererConfig

    monkeypatch.setattr(renderers.client, "_max_prompt_len_lock", asyncio.Lock())
    tokenizer = world.save_tokenizer(tmp_path / "tokenizer")
    model = world.Model(tokenizer)
    config = vf.SingleAgentEnvConfig.model_validate(
        {
            "taskset": {"id": "verifiers_world", "tool": tool},
            "agent": {"harness": {"id": "verifiers_world"}, "runtime": {"type": "subprocess"}},
        }
    )

    class Engine:
        """Answers as the model of that world does, but 9 where it is asked for 3 + 5."""

        async def generate(self, ids: list[int], sampling: SamplingParams) -> RolloutResult:
            await asyncio.sleep(0)
            text = model.answer(tokenizer.decode(ids)).replace("8", "9")
            drawn = tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
            assert drawn[-1] in sampling.stop
            count, logprobs = len(drawn), [-one / 8 for one in drawn]
            return RolloutResult(
                "0", True, None, 0.0, count, tokens=drawn, logprobs=logprobs,
                versions=[model.version] * count, finish_reason="stop",
            )  # fmt: skip

    def talk(limit: int = 4000) -> Any:
        return Conversation(Engine(), tokenizer, SamplingParams(200), limit=limit)  # type: ignore[arg-type]

    renderer = Qwen3RendererConfig(enable_thinking=False)
    task = VerifiersTask(
        vf.load_environment(config), renderer=renderer, tokenizer=str(tmp_path / "tokenizer")
    )
    assert task.name == "verifiers_world"
    everything = [*task._tasks, *task._held_out]
    assert [one.data.a for one in sorted(everything, key=lambda one: one.data.a)] == [0, 1, 2, 3]

    async def body() -> None:
        talks = [talk() for _ in everything]
        outcomes = await asyncio.gather(*map(task.run, everything, talks))
        for one, found, outcome in zip(everything, talks, outcomes, strict=True):
            assert outcome.success == (outcome.reward == 1) == (one.data.a != 3)
            assert len(found.turns) == 1 + tool
            columns = found.columns()
            mask = columns["mask"].astype(bool)
            assert (columns["logprobs"][mask] == -columns["tokens"][mask] / 8).all()
            assert columns["rewards"][-1] == outcome.reward
            drawn = tokenizer.decode(columns["tokens"][mask])
            assert ("<tool_call>" in drawn) == tool
            assert "<tool_response>" not in drawn
            assert (np.diff(found.versions[mask]) >= 0).all()
        with pytest.raises(CollectorError, match=r"the episode failed: .* limit is 30"):
            await task.run(everything[0], talk(30))
        # A request that was cancelled and comes again is answered once.
        repeated, given = talk(), talks[0].tokens[: talks[0].turns[0].given]
        first = asyncio.ensure_future(_answer(repeated, given, {}))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        assert first.cancelled()
        await _answer(repeated, given, {})
        assert repeated.turns == talks[0].turns[:1]
        if tool:
            # The second turn does not fit.
            full = talk(len(talks[0].tokens) - 1 + 190)
            assert await task.run(everything[0], full) == (0, False)
            assert len(full.turns) == 1

    asyncio.run(body())
    task.close()
    model.close()
    assert not [one for one in threading.enumerate() if one.name == "verifiers"]
