"""What can go wrong, each case as its own class.

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
    "ShardWarning",
    "SpecError",
    "StorageError",
    "TableNotFoundError",
    "TrajectoryError",
    "WaitTimeoutError",
]


class EchoicError(Exception):
    """Base of all errors that Echoic raises by itself."""


class ArgumentError(EchoicError, ValueError):
    """An argument is out of range, or its shape does not fit the others'. Nothing was changed."""


class BackboneError(EchoicError, RuntimeError):
    """A language model did not answer, or was asked for what it can't do. The message says why.

    Attributes:
        usage: What a call that failed used, where its backend told: it is billed all the same.
    """

    usage: object = None


class DtypeError(EchoicError, TypeError):
    """An array has a dtype or a device that the function can't work with. Nothing was changed."""


class RolloutError(EchoicError, ValueError):
    """A rollout table can't work with a setting or an argument. Nothing was changed."""


class LeaseError(EchoicError, RuntimeError):
    """A batch is another consumer's by now, or over: the lease was not extended in time.

    Whatever was made of the batch must not count; whoever has it now does the same work.
    """


class GroupNotFoundError(EchoicError, KeyError):
    """A rollout table never admitted a group of this number."""

    # A KeyError would show its message in quotes.
    __str__ = Exception.__str__


class SpecError(EchoicError, ValueError):
    """A sample does not fit the example, or an example can't be stored.

    The message names the leaf or node, what was expected and what came. Nothing of the sample was
    stored.
    """


class WaitTimeoutError(EchoicError, TimeoutError):
    """A timeout passed before there was room, or a batch.

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
    """A server takes no more samples or has no more batches, a table is closed, or a client is.

    Attributes:
        stored: How many samples of an ``extend`` were stored before the server was closed.
    """

    stored: int = 0


class DisconnectedError(EchoicError, ConnectionError):
    """A server could not be reached, or not be reached again.

    Attributes:
        undelivered: How many samples the client still has; its ``undelivered()`` returns them.
        stored: Of a batch that was being sent through a client of a stream on Ray, how many samples
            it has taken; it delivers those.
    """

    undelivered: int = 0
    stored: int = 0


class RefusedError(EchoicError, ConnectionError):
    """A server was reached and does not let this client in.

    Attributes:
        code: ``"AUTH"`` (the token), ``"VERSION"`` (of the protocol), ``"LIMIT"`` (too many
            connections), ``"STALE"`` (a later producer of this identity was there), ``"CLOSING"``,
            ``"STREAM"``, ``"MEMORY"``, ``"JOURNAL"`` (inserts would not survive a crash) or
            ``"PROTOCOL"``.
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
    """With these numbers somebody would wait for ever, and why."""


class ReplayError(EchoicError, ValueError):
    """A local buffer can't do what was asked: the message says what it was, and what would do."""


class StorageError(EchoicError, OSError):
    """A file can't be made, opened, written or read; nothing held in memory was lost.

    Buffers in files raise it, and whoever opens a directory that somebody else has open.

    Attributes:
        errno: What the system said, if it was the system that refused: ``ENOSPC`` when the disk is
            full, ``EEXIST`` when the file is there already, ``EWOULDBLOCK`` when it is in use.
        stored: How many transitions of an ``extend`` were stored before.
    """

    stored: int = 0


class CheckpointError(EchoicError, ValueError):
    """A checkpoint is damaged, is none of ours, or is another table's. Nothing was loaded."""


class JournalError(EchoicError, ValueError):
    """A table's journal is damaged, is another table's, or does not belong to the checkpoint.

    Nothing was loaded. The message says which file, what was expected, and what can be done.
    """


class CollectorError(EchoicError, RuntimeError):
    """A worker process of a collector failed, or was killed too often; the message says why."""


class CollectorWarning(UserWarning):
    """A worker process of a collector was killed, and another one has taken its place."""


class HeldBatchesWarning(UserWarning):
    """Producers wait because every batch is held by arrays that are still alive."""


class JournalWarning(UserWarning):
    """The end of a journal was no whole record and was dropped; the message says what may be lost.

    A crash in the middle of a write leaves such an end, and then nothing acknowledged is lost.
    """


class CheckpointWarning(UserWarning):
    """A scheduled checkpoint could not be made; the next one is tried in its time."""


class ShardWarning(UserWarning):
    """One of several servers went away or came back; what that means is in the message."""
