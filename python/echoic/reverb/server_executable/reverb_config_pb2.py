"""The message that configures a server."""

from echoic.reverb.cc.checkpointing.checkpoint_pb2 import PriorityTableCheckpoint
from echoic.reverb.cc.message import Field, Message

__all__ = ["ReverbServerConfig"]


class ReverbServerConfig(Message):
    """The tables of a server, and its port."""

    FIELDS = {"tables": Field(kind=PriorityTableCheckpoint, many=True), "port": Field(0)}
