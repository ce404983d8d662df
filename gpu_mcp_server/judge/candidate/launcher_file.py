"""Kind `launcher`: a Python file whose `launch(*inputs, *outputs, *dimensions)` writes into the owner's outputs.

A function that takes no dimensions is not given any; one that takes the inputs alone returns its tensors, as suites do,
and so does `custom_kernel(data)`, whose one argument is the inputs.
"""

import contextlib
import importlib
import inspect
import os
import sys
from typing import Any, Dict, List, Sequence, Set, Tuple, cast

from ..numerics.input_views import lay_views
from .python_file import PythonFile, Reply

OTHER_NAMES = ("run", "custom_kernel", "solve")
"""Names of launchers in public suites, tried if a file has no `launch` and the call names none."""
INTERPRETERS = {
    "Triton's interpreter": ("TRITON_INTERPRET", "1"),
    "Numba's simulator of CUDA": ("NUMBA_ENABLE_CUDASIM", "1"),
    "Helion's interpreter": ("HELION_INTERPRET", "1"),
}
"""The variable that chooses each; Helion refuses to start where Triton's is set too."""

COPIED = "the outputs are copied into the judge's, within the clock: the function returns them"


def parameters_of(function: Any) -> int:
    """Return how many arguments a function must be given by position; -1 where it does not say."""
    try:
        every = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return -1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in every):
        return -1
    return sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in every)


def prepare() -> None:
    """Use the compiler once ahead of the job, where Triton was imported: that is where there is a GPU."""
    if "triton" in sys.modules:
        from . import triton_warmup

        triton_warmup.prepare()


class LauncherFile(PythonFile):
    """Calls the launcher; on the processor Triton interprets its kernels."""

    def before_torch(self) -> None:
        """Choose the interpreter where there is no GPU, before Triton is imported."""
        self.returned = ""
        asked = self.task.get("interpreted")
        by = "Triton's interpreter" if asked is None and self.task["device"] != "cuda" else str(asked or "")
        self.interpreted = bool(by)
        self.tuners: Set[int] = set()
        if by in INTERPRETERS:
            name, value = INTERPRETERS[by]
            os.environ[name] = value
        if by == "Triton's interpreter":
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
        """Find the launcher, and what it is given."""
        names = (self.symbol, *OTHER_NAMES) if self.symbol == "launch" else (self.symbol,)
        name = next((name for name in names if hasattr(module, name)), self.symbol)
        self.launch: Any = getattr(module, name, None)
        if not callable(self.launch):
            text = "the file has no function %s: define %s(*inputs, *outputs, *dimensions), which writes the outputs"
            other = "; a ModelNew wants the language python" if hasattr(module, "ModelNew") else ""
            return {"error": text % (self.symbol, self.symbol) + other}
        taken, given = parameters_of(self.launch), len(self.task["inputs"])
        self.packed = name == "custom_kernel" and taken == 1
        self.returns = self.packed or taken == given
        self.sized = not self.returns and taken != given + len(self.task["outputs"])
        if self.returns:
            self.said[COPIED] = None
        return {}

    def call(self, number: int) -> None:
        """Launch; the interpreter writes its arguments back, so it gets copies of the inputs, which are read-only."""
        inputs, copies = self.inputs[number], [each.clone() for each in self.memories[number] if self.interpreted]
        if self.interpreted:
            inputs = lay_views(self.torch, copies, self.views)
        self._launch(tuple(inputs), self.outputs[number])
        if self.interpreted:
            for at, (given, used) in enumerate(zip(self.memories[number], copies)):
                if not self._alike(given, used):
                    name = next(view.item.name for view in self.views if view.memory == at)
                    raise ValueError("writes to input %s: inputs are read-only" % name)

    def _launch(self, inputs: Tuple[Any, ...], outputs: Sequence[Any]) -> None:
        if not self.returns:
            returned = self.launch(*inputs, *outputs, *(self.dims if self.sized else ()))
            self.returned = "" if returned is None else type(returned).__name__
            return
        given = (inputs if len(inputs) != 1 else inputs[0],) if self.packed else inputs
        returned = self.launch(*given)
        several = isinstance(returned, (tuple, list))
        results = cast("Sequence[Any]", returned) if several else (returned,)
        if len(results) != len(outputs):
            raise ValueError("returned %d results: %d tensors are wanted" % (len(results), len(outputs)))
        for mine, theirs in zip(results, outputs):
            if not isinstance(mine, self.torch.Tensor) or mine.shape != theirs.shape:
                shape = tuple(getattr(mine, "shape", ()))
                raise ValueError("returned a %s %s; wanted is %s" % (type(mine).__name__, shape, tuple(theirs.shape)))
            theirs.copy_(mine)

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
