"""Imported before NumPy by a process that multiplies no matrices with it: its BLAS would start a thread for every core.

That takes as long as the rest of NumPy. Each thread has to stop and to go on whenever the process does.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
