"""The sampler of verl's asynchronous V1 trainers that loses no prompt and trains on none twice."""

from __future__ import annotations

from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from echoic.integrations.verl.backend import EchoicStorage

__all__ = ["ReplayBuffer"]


class ReplayBuffer(ReplayBufferAsync):
    """Samples as verl's own buffer does, and leases what it samples until a checkpoint has it.

    Name it in ``trainer.v1.sampler.custom_sampler``: the ``path`` is
    ``pkg://echoic.integrations.verl.replay_buffer``, the ``name`` ``ReplayBuffer``.
    ``sampler_kwargs`` may have ``poll_interval`` and ``filter_groups_metric``, which verl does not
    pass to samplers of others.

    When the trainer has loaded its checkpoint, and before it asks for rollouts, prompts that are
    not in the checkpoint's weights are put back, and the dataset goes on behind the last of them.
    The steps that are repeated add no further prompts.

    Raises:
        ValueError: If the trainer is synchronous: its queue is empty at each checkpoint, so it
            needs no leases. Or if it makes no checkpoints.
        TypeError: If TransferQueue has another backend, or ``refill_fn`` is no method of a trainer.
    """

    def __init__(self, trainer_mode: str, *, sampler_kwargs: Any = None, **settings: Any) -> None:
        if trainer_mode == "sync":
            raise ValueError(
                "expected an asynchronous trainer_mode, got 'sync': leave out custom_sampler, as "
                "the queue of a synchronous trainer is empty at each checkpoint"
            )
        own = dict(sampler_kwargs or {})
        for name in ("poll_interval", "filter_groups_metric"):
            if own.get(name) is not None:
                settings.setdefault(name, own[name])
        super().__init__(trainer_mode=trainer_mode, sampler_kwargs=sampler_kwargs, **settings)
        storage = tq.get_client().storage_manager
        if not isinstance(storage, EchoicStorage):
            raise TypeError(
                "expected transfer_queue.backend.storage_backend=Echoic, got "
                f"{type(storage).__name__}"
            )
        self._storage = storage
        self._written: set[tuple[str, str]] = set()
        trainer: Any = getattr(self.refill_fn, "__self__", None)
        if not hasattr(trainer, "_add_batch_to_generate"):
            raise TypeError(
                f"expected refill_fn to be a method of a trainer, got {self.refill_fn!r}"
            )
        if trainer.config.trainer.save_freq <= 0:
            raise ValueError(
                "expected trainer.save_freq above 0, got "
                f"{trainer.config.trainer.save_freq}: what is trained is kept until a checkpoint"
            )
        ended, add_batch = trainer.on_init_end, trainer._add_batch_to_generate
        #: What :meth:`EchoicStorage.recover` has returned.
        self.recovered: dict[str, int] = {}

        def on_init_end() -> None:
            self.recovered = dict(storage.recover(lambda count: _skip(trainer, count)))
            ended()

        def add_batch_to_generate() -> None:
            # Steps that are repeated have asked for their prompts already. Asking for more would
            # let the queue, and with it the age of batches, grow with each crash.
            size = trainer.config.data.train_batch_size
            if self.recovered.get("ahead", 0) >= size:
                self.recovered["ahead"] -= size
            else:
                add_batch()

        # The hook that verl calls once, after the checkpoint was loaded, and what asks for the
        # prompts of a step, for which there is none.
        trainer.on_init_end = on_init_end
        trainer._add_batch_to_generate = add_batch_to_generate

    def _sync_metadata_from_transfer_queue(self) -> None:
        """Store the states of prompts that have changed, which only the controller knows."""
        super()._sync_metadata_from_transfer_queue()
        changed = {}
        steps = self.prompt_global_steps["train"]
        for status, found in (("finished", self.finished_keys), ("failure", self.failure_keys)):
            for key in found["train"]:
                if (key, status) not in self._written:
                    changed[key] = {"is_prompt": True, "status": status, "global_steps": steps[key]}
        if changed:
            self._storage.write_tags("train", changed)
            self._written |= {(key, tag["status"]) for key, tag in changed.items()}
        self._written = {one for one in self._written if one[0] in steps}

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], *rest: Any
    ) -> Any:
        if partition_id == "train":
            self._storage.lease(partition_id, selected_prompt_uids)
        return super()._materialize_batch(partition_id, selected_prompt_uids, *rest)


def _skip(trainer: Any, count: int) -> None:
    """Take prompts from the trainer's dataset that the queue has already."""
    rows = iter(trainer.train_dataloader)
    while count > 0:
        try:
            batch = next(rows)
        except StopIteration:
            rows = iter(trainer.train_dataloader)
            batch = next(rows)
        count -= len(batch["raw_prompt"])
    if count:
        raise RuntimeError(
            "expected the dataset's batches to be those of the run before, got a batch with "
            f"{-count} prompts too many: gen_batch_size must stay the same"
        )
    trainer.train_dataloader_it = rows
