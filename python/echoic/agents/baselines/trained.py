"""Methods that train: a trainer in the cell's folder, which resumes from the checkpoint there.

``echo-rl`` is the full method; its ablations are settings: ``{"use_plans": False}``,
``{"plan_history": 0}`` (of the same size, without memory), ``{"replay": "uniform"}``,
``{"replay": "none"}``. The other methods have no plans and no replay.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import json
import math
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from echoic._json import finite
from echoic.agents.backbones.base import Message
from echoic.agents.backbones.smollm2 import check_name
from echoic.agents.baselines.base import Method
from echoic.agents.episodes import Usage
from echoic.agents.training.config import TrainingConfig
from echoic.agents.training.rewards import PreferenceReward
from echoic.agents.training.trainer import EchoRLTrainer
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.agents.baselines.base import Cell
    from echoic.agents.episodes import Policy
    from echoic.agents.training.actors import Transcript

__all__ = [
    "IMPALA",
    "PPO",
    "PPORLHF",
    "RLAIF",
    "EchoRL",
    "TrainedMethod",
    "judgement_of",
    "prompt_of",
]

_FIELDS = {field.name for field in dataclasses.fields(TrainingConfig)}
# Fields that the cell sets.
_OF_THE_CELL = {
    *("env_name", "env_config", "total_timesteps", "seed", "checkpoint_dir", "results_dir"),
    "tensorboard_log",
}


class TrainedMethod(Method):
    """A method whose settings are fields of a :class:`~echoic.agents.training.TrainingConfig`."""

    trains: ClassVar[bool] = True
    needs_commands: ClassVar[bool] = True
    #: Settings that define the method; the cell's settings are added to them.
    fixed: ClassVar[dict[str, Any]] = {}
    #: Settings that are not the trainer's.
    own: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.check(cell.settings)
        self.config = self._config()
        self.trainer = self._trainer()

    @classmethod
    def check(cls, settings: Mapping[str, Any]) -> None:
        """Raise an ``ArgumentError`` for settings that no cell of this method can have."""
        known = (_FIELDS - _OF_THE_CELL) | cls.own
        if unknown := sorted(set(settings) - known):
            listed = ", ".join(sorted(known))
            raise ArgumentError(f"{cls.name} has no setting {unknown[0]!r}; it has {listed}")
        for name, value in cls.fixed.items():
            if settings.get(name, value) != value:
                raise ArgumentError(
                    f"{cls.name} is {name}={value!r}; with {settings[name]!r} it would be another "
                    "method"
                )
        TrainingConfig(backbone=settings.get("backbone", "mlp"))
        check_name(settings.get("backbone", "mlp"))

    @property
    def environment_settings(self) -> Mapping[str, Any]:
        """The policy's sizes."""
        return {
            "state_encoding_dim": self.config.state_dim,
            "action_space_size": self.config.action_dim,
        }

    async def train(self) -> Mapping[str, Any]:
        """Train within the cell's steps, resuming an earlier run."""
        metrics = await self.trainer.train()
        points = zip(metrics.history["step"], metrics.history["success_rate"], strict=True)
        self.curve = [{"step": step, "success_rate": rate} for step, rate in points]
        return {
            "steps": metrics.total_timesteps,
            "episodes": metrics.total_episodes,
            "seconds": metrics.training_time,
            "updates": len(metrics.policy_losses),
            "success_rate": metrics.evaluation_results["success_rate"],
            "average_reward": metrics.evaluation_results["avg_reward"],
            "eta_bw": metrics.bandwidth_efficiency[-1] if metrics.bandwidth_efficiency else 0.0,
        }

    def policy(self) -> Policy:
        """Return the trained policy, which samples its actions as in training."""
        return self.trainer.policy()

    async def aclose(self) -> None:
        """Close the trainer."""
        # That waits for threads, which may wait for this loop: a judge answers in it.
        await asyncio.to_thread(self.trainer.close)

    def _trainer(self) -> EchoRLTrainer:
        return EchoRLTrainer(self.config, resume=True)

    def _config(self) -> TrainingConfig:
        cell = self.cell
        given = {name: value for name, value in cell.settings.items() if name in _FIELDS}
        # Sizes in the task's settings are those of the run.
        sizes = {"state_encoding_dim": "state_dim", "action_space_size": "action_dim"}
        for setting in sizes.keys() & cell.task_config.keys():
            given.setdefault(sizes[setting], cell.task_config[setting])
        return TrainingConfig(
            env_name=cell.task,
            env_config=dict(cell.task_config),
            total_timesteps=cell.steps,
            seed=cell.seed,
            checkpoint_dir=str(cell.folder / "checkpoints"),
            results_dir=str(cell.folder / "results"),
            tensorboard_log="",
            **{**given, **self.fixed},
        )


