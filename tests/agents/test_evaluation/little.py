"""A task, methods and a language model that are small enough to know what must come out."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
from echoic.agents.backbones import register_backbone
from echoic.agents.baselines import Method, register_method
from echoic.agents.environments import (
    EchoRLEnvironment,
    EnvironmentConfig,
    Outcome,
    register_environment,
)
from echoic.agents.episodes import Decision, Usage
from echoic.agents.evaluation import BenchmarkConfig, EchoRLBenchmark
from echoic.agents.evaluation.config import HELD_OUT

SEEN: list[int] = []


class Guess(EchoRLEnvironment):
    instructions = "Say <b>which</b> of four."

    def _start(self, options):
        self._number = int(self.np_random.integers(4))
        return f"It is not {(self._number + 1) % 4}. <script>alert(1)</script>"

    def _apply(self, command):
        if not command.isdigit():
            return None
        right = int(command) == self._number
        return Outcome("Yes." if right else "No.", float(right), True, float(right))

    def _commands(self):
        return [str(i) for i in range(4)]

    def reset(self, **options):
        # A lower one is of the benchmark's look at the task.
        if options["seed"] >= HELD_OUT:
            SEEN.append(options["seed"])
        return super().reset(**options)


@dataclass
class Acts:
    """Says a number that depends on the seed of the episode and on how good it is."""

    skill: float
    usage: Usage = field(default_factory=Usage)

    def begin(self, instructions, seed):
        self._rng = np.random.default_rng(seed)

    async def act(self, observation, info):
        told = int(observation["text"].split()[3].rstrip("."))
        right = (told - 1) % 4
        said = right if self._rng.random() < self.skill else told
        return Decision(str(said), "Because of <i>that</i>.", self.usage)


class Fixed(Method):
    name = "fixed"
    skill = 0.5

    def policy(self):
        return Acts(self.skill)


class Good(Fixed):
    name = "good"
    skill = 1.0


class Trained(Fixed):
    """Better with more steps; its runs differ by their seeds."""

    name = "trained"
    trains = True
    trainings = 0

    async def train(self):
        type(self).trainings += 1
        folder = self.cell.folder
        (folder / "trained").touch()
        self.curve = [
            {"step": self.cell.steps * share // 4, "success_rate": 0.25 * share}
            for share in range(1, 5)
        ]
        noise = np.random.default_rng(self.cell.seed).uniform(-0.2, 0.0)
        self.skill = 1.0 + noise - 0.1 * self.cell.settings.get("worse", 0)
        return {"skill": np.float32(self.skill), "none": float("nan")}


class Speaks(Fixed):
    name = "speaks"
    needs_backbone = True

    def policy(self):
        return Acts(0.5, Usage(100, 60, 20, 0.01, 1))


class Silent(Fixed):
    """Its server tells nothing of a cache."""

    name = "silent"
    needs_backbone = True

    def policy(self):
        return Acts(0.5, Usage(100, None, 20, 0.01, 1))


class Breaks(Fixed):
    name = "breaks"
    trains = True

    async def train(self):
        raise RuntimeError("the <b>optimizer</b> | diverged")


class Hangs(Fixed):
    name = "hangs"

    def policy(self):
        return Sleeps()


class Sleeps:
    def begin(self, instructions, seed):
        pass

    async def act(self, observation, info):
        await asyncio.sleep(60)


METHODS = (Fixed, Good, Trained, Speaks, Silent, Breaks, Hangs)


def register():
    SEEN.clear()
    Trained.trainings = 0
    register_environment("guess", lambda **settings: Guess(EnvironmentConfig(**settings)))
    for method in METHODS:
        register_method(method.name, method)
    for backbone in ("big", "small", "custom_backbone"):
        register_backbone(backbone, object)


def settings(folder, **more):
    told = {
        "tasks": ["guess"],
        "backbones": [],
        "baselines": ["fixed"],
        "reference": "good",
        "num_seeds": 2,
        "num_episodes": 3,
        "output_dir": str(folder),
        "generate_report": False,
    }
    return BenchmarkConfig(**(told | more))


def run(folder, **more):
    return asyncio.run(EchoRLBenchmark(settings(folder, **more)).run_benchmark())
