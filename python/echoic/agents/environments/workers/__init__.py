"""Worker processes of environments: what runs in them.

A worker is asked by lines of JSON over its standard input and answers on its standard output, by
``loop``. ``alfworld_games`` runs where Echoic may be missing, by its path; it imports ``loop`` and
otherwise only what it is about.
"""
