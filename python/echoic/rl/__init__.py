"""Connect the workers of a language model with its learner.

The learner makes a :class:`Run`, publishes weights, and iterates over batches. Workers :func:`join`
it from any process or machine, get a :class:`Group` for each prompt as soon as the learner can use
one, and write the tokens of each :class:`Item`. See ``docs/guides/llm-rollouts.md``.
"""

from echoic.rl.group import Group, Item
from echoic.rl.run import Run
from echoic.rl.worker import Worker, join

__all__ = ["Group", "Item", "Run", "Worker", "join"]
