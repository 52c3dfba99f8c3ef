"""Methods that train: each does better than chance, and is what its name says."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import tiers
from echoic.agents.backbones import HostedBackbone
from echoic.agents.baselines import Cell, method_names, method_of
from echoic.agents.baselines.prompted import read_rating
from echoic.agents.baselines.trained import prompt_of
from echoic.agents.environments import make_environment
from echoic.agents.episodes import run_episode
from echoic.agents.training import PPOConfig
from echoic.agents.training.actors import Transcript
from echoic.errors import ArgumentError, BackboneError

# Walking at random reaches the right end of the corridor in three of ten episodes.
CHANCE = 0.3
_OF_CELLS = ("env_name", "total_timesteps", "seed", "checkpoint_dir", "results_dir")


@pytest.fixture
def cell(small, tmp_path):
    def make(steps=1024, backbone=None, **changes):
        settings = small()
        for name in (*_OF_CELLS, "tensorboard_log"):
            del settings[name]
        return Cell(
            "test-corridor",
            backbone=backbone,
            steps=steps,
            folder=tmp_path / "cell",
            settings={**settings, "evaluation_frequency": 100_000, **changes},
        )

    return make


async def trained(name, cell):
    method = method_of(name, cell)
    try:
        numbers = await method.train()
        environment = make_environment("test-corridor", state_encoding_dim=6, action_space_size=2)
        episodes = [await run_episode(environment, method.policy(), s) for s in range(40)]
        assert [one.error for one in episodes] == [None] * 40
        return method, numbers, np.mean([one.success for one in episodes])
    finally:
        await method.aclose()


def test_names_are_known():
    assert {"echo-rl", "impala", "ppo", "ppo-rlhf", "rlaif"} <= set(method_names())


@pytest.mark.parametrize(
    ("name", "settings"),
    tiers.rotating(
        pytest.param("echo-rl", {}, id="echo-rl"),
        pytest.param("echo-rl", {"use_plans": False, "replay": "uniform"}, id="no-plan-uniform"),
        # One step for each batch: longer ones.
        pytest.param(
            "impala", {"ppo_config": PPOConfig(learning_rate=1e-2), "steps": 4096}, id="impala"
        ),
        pytest.param("ppo", {}, id="ppo"),
    ),
)
def test_it_is_better_than_chance(cell, name, settings):
    made = cell(**settings)
    _, numbers, success = asyncio.run(trained(name, made))
    assert numbers["steps"] >= made.steps
    assert success >= CHANCE + 0.4


def test_a_policy_learns_by_rewards_that_were_learned_from_preferences(cell):
    made = cell(1024, reward="preferences")
    method, numbers, success = asyncio.run(trained("ppo-rlhf", made))
    assert numbers["preferences"] == method.model.answers > 10_000
    assert numbers["preference_accuracy"] > 0.9
    assert success >= CHANCE + 0.3


def test_a_run_that_was_begun_goes_on(cell):
    asyncio.run(trained("ppo", cell(256)))
    _, numbers, _ = asyncio.run(trained("ppo", cell(512)))
    assert (numbers["steps"], numbers["updates"]) == (512, 4)


def test_a_run_whose_evaluations_all_failed_has_no_success_rate(cell, monkeypatch):
    corridor = type(make_environment("test-corridor", state_encoding_dim=6, action_space_size=2))
    reset = corridor.reset

    def fails(self, *, seed=None, **options):
        if seed is not None and seed >= 1 << 30:
            raise OSError("this seed is for evaluation")
        return reset(self, seed=seed, **options)

    monkeypatch.setattr(corridor, "reset", fails)

    async def main():
        method = method_of("ppo", cell(256))
        try:
            return await method.train(), list(method.curve)
        finally:
            await method.aclose()

    numbers, curve = asyncio.run(main())
    assert (numbers["steps"], numbers["success_rate"], numbers["average_reward"]) == (
        256,
        None,
        None,
    )
    assert curve == []


def test_what_makes_a_method_can_not_be_changed(cell):
    with pytest.raises(ArgumentError, match=r"impala is algorithm='impala'; 'ppo' would be"):
        method_of("impala", cell(algorithm="ppo"))
    with pytest.raises(ArgumentError, match="TrainingConfig has no setting 'plans'"):
        method_of("echo-rl", cell(plans=False))
    with pytest.raises(ArgumentError, match=r'ppo-rlhf needs reward="preferences", not None'):
        method_of("ppo-rlhf", cell())
    with pytest.raises(ArgumentError, match="rlaif acts through a language model"):
        method_of("rlaif", cell())


class _Judge(BaseHTTPRequestHandler):
    """Speaks OpenAI's format; its opinion is scripted, and its first answer has no number."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        said = body["messages"][-1]["content"]
        text = "10" if "saw last: cell 5" in said else "0/10"
        if len(self.server.asked) == 1:
            text = "Well done!"
        answer = json.dumps(
            {
                "id": "x",
                "model": body["model"],
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": text},
                        "finish_reason": "stop",
                    }
                ],
                "usage": {"prompt_tokens": 50, "completion_tokens": 2, "total_tokens": 52},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def judge():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Judge) as server:
        server.daemon_threads = True
        server.asked = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_judge_teaches_what_it_likes(cell, judge):
    async def scenario():
        url = f"http://127.0.0.1:{judge.server_port}/v1"
        backbone = HostedBackbone("judge", url=url, price=None)
        try:
            return await trained("rlaif", cell(1024, backbone))
        finally:
            await backbone.aclose()

    method, numbers, success = asyncio.run(scenario())
    assert success >= CHANCE + 0.3
    # Each episode once, and the one whose first answer had no number once more.
    assert numbers["judged_episodes"] == numbers["episodes"] == len(judge.asked) - 1
    assert numbers["unclear_answers"] == 0
    assert numbers["judge_tokens_in"] == 50 * len(judge.asked)
    assert method.usage.requests == len(judge.asked)
    assert "It saw: cell" in judge.asked[0]["messages"][-1]["content"]


def test_a_judge_that_says_nothing_is_not_waited_for_for_ever(cell, monkeypatch):
    class Silent:
        async def chat(self, messages, **settings):
            await asyncio.sleep(60)

    async def scenario():
        method = method_of("rlaif", cell(1024, Silent()))
        closed_in = []
        close = method.trainer.close
        method.trainer.close = lambda: (closed_in.append(threading.current_thread()), close())
        try:
            await method.train()
        finally:
            await method.aclose()
            # A thread that the trainer waits for may wait for the loop.
            assert closed_in != [threading.current_thread()]
            assert len(closed_in) == 1

    monkeypatch.setattr("echoic.agents.baselines.trained._PATIENCE", 0.1)
    with pytest.raises(BackboneError, match=r"the judge said nothing within 0.1 s"):
        asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "rating"),
    [("7", 7), ("10/10", 10), ("I say 3.", 3), ("none", None), ("", None), ("100", None)],
)
def test_ratings_are_read(text, rating):
    assert read_rating(text) == rating


def test_of_a_long_episode_the_end_is_shown():
    transcript = Transcript("Win.", [("x" * 100, "go")] * 1000, "the end")
    shown = prompt_of(transcript)
    assert len(shown) < 7000
    assert shown.startswith("Task: Win.")
    assert "the end" in shown
