"""An environment that does in a worker what none should."""

import ctypes
import os
import signal
import sys
import time

import gymnasium
import numpy as np
from echoic.agents.environments import (
    EchoRLEnvironment,
    EnvironmentConfig,
    Outcome,
    register_environment,
)


class Misbehaving(EchoRLEnvironment):
    instructions = "Anything may happen."

    def _start(self, options):
        if options.get("hang"):
            time.sleep(600)
        self._luck = int(self.np_random.integers(10**6))
        return f"Your number is {self._luck}."

    def _apply(self, command):
        if command == "hang":
            time.sleep(600)
        if command == "hold the interpreter":
            ctypes.PyDLL(None).sleep(600)
        if command == "die":
            os.write(2, b"the last words\n")
            os.kill(os.getpid(), signal.SIGKILL)
        if command == "leave":
            os._exit(3)
        if command == "print":
            sys.stdout.write('{"is": "a lie"}\n')
            sys.stdout.flush()
            sys.stderr.write("x" * 300_000)
        if command == "answer no JSON":
            return Outcome("A set.", details={"set": {1}})
        if command == "raise":
            raise ZeroDivisionError("not by zero")
        if command == "have children":
            pid = os.fork()
            if not pid:
                time.sleep(600)
            return Outcome("A child.", details={"child": pid})
        if command == "win":
            return Outcome("Won.", 1.0, ended=True, score=1.0)
        return Outcome("Fine.")

    def _commands(self):
        return ("win", "wait")


class _Narrow(Misbehaving):
    """Of other sizes than its settings."""

    def __init__(self, config):
        super().__init__(config)
        spaces = gymnasium.spaces
        vector = spaces.Box(-9.0, 9.0, (3,), np.float32)
        self.observation_space = spaces.Dict({**self.observation_space.spaces, "vector": vector})
        self.action_space = spaces.Discrete(3)

    def get_state_dim(self):
        return 3

    def get_action_space_size(self):
        return 3

    def _vector(self, text):
        return super()._vector(text)[:3]

    def _commands(self):
        return ("wait", "win", "print")

    def reset(self, **options):
        observation, info = super().reset(**options)
        return observation, {**info, "command_mask": info["command_mask"][:3]}


register_environment("narrow", lambda **s: _Narrow(EnvironmentConfig(**s)))
register_environment("misbehaving", lambda **s: Misbehaving(EnvironmentConfig(**s)))
