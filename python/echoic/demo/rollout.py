"""A rollout: what a worker sends and the learner takes, one sample of the stream.

A rollout is `LENGTH` consecutive steps of one worker, all chosen by one version of the
policy. Episodes begin and end anywhere inside it. A batch has the same tree with a
leading axis of rollouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

OBSERVATION = 4
ACTIONS = 2
LENGTH = 64

#: Names the leaves of a rollout, with their shapes and dtypes.
EXAMPLE: dict[str, Any] = {
    "step": {
        "obs": np.zeros((LENGTH, OBSERVATION), np.float32),
        "action": np.zeros(LENGTH, np.int32),
        # The probability under the policy that acted. The learner's policy is newer, and
        # corrects for the difference with this.
        "log_prob": np.zeros(LENGTH, np.float32),
        "reward": np.zeros(LENGTH, np.float32),
        # Where the step led; not the next `obs` when an episode ended here.
        "next_obs": np.zeros((LENGTH, OBSERVATION), np.float32),
        # The pole fell: nothing is to be expected from `next_obs` on.
        "terminated": np.zeros(LENGTH, np.bool_),
        # The time limit was reached: the episode would have gone on.
        "truncated": np.zeros(LENGTH, np.bool_),
        # The return of the episode that ended here; NaN at all other steps.
        "episode_return": np.zeros(LENGTH, np.float32),
    },
    "version": np.zeros((), np.int64),
    "worker": np.zeros((), np.int64),
}
