"""The owner's process: it holds the seed, the clock and the answers, and writes the verdict.

Registration, trials, and the course of a shape or a program are here. What a single round does is in judge/timing,
and single tests are in judge/checks.
"""

from .. import single_blas_thread as single_blas_thread
