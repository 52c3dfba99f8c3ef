"""Errors and warnings that Echoic raises.

Every class is an :class:`EchoicError` and also the builtin it resembles, so code that catches
``TimeoutError`` or ``ValueError`` keeps working. The native core raises these very classes.
"""

__all__ = [
    "ArgumentError",
    "BackboneError",
    "CheckpointError",
    "CheckpointWarning",
    "ClosedError",
    "CollectorError",
    "CollectorWarning",
    "DisconnectedError",
    "DtypeError",
    "EchoicError",
    "GroupNotFoundError",
    "HeldBatchesWarning",
    "JournalError",
    "JournalWarning",
    "LeaseError",
    "LimiterError",
    "PriorityError",
    "RefusedError",
    "ReplayError",
    "RolloutError",
    "ServingError",
    "ShardWarning",
    "SpecError",
    "StorageError",
    "TableNotFoundError",
    "TrajectoryError",
    "WaitTimeoutError",
]


class EchoicError(Exception):
    """The base class of all errors that Echoic raises."""


class ArgumentError(EchoicError, ValueError):
    """An argument is out of range, or its shape does not fit the others'. Nothing was changed."""


class BackboneError(EchoicError, RuntimeError):
    """A language model did not answer, or was asked for something that it does not support.

    Attributes:
        usage: What the failed call used, if the backend reported it: it is billed all the same.
    """

    usage: object = None


class DtypeError(EchoicError, TypeError):
    """An array has a dtype or a device that the function can't work with. Nothing was changed."""


class RolloutError(EchoicError, ValueError):
    """A rollout table can't work with a setting or an argument. Nothing was changed."""


class LeaseError(EchoicError, RuntimeError):
    """A lease ran out, or its batch has gone to another consumer.

    Discard what was computed from the batch: its new consumer computes it again.
    """


class GroupNotFoundError(EchoicError, KeyError):
    """A rollout table has no record of a group with this number."""

    # A KeyError would show its message in quotes.
    __str__ = Exception.__str__


class SpecError(EchoicError, ValueError):
    """A sample does not fit the example, or an example can't be stored.

    The message names the leaf or node, what was expected and what came. Nothing of the sample was
    stored.
    """


class WaitTimeoutError(EchoicError, TimeoutError):
    """A timeout passed before there was room for a sample, or a batch to take.

    Attributes:
        reason: ``"CAPACITY"`` (complete batches wait for a consumer), ``"LEASED"`` (all batches are
            held by live arrays) or ``"EMPTY"`` (no batch is complete); from a client also
            ``"AWAY"`` (there is no connection) or ``"NETWORK"`` (the server has not acknowledged
            what was sent). From a table ``"MIN_SIZE"`` (too few items), ``"RATIO"`` (inserts or
            samples are ahead of the others), ``"PAUSED"`` or ``"LEASED"`` (rows that would be free
            are still being read).
        stored: How many samples of an ``extend`` were stored, or taken by a client,
            before the timeout.
    """

    reason: str = ""
    stored: int = 0


class ClosedError(EchoicError, RuntimeError):
    """A server, table or client is closed, or a closed server has no more batches.

    Attributes:
        stored: How many samples of an ``extend`` were stored before the server was closed.
    """

    stored: int = 0


class DisconnectedError(EchoicError, ConnectionError):
    """A server could not be reached, or the connection was lost and could not be restored.

    Attributes:
        undelivered: How many samples the client still has; its ``undelivered()`` returns them.
        stored: Of a batch that was being sent through a client of a stream on Ray, how many samples
            it has taken; it delivers those.
    """

    undelivered: int = 0
    stored: int = 0


class RefusedError(EchoicError, ConnectionError):
    """A server answered and refused the connection.

    Attributes:
        code: ``"AUTH"`` (the token), ``"VERSION"`` (of the protocol), ``"LIMIT"`` (too many
            connections), ``"STALE"`` (a later producer of this identity was there), ``"CLOSING"``,
            ``"SERVICE"`` (the server has no stream, tables or weights), ``"MEMORY"``, ``"JOURNAL"``
            (inserts would not survive a crash) or ``"PROTOCOL"``.
        undelivered: How many samples the client still has; its ``undelivered()`` returns them.
    """

    code: str = ""
    undelivered: int = 0


class TrajectoryError(EchoicError, ValueError):
    """A trajectory got too many or too few steps, or a part that it does not have."""


class TableNotFoundError(EchoicError, KeyError):
    """The server has no table of this name; the message says which it has."""

    def __str__(self) -> str:
        """Return the message as it is, which ``KeyError`` would quote."""
        return str(self.args[0]) if self.args else ""


class PriorityError(EchoicError, ValueError):
    """A priority is negative, infinite or not a number. Nothing was changed."""


class LimiterError(EchoicError, ValueError):
    """A limiter has numbers with which a caller would wait for ever; the message says why."""


class ReplayError(EchoicError, ValueError):
    """A local buffer can't do what was asked; the message says why, and what would work."""


class StorageError(EchoicError, OSError):
    """A file can't be created, opened, written or read; nothing held in memory was lost.

    Raised by buffers in files, and when a directory is opened that another process has open.

    Attributes:
        errno: The operating system's error number, if it reported one: ``ENOSPC`` when the disk is
            full, ``EEXIST`` when the file is there already, ``EWOULDBLOCK`` when it is in use.
        stored: How many transitions of an ``extend`` were stored before.
    """

    stored: int = 0


class CheckpointError(EchoicError, ValueError):
    """A checkpoint is damaged, or of another table or format. Nothing was loaded."""


class JournalError(EchoicError, ValueError):
    """A table's journal is damaged, is another table's, or does not belong to the checkpoint.

    Nothing was loaded. The message says which file, what was expected, and what can be done.
    """


class ServingError(EchoicError, RuntimeError):
    """An inference server refused a request; the message has its answer."""


class CollectorError(EchoicError, RuntimeError):
    """A worker process of a collector failed, or was killed too often; the message says why."""


class CollectorWarning(UserWarning):
    """A worker process of a collector was killed, and another one has taken its place."""


class HeldBatchesWarning(UserWarning):
    """Producers wait because every batch is held by arrays that are still alive."""


class JournalWarning(UserWarning):
    """The end of a journal was incomplete and was dropped; the message says what may be lost.

    A crash in the middle of a write leaves such an end. Nothing that was acknowledged is lost then.
    """


class CheckpointWarning(UserWarning):
    """A scheduled checkpoint failed; the next one is made on schedule."""


class ShardWarning(UserWarning):
    """One of several servers went away or came back; the message says what follows."""
