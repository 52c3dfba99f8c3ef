"""Messages that describe a table: see :class:`echoic.reverb.reverb_types.TableInfo`."""

from echoic.reverb.cc.message import Message, message, number

__all__ = [
    "KeyDistributionOptions",
    "RateLimiterCallStats",
    "RateLimiterInfo",
    "TableWorkerTime",
]


class _Prioritized(Message):
    FIELDS = {"priority_exponent": number(0.0)}


class _Heap(Message):
    FIELDS = {"min_heap": number(False)}


class KeyDistributionOptions(Message):
    """A selector; ``WhichOneof("distribution")`` says which."""

    Prioritized = _Prioritized
    Heap = _Heap
    FIELDS = {
        "fifo": number(False, "distribution"),
        "uniform": number(False, "distribution"),
        "prioritized": message(_Prioritized, "distribution"),
        "heap": message(_Heap, "distribution"),
        "lifo": number(False, "distribution"),
        "is_deterministic": number(False),
    }


class RateLimiterCallStats(Message):
    """The counts of inserts or samples."""

    FIELDS = {"completed": number(0)}


class RateLimiterInfo(Message):
    """The numbers of a rate limiter."""

    FIELDS = {
        "samples_per_insert": number(0.0),
        "min_diff": number(0.0),
        "max_diff": number(0.0),
        "min_size_to_sample": number(0),
        "insert_stats": message(RateLimiterCallStats),
        "sample_stats": message(RateLimiterCallStats),
    }


class TableWorkerTime(Message):
    """How upstream's table threads spend their time; all zero, since there are none here."""

    FIELDS = {
        "running_ms": number(0),
        "sampling_ms": number(0),
        "inserting_ms": number(0),
        "sleeping_ms": number(0),
        "waiting_for_sampling_ms": number(0),
        "waiting_for_inserts_ms": number(0),
    }
