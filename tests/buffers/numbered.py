"""Transitions that tell which they are, for tests and for the processes that they start."""

import numpy as np
from echoic.buffers import MmapReplayBuffer

FIELDS = ("obs", "actions", "rewards", "terminated", "truncated", "next_obs")


def vectors(obs, act):
    """An example with observations and actions of these widths."""
    vector = np.zeros(obs, np.float32)
    return transition(vector, np.zeros(act, np.float32), np.float32(0), False, False, vector)


def transition(*values, **more):
    """A transition, or many: its fields by position, others by their names."""
    return {**dict(zip(FIELDS, values, strict=False)), **more}


def make(path, hot=8, total=50, **options):
    return MmapReplayBuffer(vectors(3, 1), total, path, hot_capacity=hot, **options)


def rows(first, count):
    """Transitions of which every field tells which they are."""
    steps = np.arange(first, first + count, dtype=np.float32)
    obs = np.stack([steps, steps * 2, steps * 3], axis=1)
    return transition(obs, steps[:, None] + 0.5, steps, steps % 7 == 0, steps % 5 == 0, obs + 1)


def push(buffer, first, count):
    for row in zip(*rows(first, count).values(), strict=True):
        buffer.add(transition(*row))


def steps_of(batch):
    """Which transitions these are, all of whose fields must belong to them."""
    steps = batch["rewards"]
    obs = np.stack([steps, steps * 2, steps * 3], axis=1)
    expected = {
        "obs": obs,
        "next_obs": obs + 1,
        "actions": steps[:, None] + 0.5,
        "rewards": steps,
        "terminated": steps % 7 == 0,
        "truncated": steps % 5 == 0,
    }
    assert batch.data.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(batch[name], array, err_msg=name)
    return steps.astype(int).tolist()


def content(buffer):
    return sorted(set(steps_of(buffer.sample(len(buffer) * 30, seed=1))))
