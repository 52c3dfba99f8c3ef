"""Choose which item is sampled, and which is removed when a table is full."""

import functools

from echoic.reverb import pybind

__all__ = ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Uniform"]

Fifo = pybind.FifoSelector
Lifo = pybind.LifoSelector
MaxHeap = functools.partial(pybind.HeapSelector, False)
MinHeap = functools.partial(pybind.HeapSelector, True)
Prioritized = pybind.PrioritizedSelector
Uniform = pybind.UniformSelector
