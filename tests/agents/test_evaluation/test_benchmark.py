"""The benchmark, with tasks and methods of which is known what must come out."""

import asyncio
import json
import re
import threading
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import little
import pytest
from echoic.agents.baselines import register_method
from echoic.agents.episodes import Decision
from echoic.agents.evaluation import BenchmarkConfig, EchoRLBenchmark, read_rows
from echoic.agents.evaluation.benchmark import Rows
from echoic.agents.evaluation.config import HELD_OUT, cells_of
from echoic.errors import ArgumentError, StorageError

TIMES = {"seconds"}


@pytest.fixture(autouse=True)
def _registered():
    little.register()


def episodes(folder):
    return [row for row in read_rows(folder).values() if row["kind"] == "episode"]


def without_times(rows):
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def test_settings_have_the_promised_defaults():
    promised = {
        "tasks": ["alfworld", "webshop", "cruxeval", "arc", "minigrid"],
        "task_configs": {},
        "backbones": [
            "gpt-4o", "claude-3.5-sonnet", "gemini-1.5-pro", "llama-4", "qwen-7b", "deepseek-r1",
        ],
        "baselines": ["react", "tot", "ppo-rlhf", "rlaif", "impala"],
        "num_seeds": 10,
        "num_episodes": 100,
        "max_steps_per_episode": 1000,
        "evaluation_timeout": 300.0,
        "echo_rl_configs": {},
        "output_dir": "./benchmark_results",
        "save_detailed_results": True,
        "generate_plots": True,
        "generate_report": True,
    }  # fmt: skip
    config = asdict(BenchmarkConfig())
    assert {name: config[name] for name in promised} == promised


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_seeds": 0},
        {"num_episodes": 1.5},
        {"evaluation_timeout": 0},
        {"tasks": []},
        {"tasks": "minigrid"},
        {"echo_rl_configs": {"total_timesteps": -1}},
        {"success_threshold": 0.0},
        {"task_configs": {"minigird": {}}},
        {"evaluation_task_configs": {"minigird": {}}},
        {"baseline_configs": {"raect": {}}},
        {"baseline_configs": {"echo-rl": {}}},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ArgumentError):
        BenchmarkConfig(**wrong)


def test_every_name_of_the_defaults_makes_cells():
    # Some models have no server, and so no price, where nothing is set.
    cells = list(cells_of(BenchmarkConfig()))
    assert {cell.method for cell in cells} == {"echo-rl", "react", "tot", "ppo", "rlaif", "impala"}
    # Three of the six methods act through each of the six models; five tasks, ten seeds.
    assert len({cell.id for cell in cells}) == len(cells) == (3 + 3 * 6) * 5 * 10


def test_every_episode_is_a_row_and_every_number_is_of_rows(tmp_path):
    result = little.run(tmp_path, baselines=["fixed", "trained"], num_episodes=20)
    rows = episodes(tmp_path)
    assert len(rows) == 3 * 2 * 20
    for one in result.tasks:
        names = ("task", "method", "backbone", "settings")
        own = [row for row in rows if all(row[name] == getattr(one, name) for name in names)]
        assert one.episodes == len(own) == 40
        assert one.success_rate == sum(row["success"] for row in own) / 40
        assert one.avg_reward == pytest.approx(sum(row["reward"] for row in own) / 40)
        assert result.success_rates["guess"][one.arm] == one.success_rate
    assert result.success_rates["guess"]["good"] == 1.0
    assert 0.2 < result.success_rates["guess"]["fixed"] < 0.8
    assert result.overall["good"]["iqm"] == 1.0
    assert result.seconds > 0


def test_nothing_is_trained_without_a_row_of_it(tmp_path):
    configs = {"total_timesteps": 400, "other": 1}
    result = little.run(tmp_path, baselines=["trained"], echo_rl_configs=configs)
    trained = [row for row in read_rows(tmp_path).values() if row["kind"] == "training"]
    assert [row["seed"] for row in trained] == [0, 1]
    assert all(row["measures"]["none"] is None for row in trained)
    (one,) = [one for one in result.tasks if one.method == "trained"]
    assert (one.trained_steps, one.steps_to_threshold) == (400, [400, 400])
    assert result.significance_tests[0].unit == "run"


