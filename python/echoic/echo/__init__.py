"""The API of echo on Echoic's streams: programs run with only the import changed.

``import echoic.echo as echo``. A :class:`Server` here is a server and its one stream at once. What
differs from the original, and why, is in the guide "From echo".
"""

from echoic import _dropin
from echoic.echo.echo import HistSnapshot, SampleInfo, TcpTransport
from echoic.echo.server import Sample, Server
from echoic.echo.tcp_client import ConnectionClosedError, TcpClient
from echoic.echo.trajectory_accumulator import TrajectoryAccumulator

__all__ = [
    "ConnectionClosedError",
    "HistSnapshot",
    "Sample",
    "SampleInfo",
    "Server",
    "TcpClient",
    "TcpTransport",
    "TrajectoryAccumulator",
    "__version__",
    "install",
]

# The release of id-echo whose API this is.
__version__ = "0.2.1"


def install() -> None:
    """Make ``import echo``, and of its submodules, import this package in this process.

    Call it before anything imports ``echo``. ``python -m echoic.echo PROGRAM`` does so for a
    program.

    Raises:
        ImportError: If another ``echo`` was imported before.
    """
    _dropin.install("echo")
