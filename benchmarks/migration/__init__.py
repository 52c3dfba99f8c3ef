"""One program written for each other library, timed on it and on the drop-in of its name.

``reverb_program.py`` and ``echo_program.py`` are the programs; ``python -m benchmarks.migration``
runs each on both sides in turns.
"""
