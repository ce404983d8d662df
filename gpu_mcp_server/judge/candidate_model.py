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
        self.model, self.settled = model, False
        self.given = len(self.task["inputs"]) - len(self.task.get("state") or [])
        self.constants: Dict[str, Any] = self.task.get("constants") or {}
        return {}

    def settle(self, weights: Sequence[Any]) -> None:
        """Give the model the problem's weights where names and shapes match, and say which were there already."""
        self.settled = True
        names: Sequence[str] = self.task.get("state") or []
        if not names:
            return
        own: Dict[str, Any] = dict(self.model.state_dict())
        alike: List[str] = []
        loaded: List[str] = []
        for name, value in zip(names, weights):
            if name in own and tuple(own[name].shape) == tuple(value.shape):
                same = bool(self.torch.equal(own[name].to(value.dtype), value))
                (alike if same else loaded).append(name)
                if not same:
                    own[name].copy_(value)
        without = len(names) - len(alike) - len(loaded)
        text = "weights: %d alike by the common seed, %d taken over from the problem (%s), %d without a counterpart"
        self.said[text % (len(alike), len(loaded), ", ".join(loaded[:8]) or "none", without)] = None

    def open(self, message: Dict[str, Any], bases: List[int]) -> None:
        """Lay tensors over the buffers."""
        super().open(message, bases)
        self.said["the outputs are copied into the judge's, within the clock: %s" % self.why()] = None

    def why(self) -> str:
        """Say why results are copied."""
        return "as always on the processor" if self.device is None else "ModelNew returns tensors of its own"

    def arguments(self, tensors: Sequence[Any]) -> List[Any]:
        """Return the arguments of a call: tensors in order, constants at their positions."""
        found = list(tensors)
        for position in sorted(self.constants, key=int):
            found.insert(int(position), self.constants[position])
        return found

    def call(self, number: int) -> None:
        """Call the model and copy what it returns."""
        torch = self.torch
        with torch.no_grad():
            inputs = self.inputs[number]
            if not self.settled:
                self.settle(inputs[self.given :])
            found: Any = self.model(*self.arguments(inputs[: self.given]))
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
