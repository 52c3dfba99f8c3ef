"""Parameters on their way from the learner to the workers.

`SharedWeights` is for workers in the learner's process, `WeightsBlock` for those in processes of
their own on the same machine. Workers on other machines would need a third, which asks for the
parameters over a connection; neither `worker` nor `learner` would notice.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from echoic.demo.policy import Array


class Version(NamedTuple):
    """Parameters that no longer change, and their number, which counts up from 0."""

    number: int
    params: Array


class WeightsSource(Protocol):
    """Where a worker asks for parameters. It does not know how they got there."""

    def latest(self) -> Version:
        """Return the newest version there is."""
        ...


class Weights(WeightsSource, Protocol):
    """Where the learner puts them."""

    def publish(self, params: Array) -> None:
        """Make a copy of `params` the latest version. Only the learner calls this."""
        ...


class SharedWeights:
    """For workers in threads.

    It needs no lock: a version is immutable, and replacing it is one assignment.
    """

    def __init__(self, params: Array) -> None:
        self._latest = frozen(0, params)

    def latest(self) -> Version:
        """Return what was published last."""
        return self._latest

    def publish(self, params: Array) -> None:
        """Make a copy of `params` the latest version."""
        self._latest = frozen(self._latest.number + 1, params)


class WeightsBlock:
    """For workers in processes: a block of memory that all of them map, with the latest version.

    There is no lock, which a worker that is killed could keep. A worker copies the block although
    the learner may be writing to it, and believes the copy only if its checksum fits, whatever the
    order in which a machine makes writes visible. If not, it keeps the version that it has.

    It is given to a process when that is started; the copy there begins with the version of that
    moment. The memory has no name, so that it goes with the last process, however that ends.
    """

    HEAD = struct.Struct("=qQ")  # The version's number, and the checksum. Parameters follow.

    def __init__(self, params: Array, context: BaseContext) -> None:
        self._block = context.RawArray("B", self.HEAD.size + params.nbytes)
        self._latest = frozen(0, params)

    def latest(self) -> Version:
        """Return the newest version that could be read whole."""
        if self.HEAD.unpack_from(self._block)[0] != self._latest.number:
            copy = bytes(self._block)
            number, checksum = self.HEAD.unpack_from(copy)
            params = np.frombuffer(copy, self._latest.params.dtype, offset=self.HEAD.size)
            if checksum == self._checksum(number, params):
                self._latest = Version(number, params)
        return self._latest

    def publish(self, params: Array) -> None:
        """Make a copy of `params` the latest version, for all processes that have the block."""
        self._latest = frozen(self._latest.number + 1, params)
        number, params = self._latest
        checksum = self._checksum(number, params)
        np.frombuffer(self._block, params.dtype, offset=self.HEAD.size)[:] = params
        self.HEAD.pack_into(self._block, 0, number, checksum)

    @staticmethod
    def _checksum(number: int, params: Array) -> int:
        return zlib.crc32(params.data, number)


def frozen(number: int, params: Array) -> Version:
    """A version of its own memory."""
    copy = params.copy()
    copy.setflags(write=False)
    return Version(number, copy)
