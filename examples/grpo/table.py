"""The table between workers and learner.

Knows no torch: it is the part of the example that stays when the framework is another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echoic.rollouts import RolloutTable

if TYPE_CHECKING:
    from examples.grpo.settings import Settings

TABLE = "answers"
# A value of every token. The mask says which ones the policy has made: not those of the prompt.
COLUMNS = {"tokens": "int32", "logprobs": "float32", "mask": "uint8"}
# A value of every answer.
FIELDS = {"reward": "float32"}


def make_table(settings: Settings) -> RolloutTable:
    """Make the table between workers and learner, or bring back the one that was there.

    Its journal is in the run's folder, so what workers have brought outlives the learner's process.
    """
    return RolloutTable(
        TABLE,
        COLUMNS,
        FIELDS,
        group_size=settings.answers,
        batch_groups=settings.groups,
        max_lag=settings.max_lag,
        # What all answers earn alike teaches nothing. Another group is reserved instead.
        filter="spread(reward) > 0",
        # A group whose worker is gone waits for another one to go on with it.
        reservation_ttl=settings.ttl,
        on_expiry="suspend",
        max_running=8 * settings.at_once,
        seed=settings.seed,
        directory=settings.folder / "table",
    )