def test_evaluation_has_seeds_of_its_own_and_all_methods_meet_the_same(tmp_path):
    little.run(tmp_path, num_episodes=4)
    seeds = {
        method: [row["environment_seed"] for row in episodes(tmp_path) if row["method"] == method]
        for method in ("good", "fixed")
    }
    assert seeds["good"] == seeds["fixed"] == little.SEEN[:4] + little.SEEN[8:12]
    assert len(set(seeds["good"])) == 8
    assert min(seeds["good"]) >= HELD_OUT > 2**30
    assert BenchmarkConfig.episode_seed(4999, 99_999) < 2**31


def test_the_same_seed_gives_the_same_rows(tmp_path):
    for name in ("one", "two"):
        little.run(tmp_path / name, baselines=["fixed", "trained"], num_episodes=8)
    one, two = (without_times(episodes(tmp_path / name)) for name in ("one", "two"))
    assert one == two
    little.run(
        tmp_path / "side", num_episodes=8, parallel_episodes=4, baselines=["fixed", "trained"]
    )
    side = sorted(without_times(episodes(tmp_path / "side")), key=lambda row: row["id"])
    assert side == sorted(one, key=lambda row: row["id"])


def test_a_second_run_does_what_is_missing_only(tmp_path):
    little.run(tmp_path, baselines=["trained"])
    before, trainings = read_rows(tmp_path), little.Trained.trainings
    little.SEEN.clear()
    result = little.run(tmp_path, baselines=["trained"])
    assert little.SEEN == []
    assert (read_rows(tmp_path), little.Trained.trainings) == (before, trainings)
    assert result.success_rates["guess"]["good"] == 1.0
    result = little.run(tmp_path, baselines=["trained"], num_episodes=5)
    # Two more episodes of two methods and two seeds.
    assert len(little.SEEN) == 8
    assert {one.episodes for one in result.tasks} == {10}
    assert list(before.items()) == list(read_rows(tmp_path).items())[: len(before)]


def test_rows_of_other_settings_are_not_taken(tmp_path):
    little.run(tmp_path)
    little.SEEN.clear()
    result = little.run(tmp_path, max_steps_per_episode=5)
    assert len(little.SEEN) == 12
    assert len(episodes(tmp_path)) == 24
    assert {one.episodes for one in result.tasks} == {6}


def test_a_run_that_is_cut_off_goes_on_later(tmp_path):
    class Stops(little.Fixed):
        name = "stops"

        def policy(self):
            policy = super().policy()
            act = policy.act

            async def stopping(observation, info):
                if len(little.SEEN) == 5:
                    raise KeyboardInterrupt
                return await act(observation, info)

            policy.act = stopping
            return policy

    register_method("fixed", Stops)
    with pytest.raises(KeyboardInterrupt):
        little.run(tmp_path)
    assert len(episodes(tmp_path)) == 4
    # As a crash leaves it.
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"id": "guess/fi')
    register_method("fixed", little.Fixed)
    assert len(little.run(tmp_path).tasks) == 2
    assert len(episodes(tmp_path)) == 12
    little.run(tmp_path / "whole")
    assert sorted(map(str, without_times(episodes(tmp_path)))) == sorted(
        map(str, without_times(episodes(tmp_path / "whole")))
    )


