"""Messages that describe a table: see :class:`echoic.reverb.reverb_types.TableInfo`."""

from echoic.reverb._engine.errors import absent
from echoic.reverb.cc.message import Field, Message

__all__ = [
    "KeyDistributionOptions",
    "RateLimiterCallStats",
    "RateLimiterInfo",
    "TableWorkerTime",
]


class KeyDistributionOptions(Message):
    """A selector; ``WhichOneof("distribution")`` says which."""

    class Prioritized(Message):
        """Probability in proportion to a power of the priority."""

        FIELDS = {"priority_exponent": Field(0.0)}

    class Heap(Message):
        """The item of lowest or highest priority."""

        FIELDS = {"min_heap": Field(False)}

    FIELDS = {
        "fifo": Field(False, "distribution"),
        "uniform": Field(False, "distribution"),
        "prioritized": Field(kind=Prioritized, group="distribution"),
        "heap": Field(kind=Heap, group="distribution"),
        "lifo": Field(False, "distribution"),
        "is_deterministic": Field(False),
    }


class RateLimiterCallStats(Message):
    """The counts of inserts or samples."""

    FIELDS = {"completed": Field(0)}


class RateLimiterInfo(Message):
    """The numbers of a rate limiter."""

    FIELDS = {
        "samples_per_insert": Field(0.0),
        "min_diff": Field(0.0),
        "max_diff": Field(0.0),
        "min_size_to_sample": Field(0),
        "insert_stats": Field(kind=RateLimiterCallStats),
        "sample_stats": Field(kind=RateLimiterCallStats),
    }


class TableWorkerTime(Message):
    """How upstream's table threads spend their time; all zero, since there are none here."""

    FIELDS = {
        "running_ms": Field(0),
        "sampling_ms": Field(0),
        "inserting_ms": Field(0),
        "sleeping_ms": Field(0),
        "waiting_for_sampling_ms": Field(0),
        "waiting_for_inserts_ms": Field(0),
    }


__getattr__ = absent(
    __name__,
    "ChunkData FlatTrajectory KeyWithPriority PrioritizedItem SampleInfo SequenceRange SliceRange "
    "TableInfo Timeout Uint128",
    "messages of Reverb's protocol have no counterpart",
)
