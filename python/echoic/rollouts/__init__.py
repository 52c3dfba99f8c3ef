"""Rollouts of language-model agents: groups of token sequences in, fresh batches out.

A :class:`RolloutTable` stands between those who generate and the one who learns. Producers are
*admitted* to make a group, bring its items in whole or in segments, from whatever version of the
policy; the learner *publishes* versions and *samples* batches in which nothing is older than the
table allows. See ``docs/guides/rollouts.md``.
"""

from echoic.rollouts.batch import RolloutBatch
from echoic.rollouts.client import RolloutClient, connect
from echoic.rollouts.history import History
from echoic.rollouts.permit import Permit
from echoic.rollouts.table import RolloutTable

__all__ = ["History", "Permit", "RolloutBatch", "RolloutClient", "RolloutTable", "connect"]
