"""Kind `model`: a Python file with KernelBench's `ModelNew`, whose results are copied into the owner's outputs."""

import os
from typing import Any, Dict, List, Sequence, cast

from candidate_python import WORK, PythonFile, Reply, load_file

PROBLEM = os.path.join(WORK, "problem.py")
"""The problem's file: it says what ModelNew is constructed with."""


class ModelFile(PythonFile):
    """Constructs `ModelNew` as KernelBench does, and calls it."""

    def take(self, module: Any, message: Dict[str, Any]) -> Reply:
        """Construct the model."""
        made = getattr(module, "ModelNew", None)
        if made is None:
            return {"error": "the file has no class ModelNew"}
        torch, seed = self.torch, int(message.get("torch_seed") or 0)
        with torch.no_grad():
            torch.manual_seed(seed)
            initial: Sequence[Any] = []
            if os.path.exists(PROBLEM):
                initial = load_file(PROBLEM, "problem").get_init_inputs()
            torch.manual_seed(seed)
            model = made(*initial)
            if self.device is not None:
                model = model.to(self.device)
        self.model = model
        return {}

    def open(self, message: Dict[str, Any], bases: List[int]) -> None:
        """Lay tensors over the buffers."""
        super().open(message, bases)
        self.said["the outputs are copied into the judge's, within the clock: %s" % self.why()] = None

    def why(self) -> str:
        """Say why results are copied."""
        return "as always on the processor" if self.device is None else "ModelNew returns tensors of its own"

    def call(self, number: int) -> None:
        """Call the model and copy what it returns."""
        torch = self.torch
        with torch.no_grad():
            found: Any = self.model(*self.inputs[number])
            if not isinstance(found, (tuple, list)):
                found = (found,)
            results = cast("Sequence[Any]", found)
            targets = self.outputs[number]
            if len(results) != len(targets):
                raise ValueError("ModelNew returned %d values, the problem has %d" % (len(results), len(targets)))
            for spec, target, result in zip(self.task["outputs"], targets, results):
                if tuple(result.shape) != tuple(target.shape):
                    shapes = (spec["name"], list(result.shape), list(target.shape))
                    raise ValueError("output %s has shape %s, expected %s" % shapes)
                target.copy_(result)
