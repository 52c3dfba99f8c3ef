"""Collect rollouts of language-model agents and deliver batches of bounded age.

A :class:`RolloutTable` connects producers with a learner. Producers *reserve* a group and add its
items, whole or in segments, from any version of the policy. The learner *publishes* versions and
*samples* batches in which no token is older than the table allows. See ``docs/guides/rollouts.md``.
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
