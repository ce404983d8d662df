"""Launches of a Triton kernel taken over, and described as calls that return; kernel_launches makes them again.

Laid beside a program whose launches are recorded, and into an overlay that replaces them, with kernel_launches.
"""

import importlib
import inspect
from typing import Any, Callable, Dict, List, Sequence, Tuple, cast

torch: Any = importlib.import_module("torch")
launches: Any = importlib.import_module("kernel_launches")
NotCallable: Any = launches.NotCallable
copy_of, named_arguments, split_arguments = launches.copy_of, launches.named_arguments, launches.split_arguments

POISON = (3.25, -7.5)
"""Values before two trial launches; an output that depends on them is an input too. Finite: they may be read."""
Launch = Callable[[Any, Tuple[Any, ...], Dict[str, Any], Any], Any]


def hook_launches(kernel: Any, launch: Launch) -> Any:
    """Have `kernel[grid](...)` call `launch(grid, args, kwargs, original)`; return the kernel.

    The kernel stays the same object, and of a class that Triton takes: other kernels call it as before.

    Raises:
        NotCallable: If it is no kernel, or one that is launched with values of its own choice.
    """
    kind = cast("Any", type(kernel))
    if kind.__name__ in ("Autotuner", "Heuristics"):
        raise NotCallable("the kernel is autotuned: capture the Python function that launches it, by module:function")
    if not hasattr(kind, "__getitem__") or not hasattr(kernel, "arg_names"):
        raise NotCallable("it is no Triton kernel: a kernel has the decorator @triton.jit")

    class Hooked(kind):  # type: ignore[misc]
        def __getitem__(self, grid: Any) -> Any:
            original = kind.__getitem__(self, grid)

            def instead(*args: Any, **kwargs: Any) -> Any:
                return launch(grid, args, kwargs, original)

            return instead

    Hooked.__name__ = Hooked.__qualname__ = kind.__name__
    kernel.__class__ = Hooked
    return kernel


def plain_grid(kernel: Any, grid: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Tuple[int, ...]:
    """Return a launch's grid as numbers; a function of the arguments is called with them."""
    if callable(grid):
        defaults = inspect.signature(kernel.fn).parameters.values()
        known = {p.name: p.default for p in defaults if p.default is not inspect.Parameter.empty}
        grid = grid({**known, **dict(zip(kernel.arg_names, args)), **kwargs})
    return (grid,) if isinstance(grid, int) else tuple(int(size) for size in grid)


def as_call(
    grid: Tuple[int, ...], args: Sequence[Any], kwargs: Dict[str, Any], pure: Sequence[str]
) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the arguments of a launch as those of a call that returns: pure outputs are descriptions alone."""
    named = named_arguments(args, kwargs)
    for name in pure:
        t = named[name]
        if torch.is_tensor(t):
            named[name] = (launches.OUTPUT, t.dtype, list(t.shape), list(t.stride()))
    given, more = split_arguments(named)
    return (list(grid), *given), more


def find_outputs(args: Sequence[Any], kwargs: Dict[str, Any], original: Any) -> Tuple[List[str], List[str]]:
    """Return which arguments a launch writes, and those of them whose values before do not count.

    The launch runs on copies: once as it is, and twice with each tensor of floats poisoned. Integers are never
    poisoned, as they may be indices: one is written where its values change, and counts as an input too.

    Raises:
        NotCallable: If two arguments share memory, or nothing is written.
    """
    named = named_arguments(args, kwargs)
    tensors = {name: value for name, value in named.items() if torch.is_tensor(value)}
    if len({t.untyped_storage().data_ptr() for t in tensors.values()}) < len(tensors):
        raise NotCallable("two of its arguments share memory")

    def launched(poisoned: str = "", value: float = 0.0) -> Dict[str, Any]:
        copies = {name: copy_of(t) for name, t in tensors.items()}
        if poisoned:
            copies[poisoned].fill_(value)
        given, more = split_arguments({**named, **copies})
        original(*given, **more)
        return copies

    written: List[str] = []
    pure: List[str] = []
    after = launched()
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            if not torch.equal(after[name], tensor):
                written.append(name)
            continue
        found = [launched(name, value)[name] for value in POISON]
        if any(not bool((one == value).all()) for one, value in zip(found, POISON)):
            written.append(name)
            if torch.equal(torch.nan_to_num(found[0]), torch.nan_to_num(found[1])):
                pure.append(name)
    if not written:
        raise NotCallable("it writes to none of its arguments")
    return written, pure
