"""The owner's process: it holds the seed, the clock and the answers, and writes the verdict.

Registration, trials, and the course of a shape or a program are here. What a single round does is in judge/timing,
and single tests are in judge/checks.
"""

import os

# The owner multiplies no matrices. NumPy's BLAS would start a thread for every core, which takes as long as the rest
# of NumPy and shares the cores that candidates are timed on.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
