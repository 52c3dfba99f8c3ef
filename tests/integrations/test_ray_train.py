"""Ranks of Ray Train take their shares of a cluster's tables, and go on after one of them died."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path

import echoic
import numpy as np
import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")
pytest.importorskip("ray.train.torch", exc_type=ImportError)
import ray.train
import torch
from echoic.integrations.ray import ReplayCluster
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

pytestmark = [
    pytest.mark.nightly,
    # Starting Ray on a busy machine takes long.
    pytest.mark.timeout(400),
    # Ray leaves files and sockets to the garbage collector, and Train calls what it deprecates.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ITEMS = 400
BATCH = 20


@pytest.fixture
def shards(ray_nodes):
    """A cluster with a queue and a table to draw from, both full."""

    def tables():
        step = {"x": np.int64(0)}
        sampler = echoic.selectors.Prioritized(1.0)
        return [
            echoic.Table.queue("queue", step, capacity=1000),
            echoic.Table("drawn", step, capacity=1000, sampler=sampler),
        ]

    with ReplayCluster(tables, num_shards=2, name="train", timeout=60.0) as made:
        with made.client() as client:
            numbers = np.arange(ITEMS)
            client.table("queue").extend({"x": numbers})
            client.table("drawn").extend({"x": numbers}, 1.0 + numbers)
            client.flush(60.0)
        yield made


def fit(learn, settings, folder, failures=0):
    """Run a function in two ranks of Ray Train."""
    trainer = TorchTrainer(
        learn,
        train_loop_config=settings | {"folder": str(folder)},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(
            name="ranks",
            storage_path=str(folder / "train"),
            failure_config=FailureConfig(max_failures=failures),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    )
    return trainer.fit()


def notes(folder):
    """What ranks wrote down, by the names of the files."""
    return {
        path.name: [json.loads(line) for line in path.read_text("ascii").splitlines()]
        for path in sorted(folder.glob("rank*"))
    }


def test_each_item_of_a_queue_comes_to_one_rank_and_both_learn_alike(shards, tmp_path):
    def learn(settings):
        client = settings["client"]
        torch.set_num_threads(1)
        rank = ray.train.get_context().get_world_rank()
        queue = client.table("queue").batches(BATCH, prefetch=0, device="cpu", timeout=60.0)
        taken = [batch.data["x"].tolist() for batch in islice(queue, 10)]
        model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        device = ray.train.torch.get_device()
        drawn = client.table("drawn").batches(64, prefetch=0, device=device, timeout=60.0)
        for batch in islice(drawn, 300):
            x = batch.data["x"].float()[:, None] / ITEMS
            weights = batch.weights.float()[:, None]
            loss = (weights * (model(x) - (2 * x + 1)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        probability = batch.info.probabilities * (ITEMS * (ITEMS + 1) / 2)
        told = {
            "taken": taken,
            "parameters": [float(one.detach()) for one in model.parameters()],
            "drawn": batch.data["x"].tolist(),
            "priority": probability.tolist(),
        }
        Path(settings["folder"], f"rank{rank}").write_text(json.dumps(told), "ascii")
        client.close()

    fit(learn, {"client": shards.client(seed=3)}, tmp_path)
    found = notes(tmp_path)
    assert list(found) == ["rank0", "rank1"]
    shares = [[item for batch in told["taken"] for item in batch] for (told,) in found.values()]
    assert [len(share) for share in shares] == [200, 200]
    assert sorted(shares[0] + shares[1]) == list(range(ITEMS))
    (one,), (other,) = found.values()
    # Gradients were averaged over both ranks, which drew otherwise and with true probabilities.
    assert one["parameters"] == pytest.approx(other["parameters"])
    assert one["parameters"] == pytest.approx([2.0, 1.0], abs=0.3)
    assert one["drawn"] != other["drawn"]
    for told in (one, other):
        np.testing.assert_allclose(told["priority"], 1.0 + np.array(told["drawn"]))


def test_ranks_that_are_started_anew_take_what_is_left(shards, tmp_path):
    steps = 7

    def learn(settings):
        rank = ray.train.get_context().get_world_rank()
        checkpoint, done = ray.train.get_checkpoint(), 0
        if checkpoint:
            with checkpoint.as_directory() as folder:
                done = int(Path(folder, "done").read_text("ascii"))
        mine = Path(settings["folder"], f"rank{rank}-from{done}")
        client = settings["client"]
        queue = client.table("queue").batches(BATCH, prefetch=0, device="cpu", timeout=60.0)
        for step, batch in enumerate(islice(queue, steps - done), done):
            with mine.open("a", encoding="ascii") as file:
                file.write(json.dumps(batch.data["x"].tolist()) + "\n")
            # Both ranks have a batch.
            torch.distributed.barrier()
            if rank == 1 and step == 3 and done == 0:
                os._exit(1)
            kept = Path(settings["folder"], f"kept{rank}-{done}-{step}")
            kept.mkdir()
            (kept / "done").write_text(str(step + 1), "ascii")
            ray.train.report(
                {"step": step}, checkpoint=Checkpoint(str(kept)) if rank == 0 else None
            )
        client.close()

    fit(learn, {"client": shards.client(seed=3)}, tmp_path, failures=1)
    found = notes(tmp_path)
    # Train may not have seen the last checkpoint before the death.
    done = int(max(found).rpartition("from")[2])
    assert done in {2, 3}
    assert {name: len(taken) for name, taken in found.items()} == {
        "rank0-from0": 4,
        "rank1-from0": 4,
        f"rank0-from{done}": steps - done,
        f"rank1-from{done}": steps - done,
    }
    # Nothing came twice, and nothing of the queue is gone that no rank had.
    taken = [item for batches in found.values() for batch in batches for item in batch]
    assert len(set(taken)) == len(taken) == (8 + 2 * (steps - done)) * BATCH
    with shards.client() as client:
        left = client.table("queue").sample(ITEMS - len(taken), timeout=10.0).data["x"].tolist()
    assert sorted(taken + left) == list(range(ITEMS))
