"""Large weights of a problem's model, drawn on the GPU: 67 million take a processor a third of a second."""

import importlib
from typing import Any, Callable, Dict, List, Optional, Tuple

from tensors import LARGE_ELEMENTS

torch: Any = importlib.import_module("torch")
modes: Any = importlib.import_module("torch.overrides")

MAKERS = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
ELSEWHERE = ("device", "generator", "out", "pin_memory")
"""Arguments by which whoever makes a tensor says where."""


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


def constructed(make: Callable[[], Any], device: Any, *, large_there: bool) -> Tuple[Any, bool]:
    """Return a model on `device`, and whether its large tensors were made there.

    Args:
        make: Seeds torch and constructs it.
        device: Where it is to be; `None` leaves it where it is.
        large_there: Whether to make large tensors there, if the model bears it.
    """
    with torch.no_grad():
        if large_there and device is not None:
            try:
                with LargeOnes(device):
                    model = make().to(device)
                if not _plain_ones(model):
                    return model, True
            except Exception:
                pass  # it mixes them with small ones, or with what is not torch's; what is wrong otherwise is so again
        model = make()
        return (model if device is None else model.to(device)), False


def _plain_ones(model: Any) -> List[Any]:
    """Return large tensors that are neither weights nor buffers: a model would not move them, and may not expect it."""
    parts: List[Any] = list(model.modules())
    held: List[Dict[str, Any]] = [vars(part) for part in parts]
    values = (value for each in held for value in each.values())
    return [value for value in values if torch.is_tensor(value) and value.numel() >= LARGE_ELEMENTS]
