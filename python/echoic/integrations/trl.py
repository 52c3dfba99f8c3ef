"""Train with TRL's ``AsyncGRPOTrainer`` on the groups of a run.

:class:`AsyncGRPORollouts` is the trainer's ``rollout_worker`` and its ``weight_transfer``. It
starts no thread: when the trainer asks for a sample, it takes the next group from the run, so
everything that waits does so in the run, under its bounds. Neither TRL nor torch is imported.

Two numbers name the same weights. TRL counts those that it has sent, from 1 on. The run counts
updates, so the weights before the first one are its version 0, or the one of a checkpoint that the
trainer resumes from. A sample's ``model_version`` is TRL's.
"""

from __future__ import annotations

import contextlib
import json
import queue
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from echoic.errors import EchoicError, RolloutError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from echoic.rl import Run
    from echoic.rollouts import RolloutBatch, RolloutStats, RolloutTable
    from echoic.rollouts.blobs import Blob

    Array = np.ndarray[Any, Any]

__all__ = ["COLUMNS", "FIELDS", "AsyncGRPORollouts", "Sample", "run_settings"]

#: The columns that :class:`AsyncGRPORollouts` reads unless it is given other names.
COLUMNS = {"tokens": "int32", "logprobs": "float32", "mask": "uint8"}
#: The fields that it reads unless it is given other names.
FIELDS = {"reward": "float32"}


def run_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a run that fits an ``AsyncGRPOConfig``.

    A version uses ``per_device_train_batch_size`` × ``gradient_accumulation_steps`` × processes ×
    ``weight_sync_steps`` samples; ``num_generations`` of them are a group.

    Returns:
        ``group``, ``batch`` and ``max_lag``: arguments of :class:`echoic.rl.Run`.

    Raises:
        RolloutError: If the samples of a version are not whole groups; if ``token_budget`` is not
            0, so that their number varies; or if ``max_staleness`` is 0, with which the trainer,
            which fetches a micro-batch ahead, would wait forever.
    """
    if config.token_budget is None or config.token_budget > 0:
        raise RolloutError(
            f"expected token_budget=0, got {config.token_budget}: with a budget the number of "
            "samples of a step varies, and without one TRL asks a vLLM server for it"
        )
    if config.max_staleness < 1:
        raise RolloutError(
            f"max_staleness must be at least 1, got {config.max_staleness}: the trainer fetches a "
            "micro-batch before it has trained on the one before"
        )
    samples = (
        config.per_device_train_batch_size
        * config.gradient_accumulation_steps
        * config.world_size
        * config.weight_sync_steps
    )
    groups, rest = divmod(samples, config.num_generations)
    if rest or not groups:
        raise RolloutError(
            f"expected a multiple of num_generations={config.num_generations} samples for each "
            "version, got per_device_train_batch_size × gradient_accumulation_steps × processes × "
            f"weight_sync_steps = {config.per_device_train_batch_size} × "
            f"{config.gradient_accumulation_steps} × {config.world_size} × "
            f"{config.weight_sync_steps} = {samples}"
        )
    return {"group": config.num_generations, "batch": groups, "max_lag": config.max_staleness}


@dataclass(slots=True)
class Sample:
    """An item of a group as the trainer takes it: TRL's ``RolloutSample``, with blobs."""

    #: Messages of the prompt: those of the blob ``"messages"``, or the group's key.
    prompt: list[dict[str, Any]]
    #: Messages of the completion; empty without that blob.
    completion: list[dict[str, Any]]
    #: Token numbers of prompt and completion, int64.
    input_ids: Array
    #: 1 for each token that is trained on, int64.
    completion_mask: Array
    #: Log-probability of each token under the policy that drew it, float32.
    old_log_probs: Array
    #: How much better than the others of its group it is.
    advantage: float
    #: TRL's version of the policy that made its oldest token.
    model_version: int
    #: The number of its group.
    group_id: int
    #: ``reward``, ``reward_std`` of the group, and the other fields of the item.
    metrics: dict[str, float]
    #: Always ``None``: the trainer's ``echoic/in_queue`` says how long groups wait.
    enqueued_at: float | None = None
    #: The item's blobs, for example ``pixel_values``.
    blobs: dict[str, Blob] = field(default_factory=dict)


