"""Methods that train: a trainer in the cell's folder, which resumes from the checkpoint there.

``echo-rl`` is the full method; its ablations are settings: ``{"use_plans": False}``,
``{"plan_history": 0}`` (of the same size, without memory), ``{"replay": "uniform"}``,
``{"replay": "none"}``. The other methods have no plans and no replay.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from echoic.agents.backbones.base import Message
from echoic.agents.backbones.smollm2 import check_name
from echoic.agents.baselines import Method
from echoic.agents.baselines.prompted import clip, read_rating
from echoic.agents.environments.base import read_settings
from echoic.agents.episodes import Usage
from echoic.agents.training.config import TrainingConfig
from echoic.agents.training.rewards import PreferenceReward
from echoic.agents.training.trainer import EchoRLTrainer
from echoic.errors import ArgumentError, BackboneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from echoic.agents.baselines import Cell
    from echoic.agents.episodes import Policy
    from echoic.agents.training.actors import Transcript

__all__ = ["IMPALA", "PPO", "PPORLHF", "RLAIF", "EchoRL", "TrainedMethod", "prompt_of"]

_PLAIN: dict[str, Any] = {"backbone": "mlp", "replay": "none", "use_plans": False}
# Sizes in the settings of an environment, and those of the policy, which are the same.
_SIZES = {"state_encoding_dim": "state_dim", "action_space_size": "action_dim"}


class TrainedMethod(Method):
    """A method whose settings are fields of a :class:`~echoic.agents.training.TrainingConfig`."""

    trains: ClassVar[bool] = True
    needs_commands: ClassVar[bool] = True
    #: Settings that define the method; the cell's settings are added to them.
    fixed: ClassVar[dict[str, Any]] = {}

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        given = {name: value for name, value in cell.settings.items() if name != "reward"}
        for setting in _SIZES.keys() & cell.task_config.keys():
            given.setdefault(_SIZES[setting], cell.task_config[setting])
        given |= {
            "env_name": cell.task,
            "env_config": dict(cell.task_config),
            "total_timesteps": cell.steps,
            "seed": cell.seed,
            "checkpoint_dir": str(cell.folder / "checkpoints"),
            "results_dir": str(cell.folder / "results"),
            "tensorboard_log": "",
        }
        self.config = TrainingConfig(**{**given, **self.fixed})
        self.trainer = EchoRLTrainer(self.config, resume=True, **self._rewards())

    @classmethod
    def check(cls, settings: Mapping[str, Any]) -> None:
        """Raise an ``ArgumentError`` for settings that no cell of this method can have."""
        config = read_settings(TrainingConfig, settings)
        for name, value in cls.fixed.items():
            if settings.get(name, value) != value:
                raise ArgumentError(
                    f"{cls.name} is {name}={value!r}; {settings[name]!r} would be another method"
                )
        check_name(config.backbone)

    def _rewards(self) -> dict[str, Any]:
        """Return the trainer's arguments that replace the environment's reward."""
        return {}

    @property
    def environment_settings(self) -> Mapping[str, Any]:
        """The policy's sizes."""
        return {setting: getattr(self.config, name) for setting, name in _SIZES.items()}

    async def train(self) -> Mapping[str, Any]:
        """Train within the cell's steps, resuming an earlier run."""
        metrics = await self.trainer.train()
        points = zip(metrics.history["step"], metrics.history["success_rate"], strict=True)
        self.curve = [{"step": step, "success_rate": rate} for step, rate in points]
        latest = metrics.evaluation_results  # empty if all episodes of the evaluations failed
        return {
            "steps": metrics.total_timesteps,
            "episodes": metrics.total_episodes,
            "seconds": metrics.training_time,
            "updates": len(metrics.policy_losses),
            "success_rate": latest.get("success_rate"),
            "average_reward": latest.get("avg_reward"),
        }

    def policy(self) -> Policy:
        """Return the trained policy, which samples its actions as in training."""
        return self.trainer.policy()

    async def aclose(self) -> None:
        """Close the trainer."""
        # That waits for threads, which may wait for this loop: a judge answers in it.
        await asyncio.to_thread(self.trainer.close)


class EchoRL(TrainedMethod):
    """Latent plans, PPO on new segments, and V-trace on surprising steps."""

    name: ClassVar[str] = "echo-rl"


