"""Calls the launcher of a Python file, for the judge and for an overlay that puts it into a program.

Also laid into an overlay's folder as a file: standard library alone.
"""

import dis
import inspect
from typing import Any, List, Sequence, Set, Tuple, cast

OTHER_NAMES = ("run", "custom_kernel", "solve")
"""Of launchers in public suites, taken where a file has no `launch` and no other name was asked for."""
ARRAYS = "numba.core"
"""Module of functions that Numba compiled for the processor: they know no tensors, and are given NumPy's views."""


def parameters_of(function: Any) -> int:
    """Return how many arguments a function must be given by position; -1 where it does not say."""
    try:
        every = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return -1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # With *args the count says nothing, so the launcher gets everything.
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in every):
        return -1
    return sum(each.kind in kinds and each.default is inspect.Parameter.empty for each in every)


def find_assigned(function: Any, first: int, count: int) -> List[str]:
    """Return which of a function's parameters from `first` on it assigns to, so that they name something else."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    stored: Set[Any] = set()
    for each in dis.get_instructions(code):
        if each.opname.startswith(("STORE_FAST", "STORE_DEREF")):
            argument: Any = each.argval
            # From Python 3.13 on an instruction may store two.
            stored.update(cast("Tuple[Any, ...]", argument) if isinstance(argument, tuple) else (argument,))
    return [name for name in code.co_varnames[: code.co_argcount][first : first + count] if name in stored]


class LauncherCall:
    """A launcher, and which of inputs, outputs and dimensions it is given."""

    def __init__(self, module: Any, symbol: str, inputs: int, outputs: int) -> None:
        names = (symbol, *OTHER_NAMES) if symbol == "launch" else (symbol,)
        name = next((name for name in names if hasattr(module, name)), symbol)
        self.function: Any = getattr(module, name, None)
        """None where the file has none."""
        taken = parameters_of(self.function) if callable(self.function) else -1
        self.packed = name == "custom_kernel" and taken == 1
        self.returns = self.packed or taken == inputs
        self.takes_arrays = type(self.function).__module__.startswith(ARRAYS)
        self.sized = not self.returns and taken != inputs + outputs
        self.renamed = find_assigned(self.function, inputs, outputs)

    def launch(self, torch: Any, inputs: Tuple[Any, ...], outputs: Sequence[Any], dims: Sequence[int]) -> str:
        """Call it so that its answers stand in the outputs; return what it may have done instead of writing them.

        Raises:
            ValueError: If it returns other tensors than are wanted.
        """
        if self.takes_arrays:
            inputs, outputs = tuple(each.numpy() for each in inputs), [each.numpy() for each in outputs]
        if not self.returns:
            returned = self.function(*inputs, *outputs, *(dims if self.sized else ()))
            if returned is not None:
                return "returned %s, which the judge ignores" % type(returned).__name__[:40]
            return "assigns to %s, which then names another tensor" % self.renamed[0][:40] if self.renamed else ""
        given = (inputs if len(inputs) != 1 else inputs[0],) if self.packed else inputs
        returned = self.function(*given)
        several = isinstance(returned, (tuple, list))
        results = cast("Sequence[Any]", returned) if several else (returned,)
        if len(results) != len(outputs):
            what = "%d results" % len(results) if several else "a " + type(returned).__name__
            raise ValueError("returned %s: %d tensors are wanted" % (what, len(outputs)))
        if self.takes_arrays:
            outputs = [torch.from_numpy(each) for each in outputs]
            results = [torch.from_numpy(each) if hasattr(each, "__array_interface__") else each for each in results]
        for mine, theirs in zip(results, outputs):
            if not isinstance(mine, torch.Tensor) or mine.shape != theirs.shape:
                shape = " %s" % (tuple(mine.shape),) if hasattr(mine, "shape") else ""
                text = "returned a %s%s; wanted is a tensor %s"
                raise ValueError(text % (type(mine).__name__, shape, tuple(theirs.shape)))
            # The owner reads its own buffers alone, and copy_ also converts another dtype, of numbers to whole ones by
            # rounding: x / 7 would be x // 7.
            if not any(torch.can_cast(mine.dtype, other) for other in (theirs.dtype, torch.int64)):
                raise ValueError("returned a tensor of %s; wanted is %s" % (mine.dtype, theirs.dtype))
            theirs.copy_(mine)
        return ""
