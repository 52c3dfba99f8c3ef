"""The network suite: clients in processes of their own push to a server in another.

Read `suite` for what is measured, `sessions` for how, and `client` for the other end.
"""