class _Samples(queue.Queue[Sample]):
    """The samples of one group, and behind them those of the run."""

    def __init__(self, take: Callable[[float | None], Iterable[Sample]]) -> None:
        super().__init__()
        self._take = take
        # Items of complete groups when the last group was taken.
        self.behind = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Sample:
        """Return the next sample; take a group of the run if there is none."""
        if not self.queue:
            self.queue.extend(self._take(timeout if block else 0.0))
        sample: Sample = self.queue.popleft()
        return sample

    def qsize(self) -> int:
        """Return the number of samples of complete groups."""
        return len(self.queue) + self.behind


class AsyncGRPORollouts:
    """Give ``AsyncGRPOTrainer`` the groups of a run, and workers its weights.

    Pass one object as ``rollout_worker=`` and as ``weight_transfer=``. Where weights go another
    way, pass it as ``rollout_worker=`` alone: versions are published all the same.

    - *Bounded.* A group is taken from the run when the trainer has used up the one before. With
      :func:`run_settings` the target of a group is the version that the trainer makes of it, what
      the trainer fetches ahead included, so the run's ``max_lag`` is exact.
    - *Nothing lost, nothing twice.* A group is leased when it is taken, and acknowledged when the
      version that was trained on it is published and the trainer asks for more, which is after it
      has written a checkpoint of that step. What a trainer that ends, or dies, has not acknowledged
      is delivered to the next one. Groups between its checkpoint and the last published version are
      not: with ``save_steps`` equal to ``weight_sync_steps`` there are none.

    Args:
        run: A run whose batches no other consumer takes. ``None`` in processes of the trainer other
            than the main one, where the trainer calls nothing.
        version: The run's version of the weights that training begins with:
            ``global_step // weight_sync_steps`` of a checkpoint, 0 without one. Default: the run's
            version, which is that of the checkpoint only if the trainer saved what it published
            last.
        tokens: The column of token numbers.
        logprobs: The column of log-probabilities under the policy that drew the tokens.
        mask: The column that is not zero where a token is trained on; ``None`` trains on all.
        reward: The field of rewards. An item whose reward is NaN has the advantage 0.
        advantage: A field of advantages that workers computed. ``None`` computes TRL's: rewards of
            a group, less their mean, divided by their standard deviation.
        lease: Seconds that a version may take from its first group to its publication.

    Raises:
        RolloutError: If the run lacks a column or field, or has ``max_lag`` 0.
    """

    def __init__(
        self,
        run: Run | None,
        *,
        version: int | None = None,
        tokens: str = "tokens",
        logprobs: str = "logprobs",
        mask: str | None = "mask",
        reward: str = "reward",
        advantage: str | None = None,
        lease: float = 86400.0,
    ) -> None:
        self._columns = (tokens, logprobs, mask)
        self._fields = (reward, advantage)
        if run is not None:
            self._run, self._table = run, run.table
            self._limits = self._check(run.table)
        self._lease = lease
        # The version that is published next, and what TRL's is less than it.
        self._next = version
        self._offset = 0
        # The published version, and leased batches in the order in which they were taken.
        self._version = -1
        self._taken: deque[RolloutBatch] = deque()
        self._report = _Report()
        # Why the last call waited, how many tokens there were, and when they were fewer.
        self._reason = "nothing yet"
        self._progress = (0, time.monotonic())
        #: What the trainer takes samples from.
        self.rollout_buffer: queue.Queue[Sample] = (samples := _Samples(self._take))
        self._samples = samples
        #: What the trainer takes metrics from.
        self.metrics_queue: queue.Queue[dict[str, float | tuple[float, float]]] = queue.Queue(1024)

    def _check(self, table: RolloutTable) -> list[int]:
        """Return the limits of versions between target and publication."""
        settings = table.settings
        for kind, names in (("columns", self._columns), ("fields", self._fields)):
            if missing := [
                name for name in names if name is not None and name not in settings[kind]
            ]:
                raise RolloutError(
                    f"expected {kind} {missing} in run {table.name!r}, which has "
                    f"{list(settings[kind])}"
                )
        limits = [
            settings[name] for name in ("max_lag", "target_lag") if settings[name] is not None
        ]
        if 0 in limits:
            raise RolloutError(
                f"max_lag and target_lag of run {table.name!r} must be at least 1: the trainer "
                "fetches a micro-batch before it has trained on the one before"
            )
        return limits

    # What the trainer calls as its weight transfer.

    def init_weight_transfer(self) -> None:
        """Do nothing: workers subscribe to the weights."""

    def pause(self) -> None:
        """Do nothing: workers go on with the weights that they have, and say which."""

    def resume(self) -> None:
        """Do nothing, as :meth:`pause`."""

    def destroy(self) -> None:
        """Do nothing: the run is the caller's."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Publish the tensors by name, in the CPU's memory, and then the run's next version."""
        start = time.monotonic()
        tree = {name: tensor.detach().cpu() for name, tensor in iterator}
        self._version = self._run.publish(tree, self._begin())
        self._report.publish = time.monotonic() - start

    # What the trainer calls as its rollout worker.

    def start(self) -> None:
        """Count the time without tokens from now on."""
        self._progress = (self._table.stats().tokens, time.monotonic())

    def update_model_version(self, model_version: int) -> None:
        """Take TRL's number of the version; publish it, unless it was with its weights."""
        version = self._begin()
        if self._version != version:
            self._version = self._run.publish(None, version)
        self._next, self._offset = version + 1, version - model_version
        with contextlib.suppress(queue.Full):
            self.metrics_queue.put_nowait(self._report.metrics(self._table.stats()))

    def check_health(self, stale_after_s: float) -> None:
        """Check that samples can come, when there is none.

        Raises:
            RolloutError: If workers have added no token for ``stale_after_s`` seconds; or if the
                trainer has taken more for this version than the run allows, so that no group can
                come before the next one.
        """
        stats, now = self._table.stats(), time.monotonic()
        if stats.tokens != self._progress[0]:
            self._progress = (stats.tokens, now)
        ahead = stats.target - stats.version
        if any(ahead > limit for limit in self._limits):
            settings = self._table.settings
            per_version = settings["batch_groups"] * settings["batches_per_version"]
            raise RolloutError(
                f"the trainer waits for more groups than run {self._table.name!r} gives for a "
                f"version: {per_version} (batch × batches_per_version), and those of "
                f"{min(self._limits)} versions ahead. Set batch to the groups that the trainer "
                "uses for a version; run_settings computes them"
            )
        idle = now - self._progress[1]
        if idle > stale_after_s:
            raise RolloutError(
                f"expected workers to add tokens to run {self._table.name!r} within "
                f"{stale_after_s:g} s, got none for {idle:.0f} s. {_describe(stats)}. The trainer "
                f"waits for {self._reason}"
            )

    def stop(self) -> None:
        """Acknowledge the groups of published versions, and return the others to the run."""
        # The trainer stops after errors too, of which this must not replace one.
        with contextlib.suppress(EchoicError):
            self._acknowledge()
        while self._taken:
            with contextlib.suppress(EchoicError):
                self._taken.popleft().nack()
        self._samples.queue.clear()

    def _begin(self) -> int:
        """Return the version to publish; at first, queue what a trainer before has not used."""
        if self._version < 0:
            if self._next is None:
                # A trainer of this process has published the run's version.
                self._next = self._run.version + (self._run.weights.version is not None)
            if self._run.weights.version is None or self._next <= self._run.weights.version:
                self._run.restore(self._next)
        assert self._next is not None
        return self._next

    def _acknowledge(self) -> None:
        """Acknowledge the batches that the published weights were trained on."""
        while self._taken and self._taken[0].target < self._version:
            self._taken.popleft().ack()

    def _take(self, timeout: float | None) -> Iterable[Sample]:
        """Take the next group of the run, and return its samples."""
        self._acknowledge()
        start = time.monotonic()
        try:
            batch = self._table.sample(1, lease=self._lease, timeout=timeout)
        except WaitTimeoutError as error:
            self._reason = f"{error.reason}: {error}"
            raise queue.Empty from error
        finally:
            self._report.waited += time.monotonic() - start
        self._taken.append(batch)
        self._samples.behind = self._table.stats().queued * int(batch.group_sizes[0])
        samples = self._convert(batch)
        self._report.add(batch, samples)
        return samples

    def _convert(self, batch: RolloutBatch) -> list[Sample]:
        """Return the samples of a batch of one group."""
        tokens, logprobs, mask = self._columns
        reward, advantage = self._fields
        rewards = batch[reward].astype(np.float64)
        known = rewards[~np.isnan(rewards)]
        mean, std = (known.mean(), known.std()) if len(known) else (0.0, np.nan)
        if advantage is None:
            # A reward that is not known says nothing about the policy.
            advantages = np.where(np.isnan(rewards), 0.0, (rewards - mean) / (std + 1e-8))
        else:
            advantages = batch[advantage]
        versions = batch.target - batch.item_lag_oldest - self._offset
        others = [name for name in batch.fields if name not in self._fields]
        samples = []
        for index, columns in enumerate(batch):
            blobs = batch.blobs(index)
            prompt, completion = _messages(blobs, batch.keys[0])
            made = 1 if mask is None else columns[mask] != 0
            samples.append(
                Sample(
                    prompt=prompt,
                    completion=completion,
                    input_ids=columns[tokens].astype(np.int64),
                    completion_mask=np.full(int(batch.lengths[index]), made, np.int64),
                    old_log_probs=columns[logprobs].astype(np.float32),
                    advantage=float(advantages[index]),
                    model_version=int(versions[index]),
                    group_id=int(batch.group_ids[0]),
                    metrics={
                        "reward": float(rewards[index]),
                        "reward_std": float(std),
                        **{name: float(batch[name][index]) for name in others},
                    },
                    blobs=blobs,
                )
            )
        return samples


