"""Kind `launcher`: a Python file whose `launch(*inputs, *outputs, *dimensions)` writes into the owner's outputs.

A function that takes no dimensions is not given any; one that takes the inputs alone returns its tensors, as suites do,
and so does `custom_kernel(data)`, whose one argument is the inputs.
"""

import sys
from typing import Any, Dict

from .launcher_call import LauncherCall
from .python_file import PythonFile, Reply

COPIED = "the outputs are copied into the judge's, within the clock: the function returns them"


def prepare() -> None:
    """Use the compiler once ahead of the job, where Triton was imported: that is where there is a GPU."""
    if "triton" in sys.modules:
        from . import triton_warmup

        triton_warmup.prepare()


class LauncherFile(PythonFile):
    """Call the launcher."""

    returned = ""

    def take(self, module: Any, message: Dict[str, Any]) -> Reply:
        """Find the launcher, and what it is given."""
        self.by = LauncherCall(module, self.symbol, len(self.task["inputs"]), len(self.task["outputs"]))
        if not callable(self.by.function):
            text = "the file has no function %s: define %s(*inputs, *outputs, *dimensions), which writes the outputs"
            other = "; a ModelNew wants the language python" if hasattr(module, "ModelNew") else ", or a class ModelNew"
            return {"error": text % (self.symbol, self.symbol) + other}
        if self.by.returns:
            self.said[COPIED] = None
        return {}

    def call(self, number: int) -> None:
        """Launch."""
        torch, outputs, dims = self.torch, self.outputs[number], self.dims
        self.returned = self.with_inputs(number, lambda inputs: self.by.launch(torch, inputs, outputs, dims))

    def run(self, calls: int, first: int = 0, behind: Any = None) -> Reply:
        """Answer `calls` sets, from `first` on; tell of a value that a launcher returned instead of writing it."""
        return super().run(calls, first, behind) or ({"returned": self.returned} if self.returned else {})
