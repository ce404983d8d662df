"""Kind `triton`: a Python file whose `launch(*inputs, *outputs, *dimensions)` writes into the owner's outputs."""

import contextlib
import importlib
import os
import sys
from typing import Any, Dict, List, Set

from ..numerics.input_views import lay_views
from .python_file import PythonFile, Reply

OTHER_NAMES = ("run", "solve")
"""Of launchers in public suites, taken where a file has no `launch` and no other name was asked for."""


def prepare() -> None:
    """Use the compiler once ahead of the job, where Triton was imported: that is where there is a GPU."""
    if "triton" in sys.modules:
        from . import triton_warmup

        triton_warmup.prepare()


class TritonFile(PythonFile):
    """Calls the launcher; on the processor Triton interprets its kernels."""

    def before_torch(self) -> None:
        """Choose the interpreter where there is no GPU, before Triton is imported."""
        self.returned = ""
        asked = self.task.get("interpreted")
        self.interpreted = self.task["device"] != "cuda" if asked is None else bool(asked)
        self.tuners: Set[int] = set()
        if self.interpreted:
            os.environ["TRITON_INTERPRET"] = "1"
            self._take_first_configurations()

    def _take_first_configurations(self) -> None:
        """Have `triton.autotune` time nothing, and take the first configuration: its clock asks for a GPU."""
        with contextlib.suppress(ImportError):  # the file says itself that it wants Triton, or does without
            tuning: Any = importlib.import_module("triton.runtime.autotuner")

            def untimed(tuner: Any, *_: Any, **__: Any) -> List[float]:
                self.tuners.add(id(tuner))
                return [0.0, 0.0, 0.0]

            tuning.Autotuner._bench = untimed

    def take(self, module: Any, message: Dict[str, Any]) -> Reply:
        """Find the launcher."""
        names = (self.symbol, *OTHER_NAMES) if self.symbol == "launch" else (self.symbol,)
        self.launch: Any = next((getattr(module, name) for name in names if hasattr(module, name)), None)
        if not callable(self.launch):
            text = "the file has no function %s: define %s(*inputs, *outputs, *dimensions), which writes the outputs"
            other = "; a ModelNew wants the language python" if hasattr(module, "ModelNew") else ""
            return {"error": text % (self.symbol, self.symbol) + other}
        return {}

    def call(self, number: int) -> None:
        """Launch; the interpreter writes its arguments back, so it gets copies of the inputs, which are read-only."""
        inputs, copies = self.inputs[number], [each.clone() for each in self.memories[number] if self.interpreted]
        if self.interpreted:
            inputs = lay_views(self.torch, copies, self.views)
        returned = self.launch(*inputs, *self.outputs[number], *self.dims)
        if self.interpreted:
            for at, (given, used) in enumerate(zip(self.memories[number], copies)):
                if not self._alike(given, used):
                    name = next(view.item.name for view in self.views if view.memory == at)
                    raise ValueError("writes to input %s: inputs are read-only" % name)
        self.returned = "" if returned is None else type(returned).__name__

    def _alike(self, one: Any, other: Any) -> bool:
        """Say whether two tensors have the same bytes."""
        ours, theirs = (each.contiguous().reshape(-1).view(self.torch.uint8) for each in (one, other))
        return bool(self.torch.equal(ours, theirs))

    def run(self, calls: int, first: int = 0, behind: Any = None) -> Reply:
        """Answer `calls` sets, from `first` on; tell of a value that a launcher returned instead of writing it."""
        reply = super().run(calls, first, behind)
        if self.tuners:
            self.said["autotuning takes the first configuration: on the processor nothing is tuned"] = None
        return reply or ({"returned": self.returned} if self.returned else {})
