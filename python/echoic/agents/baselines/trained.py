"""Methods that train: a trainer in the cell's folder, which goes on from what is there.

- ``echo-rl`` is the full method: latent plans, PPO on new segments, and V-trace on steps that
  surprised. Ablations are settings of the cell: ``{"use_plans": False}``, ``{"plan_history": 0}``
  (as large, and no memory), ``{"replay": "uniform"}``, ``{"replay": "none"}``.
- ``impala``: actors that do not wait, and V-trace for being behind (Espeholt et al., 2018). No
  plans and no replay; one step along V-trace's gradient for each batch of segments.
- ``ppo-rlhf``: PPO. With ``reward="preferences"`` a network says what steps are worth
  (:class:`~echoic.agents.training.PreferenceReward`): it learns along the way which of two
  segments is preferred, and the policy sees no other reward. The preferences are a stand-in for
  people's: the segment that the environment paid more.
- ``rlaif``: PPO whose reward is the opinion of a language model (Bai et al., 2022; Lee et al.,
  2023). When an episode ends, the judge, the cell's backbone, reads it and says from 0 to 10 how
  well the task was done; a tenth of that is the reward of the last step, and there is no other. An
  answer without a number is asked for once more, and is a 0 then; how often is counted. What a
  judge costs is the price of training, not of acting: it is summed in :attr:`RLAIF.usage` and,
  after each answer, in the cell's folder, from which a run goes on. What was judged after the last
  checkpoint is judged, and paid, again.
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

from echoic.agents.backbones.base import Message
from echoic.agents.baselines.base import Method
from echoic.agents.episodes import Usage, used_by
from echoic.agents.training.config import TrainingConfig
from echoic.agents.training.rewards import PreferenceReward
from echoic.agents.training.trainer import EchoRLTrainer
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.agents.baselines.base import Cell
    from echoic.agents.episodes import Policy
    from echoic.agents.training.actors import Transcript

__all__ = ["IMPALA", "PPORLHF", "RLAIF", "EchoRL", "TrainedMethod", "judgement_of", "prompt_of"]

_FIELDS = {field.name for field in dataclasses.fields(TrainingConfig)}
# What the cell says, settings can't.
_OF_THE_CELL = {
    *("env_name", "env_config", "total_timesteps", "seed", "checkpoint_dir", "results_dir"),
    "tensorboard_log",
}


class TrainedMethod(Method):
    """A method whose settings are fields of a :class:`~echoic.agents.training.TrainingConfig`."""

    trains: ClassVar[bool] = True
    #: What makes the method this one; the cell's settings come on top.
    fixed: ClassVar[dict[str, Any]] = {}
    #: Settings that are none of the trainer.
    own: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        unknown = sorted(set(cell.settings) - (_FIELDS - _OF_THE_CELL) - self.own)
        if unknown:
            raise ArgumentError(f"{self.name} has no setting {unknown[0]!r}")
        for name, value in self.fixed.items():
            if cell.settings.get(name, value) != value:
                raise ArgumentError(
                    f"{self.name} is {name}={value!r}; with {cell.settings[name]!r} it would be "
                    "another method"
                )
        self.config = self._config()
        self.trainer = self._trainer()

    @property
    def environment_settings(self) -> Mapping[str, Any]:
        """What the policy's widths ask of an environment."""
        return {
            "state_encoding_dim": self.config.state_dim,
            "action_space_size": self.config.action_dim,
        }

    async def train(self) -> Mapping[str, float]:
        """Train within the cell's steps; a run that was begun before goes on."""
        metrics = await self.trainer.train()
        results = metrics.evaluation_results
        return {
            "steps": metrics.total_timesteps,
            "episodes": metrics.total_episodes,
            "seconds": metrics.training_time,
            "updates": len(metrics.policy_losses),
            "success_rate": results["success_rate"],
            "average_reward": results["avg_reward"],
            "eta_bw": metrics.bandwidth_efficiency[-1] if metrics.bandwidth_efficiency else 0.0,
        }

    def policy(self) -> Policy:
        """What is trained by now, drawing its actions as it did when it learned."""
        return self.trainer.policy()

    async def aclose(self) -> None:
        """End what the trainer has started."""
        # It waits for threads, and they may wait for this loop: a judge answers in it.
        await asyncio.to_thread(self.trainer.close)

    def _trainer(self) -> EchoRLTrainer:
        return EchoRLTrainer(self.config, resume=True)

    def _config(self) -> TrainingConfig:
        cell = self.cell
        given = {name: value for name, value in cell.settings.items() if name in _FIELDS}
        # Sizes that the task's settings say are those of the run.
        for setting, name in (
            ("state_encoding_dim", "state_dim"),
            ("action_space_size", "action_dim"),
        ):
            if setting in cell.task_config:
                given.setdefault(name, cell.task_config[setting])
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
    """Latent plans, PPO on new segments, and V-trace on steps that surprised."""

    name: ClassVar[str] = "echo-rl"


