"""Run programs written for DeepMind Reverb on Echoic's tables, with only the import changed.

Use ``import echoic.reverb as reverb``. The guide "From Reverb" lists what differs, and why.
"""

from echoic import _dropin
from echoic.reverb import item_selectors as selectors
from echoic.reverb import rate_limiters
from echoic.reverb import structured_writer as structured
from echoic.reverb._signature import TensorSpec
from echoic.reverb.client import Client, Writer
from echoic.reverb.errors import DeadlineExceededError, ReverbError
from echoic.reverb.pattern_dataset import PatternDataset
from echoic.reverb.platform.default import checkpointers
from echoic.reverb.replay_sample import ReplaySample, SampleInfo
from echoic.reverb.server import Server, Table
from echoic.reverb.tf_client import TFClient
from echoic.reverb.timestep_dataset import TimestepDataset
from echoic.reverb.trajectory_dataset import TrajectoryDataset
from echoic.reverb.trajectory_writer import TrajectoryColumn, TrajectoryWriter

__all__ = [
    "Client",
    "DeadlineExceededError",
    "PatternDataset",
    "ReplaySample",
    "ReverbError",
    "SampleInfo",
    "Server",
    "TFClient",
    "Table",
    "TensorSpec",
    "TimestepDataset",
    "TrajectoryColumn",
    "TrajectoryDataset",
    "TrajectoryWriter",
    "Writer",
    "checkpointers",
    "install",
    "rate_limiters",
    "selectors",
    "structured",
]


def install() -> None:
    """Make ``import reverb``, and of its submodules, import this package in this process.

    Call it before anything imports ``reverb``. ``python -m echoic.reverb PROGRAM`` does so for a
    program.

    Raises:
        ImportError: If another ``reverb`` was imported before.

    Examples:
        >>> import echoic.reverb
        >>> echoic.reverb.install()
        >>> import reverb
        >>> from reverb import rate_limiters
        >>> reverb is echoic.reverb, rate_limiters is echoic.reverb.rate_limiters
        (True, True)
    """
    _dropin.install("reverb")
