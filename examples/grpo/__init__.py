"""Asynchronous GRPO: a learner, workers that answer prompts, and what goes wrong between them.

``task`` and ``model`` are what is learned, ``worker`` and ``learner`` do it, ``table`` is what is
between them; ``job`` starts and kills them, ``run`` is a whole run, ``compare`` many.
"""

import os

# The network is so small that threads inside a matrix product only get in the way. The libraries
# read these when they are first imported, hence the place.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
