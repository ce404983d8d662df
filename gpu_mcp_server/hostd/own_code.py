"""Finds hostd's own code, and makes another process run it.

This stays at the top of the package: of all modules it alone knows its place.
"""

import os
import sys
from typing import List, Sequence

PARENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""What the package is found in: a folder, or the zip file that hostd travels as."""


def hostd_argv(words: Sequence[str]) -> List[str]:
    """Return the command line of the same hostd as this process, with other words."""
    if os.path.isfile(PARENT):
        return [sys.executable, "-I", PARENT, *words]
    nvml = [p for p in sys.path if os.path.exists(os.path.join(p, "pynvml.py"))][:1]
    code = "import sys; sys.path.insert(0, %r); sys.path.extend(%r); from hostd.__main__ import main; sys.exit(main())"
    return [sys.executable, "-I", "-B", "-c", code % (PARENT, nvml), *words]
