"""Large tensors of a model, made on the GPU: a processor takes a third of a second to draw 67 million numbers."""

import importlib
from typing import Any, Callable, Dict, Optional, Tuple

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


def constructed(make: Callable[[], Any], seed: int, device: Any, *, large_there: bool) -> Tuple[Any, bool]:
    """Return a model on `device`, and whether its large tensors were made there.

    Both of torch's generators begin with the seed, so who makes the same tensors in the same way has the same numbers.

    Args:
        make: Constructs it.
        seed: Of its numbers.
        device: Where it is to be; `None` leaves it where it is.
        large_there: Whether to make large tensors there, if the model bears it.
    """
    with torch.no_grad():
        if large_there and device is not None:
            try:
                torch.manual_seed(seed)
                with LargeOnes(device):
                    return make().to(device), True
            except Exception:
                pass  # it mixes them with small ones, or with what is not torch's; what is wrong otherwise is so again
        torch.manual_seed(seed)
        model = make()
        return (model if device is None else model.to(device)), False
