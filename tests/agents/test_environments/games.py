"""What tests of games in workers share."""

import importlib.util
import os
import sys

import pytest


def interpreter(package, *variables):
    """The interpreter that has a package, or a skip that says what would run the test."""
    for variable in variables:
        if python := os.environ.get(variable):
            return python
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed, and {variables[0]} names no interpreter with it")
    return sys.executable


def without_packages(folder):
    """An interpreter that has the standard library only."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    path.chmod(0o755)
    return str(path)
