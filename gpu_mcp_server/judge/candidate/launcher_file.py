"""Kind `launcher`: a Python file whose `launch(*inputs, *outputs, *dimensions)` writes into the owner's outputs.

A function that takes no dimensions is not given any; one that takes the inputs alone returns its tensors, as suites do,
and so does `custom_kernel(data)`, whose one argument is the inputs.
"""

import contextlib
import os
import sys
from typing import Any, Dict

from ..numerics.array_copies import has_same_bytes
from ..numerics.input_views import lay_views
from .launcher_call import LauncherCall
from .python_file import SOURCE, PythonFile, Reply
from .triton_interpreter import TritonInterpreter

INTERPRETERS = {
    "Triton's interpreter": ("TRITON_INTERPRET", "1"),
    "Numba's simulator of CUDA": ("NUMBA_ENABLE_CUDASIM", "1"),
    "Helion's interpreter": ("HELION_INTERPRET", "1"),
}
"""The variable that chooses each; Helion refuses to start where Triton's is set too."""

COPIED = "the outputs are copied into the judge's, within the clock: the function returns them"


def prepare() -> None:
    """Use the compiler once ahead of the job, where Triton was imported: that is where there is a GPU."""
    if "triton" in sys.modules:
        from . import triton_warmup

        triton_warmup.prepare()


class LauncherFile(PythonFile):
    """Call the launcher, by the interpreter that the task names, if any."""

    def before_torch(self) -> None:
        """Choose the interpreter before the launcher's language is imported."""
        self.returned = ""
        by = str(self.task.get("interpreted") or "")
        self.interpreted = bool(by)
        self.interpreter: Any = None
        """What stands for a GPU around Triton's interpreter."""
        if by in INTERPRETERS:
            name, value = INTERPRETERS[by]
            os.environ[name] = value
        if by == "Triton's interpreter":
            with contextlib.suppress(ImportError):  # the file says itself that it wants Triton, or does without
                self.interpreter = TritonInterpreter(SOURCE)

    def load_source(self) -> Any:
        """Run the file; of one that is interpreted, all that runs without a GPU."""
        return self.interpreter.load() if self.interpreter else super().load_source()

    def take(self, module: Any, message: Dict[str, Any]) -> Reply:
        """Find the launcher, and what it is given."""
        self.by = LauncherCall(module, self.symbol, len(self.task["inputs"]), len(self.task["outputs"]))
        if not callable(self.by.function):
            text = "the file has no function %s: define %s(*inputs, *outputs, *dimensions), which writes the outputs"
            other = "; a ModelNew wants the language python" if hasattr(module, "ModelNew") else ""
            return {"error": text % (self.symbol, self.symbol) + other}
        if self.by.returns:
            self.said[COPIED] = None
        return {}

    def call(self, number: int) -> None:
        """Launch; the interpreter writes its arguments back, so it gets copies of the inputs, which are read-only."""
        inputs, copies = self.inputs[number], [each.clone() for each in self.memories[number] if self.interpreted]
        if self.interpreted:
            inputs = lay_views(self.torch, copies, self.views)
        self.returned = self.by.launch(self.torch, tuple(inputs), self.outputs[number], self.dims)
        if self.interpreted:
            for at, (given, used) in enumerate(zip(self.memories[number], copies)):
                if not has_same_bytes(given, used):
                    name = next(view.item.name for view in self.views if view.memory == at)
                    # On a GPU such a write faults; the interpreter works on copies and would let it pass.
                    raise ValueError("writes to input %s: inputs are read-only" % name)

    def run(self, calls: int, first: int = 0, behind: Any = None) -> Reply:
        """Answer `calls` sets, from `first` on; tell of a value that a launcher returned instead of writing it."""
        reply = super().run(calls, first, behind)
        if self.interpreter:
            if "NameError: " in str(reply.get("error")):
                return {"error": str(reply["error"]) + self.interpreter.failures()}
            self.said.update(dict.fromkeys(self.interpreter.notes()))
        return reply or ({"returned": self.returned} if self.returned else {})
