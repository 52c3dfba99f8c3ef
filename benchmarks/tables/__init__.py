"""The suite of the replay tables: a client beside a server in another process, and in process.

Read `suite` for what is measured, `sessions` for how, `items` for what is stored and `engine` for
what a system must offer to be measured.
"""
