"""Large weights of a problem's model, drawn on the GPU: 67 million take a processor a third of a second."""

import importlib
from typing import Any, Callable, Dict, List, Optional, Tuple

from tensors import LARGE_ELEMENTS

torch: Any = importlib.import_module("torch")
modes: Any = importlib.import_module("torch.overrides")

MAKERS = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
ELSEWHERE = ("device", "generator", "out", "pin_memory")
"""Arguments by which whoever makes a tensor says where."""
MOVED = ("_parameters", "_buffers", "_modules", "_flat_weights")
"""What of a module `to` moves; the last are an RNN's parameters once more."""


class LargeOnes(modes.TorchFunctionMode):
    """Makes new tensors on `device` if they are large, and nobody says where they are to be.

    What is small stays where it would be without this, tables of sizes and indices, say, for a model to read.
    """

    def __init__(self, device: Any) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - torch is untyped here
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        """Call a function of torch."""
        given = dict(kwargs or {})
        if func in MAKERS and not any(given.get(name) is not None for name in ELSEWHERE):
            given["device"] = "meta"
            large = func(*args, **given).numel() >= LARGE_ELEMENTS
            given["device"] = self.device if large else None
        return func(*args, **given)


def drawn_there(make: Callable[[], Any], device: Any) -> Optional[Any]:
    """Return a model whose large tensors were made on `device`, or None if it does not bear that.

    Args:
        make: Seeds torch and constructs it.
        device: A GPU.
    """
    try:
        with torch.no_grad(), LargeOnes(device):
            model = make().to(device)
    except Exception:
        return None  # it mixes them with small ones, or with what is not torch's; what is wrong otherwise is told later
    parts: List[Any] = list(model.modules())
    held: List[Dict[str, Any]] = [vars(part) for part in parts]
    plain = (value for each in held for name, value in each.items() if name not in MOVED)
    return None if any(map(_is_large, plain)) else model


def _is_large(value: Any) -> bool:
    """Say whether it is, or holds, a large tensor that a model would not move, and may expect where it was."""
    if isinstance(value, (list, tuple, dict)):
        held: List[Any] = list(value.values()) if isinstance(value, dict) else list(value)  # type: ignore[arg-type]
        return any(map(_is_large, held))
    return bool(torch.is_tensor(value) and value.numel() >= LARGE_ELEMENTS)