class _Report:
    """What the trainer logs of a version: gauges, or numerators and denominators of means."""

    def __init__(self) -> None:
        #: Seconds of the last publication.
        self.publish = 0.0
        #: Seconds that the trainer waited for groups.
        self.waited = 0.0
        self._sums: dict[str, tuple[float, float]] = {}
        self._oldest = 0
        self._counts: dict[str, float] = {}

    def add(self, batch: RolloutBatch, samples: list[Sample]) -> None:
        """Count a batch of one group."""
        self._oldest = max(self._oldest, int(batch.lag_oldest[0]))
        for name in ("lag_oldest", "publish_lag", "in_flight", "in_queue"):
            self._mean(f"echoic/{name}_mean", int(getattr(batch, name)[0]), 1)
        made = sum(int(sample.completion_mask.sum()) for sample in samples)
        self._mean("completions/mean_length", made, len(samples))

    def _mean(self, name: str, value: float, count: int) -> None:
        total, number = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (total + value, number + count)

    def metrics(self, stats: RolloutStats) -> dict[str, float | tuple[float, float]]:
        """Return the metrics since the last call, under names that say how TRL reduces them."""
        counts = {
            "echoic/groups_total": stats.delivered,
            "echoic/stale_total": stats.stale,
            "echoic/rejected_total": stats.rejected,
            "echoic/filtered_total": stats.filtered,
            "echoic/workers_waited_s_total": sum(w.seconds for w in stats.producer_waits.values()),
        }
        found: dict[str, float | tuple[float, float]] = {
            name: float(count - self._counts.get(name, 0)) for name, count in counts.items()
        }
        found |= self._sums
        found["echoic/trainer_waited_s_total"] = self.waited
        found["echoic/lag_oldest_max"] = float(self._oldest)
        found["echoic/publish_s"] = self.publish
        found["echoic/running"] = float(stats.running)
        found["echoic/room"] = float(stats.room)
        self._counts, self._sums, self._oldest, self.waited = counts, {}, 0, 0.0
        return found


def _messages(
    blobs: dict[str, Blob], key: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages of prompt and completion, as ``echoic.integrations.verifiers`` adds them.

    They are only shown, so an item whose blob is something else is trained on all the same.
    """
    text, said = blobs.get("messages"), None
    if isinstance(text, str):
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(text)
    if not isinstance(said, dict):
        return [{"role": "user", "content": key}] if key else [], []
    return said.get("prompt") or said.get("messages") or [], said.get("completion") or []


def _describe(stats: RolloutStats) -> str:
    """Say what the workers of a run do."""
    idle = {name: one.idle for name, one in stats.sources.items() if one.idle is not None}
    if not idle:
        return "No worker has reserved a group"
    last = min(idle, key=lambda name: idle[name])
    workers = (
        f"Of {len(idle)} workers {last!r} was the last to reserve a group, {idle[last]:.0f} s ago; "
        f"{stats.running} groups are being made, and there is room for {stats.room}"
    )
    return "; ".join([workers, *stats.why])
