"""The task of the benchmark's tests in a worker; it hangs within a step once, if a file says so."""

import os
import time
from pathlib import Path

import little
from echoic.agents.environments import EnvironmentConfig, register_environment


class HangingGuess(little.Guess):
    def _apply(self, command):
        mark = Path(os.environ["ECHOIC_TEST_GUESS_HANGS"])
        if mark.exists():
            mark.unlink()
            time.sleep(3600)
        return super()._apply(command)


register_environment("guess", lambda **settings: HangingGuess(EnvironmentConfig(**settings)))