class IMPALA(TrainedMethod):
    """V-trace (Espeholt et al., 2018) for actors that are an update behind the learner."""

    name: ClassVar[str] = "impala"
    fixed: ClassVar[dict[str, Any]] = {"algorithm": "impala", **_PLAIN}


class PPO(TrainedMethod):
    """PPO with the environment's reward."""

    name: ClassVar[str] = "ppo"
    fixed: ClassVar[dict[str, Any]] = {"algorithm": "ppo", **_PLAIN}


class PPORLHF(PPO):
    """PPO that sees a learned reward only; its setting is ``reward="preferences"``.

    A network learns along the way which of two segments is preferred
    (:class:`~echoic.agents.training.PreferenceReward`): that with the higher reward of the
    environment, in place of people. Without the setting it would be :class:`PPO`, as which a
    benchmark reports it.
    """

    name: ClassVar[str] = "ppo-rlhf"

    @classmethod
    def check(cls, settings: Mapping[str, Any]) -> None:
        """Raise an ``ArgumentError`` without the setting, too."""
        if (reward := settings.get("reward")) != "preferences":
            raise ArgumentError(
                f'ppo-rlhf needs reward="preferences", not {reward!r}; without it, it is ppo'
            )
        super().check({name: one for name, one in settings.items() if name != "reward"})

    def _rewards(self) -> dict[str, Any]:
        self.model = PreferenceReward(self.config, seed=self.cell.seed)
        return {"reward_model": self.model}

    async def train(self) -> Mapping[str, Any]:
        """Train within the cell's steps; return also how well preferences were explained."""
        measures = await super().train()
        accuracy = self.model.accuracy
        return {**measures, "preferences": self.model.answers, "preference_accuracy": accuracy}


_ASK = (
    "You judge how well an agent has done a task. You are shown the task, and what the agent saw "
    "and did. Answer with one whole number from 0 (not at all) to 10 (fully done), nothing else."
)
# Characters of an episode.
_LONGEST = 6000
# Seconds for both questions; hosted backbones have shorter limits of their own.
_PATIENCE = 900.0


class RLAIF(PPO):
    """PPO rewarded by a language model (Bai et al., 2022; Lee et al., 2023).

    When an episode ends, the judge, the cell's backbone, rates from 0 to 10 how well the task was
    done; a tenth of that is the reward of the last step, and there is no other. An answer without a
    number is asked for once more, then counts as 0 and as unclear. A resumed run reports what its
    judge used since then.
    """

    name: ClassVar[str] = "rlaif"
    needs_backbone: ClassVar[bool] = True

    def _rewards(self) -> dict[str, Any]:
        self.usage, self.judged, self.unclear = Usage(), 0, 0
        return {"judge": self._judge}

    async def train(self) -> Mapping[str, Any]:
        """Train within the cell's steps; return also the judge's usage."""
        # Actors are in a thread; the backbone belongs to this loop.
        self._loop = asyncio.get_running_loop()
        return {
            **await super().train(),
            "judged_episodes": self.judged,
            "unclear_answers": self.unclear,
            **{f"judge_{name}": value for name, value in dataclasses.asdict(self.usage).items()},
        }

    def _judge(self, transcript: Transcript) -> float:
        asked = asyncio.run_coroutine_threadsafe(self._asked(transcript), self._loop)
        try:
            return asked.result(_PATIENCE)
        except concurrent.futures.TimeoutError:
            asked.cancel()
            raise BackboneError(f"the judge said nothing within {_PATIENCE:g} s") from None

    async def _asked(self, transcript: Transcript) -> float:
        messages = [Message("system", _ASK), Message("user", prompt_of(transcript))]
        self.judged += 1
        for heat in (0.0, 0.7):
            said = await self.cell.backbone.chat(messages, max_tokens=8, temperature=heat)
            self.usage += said.usage
            if (found := read_rating(said.text)) is not None:
                return found / 10
        self.unclear += 1
        return 0.0


def prompt_of(transcript: Transcript) -> str:
    """Write the judge's prompt: the task and the episode, without the middle of a long one."""
    turns = [f"It saw: {seen}\nIt did: {said}" for seen, said in transcript.turns]
    episode = clip("\n".join([*turns, f"It saw last: {transcript.final}"]), _LONGEST)
    return f"Task: {transcript.instructions}\n\n{episode}\n\nYour number from 0 to 10:"
