"""A role of the judge in a process that was there before its job: what it imports is imported ahead.

IMPORTS (names of modules) is put before this source. The judge's files lie in `judge` from the beginning.
"""

import gc
import importlib
import os
import sys
import time
from typing import List, Sequence

IMPORTS: Sequence[str] = globals().get("IMPORTS", ())
BEGAN = "JUDGE_BEGAN_S"
"""Environment variable that says when a process began to work, on the clock since boot, if that was not its start."""


def find_judge() -> bool:
    """Let the judge's modules be found; False when they were already."""
    folder = os.path.abspath("judge")
    if folder in sys.path:
        return False
    sys.path.insert(0, folder)
    return True


def prepare() -> None:
    """Import, and let modules prepare what every task needs.

    Nothing of what is imported is ever garbage: looking for some while torch is imported takes an eighth of the time
    that it takes (1.5 s of the processor instead of 1.7), and looking through it all later would be within the clock.
    """
    find_judge()
    gc.disable()
    try:
        for name in IMPORTS:
            module = importlib.import_module(name)
            if hasattr(module, "prepare"):
                module.prepare()
    finally:
        gc.freeze()
        gc.enable()


def main(arguments: List[str]) -> None:
    """Play the role that is named."""
    if not find_judge():
        os.environ[BEGAN] = repr(time.clock_gettime(time.CLOCK_BOOTTIME))
    sys.argv = ["judge/main.py", *arguments]
    sys.exit(importlib.import_module("main").main())