def test_what_fails_is_a_row_with_its_reason_and_never_a_number(tmp_path):
    result = little.run(tmp_path, baselines=["breaks"])
    assert {row["method"] for row in result.failed} == {"breaks"}
    assert all("diverged" in row["reason"] for row in result.failed)
    assert [one.method for one in result.tasks] == ["good"]
    lines = len((tmp_path / "rows.jsonl").read_text().splitlines())
    little.run(tmp_path, baselines=["breaks"])
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == lines


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tasks": ["nowhere"]}, "there is no environment 'nowhere'; there are .*guess"),
        ({"baselines": ["nothing"]}, "there is no method 'nothing'; there are .*good"),
        ({"backbones": ["nobody"]}, "there is no backbone 'nobody'; there are .*gpt-4o"),
        ({"reference": "echo-rl", "echo_rl_configs": {"backbone": "gpt-4o"}}, "'gpt-4o' can't be"),
        (
            {"reference": "echo-rl", "echo_rl_configs": {"backbone": "local:gpt-4o"}},
            "there is no model 'local:gpt-4o'; there are local:SmolLM2-135M",
        ),
        (
            {"baselines": ["ppo"], "baseline_configs": {"ppo": {"num_actor": 1}}},
            "TrainingConfig has no setting 'num_actor'; it has .*num_actors",
        ),
        (
            {"baselines": ["react"], "baseline_configs": {"react": {"retry": 1}}},
            "ReActPolicy has no setting 'retry'; it has .*retries",
        ),
        # A language model learns by GRPO, and has no method's name that it is not.
        *(
            (
                {"baselines": [name], "baseline_configs": {name: {"backbone": "local:smollm2"}}},
                f"{name} is backbone='mlp'",
            )
            for name in ("ppo", "impala", "rlaif")
        ),
        (
            {"baselines": ["ppo-rlhf"], "baseline_configs": {"ppo-rlhf": {"reward": "likes"}}},
            "ppo-rlhf needs reward=\"preferences\", not 'likes'",
        ),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(tmp_path, wrong, message):
    with pytest.raises(ArgumentError, match=message):
        EchoRLBenchmark(little.settings(tmp_path, **wrong))


def test_a_method_that_can_not_act_in_a_task_is_not_applicable(tmp_path):
    class Says(little.Fixed):
        def policy(self):
            return type("Policy", (little.Sleeps,), {"act": self.act})()

        async def act(self, *_):
            return Decision("answer: 0")

    class Chooses(little.Trained):
        name = "chooses"
        needs_commands = True
        policy, act = Says.policy, Says.act

    register_method("chooses", Chooses)
    register_method("says", Says)
    result = little.run(
        tmp_path, tasks=["guess", "cruxeval"], baselines=["chooses"], reference="says",
        num_seeds=1, num_episodes=1, generate_report=True, generate_plots=False,
    )  # fmt: skip
    assert {(row["task"], row["method"]) for row in result.not_applicable} == {
        ("cruxeval", "chooses")
    }
    assert (result.failed, Chooses.trainings) == ([], 1)
    assert set(result.success_rates["cruxeval"]) == {"says"}
    report = (tmp_path / "benchmark_report.md").read_text(encoding="utf-8")
    assert (
        "| not applicable | cruxeval-style (24 functions) | chooses | - | chooses chooses" in report
    )
    # With a language model that it trains, the same method acts in any text, under its name.
    result = little.run(
        tmp_path, tasks=["cruxeval"], baselines=["chooses"], reference="says",
        num_seeds=1, num_episodes=1, baseline_configs={"chooses": {"backbone": "local:tiny"}},
    )  # fmt: skip
    assert set(result.success_rates["cruxeval"]) == {"says", "chooses (local:tiny)"}
    assert (result.not_applicable, Chooses.trainings) == ([], 2)


