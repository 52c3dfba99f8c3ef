"""The last items of a shard that is emptied go on where a call was broken off."""

from __future__ import annotations

import echoic
import numpy as np
import pytest
from echoic import TcpTransport
from echoic.errors import WaitTimeoutError
from echoic.integrations.ray import moving
from echoic.integrations.ray.doors import Doors

TOKEN = "secret"


def queue() -> echoic.Table:
    return echoic.Table.queue("queue", np.int64(0), max_size=2000)


def test_a_second_call_moves_what_the_first_has_left_and_nothing_twice(monkeypatch):
    here, there = queue(), queue()
    here.insert_batch(np.arange(1000), np.ones(1000))
    copy, left = moving._copy, [2]

    def copy_twice(*arguments):
        if not left[0]:
            raise WaitTimeoutError("timed out")
        left[0] -= 1
        return copy(*arguments)

    door = TcpTransport(port=0, token=TOKEN)
    with echoic.Server(tables=[there], transport=door) as server:
        others, done = [Doors("another host", server.addresses[0])], {}
        monkeypatch.setattr(moving, "_copy", copy_twice)
        with pytest.raises(WaitTimeoutError):
            moving.move_rest([here], others, TOKEN, 30.0, done)
        assert len(there) == done["queue"] == 512
        monkeypatch.undo()
        assert moving.move_rest([here], others, TOKEN, 30.0, done) == {"queue": 1000}
        assert there.sample(1000).data.tolist() == list(range(1000))
