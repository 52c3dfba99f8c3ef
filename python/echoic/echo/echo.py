"""What upstream's native module has."""

from echoic.echo.server import HistSnapshot, SampleInfo, TcpTransport, _Server

__all__ = ["HistSnapshot", "SampleInfo", "TcpTransport", "_Server"]
