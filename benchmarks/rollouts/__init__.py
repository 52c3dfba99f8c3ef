"""The suite of rollouts: producers in processes of their own, a table or queue, and a learner.

Read `suite` for what is measured, `sessions` for how, `groups` for what is sent and `engine` for
what a system must offer to be measured.
"""