def test_names_of_tasks_say_where_their_data_is_from(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    tasks = ["alfworld", "webshop", "cruxeval", "arc", "guess"]
    config = little.settings(tmp_path, tasks=tasks)
    names = {cell.task: cell for cell in cells_of(config)}
    assert [names[task].provenance for task in tasks] == [
        "alfworld (official games: not installed)",
        "webshop-generated",
        "cruxeval-style (24 functions)",
        "arc",
        "guess",
    ]
    assert names["webshop"].folder(tmp_path).name.startswith("webshop-generated_fixed_-_1_")
    (tmp_path / "json_2.1.1" / "train").mkdir(parents=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    (official,) = {cell.id for cell in cells_of(config) if cell.provenance == "alfworld"} & {
        cell.id for cell in cells_of(config) if (cell.method, cell.seed) == ("fixed", 1)
    }
    # Rows of other games are not taken.
    assert official != names["alfworld"].id


def test_ppo_without_preferences_is_called_ppo():
    config = BenchmarkConfig(baseline_configs={"ppo-rlhf": {"batch_size": 8}})
    assert config.methods == ("echo-rl", "react", "tot", "ppo", "rlaif", "impala")
    assert config.settings_of("ppo") == {"batch_size": 8}
    config = BenchmarkConfig(baseline_configs={"ppo-rlhf": {"reward": "preferences"}})
    assert "ppo-rlhf" in config.methods


def test_what_failed_and_then_goes_well_failed_no_longer(tmp_path):
    register_method("fixed", little.Breaks)
    assert len(little.run(tmp_path).failed) == 2
    register_method("fixed", little.Fixed)
    result = little.run(tmp_path)
    assert (result.failed, len(result.tasks)) == ([], 2)


def test_a_cell_that_has_all_its_episodes_is_not_also_a_failed_one(tmp_path):
    class Ends(little.Fixed):
        async def aclose(self):
            raise RuntimeError("closing failed")

    register_method("fixed", Ends)
    for _ in range(2):
        result = little.run(tmp_path)
        assert (result.failed, len(result.tasks)) == ([], 2)


def test_a_package_that_is_missing_skips(tmp_path):
    def make(cell):
        raise ModuleNotFoundError("No module named 'textworld'", name="textworld")

    register_method("fixed", make)
    result = little.run(tmp_path)
    assert {row["reason"] for row in result.skipped} == {
        "ModuleNotFoundError: No module named 'textworld'"
    }


def test_an_episode_that_takes_too_long_is_no_success(tmp_path):
    result = little.run(
        tmp_path, baselines=["hangs"], num_seeds=1, num_episodes=2, evaluation_timeout=0.05
    )
    (one,) = [one for one in result.tasks if one.method == "hangs"]
    assert (one.success_rate, one.timeouts, one.errors) == (0.0, 2, 0)


def test_an_environment_that_hangs_is_killed_and_costs_one_episode(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(little.__file__).parent))
    mark = tmp_path / "hang"
    monkeypatch.setenv("ECHOIC_TEST_GUESS_HANGS", str(mark))
    mark.touch()
    result = little.run(
        tmp_path / "results",
        tasks=["guess"],
        baselines=[],
        num_seeds=1,
        num_episodes=3,
        environment_timeout=1.5,
        worker_imports=("hanging_guess",),
        task_configs={"guess": {"max_steps": 7}},
    )
    assert not mark.exists()
    (one,) = result.tasks
    assert (one.episodes, one.errors, one.timeouts) == (3, 1, 0)
    assert one.success_rate == pytest.approx(2 / 3)
    (row,) = [row for row in episodes(tmp_path / "results") if row["ended"] == "error"]
    assert "EnvironmentProcessError" in row["error"]


def test_tokens_and_money_are_those_of_the_rows(tmp_path, monkeypatch):
    result = little.run(tmp_path, baselines=["speaks"], backbones=["big", "small"], num_episodes=10)
    spoken = {one.backbone: one for one in result.tasks if one.method == "speaks"}
    assert set(spoken) == {"big", "small"}
    one = spoken["big"]
    rows = [row for row in episodes(tmp_path) if row["backbone"] == "big"]
    seconds = sum(row["seconds"] for row in rows)
    assert one.tokens == 120.0
    assert one.tokens_per_second == pytest.approx(120 * 20 / seconds)
    assert one.computed_tokens_per_second == pytest.approx(60 * 20 / seconds)
    assert one.cost == pytest.approx(0.2)
    assert one.cost_per_success == pytest.approx(0.2 / (one.success_rate * 20))
    # A method without a model runs once, and has neither tokens nor a price.
    (good,) = [one for one in result.tasks if one.method == "good"]
    assert (good.backbone, good.tokens_per_second, good.cost) == ("-", None, None)
    assert result.cost_efficiency["guess"]["good"] is None


def test_what_a_server_does_not_tell_of_its_cache_is_not_zero(tmp_path, monkeypatch):
    result = little.run(
        tmp_path,
        baselines=["silent"],
        backbones=["big"],
        generate_report=True,
        generate_plots=False,
    )
    (one,) = [one for one in result.tasks if one.method == "silent"]
    assert (one.tokens, one.computed_tokens_per_second) == (120.0, None)
    assert {row["tokens_cached"] for row in episodes(tmp_path) if row["method"] == "silent"} == {
        None
    }
    report = (tmp_path / "benchmark_report.md").read_text(encoding="utf-8")
    assert re.search(r"\| guess \| silent \| big \| 120 \| [0-9,]+ \| - \|", report)


def test_comparisons_are_paired_and_corrected_together(tmp_path):
    register_method("worse", type("Worse", (little.Fixed,), {"skill": 0.0}))
    result = little.run(tmp_path, baselines=["fixed", "worse"], num_episodes=15)
    tests = {one.other: one for one in result.significance_tests}
    assert tests["worse"].difference == 1.0
    assert (tests["worse"].unit, tests["worse"].pairs) == ("episode", 30)
    assert all(one.p <= one.p_corrected <= 1 for one in tests.values())
    assert tests["worse"].p_corrected == pytest.approx(2 * tests["worse"].p)


def test_settings_of_a_method_reach_it(tmp_path):
    result = little.run(
        tmp_path, baselines=["trained"], baseline_configs={"trained": {"worse": 5}}, num_episodes=20
    )
    assert result.success_rates["guess"]["trained"] < 0.65


@pytest.mark.parametrize("count", [2, 10])
def test_a_model_that_is_dead_is_no_arm_with_nothing(tmp_path, count):
    class Dead(little.Fixed):
        name = "dead"

        def policy(self):
            return type("Policy", (little.Sleeps,), {"act": self.act})()

        async def act(self, *_):
            raise OSError("no route to the model " + "x" * 5000)

    register_method("fixed", Dead)
    result = little.run(tmp_path, num_episodes=count, parallel_episodes=2)
    assert {one.method for one in result.tasks} == {"good"}
    assert all("no route to the model" in row["reason"] for row in result.failed)
    assert len(result.failed) == 2
    assert result.significance_tests == []
    assert all(len(row["error"] or "") <= 2000 for row in episodes(tmp_path))
    assert sum(row["method"] == "fixed" for row in episodes(tmp_path)) <= 2 * 4
    # What was wrong is put right.
    register_method("fixed", little.Fixed)
    result = little.run(tmp_path, num_episodes=count)
    assert (len(result.tasks), result.failed) == (2, [])


def test_a_task_that_misses_its_data_at_the_first_reset_is_skipped(tmp_path, monkeypatch):
    def reset(self, **options):
        raise FileNotFoundError("no games.json")

    monkeypatch.setattr(little.Guess, "reset", reset)
    result = little.run(tmp_path)
    assert {row["reason"] for row in result.skipped} == {"FileNotFoundError: no games.json"}
    assert result.tasks == []


def test_an_environment_that_never_comes_fails_its_cells(tmp_path, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr("echoic.agents.evaluation.benchmark._BEGINNING", 0.1)
    monkeypatch.setattr("echoic.agents.evaluation.benchmark._PATIENCE", 0.1)
    monkeypatch.setattr(little.Guess, "reset", lambda self, **options: release.wait(20))
    began = time.monotonic()
    try:
        result = little.run(tmp_path, num_seeds=1)
    finally:
        release.set()
    assert time.monotonic() - began < 15
    assert len(result.failed) == 2
    assert all("first reset, took longer than 0.1 s" in row["reason"] for row in result.failed)


def test_steps_are_kept_of_two_episodes_whatever_a_model_says(tmp_path):
    class Odd(little.Fixed):
        name = "odd"

        def policy(self):
            return type("Policy", (little.Sleeps,), {"act": self.act})()

        async def act(self, *_):
            return Decision("\ud83d is half", "\udc00")

    register_method("fixed", Odd)
    result = little.run(tmp_path, max_steps_per_episode=2)
    assert result.failed == []
    rows = [row for row in episodes(tmp_path) if row["method"] == "fixed"]
    assert [len(row["turns"]) for row in rows] == [2, 2, 0] * 2
    turn = rows[0]["turns"][0]
    assert (turn["action"], turn["thought"], turn["reward"]) == ("\ud83d is half", "\udc00", -0.0)
    assert turn["observation"].startswith("It is not")
    little.run(tmp_path / "none", save_detailed_results=False)
    assert not any(row["turns"] for row in episodes(tmp_path / "none"))


def test_a_row_that_can_not_be_written_whole_is_taken_back(tmp_path, monkeypatch):
    with closing(Rows(tmp_path)) as rows:
        rows.add({"id": "a", "kind": "cell"})

        class Full:
            def write(self, content):
                if len(content) < 20:
                    raise OSError("no space left")
                return file.write(content[:10])

            def __getattr__(self, name):
                return getattr(file, name)

        file = rows._file
        monkeypatch.setattr(rows, "_file", Full())
        with pytest.raises(OSError, match="no space"):
            rows.add({"id": "b", "kind": "cell"})
        monkeypatch.undo()
        rows.add({"id": "c", "kind": "cell"})
    assert list(read_rows(tmp_path)) == ["a", "c"]


def test_a_success_that_the_environment_did_not_end_with_is_none(tmp_path, monkeypatch):
    step = little.Guess.step

    def breaking(self, action):
        shown, reward, _, _, info = step(self, action)
        return shown, reward, False, False, {**info, "success": True}

    monkeypatch.setattr(little.Guess, "step", breaking)
    result = little.run(tmp_path, max_steps_per_episode=1)
    assert {one.success_rate for one in result.tasks} == {0.0}


def test_what_a_judge_costs_is_no_price_of_acting(tmp_path):
    class Judged(little.Trained):
        name = "judged"
        needs_backbone = True

        async def train(self):
            return {**await super().train(), "judge_cost": 0.5 + self.cell.seed}

    register_method("judged", Judged)
    result = little.run(tmp_path, baselines=["judged"], backbones=["big"])
    (one,) = [one for one in result.tasks if one.method == "judged"]
    assert (one.tokens, one.tokens_per_second, one.cost, one.cost_per_success) == (None,) * 4
    trained = [row for row in read_rows(tmp_path).values() if row["kind"] == "training"]
    assert [row["measures"]["judge_cost"] for row in trained] == [0.5, 1.5]


def test_rows_of_a_name_that_meant_another_model_are_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "no key")
    seen = set()
    for model in (None, "gpt-9", "gpt-10"):
        if model is not None:
            monkeypatch.setenv("GPT_4O_MODEL", model)
        result = little.run(tmp_path, baselines=["speaks"], backbones=["gpt-4o"])
        (one,) = [one for one in result.tasks if one.method == "speaks"]
        assert one.model == (model or "gpt-4o")
        seen.add(one.settings)
    assert len(seen) == 3
    models = {row["model"] for row in episodes(tmp_path) if row["method"] == "speaks"}
    assert models == {"gpt-4o", "gpt-9", "gpt-10"}


def test_two_benchmarks_do_not_write_to_one_folder(tmp_path):
    with closing(Rows(tmp_path)), pytest.raises(StorageError, match="another benchmark"):
        Rows(tmp_path)
    (tmp_path / "rows.jsonl").write_text("[1]\n")
    with pytest.raises(StorageError, match="line 1"):
        Rows(tmp_path)


def test_names_of_a_user_mean_something(tmp_path, monkeypatch):
    from echoic.agents.environments import register_environment

    register_environment("custom_task", lambda **settings: little.Guess(
        little.EnvironmentConfig(**settings)
    ))  # fmt: skip
    register_method("custom_baseline", little.Speaks)
    register_method("echo-rl", little.Trained)
    try:
        config = BenchmarkConfig(
            tasks=["custom_task"],
            backbones=["custom_backbone"],
            baselines=["custom_baseline"],
            num_seeds=5,
            num_episodes=50,
            echo_rl_configs={"total_timesteps": 50000, "num_actors": 64},
            output_dir=str(tmp_path),
            generate_report=False,
        )
        result = asyncio.run(EchoRLBenchmark(config).run_benchmark())
    finally:
        from echoic.agents import baselines as base

        del base._USERS["echo-rl"]
    assert set(result.success_rates["custom_task"]) == {
        "echo-rl",
        "custom_baseline (custom_backbone)",
    }
    told = json.loads((tmp_path / "benchmark_results.json").read_text())
    assert told["success_rates"] == result.success_rates
