"""CRUXEval, under the name of its own module; see :mod:`echoic.agents.environments.code`."""

import sys

from echoic.agents.environments.code import CRUXEvalConfig, CRUXEvalEnvironment, main

__all__ = ["CRUXEvalConfig", "CRUXEvalEnvironment"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
