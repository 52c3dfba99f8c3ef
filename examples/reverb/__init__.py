"""Programs written for Reverb, which run on Echoic: only their import line says so.

Run one with ``python -m examples.reverb.quickstart`` from the root of the project. Read them in
this order: ``quickstart`` and ``tutorial`` (the interface), ``adders`` (from the steps of a game to
items), ``dqn`` (actors and a learner). ``environment`` is the game that they play.
"""
