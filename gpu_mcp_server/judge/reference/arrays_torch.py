"""The reference's buffers as torch tensors on the CPU."""

import importlib
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from ..memory.torch_views import tensors_at
from ..numerics.tensors import FLOATS, Tensor
from .arrays_numpy import BadResult, NumpyArrays, check_shape

torch: Any = importlib.import_module("torch")
"""Untyped on purpose: the machine that checks types need not have it."""


class TorchArrays(NumpyArrays):
    """As for NumPy, with tensors over the same memory."""

    def versions(self) -> Dict[str, str]:
        """Return what computes."""
        return {"numpy": np.__version__, "torch": str(torch.__version__)}

    def view(self, number: int, where: Dict[str, Any], items: Sequence[Tensor]) -> List[Tuple[Any, ...]]:
        """Return tensors; a write to an input is a crash, as its memory is read-only."""
        return tensors_at(torch, self.maps[number].address, where, items)

    def store(self, number: int, results: Sequence[Any]) -> None:
        """Convert and copy the results of one call."""
        for item, target, result in zip(self.outputs, self.targets[number], results):
            target.copy_(accepted(self, item, result))


def accepted(arrays: Any, item: Tensor, result: Any) -> Any:
    """Return a result as a plain tensor of the declared shape, noting a conversion."""
    got = torch.as_tensor(result).detach()
    check_shape(item, got.shape)
    name = str(got.dtype).replace("torch.", "")
    if name != item.dtype:
        if got.is_complex() or (got.is_floating_point() and item.dtype not in FLOATS):
            raise BadResult("output %s is %s, declared as %s" % (item.name, name, item.dtype))
        arrays.said["the reference returns %s for %s; it is converted to %s" % (name, item.name, item.dtype)] = None
    return got
