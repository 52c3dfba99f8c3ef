"""Messages that describe tables: see :mod:`echoic.reverb.server_executable.server_from_proto`."""

from echoic.reverb.cc.message import Field, Message
from echoic.reverb.cc.schema_pb2 import KeyDistributionOptions

__all__ = ["PriorityTableCheckpoint", "RateLimiterCheckpoint"]


class RateLimiterCheckpoint(Message):
    """The settings of a rate limiter."""

    FIELDS = {
        "samples_per_insert": Field(0.0),
        "min_diff": Field(0.0),
        "max_diff": Field(0.0),
        "min_size_to_sample": Field(0),
        "sample_count": Field(0),
        "insert_count": Field(0),
        "delete_count": Field(0),
    }


class PriorityTableCheckpoint(Message):
    """The settings of a table."""

    FIELDS = {
        "table_name": Field(""),
        "max_size": Field(0),
        "max_times_sampled": Field(0),
        "rate_limiter": Field(kind=RateLimiterCheckpoint),
        "sampler": Field(kind=KeyDistributionOptions),
        "remover": Field(kind=KeyDistributionOptions),
        "num_deleted_episodes": Field(0),
        "num_unique_samples": Field(0),
    }
