"""A run of verl's V1 trainer on the CPU, which ``test_verl.py`` starts, kills and starts again.

The loop, the sampler, the data loader, the checkpoints, what agent loops store, advantages and the
policy loss are verl's. It needs GPUs for the actor's worker group and for vLLM or SGLang, so three
things are replaced: the model is a table of logits in the trainer's process, tokens are drawn by
chance, and publishing weights does nothing.

At the moment that ``--stop`` names the trainer writes the file ``stopped`` and waits to be killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["VERL_USE_EXTERNAL_MODULES"] = "echoic.integrations.verl.backend"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")

import ray
import torch
import transfer_queue as tq
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tensordict import NonTensorData, TensorDict
from torch.utils.data import Dataset
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.utils import create_rl_sampler
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync

WORDS = 16


class Prompts(Dataset):
    """Numbered prompts."""

    def __init__(self, **_: Any) -> None:
        pass

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "raw_prompt": [{"role": "user", "content": f"count to {index}"}],
            "index": index,
            "data_source": "numbers",
            "dummy_tensor": torch.zeros(1, dtype=torch.uint8),
        }


class Rollouts(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's worker of agent loops, whose agent draws tokens by chance."""

    def __init__(self, config: Any, folder: str) -> None:
        self.config = config
        self.generated = os.open(f"{folder}/generated", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        self.processor = None
        self.distillation_enabled = False
        self.reward_loop_worker_handles = None
        self.background_tasks = set()
        tq.init()

    async def _run_agent_loop(
        self, sampling_params: Any, trajectory: Any, *, trace: bool = False, **kwargs: Any
    ) -> None:
        await asyncio.sleep(random.random() * 0.2)
        answer = [random.randrange(WORDS) for _ in range(random.randint(4, 12))]
        output = AgentLoopOutput(
            prompt_ids=[1, 2, 3],
            response_ids=answer,
            response_mask=[1] * len(answer),
            response_logprobs=[-2.5] * len(answer),
            reward_score=answer.count(7) / len(answer),
            num_turns=2,
            metrics={},
            extra_fields={
                "min_global_steps": trajectory["step"],
                "max_global_steps": trajectory["step"],
                "reward_extra_info": {},
            },
        )
        await self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)
        os.write(self.generated, f"{kwargs['index']}\n".encode())


class Actor:
    """A policy that does not look at its prompt, in place of the worker group."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._dispatch_info = {"actor": [0]}
        self.logits = torch.nn.Parameter(torch.zeros(WORDS))
        self.optimizer = torch.optim.Adam([self.logits], lr=0.1)
        # Prompts that are in the weights.
        self.trained: list[int] = []

    def update_actor(self, batch: Any) -> TensorDict:
        fields = ["responses", "response_mask", "old_log_probs", "advantages", "index"]
        data = tq.kv_batch_get(batch.keys, batch.partition_id, fields)
        index = data.pop("index").tolist()
        data = data.to_padded_tensor()
        mask = data["response_mask"].float()
        logprobs = torch.log_softmax(self.logits, 0)[data["responses"]]
        loss, _ = core_algos.compute_policy_loss_vanilla(
            old_log_prob=data["old_log_probs"],
            log_prob=logprobs,
            advantages=data["advantages"],
            response_mask=mask,
            config=self.trainer.loss_config,
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.trained += sorted({int(one) for one in index})
        self.trainer.reach("update")
        metrics = {"loss": [loss.item()], "mfu": [0.0], "grad_norm": [1.0]}
        return TensorDict({"metrics": NonTensorData(metrics)}, batch_size=[])

    def save_checkpoint(self, path: str, *_: Any, **__: Any) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)
        torch.save({"logits": self.logits.data, "trained": self.trained}, f"{path}/actor.pt")
        self.trainer.reach("save")

    def load_checkpoint(self, local_path: str, **_: Any) -> None:
        saved = torch.load(f"{local_path}/actor.pt")
        self.logits.data.copy_(saved["logits"])
        self.trained = saved["trained"]


class Trainer(PPOTrainerColocateAsync):
    """verl's trainer without GPUs."""

    def reach(self, moment: str) -> None:
        if self.stop == f"{moment}:{self.global_steps}":
            (self.folder / "stopped").write_text(moment)
            time.sleep(600)

    def _setup(self) -> None:
        self.tokenizer, self.processor = SimpleNamespace(eos_token_id=0), None
        self._init_dataloader()
        self._init_dump_executor()
        self.actor_rollout_wg = Actor(self)
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        self.llm_server_manager, self.teacher_model_manager = None, None
        nothing = lambda *_, **__: None  # noqa: E731
        self.checkpoint_manager = SimpleNamespace(
            update_weights=nothing,
            abort_replicas=nothing,
            sleep_replicas=nothing,
            resume_generation_replicas=nothing,
        )
        self._load_checkpoint()

    def on_sample_end(self) -> None:
        super().on_sample_end()
        self.reach("sample")

    def _get_n_gpus_for_throughput(self) -> int:
        return 1


