"""Base of Python candidates whose kernels an interpreter may run, where there is no GPU."""

import contextlib
import os
from typing import Any, Sequence, Tuple

from ..numerics.array_copies import has_same_bytes
from ..numerics.input_views import lay_views
from .python_file import SOURCE, PythonFile, Reply
from .triton_interpreter import TritonInterpreter

INTERPRETERS = {
    "Triton's interpreter": ("TRITON_INTERPRET", "1"),
    "Numba's simulator of CUDA": ("NUMBA_ENABLE_CUDASIM", "1"),
    "Helion's interpreter": ("HELION_INTERPRET", "1"),
}
"""The variable that chooses each; Helion refuses to start where Triton's is set too."""


class InterpretedFile(PythonFile):
    """A Python file that runs by the interpreter that the task names, if any."""

    def before_torch(self) -> None:
        """Choose the interpreter before the kernels' language is imported."""
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

    def lend(self, number: int) -> Tuple[Tuple[Any, ...], Sequence[Any]]:
        """Return copies of the inputs of a call, and what these lie in.

        An interpreter writes its arguments back, and the judge's inputs are read-only.
        """
        copies = [each.clone() for each in self.memories[number]]
        return lay_views(self.torch, copies, self.views), copies

    def take_back(self, number: int, copies: Sequence[Any]) -> None:
        """Raise if a call wrote to its inputs: on a GPU that faults, and copies would let it pass."""
        for at, (given, used) in enumerate(zip(self.memories[number], copies)):
            if not has_same_bytes(given, used):
                name = next(view.item.name for view in self.views if view.memory == at)
                raise ValueError("writes to input %s: inputs are read-only" % name)

    def run(self, calls: int, first: int = 0, behind: Any = None) -> Reply:
        """Answer `calls` sets, from `first` on; tell what was not as on a GPU."""
        reply = super().run(calls, first, behind)
        if self.interpreter:
            if "NameError: " in str(reply.get("error")):
                return {"error": str(reply["error"]) + self.interpreter.failures()}
            self.said.update(dict.fromkeys(self.interpreter.notes()))
        return reply
