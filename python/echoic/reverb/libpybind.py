"""Provide :mod:`echoic.reverb.pybind` under the name of Reverb's C++ library."""

from echoic.reverb import pybind
from echoic.reverb.pybind import *  # noqa: F403 - the same names

__getattr__ = pybind.__getattr__
