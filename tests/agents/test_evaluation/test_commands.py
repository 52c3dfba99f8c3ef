"""``echoic benchmark``, ``echoic train`` and their examples, on a task that takes no time."""

import asyncio
import json
import logging
import types

import little
import pytest
from echoic.agents import baselines as base
from echoic.agents import runs
from echoic.agents.evaluation import read_rows
from echoic.cli.app import app
from echoic.errors import ArgumentError
from typer.testing import CliRunner

from examples import benchmark_echo_rl

LITTLE = ["--device", "cpu", "--num-episodes", "2", "--num-seeds", "2", "--timesteps", "100"]


@pytest.fixture(autouse=True)
def _registered():
    little.register()


def invoke(*given):
    return CliRunner().invoke(app, list(given), env={"COLUMNS": "200", "TERM": "dumb"})


def bench(folder, *given):
    return invoke(
        "benchmark", "--tasks", "guess", "--backbones", "", "--reference", "trained",
        "--output-dir", str(folder), *LITTLE, *given,
    )  # fmt: skip


def test_a_benchmark_is_one_command(tmp_path):
    ran = bench(tmp_path, "--baselines", "fixed, good")
    assert ran.exit_code == 0, ran.output
    assert "guess: good: success 1.000" in ran.stdout
    assert "[1/6] guess · trained · - · seed 0: 2 episodes" in ran.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {
        "benchmark_results.json", "benchmark_report.md", "echo_rl_benchmark.log", "rows.jsonl",
    }  # fmt: skip
    little.SEEN.clear()
    again = bench(tmp_path, "--baselines", "fixed, good", "--json")
    assert json.loads(again.stdout)["success_rates"]["guess"]["good"] == 1.0
    assert little.SEEN == []


def test_flags_reach_what_they_are_about(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(little.Trained, "train", lambda self: _seen(seen, self.cell))
    monkeypatch.setitem(base._USERS, "ppo-rlhf", little.Trained)
    ran = bench(
        tmp_path, "--baselines", "trained,ppo-rlhf", "--num-actors", "7", "--num-learners", "3",
        "--batch-size", "9", "--setting", "replay=uniform", "--setting", "worse=2",
        "--setting", "reward=preferences", "--setting", "backbone=local:smollm2",
        "--task-setting", "guess.max_steps=5", "--max-steps", "4", "--timeout", "20",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    assert [cell.seed for cell in seen] == [0, 0, 1, 1]
    assert seen[1].settings == {**seen[0].settings, "reward": "preferences"}
    assert (seen[0].steps, seen[0].task_config) == (100, {"max_steps": 5})
    assert seen[0].settings == {
        "num_actors": 7, "num_learners": 3, "batch_size": 9, "device": "cpu",
        "replay": "uniform", "worse": 2,
    }  # fmt: skip
    config = json.loads((tmp_path / "benchmark_results.json").read_text())["config"]
    assert (config["max_steps_per_episode"], config["evaluation_timeout"]) == (4, 20.0)
    assert config["echo_rl_configs"]["backbone"] == "local:smollm2"


async def _seen(seen, cell):
    seen.append(cell)
    return {}


def test_a_cell_that_fails_is_in_the_status(tmp_path):
    ran = bench(tmp_path, "--baselines", "breaks")
    assert ran.exit_code == 1
    assert "failed: 2 cells" in ran.stdout
    assert "failed: RuntimeError: the <b>optimizer</b>" in ran.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--setting", "worse"], "expected NAME=VALUE"),
        (["--task-setting", "max_steps=1"], "expected TASK.NAME=VALUE"),
        (["--log-level", "LOUD"], "a log level must be one of"),
        (["--import", "no_such_module"], "no_such_module"),
        (["--tasks", " , "], "at least one environment"),
    ],
)
def test_what_makes_no_sense_is_one_line(tmp_path, given, said):
    ran = bench(tmp_path, *given)
    assert ran.exit_code in {1, 2}
    assert said in ran.output
    assert "Traceback" not in ran.output


def test_a_package_that_is_missing_is_one_line(tmp_path, monkeypatch):
    def missing(*_):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(runs, "log_to", missing)
    ran = bench(tmp_path)
    assert ran.exit_code == 1
    assert ran.stderr.splitlines()[-1] == "echoic: No module named 'torch'"