class EchoRL(TrainedMethod):
    """Latent plans, PPO on new segments, and V-trace on surprising steps."""

    name: ClassVar[str] = "echo-rl"


class IMPALA(TrainedMethod):
    """Asynchronous actors and V-trace for their lag (Espeholt et al., 2018).

    It takes one step along V-trace's gradient for each batch of segments.
    """

    name: ClassVar[str] = "impala"
    fixed: ClassVar[dict[str, Any]] = {
        "algorithm": "impala",
        "backbone": "mlp",
        "asynchronous": True,
        "replay": "none",
        "use_plans": False,
    }


class PPO(TrainedMethod):
    """PPO with the environment's reward."""

    name: ClassVar[str] = "ppo"
    fixed: ClassVar[dict[str, Any]] = {
        "algorithm": "ppo",
        "backbone": "mlp",
        "replay": "none",
        "use_plans": False,
    }


class PPORLHF(PPO):
    """PPO that sees a learned reward only; its setting is ``reward="preferences"``.

    A network learns along the way which of two segments is preferred
    (:class:`~echoic.agents.training.PreferenceReward`): that with the higher reward of the
    environment, in place of people.

    Raises:
        ArgumentError: Without the setting: that is :class:`PPO`, as which a benchmark reports it.
    """

    name: ClassVar[str] = "ppo-rlhf"
    own: ClassVar[frozenset[str]] = frozenset({"reward"})

    @classmethod
    def check(cls, settings: Mapping[str, Any]) -> None:
        """Raise an ``ArgumentError`` without the setting, too."""
        super().check(settings)
        if (reward := settings.get("reward")) != "preferences":
            raise ArgumentError(
                f'ppo-rlhf needs reward="preferences", not {reward!r}; without preferences it is '
                "ppo"
            )

    def _trainer(self) -> EchoRLTrainer:
        self.model = PreferenceReward(self.config, seed=self.cell.seed)
        return EchoRLTrainer(self.config, resume=True, reward_model=self.model)

    async def train(self) -> Mapping[str, Any]:
        """Train within the cell's steps; return also how well preferences were explained."""
        found = await super().train()
        more = {"preferences": self.model.answers, "preference_accuracy": self.model.accuracy}
        return {**found, **more}


_NUMBER = re.compile(r"(?<![\d.])(10|\d)(?:\.\d+)?(?!\d)")
_ASK = (
    "You judge how well an agent has done a task. You are shown the task, and what the agent saw "
    "and did. Answer with one whole number from 0 (not at all) to 10 (fully done), nothing else."
)
# Characters of an episode, from its end.
_LONGEST = 6000
# Seconds for both questions; hosted backbones have shorter limits of their own.
_PATIENCE = 900.0