class IMPALA(TrainedMethod):
    """Asynchronous actors and V-trace."""

    name: ClassVar[str] = "impala"
    fixed: ClassVar[dict[str, Any]] = {
        "algorithm": "impala",
        "asynchronous": True,
        "replay": "none",
        "use_plans": False,
    }


REWARDS = ("environment", "preferences")


class PPORLHF(TrainedMethod):
    """PPO without plans, its reward the environment's or learned."""

    name: ClassVar[str] = "ppo-rlhf"
    fixed: ClassVar[dict[str, Any]] = {"algorithm": "ppo", "replay": "none", "use_plans": False}
    own: ClassVar[frozenset[str]] = frozenset({"reward"})

    def _trainer(self) -> EchoRLTrainer:
        reward = self.cell.settings.get("reward", "environment")
        if reward not in REWARDS:
            raise ArgumentError(f"reward must be one of {', '.join(REWARDS)}, not {reward!r}")
        self.model: PreferenceReward | None = None
        if reward == "preferences":
            self.model = PreferenceReward(self.config, seed=self.cell.seed)
        return EchoRLTrainer(self.config, resume=True, reward_model=self.model)

    async def train(self) -> Mapping[str, float]:
        """Train within the cell's steps, with how well preferences were explained."""
        found = await super().train()
        if self.model is None:
            return found
        return {
            **found,
            "preferences": self.model.answers,
            "preference_accuracy": self.model.accuracy,
        }


_NUMBER = re.compile(r"(?<![\d.])(10|\d)(?:\.\d+)?(?!\d)")
_ASK = (
    "You judge how well an agent has done a task. You are shown the task, and what the agent saw "
    "and did. Answer with one whole number from 0 (not at all) to 10 (fully done), nothing else."
)
# Of a long episode its end tells most.
_LONGEST = 6000
# Seconds of both questions; backbones at vendors have bounds of their own, below this.
_PATIENCE = 900.0


class RLAIF(TrainedMethod):
    """PPO without plans, paid by a language model that reads its episodes."""

    name: ClassVar[str] = "rlaif"
    needs_backbone: ClassVar[bool] = True
    fixed: ClassVar[dict[str, Any]] = {
        "algorithm": "ppo",
        "replay": "none",
        "use_plans": False,
        "backend": "threads",
        # The trainer waits for its judge while it acts.
        "asynchronous": False,
    }

    def __init__(self, cell: Cell) -> None:
        #: What the judge has used, by this run and those that it goes on from.
        self.usage = Usage()
        #: How many episodes it has judged, and how many answers had no number.
        self.judged = self.unclear = 0
        self._account = cell.folder / "judge.json"
        self._recall()
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(cell)

    async def train(self) -> Mapping[str, float]:
        """Train within the cell's steps, with what the judge has used."""
        # Actors are in threads; the backbone belongs to the loop that training is awaited in.
        self._loop = asyncio.get_running_loop()
        found = await super().train()
        return {
            **found,
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
        for temperature in (0.0, 0.7):
            try:
                said = await self.cell.backbone.chat(
                    messages, max_tokens=8, temperature=temperature
                )
            except BackboneError as error:
                self._spend(used_by(error))
                raise
            self._spend(said.usage)
            if (found := judgement_of(said.text)) is not None:
                return found
        self.unclear += 1
        self._spend(Usage())
        return 0.0

    def _spend(self, usage: Usage) -> None:
        """Count what an answer used, here and in the folder."""
        self.usage += usage
        told = {
            "usage": {name: _told(value) for name, value in asdict(self.usage).items()},
            "judged": self.judged,
            "unclear": self.unclear,
        }
        self._account.parent.mkdir(parents=True, exist_ok=True)
        partial = self._account.with_suffix(".partial")
        partial.write_text(json.dumps(told), encoding="ascii")
        partial.replace(self._account)

    def _recall(self) -> None:
        """Go on from what is in the folder."""
        if not self._account.exists():
            return
        told = json.loads(self._account.read_text(encoding="ascii"))
        usage = told["usage"]
        cost = math.nan if usage["cost"] is None else usage["cost"]
        self.usage = Usage(**{**usage, "cost": cost})
        self.judged, self.unclear = told["judged"], told["unclear"]


def _told(value: Any) -> Any:
    """A number that JSON has; the cost of a model without a price is null there."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def prompt_of(transcript: Transcript) -> str:
    """What a judge is shown of an episode: all of it, or, of a long one, the task and the end."""
    turns = [f"It saw: {seen}\nIt did: {said}" for seen, said in transcript.turns]
    episode = "\n".join([*turns, f"It saw last: {transcript.final}"])
    if len(episode) > _LONGEST:
        episode = f"[...]{episode[-_LONGEST:]}"
    return f"Task: {transcript.instructions}\n\n{episode}\n\nYour number from 0 to 10:"


def judgement_of(text: str) -> float | None:
    """What a judge said, from 0 to 1: the first number from 0 to 10 in it; None without one.

    >>> judgement_of("8/10, because"), judgement_of("Well done!")
    (0.8, None)
    """
    found = _NUMBER.search(text)
    return None if found is None else min(float(found.group(0)), 10.0) / 10.0
