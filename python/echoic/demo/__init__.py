"""CartPole, learned through Echoic: worker processes act, a learner in plain numpy trains.

``echoic demo`` runs it (``python -m echoic.demo`` too); ``--door`` says how the
workers reach the learner. Read the files in this order: ``rollout`` (what travels),
``worker`` (who sends it), ``learner`` (who takes it), ``crew`` (who starts and ends the
workers), ``__main__`` (how all are put together). ``policy`` and ``ppo`` are the
mathematics, ``weights`` carries parameters back to the workers, ``progress``, ``view`` and
``plot`` are for the person who watches.

Left out, to stay readable: workers on other machines (they would need weights over a
connection, and an address and a token from you), replacing workers that are killed,
normalised observations, schedules, and saving the policy. Workers race, so that two runs
with one seed start alike but do not stay alike.
"""