class RLAIF(TrainedMethod):
    """PPO rewarded by a language model (Bai et al., 2022; Lee et al., 2023).

    When an episode ends, the judge, the cell's backbone, reads it and rates from 0 to 10 how well
    the task was done; a tenth of that is the reward of the last step, and there is no other. An
    answer without a number is asked for once more, then counts as 0 and as unclear. The judge's
    usage is a cost of training, and kept in the cell's folder. Episodes after the last checkpoint
    are judged, and paid, again when a run resumes.
    """

    name: ClassVar[str] = "rlaif"
    needs_backbone: ClassVar[bool] = True
    # The trainer waits for its judge while it acts.
    fixed: ClassVar[dict[str, Any]] = {**PPO.fixed, "backend": "threads", "asynchronous": False}

    def __init__(self, cell: Cell) -> None:
        #: Usage of the judge, by this run and those that it resumes.
        self.usage = Usage()
        #: Numbers of judged episodes and of answers without a number.
        self.judged = self.unclear = 0
        self._account = cell.folder / "judge.json"
        if self._account.exists():
            data = json.loads(self._account.read_text(encoding="ascii"))
            # The cost of a model without a price is null there.
            cost = math.nan if data["usage"]["cost"] is None else data["usage"]["cost"]
            self.usage = Usage(**{**data["usage"], "cost": cost})
            self.judged, self.unclear = data["judged"], data["unclear"]
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(cell)

    async def train(self) -> Mapping[str, Any]:
        """Train within the cell's steps; return also the judge's usage."""
        # Actors are in threads; the backbone belongs to the loop that training is awaited in.
        self._loop = asyncio.get_running_loop()
        return {
            **await super().train(),
            "judged_episodes": self.judged,
            "unclear_answers": self.unclear,
            "judge_tokens_in": self.usage.tokens_in,
            "judge_tokens_out": self.usage.tokens_out,
            "judge_cost": self.usage.cost,
        }

    def _trainer(self) -> EchoRLTrainer:
        return EchoRLTrainer(self.config, resume=True, judge=self._judge)

    def _judge(self, transcript: Transcript) -> float:
        if self._loop is None:
            raise ArgumentError("a judge is asked within train() only")
        asked = asyncio.run_coroutine_threadsafe(self._asked(transcript), self._loop)
        try:
            return asked.result(_PATIENCE)
        except concurrent.futures.TimeoutError:
            asked.cancel()
            raise BackboneError(f"the judge said nothing within {_PATIENCE:g} s") from None

    async def _asked(self, transcript: Transcript) -> float:
        messages = [Message("system", _ASK), Message("user", prompt_of(transcript))]
        self.judged += 1
        try:
            for heat in (0.0, 0.7):
                said = await self.cell.backbone.chat(messages, max_tokens=8, temperature=heat)
                self.usage += said.usage
                if (found := judgement_of(said.text)) is not None:
                    return found
        except BackboneError as error:
            if isinstance(error.usage, Usage):
                self.usage += error.usage
            raise
        else:
            self.unclear += 1
            return 0.0
        finally:
            usage = finite(asdict(self.usage))
            data = {"usage": usage, "judged": self.judged, "unclear": self.unclear}
            self._account.parent.mkdir(parents=True, exist_ok=True)
            partial = self._account.with_suffix(".partial")
            partial.write_text(json.dumps(data), encoding="ascii")
            partial.replace(self._account)


def prompt_of(transcript: Transcript) -> str:
    """Write the judge's prompt: the task and the episode, or the end of a long one."""
    turns = [f"It saw: {seen}\nIt did: {said}" for seen, said in transcript.turns]
    episode = "\n".join([*turns, f"It saw last: {transcript.final}"])
    if len(episode) > _LONGEST:
        episode = f"[...]{episode[-_LONGEST:]}"
    return f"Task: {transcript.instructions}\n\n{episode}\n\nYour number from 0 to 10:"


def judgement_of(text: str) -> float | None:
    """Read a judgement, from 0 to 1: the first number from 0 to 10, divided by 10; or None.

    >>> judgement_of("8/10, because"), judgement_of("Well done!")
    (0.8, None)
    """
    found = _NUMBER.search(text)
    return None if found is None else min(float(found.group(0)), 10.0) / 10.0
