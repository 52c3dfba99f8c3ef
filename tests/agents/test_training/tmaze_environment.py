"""Small environments for tests of training; importing it gives them names."""

import os
import time
from pathlib import Path

import numpy as np
from echoic.agents.environments import (
    EchoRLEnvironment,
    EnvironmentConfig,
    Outcome,
    register_environment,
)


class TMaze(EchoRLEnvironment):
    """A cue, a short corridor, and a turn that only the cue tells; in words and numbers."""

    instructions = "Walk on, and at the junction turn to the side that you were shown."

    def __init__(self, config, corridor=2):
        super().__init__(config)
        self.corridor = corridor

    def _start(self, options):
        self.cue = int(self.np_random.integers(2))
        self.at = 0
        return f"You are shown the {('left', 'right')[self.cue]}."

    def _apply(self, command):
        if command not in {"left", "right"}:
            return None
        self.at += 1
        if self.at <= self.corridor:
            return Outcome("A corridor.")
        if self.at == self.corridor + 1:
            return Outcome("The junction.")
        right = command == ("left", "right")[self.cue]
        return Outcome("You turned.", float(right), True, float(right))

    def _commands(self):
        return ["left", "right"]

    def _vector(self, text):
        seen = np.zeros(self.config.state_encoding_dim, np.float32)
        seen[
            ("left.", "right.", "orridor.", "unction.", "turned.").index(
                next(
                    e
                    for e in ("left.", "right.", "orridor.", "unction.", "turned.")
                    if text.endswith(e)
                )
            )
        ] = 1.0
        return seen

    def expert(self):
        return ("left", "right")[self.cue]


class Corridor(EchoRLEnvironment):
    """Six cells; the reward is at the right end, and walking left ends it without one."""

    instructions = "Walk to the right end."

    def _start(self, options):
        self.at = 1 + int(self.np_random.integers(2))
        return f"cell {self.at}"

    def _apply(self, command):
        if command not in {"left", "right"}:
            return None
        self.at += 1 if command == "right" else -1
        ended = self.at in {0, 5}
        return Outcome(f"cell {self.at}", float(self.at == 5), ended, float(self.at == 5))

    def _commands(self):
        return ["left", "right"]

    def _vector(self, text):
        seen = np.zeros(self.config.state_encoding_dim, np.float32)
        seen[int(text.split()[-1])] = 1.0
        return seen

    def expert(self):
        return "right"


class Fragile(Corridor):
    """A corridor that breaks now and then."""

    steps = 0

    def _apply(self, command):
        type(self).steps += 1
        if type(self).steps % 50 == 0:
            raise RuntimeError("the simulator has crashed")
        return super()._apply(command)


class Hanging(Corridor):
    """A corridor that hangs once, within a step, if a file says so."""

    def _apply(self, command):
        mark = os.environ.get("ECHOIC_TEST_HANGING")
        if mark and Path(mark).exists():
            Path(mark).unlink()
            time.sleep(3600)
        return super()._apply(command)


def _maker(kind):
    def make(corridor=None, **settings):
        config = EnvironmentConfig(max_steps=20, timeout_penalty=0.0, **settings)
        return kind(config) if corridor is None else kind(config, corridor)

    return make


for _name, _kind in {
    "test-tmaze": TMaze,
    "test-corridor": Corridor,
    "test-fragile": Fragile,
    "test-hanging": Hanging,
}.items():
    register_environment(_name, _maker(_kind))
