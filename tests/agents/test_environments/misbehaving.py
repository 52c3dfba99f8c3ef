"""An environment that does in a worker what none should."""

import ctypes
import os
import signal
import sys
import time

from echoic.agents.environments import (
    ActionSpaceWrapper,
    EchoRLEnvironment,
    EnvironmentConfig,
    Outcome,
    StatePreprocessingWrapper,
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


def _wrapped(**settings):
    made = Misbehaving(EnvironmentConfig(**settings))
    made = StatePreprocessingWrapper(made, lambda vector: vector[:3] * 9, 3, low=-9.0, high=9.0)
    return ActionSpaceWrapper(made, ("wait", "win", "print"))


register_environment("wrapped", _wrapped)
register_environment("misbehaving", lambda **s: Misbehaving(EnvironmentConfig(**s)))
