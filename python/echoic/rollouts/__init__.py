"""Rollouts of language-model agents: groups of token sequences in, fresh batches out.

A :class:`RolloutTable` stands between producers and the learner. Producers *reserve* a group and
add its items, whole or in segments, from whatever version of the
policy; the learner *publishes* versions and *samples* batches in which nothing is older than the
table allows. See ``docs/guides/rollouts.md``.
"""

from echoic.rollouts.batch import RolloutBatch
from echoic.rollouts.history import History
from echoic.rollouts.reservation import Reservation
from echoic.rollouts.stats import RolloutStats
from echoic.rollouts.table import RolloutTable

__all__ = [
    "History",
    "Reservation",
    "RolloutBatch",
    "RolloutStats",
    "RolloutTable",
]
