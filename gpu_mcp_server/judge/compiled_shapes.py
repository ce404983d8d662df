"""The shapes for which torch.compile has made kernels in this process."""

import sys
from typing import Dict, Set

DYNAMO = "torch._dynamo"
NOTE = "torch.compile's kernels may be those for all sizes: torch did not clear its caches (%s)"


class CompiledShapes:
    """Clears torch's caches before a shape that is timed.

    From the second shape on torch.compile makes a kernel for all sizes, and runs it at the first shape as well. After
    two hidden shapes a layer norm took 128 us where its own kernel takes 13 (H200,
    benchmarks/results/h200-honest-kernels.md). Source: PyTorch's manual, Dynamic Shapes; of the kernels that fit torch
    tries the last one first (2.11 and 2.13).
    """

    def __init__(self) -> None:
        self.seen: Set[str] = set()
        self.why_kept = ""
        """Why the caches are as they were, if they could not be cleared."""

    def turn_to(self, dims: Dict[str, int], *, timed: bool) -> None:
        """Forget what calls at other shapes had compiled, if those to come are timed."""
        self.seen.add(str(dims))
        if timed and len(self.seen) > 1:
            self.seen = {str(dims)}
            try:
                if DYNAMO in sys.modules:
                    sys.modules["torch"].compiler.reset()
            except Exception as error:  # a candidate may have put anything in its place, and old versions lack it
                self.why_kept = NOTE % type(error).__name__
