"""Inputs that a problem's own code makes, on a GPU where that is sooner: a round has hundreds of sets of them."""

import contextlib
import importlib
import time
from typing import Any, Callable, Dict, List, Tuple

torch: Any = importlib.import_module("torch")

MOST_BYTES = 256 << 20
"""Of a call's inputs that are made on a GPU: several times as much is in use meanwhile, and kept by torch."""
TRIES = 2
"""At each place, of which the quickest counts: the first one loads kernels, and asks for memory."""

Shape = Tuple[Tuple[str, int], ...]


class InputMaker:
    """Runs `get_inputs` on the processor, or with a GPU as torch's default device.

    At each shape the place is chosen once, so that a seed makes the same inputs again.
    """

    def __init__(self, get_inputs: Callable[[], Any], device: Any) -> None:
        self.get_inputs, self.device = get_inputs, device
        self.there: Dict[Shape, bool] = {}
        """Whether a shape's inputs are made on the GPU."""

    def make(self, seed: int, dims: Dict[str, int]) -> List[Any]:
        """Return the inputs of a shape from torch's seed."""
        shape = tuple(sorted(dims.items()))
        if self.device is not None and shape not in self.there:
            self.there[shape] = self._is_sooner_there()
        if self.there.get(shape):
            try:
                return self._make(seed, self.device)
            except torch.cuda.OutOfMemoryError:  # the round's buffers have it
                torch.cuda.empty_cache()
                self.there[shape] = False
        return self._make(seed)

    def _make(self, seed: int, device: Any = None) -> List[Any]:
        torch.manual_seed(seed)
        with contextlib.nullcontext() if device is None else torch.device(device):
            return list(self.get_inputs())

    def _is_sooner_there(self) -> bool:
        here_s: List[float] = []
        there_s: List[float] = []
        for seed in range(TRIES):
            begin = time.perf_counter()
            made = self._make(seed)
            here_s.append(time.perf_counter() - begin)
            if sum(v.numel() * v.element_size() for v in made if torch.is_tensor(v)) > MOST_BYTES:
                return False
            try:
                begin = time.perf_counter()
                self._make(seed, self.device)
                torch.cuda.synchronize(self.device)
            # Code may insist on the processor: by a generator, by NumPy, by what it mixes.
            except Exception:
                return False
            there_s.append(time.perf_counter() - begin)
        return min(there_s) < min(here_s)
