"""Lets code that names CUDA run where there is none: its tensors are made on the processor.

Suites write `device="cuda"` into what makes their inputs. A problem asks for values, and these are had anywhere.
Products of block-scaled fours, which torch has on NVIDIA's Blackwell alone, are computed by their definition.

Source: torch's documents on `torch._scaled_mm`; cuBLAS, "1D block scaling factors layout": tiles of 128 rows and 4
scales, in which row r of a tile lies at r % 32, then r // 32; OCP Microscaling Formats 1.0: scales of 16 elements are
e4m3 (NVFP4), of 32 elements e8m0 (MXFP4).
"""

import importlib
from typing import Any, Dict, Tuple

from .aiter_definitions import fours_as_floats

torch: Any = importlib.import_module("torch")
overrides: Any = importlib.import_module("torch.overrides")
_ENTERED: Dict[str, Any] = {}
ROWS, SCALES = 128, 4
BLOCKS = {"torch.float8_e4m3fn": 16, "torch.float8_e8m0fnu": 32}
"""Elements that a scale of a type is of."""


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


def is_block_scaled(function: Any, args: Any) -> bool:
    """Say whether a call of torch is such a product of tensors on a processor."""
    if getattr(function, "__name__", "") != "_scaled_mm" or len(args) < 4:
        return False
    fours = getattr(torch, "float4_e2m1fn_x2", None)
    return args[0].dtype == fours and args[0].device.type == "cpu" and str(args[2].dtype) in BLOCKS


def scaled_product(left: Any, right: Any, left_scales: Any, right_scales: Any, kwargs: Dict[str, Any]) -> Any:
    """Return left [m, k/2] times right [k/2, n], bytes of two fours, by float32, in `out_dtype`, plus `bias`."""
    rows, columns = (_scaled(*pair) for pair in ((left, left_scales), (right.transpose(0, 1), right_scales)))
    found = rows @ columns.transpose(0, 1)
    if kwargs.get("bias") is not None:
        found = found + kwargs["bias"].float()
    return found.to(kwargs.get("out_dtype") or torch.bfloat16)


def _scaled(fours: Any, scales: Any) -> Any:
    """Return the numbers of a matrix [rows, bytes] as float32, each times the scale of its block."""
    block, values = BLOCKS[str(scales.dtype)], fours_as_floats(fours)
    count, groups = values.shape[0], values.shape[1] // block
    tall, wide = -(-count // ROWS), -(-groups // SCALES)
    tiles = scales.reshape(tall, wide, 32, ROWS // 32, SCALES).float().transpose(2, 3).reshape(tall, wide, ROWS, SCALES)
    plain = tiles.permute(0, 2, 1, 3).reshape(tall * ROWS, wide * SCALES)[:count, :groups]
    return values * plain.repeat_interleave(block, dim=1)
