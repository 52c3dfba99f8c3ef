"""Run a program written for Reverb, unchanged: ``python -m echoic.reverb PROGRAM [ARGUMENTS]``."""

import runpy
import sys

from echoic.reverb import install

_USAGE = "usage: python -m echoic.reverb (PROGRAM | -m MODULE) [ARGUMENTS]"


def main() -> None:
    """Run the program."""
    arguments = sys.argv[1:]
    if not arguments or arguments == ["-m"] or arguments[0] in ("-h", "--help"):
        sys.exit(_USAGE)
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
