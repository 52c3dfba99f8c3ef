"""Worker processes of environments: what runs in them, and how they are spoken to.

A worker is spoken to by lines of JSON over its standard input and output. ``loop`` is the worker's
side and ``process`` is ours. The files whose names end in ``_games`` run in interpreters where
Echoic may be missing, by their path; they import ``loop`` and otherwise only what they are about.
"""