class Manager:
    """Gives prompts to the worker."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def generate_sequences(self, prompts: TensorDict) -> None:
        ray.get(self.worker.generate_sequences.remote(prompts))


def configured(folder: Path, steps: int) -> Any:
    here = str(Path(__file__).resolve())
    with initialize_config_dir(
        str(Path(verl.__file__).parent / "trainer/config"), version_base=None
    ):
        config = compose(
            "ppo_trainer",
            [
                "trainer.v1.trainer_mode=colocate_async",
                "trainer.v1.colocate_async.num_warmup_batches=2",
                "+trainer.v1.sampler.custom_sampler.path=pkg://echoic.integrations.verl.replay_buffer",
                "+trainer.v1.sampler.custom_sampler.name=ReplayBuffer",
                "+trainer.v1.sampler.sampler_kwargs.poll_interval=0.05",
                "transfer_queue.backend.storage_backend=Echoic",
                f"+transfer_queue.backend.Echoic.directory={folder}/queue",
                "data.train_batch_size=4",
                f"data.train_files={folder}",
                f"data.val_files={folder}",
                f"data.custom_cls.path={here}",
                "data.custom_cls.name=Prompts",
                "data.dataloader_num_workers=0",
                "data.shuffle=true",
                "data.seed=1",
                "algorithm.adv_estimator=grpo",
                "algorithm.rollout_correction.bypass_mode=true",
                "actor_rollout_ref.actor.use_kl_loss=false",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                "actor_rollout_ref.rollout.n=2",
                "trainer.logger=[console]",
                "trainer.val_before_train=false",
                "trainer.test_freq=-1",
                "trainer.save_freq=3",
                f"trainer.total_training_steps={steps}",
                f"trainer.default_local_dir={folder}/checkpoints",
                "trainer.resume_mode=auto",
            ],
        )
    OmegaConf.resolve(config)
    return config


def start_ray() -> None:
    """Start Ray of its own, which gives up after half a minute, however busy the machine is."""
    for attempt in range(8):
        try:
            ray.init("local", num_cpus=4, include_dashboard=False)
        except Exception:
            if attempt == 7:
                raise
        else:
            return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stop", default="")
    given = parser.parse_args()
    config = configured(given.folder, given.steps)
    start_ray()
    tq.init(config.transfer_queue)
    trainer = Trainer(config)
    trainer.folder, trainer.stop = given.folder, given.stop
    trainer.loss_config = OmegaConf.to_container(config.actor_rollout_ref.actor)
    trainer.loss_config = OmegaConf.create(trainer.loss_config | {"global_batch_info": {}})
    trainer.init()
    (given.folder / "recovered").write_text(json.dumps(trainer.replay_buffer.recovered))
    worker = ray.remote(Rollouts).options(num_cpus=0).remote(config, str(given.folder))
    trainer.fit(Manager(worker))
    left = tq.kv_list("train").get("train", {})
    left = [key for key, tag in left.items() if tag.get("is_prompt")]
    index = list(tq.kv_batch_get(left, "train", ["index"])["index"]) if left else []
    weights = torch.softmax(trainer.actor_rollout_wg.logits.data, 0)
    result = {
        "trained": trainer.actor_rollout_wg.trained,
        "left": [int(one) for one in index],
        "order": list(create_rl_sampler(config.data, trainer.train_dataset)),
        "seven": weights[7].item(),
    }
    (given.folder / "result").write_text(json.dumps(result))
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
