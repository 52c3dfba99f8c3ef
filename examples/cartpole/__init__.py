"""CartPole, learned through Echoic: worker threads act, a learner in plain numpy trains.

Run ``python -m examples.cartpole`` from the root of the project. Read the files in this
order: ``rollout`` (what travels), ``worker`` (who sends it), ``learner`` (who takes it),
``__main__`` (how they are put together). ``policy`` and ``ppo`` are the mathematics,
``weights`` carries parameters back to the workers, ``progress``, ``view`` and ``plot``
are for the person who watches.

Left out, to stay readable: processes and networks (a worker knows only a ``send``
function and a source of weights, so that it need not change when they come),
normalised observations, schedules, and saving the policy. Threads race, so that two
runs with one seed start alike but do not stay alike.
"""

import os

# The networks are so small that threads inside a matrix product only get in the way of
# the workers. The library reads this when numpy is first imported, hence the place.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
