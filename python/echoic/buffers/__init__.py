"""Replay buffers in the memory of this process: no server, no threads, no configuration.

- :class:`ReplayBuffer` keeps the last transitions and samples them uniformly.
- :class:`PrioritizedReplayBuffer` samples them in proportion to a power of their priorities.
- :class:`MmapReplayBuffer` keeps the newest in memory and all others in a file.
- :class:`DeviceReplayBuffer` keeps them on a device of PyTorch, such as a GPU.
- :class:`OfflineDataset` samples data that do not change.
"""

from echoic.buffers._common import BufferStats
from echoic.buffers.device import DeviceReplayBuffer
from echoic.buffers.mmap import MmapReplayBuffer
from echoic.buffers.offline import OfflineDataset, OfflineStats
from echoic.buffers.replay import PrioritizedReplayBuffer, ReplayBuffer

__all__ = [
    "BufferStats",
    "DeviceReplayBuffer",
    "MmapReplayBuffer",
    "OfflineDataset",
    "OfflineStats",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
]