def test_a_model_that_a_method_was_trained_with_is_closed(tmp_path, monkeypatch):
    closed = []

    class Model:
        async def aclose(self):
            closed.append(self)

    class Judged(little.Trained):
        name = "judged"
        needs_backbone = True

        async def train(self):
            return {"judge_cost": float("nan"), "steps": 1}

    base.register_method("judged", Judged)
    monkeypatch.setattr("echoic.agents.backbones.make_backbone", lambda name: Model())
    ran = invoke(
        "train", "--task", "guess", "--method", "judged", "--device", "cpu", "--json",
        "--output-dir", str(tmp_path),
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    assert len(closed) == 1
    assert json.loads(ran.stdout, parse_constant=pytest.fail)["judge_cost"] is None


def test_names_of_a_user_come_by_import(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "brings_a_name.py").write_text(
        "from echoic.agents.baselines import register_method\n"
        "import little\n"
        "register_method('brought', little.Good)\n"
    )
    ran = bench(tmp_path, "--baselines", "brought", "--import", "brings_a_name")
    assert "guess: brought: success 1.000" in ran.stdout
    assert base.maker_of("brought") is little.Good


def test_another_method_is_trained_by_its_name(tmp_path):
    ran = invoke(
        "train", "--task", "guess", "--method", "trained", "--device", "cpu", "--timesteps", "50",
        "--output-dir", str(tmp_path), "--json",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["skill"] > 0.5
    assert (tmp_path / "checkpoints" / "guess_trained" / "trained").exists()
    ran = invoke("train", "--method", "good", "--device", "cpu", "--output-dir", str(tmp_path))
    assert "good has nothing to train" in ran.stderr
    ran = invoke(
        "train", "--method", "trained", "--backbone", "gpt-4o", "--output-dir", str(tmp_path)
    )
    assert "trained has no language model, so --backbone gpt-4o has no effect" in ran.stderr
    # Nothing is saved under a model's name that is not its.
    assert not list(tmp_path.glob("**/*gpt-4o*"))


class Trainer:
    """What a trainer looks like from outside."""

    def __init__(self):
        self.metrics = types.SimpleNamespace(
            total_timesteps=0,
            total_episodes=0,
            history={"step": [], "success_rate": [], "avg_reward": []},
            **{name: [] for name in runs._NUMBERS},
        )

    def get_training_metrics(self):
        return self.metrics

    async def train(self):
        for step in range(3):
            self.metrics.total_timesteps = 10 * step
            self.metrics.policy_losses.append(1.0 / (step + 1))
            await asyncio.sleep(0.02)
        for name, value in (("step", 20), ("success_rate", 0.5), ("avg_reward", 1.0)):
            self.metrics.history[name].append(value)
        return self.metrics


def test_a_training_run_leaves_its_numbers(tmp_path):
    told = []
    asyncio.run(runs.watch_training(Trainer(), tmp_path, report=told.append, interval=0.005))
    text = (tmp_path / "training_metrics.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert (lines[-1]["step"], lines[-1]["policy_loss"]) == (20, pytest.approx(1 / 3))
    assert told == ["step 20: success 0.500, reward 1.000"]
    report = json.loads((tmp_path / "performance_report.json").read_text())
    assert report["latest"]["policy_loss"] == pytest.approx(1 / 3)


def test_a_log_ends_with_the_run(tmp_path):
    before = logging.getLogger("echoic").level
    with runs.log_to(tmp_path / "run.log", "WARNING"):
        logging.getLogger("echoic.agents").info("not this")
        logging.getLogger("echoic.agents").warning("but this")
    logging.getLogger("echoic.agents").warning("nor this")
    assert (tmp_path / "run.log").read_text().count("\n") == 1
    assert logging.getLogger("echoic").level == before
    with pytest.raises(ArgumentError), runs.log_to(tmp_path / "run.log", "LOUD"):
        pass


def test_the_example_has_the_flags_that_were_promised():
    told = benchmark_echo_rl.arguments([])
    assert (told.tasks, told.num_seeds, told.num_episodes) == (
        list(benchmark_echo_rl.TASKS),
        10,
        100,
    )
    assert (told.max_steps, told.timeout, told.timesteps) == (1000, 300.0, 100_000)
    assert (told.num_actors, told.num_learners, told.batch_size) == (128, 2, 256)


def test_every_flag_of_the_training_example_is_a_setting():
    pytest.importorskip("torch")
    from examples import train_echo_rl

    usual = vars(train_echo_rl.arguments([]))
    assert usual == {
        "task": "alfworld", "backbone": "gpt-4o", "timesteps": 100_000, "num_actors": 128,
        "num_learners": 2, "batch_size": 256, "seed": 42, "log_level": "INFO", "device": "auto",
        "resume": False,
    }  # fmt: skip
    given = ["--task", "minigrid", "--num-actors", "3", "--device", "cpu"]
    config = train_echo_rl.settings(train_echo_rl.arguments(given))
    assert (config.env_name, config.num_actors, config.device) == ("minigrid", 3, "cpu")
    assert (config.total_timesteps, config.num_learners, config.batch_size) == (100_000, 2, 256)
    assert (config.seed, config.results_dir) == (42, "results/minigrid_mlp")
    # Nothing is saved under the name of a model that it is not.
    assert config.backbone == "mlp"
    given = ["--task", "minigrid", "--backbone", "local:A/b"]
    assert train_echo_rl.settings(train_echo_rl.arguments(given)).results_dir.endswith("local:A_b")


def test_the_example_runs_anywhere(tmp_path, monkeypatch, capsys):
    # As it is without a key: every method that needs a model is skipped.
    monkeypatch.setattr(benchmark_echo_rl, "TASKS", ("guess",))
    monkeypatch.setattr("echoic.agents.evaluation.benchmark._backbone", _no_key)
    monkeypatch.setitem(base._USERS, "echo-rl", little.Trained)
    benchmark_echo_rl.main(
        ["--tasks", "guess", "--backbones", "gpt-4o", "--baselines", "speaks",
         "--output-dir", str(tmp_path), *LITTLE]
    )  # fmt: skip
    assert "2 cells skipped, 0 failed" in capsys.readouterr().out
    skipped = [row for row in read_rows(tmp_path).values() if row["kind"] == "cell"]
    assert {row["reason"] for row in skipped} == {"no key OPENAI_API_KEY"}


def _no_key(name):
    from echoic.agents.evaluation.benchmark import _NotRun

    if name != "-":
        raise _NotRun("skipped", "no key OPENAI_API_KEY")
