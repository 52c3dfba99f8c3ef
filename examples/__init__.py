"""Examples to read and to run: begin with ``dqn``, then ``per`` and ``r2d2`` (tables).

Local buffers are in ``local``, rollouts in ``grpo``, programs written for Reverb in ``reverb``.
"""

import os

# The networks are so small that threads inside a matrix product only get in the way. The library
# reads this when numpy is first imported, hence the place.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
