"""One program written for Reverb, timed on dm-reverb and on ``echoic.reverb``.

``program.py`` is the program; ``python -m benchmarks.migration`` runs it on both in turns.
"""
