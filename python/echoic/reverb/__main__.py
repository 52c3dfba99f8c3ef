"""Run a program written for Reverb, unchanged: ``python -m echoic.reverb PROGRAM [ARGUMENTS]``."""

from echoic._dropin import run_program

if __name__ == "__main__":
    run_program("reverb")
