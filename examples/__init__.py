"""Complete programs, each to be run from the project root with `python -m examples.NAME`."""
