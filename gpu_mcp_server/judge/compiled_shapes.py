"""The shapes for which torch.compile has made kernels in this process."""

import contextlib
import sys
from typing import Dict, Set

DYNAMO = "torch._dynamo"


class CompiledShapes:
    """Has functions compiled anew for a shape that is timed.

    From the second shape on torch.compile takes sizes as unknown, and runs that kernel at the first shape as well.
    Behind two hidden shapes a layer norm took 128 us where its own kernel takes 15 (H200,
    benchmarks/results/h200-honest-kernels.md). Source: PyTorch's manual, Dynamic Shapes; of the kernels that fit the
    last one is tried first (torch 2.11 and 2.13).
    """

    def __init__(self) -> None:
        self.seen: Set[str] = set()

    def turn_to(self, dims: Dict[str, int], *, timed: bool) -> None:
        """Forget what calls at other shapes had compiled, if those to come are timed."""
        self.seen.add(str(dims))
        if timed and len(self.seen) > 1:
            self.seen = {str(dims)}
            # Candidates may have put something else in its place, which is theirs to answer for in the next call.
            with contextlib.suppress(Exception):
                if DYNAMO in sys.modules:
                    sys.modules["torch"].compiler.reset()
