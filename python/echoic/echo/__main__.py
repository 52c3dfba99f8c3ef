"""Run a program written for echo, unchanged: ``python -m echoic.echo PROGRAM [ARGUMENTS]``."""

from echoic._dropin import run_program

if __name__ == "__main__":
    run_program("echo")
