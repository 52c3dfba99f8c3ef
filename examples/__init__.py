"""Examples to read and to run: ``cartpole`` (a stream), ``dqn``, ``per`` and ``r2d2`` (tables).

Programs written for Reverb are in ``reverb``.
"""

import os

# The networks are so small that threads inside a matrix product only get in the way. The library
# reads this when numpy is first imported, hence the place.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
