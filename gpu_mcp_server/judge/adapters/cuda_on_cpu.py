"""Lets code that names CUDA run where there is none: its tensors are made on the processor.

Suites write `device="cuda"` into what makes their inputs. A problem asks for values, and these are had anywhere.
"""

import importlib
from typing import Any, Dict, Tuple

from .block_scaled import is_block_scaled, scaled_product

torch: Any = importlib.import_module("torch")
overrides: Any = importlib.import_module("torch.overrides")
_ENTERED: Dict[str, Any] = {}


def is_cuda(value: Any) -> bool:
    """Say whether a value names a CUDA device."""
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return isinstance(value, torch.device) and value.type == "cuda"


class _OnCpu(overrides.TorchFunctionMode):
    """Replaces CUDA devices in every call of torch."""

    def __torch_function__(self, function: Any, kinds: Any, args: Tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if getattr(function, "__name__", "") == "cuda" and args and torch.is_tensor(args[0]):
            return args[0]
        if is_cuda(given.get("device")):
            del given["device"]  # so that a `with torch.device` around it holds
        if any(is_cuda(each) for each in args):
            args = tuple(torch.device("cpu") if is_cuda(each) else each for each in args)
        if is_block_scaled(function, args):
            left, right, left_scales, right_scales = args[:4]
            return scaled_product(left, right, left_scales, right_scales, given)
        return function(*args, **given)


def pretend_cuda() -> None:
    """Send to the processor what this process asks of CUDA, unless it has CUDA."""
    if _ENTERED or torch.cuda.is_available():
        return
    mode = _ENTERED["mode"] = _OnCpu()
    mode.__enter__()
    made = torch.Generator

    class Generator(made):  # type: ignore[misc]
        """A type, as annotations name it."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return made.__new__(cls, "cpu" if is_cuda(device) else device)

    torch.Generator = Generator
    for name in ("synchronize", "empty_cache", "set_device"):
        # A new function each time: torch's compiler refuses one under several names.
        setattr(torch.cuda, name, lambda *_, **__: None)  # type: ignore[misc]
    torch.cuda.current_device = lambda: 0

    def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
        """Do so without torch's compiler, which torch imports to tell it."""
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)

    torch.use_deterministic_algorithms = use_deterministic_algorithms
