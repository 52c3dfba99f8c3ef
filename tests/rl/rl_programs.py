"""Programs that the tests of `echoic.rl` run in processes of their own."""

import sys
import time

import echoic.rl


def write_a_part() -> None:
    """Write a part of a group at an address, and wait to be killed."""
    with echoic.rl.join(sys.argv[1], partial=True) as worker:
        for group in worker.groups(["prompt"]):
            with group:
                first, second = group
                first.write(tokens=[1, 2], logprobs=[0, 0], version=0)
                first.done(reward=1.0)
                second.write(tokens=[3], logprobs=[0], version=0)
                worker.flush()
                sys.stdout.write("written\n")
                sys.stdout.flush()
                time.sleep(60)
