"""Rule by which a suite takes an answer at one shape: a share of the elements within that shape's own tolerance.

It is told beside a verdict and decides nothing: the judge asks every element to be within the problem's tolerance.

Source: https://github.com/NVIDIA/SOL-ExecBench, src/sol_execbench/core/bench/correctness.py (at 8d2237d).
"""

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

from ..numerics.compare import compare
from ..numerics.tensors import Array, Tensor


class SuiteRule(NamedTuple):
    """A suite's own tolerance for an output at a shape."""

    rtol: float
    atol: float
    matched: float
    """Share of the elements that must be within the tolerance."""
    cap: Optional[float]
    """Largest absolute error of any element."""

    @classmethod
    def from_task(cls, task: Dict[str, Any], dims: Dict[str, int]) -> "Optional[SuiteRule]":
        """Return the rule of a shape; None where its suite says none."""
        cases: List[Dict[str, Any]] = task.get("cases") or []
        number = dims.get("case", 0)
        said: Dict[str, Any] = (cases[number - 1].get("tolerance") or {}) if 0 < number <= len(cases) else {}
        return cls(said["rtol"], said["atol"], said["matched"], said.get("cap")) if said else None

    def words(self, expected: Array, got: Array, item: Tensor) -> str:
        """Say whether the suite takes a wrong answer in one output, given as it is stored, and what of it matches."""
        difference = compare(expected, got, item.dtype, self.rtol, self.atol)
        share = 1 - difference.wrong / max(1, expected.size)
        capped = self.cap is not None and not difference.max_abs <= self.cap
        takes = share >= self.matched and not capped and bool(np.isfinite(difference.max_abs))
        text = "; the suite's own rule %s it: %.6g %% of the elements are within atol %g and rtol %g, %.6g %% are asked"
        return text % ("takes" if takes else "refuses", 100 * share, self.atol, self.rtol, 100 * self.matched)
