"""Calls that were recorded in a user's program, of an operator, function, module or kernel: each set of inputs a case.

Inputs come from the recording, varied from the judge's secret seed; indices and masks come as they were.
"""

import base64
import json
from typing import Any, Dict, List, Sequence, cast

from .call_records import fill, read_samples, tensors_in, torch
from .case_module import CaseModule
from .kernel_launches import returning_call
from .recorded_tensors import build_module, make_tensor

RECORD, SAMPLES = "capture.json", "inputs.safetensors"


class CapturedCalls(CaseModule):
    """`call` of the problem's file, or the module that the recording describes, over recorded inputs."""

    def __init__(self, module: Any, task: Dict[str, Any], files: Dict[str, str]) -> None:
        super().__init__(module, task, files)
        self.record: Dict[str, Any] = json.loads(files[RECORD])
        self.samples = read_samples(base64.b64decode(files[SAMPLES]))
        self.copies: Dict[str, Any] = {}
        """Of the samples on a GPU, once inputs are made there."""
        self.passed: List[int] = list(self.record["passed"])
        self.Model = self._model

    def _set(self) -> Dict[str, Any]:
        return cast("Dict[str, Any]", self.record["sets"][int(self.case["recorded"]["at"])])

    def names(self) -> Sequence[str]:
        """Return the names of tensors, then of plain values that differ from set to set."""
        return [*self.record["names"], *("argument_%d" % leaf for leaf in self.passed)]

    def get_inputs(self) -> List[Any]:
        """Return tensors on torch's default device, then plain values that differ."""
        one, device = self._set(), torch.empty(0).device
        samples = self.samples
        if device.type == "cuda":
            samples = self.copies = self.copies or {name: each.to(device) for name, each in self.samples.items()}
        return [*(make_tensor(t, samples) for t in one["tensors"]), *(one["leaves"][leaf] for leaf in self.passed)]

    def _model(self) -> Any:
        """Return a module that puts what it is given into the recorded arguments."""
        skeleton, leaves = self.record["skeleton"], list(self._set()["leaves"])
        count, passed = len(self.record["names"]), self.passed

        def arguments(given: Sequence[Any]) -> Any:
            values = list(leaves)
            for leaf, value in zip(passed, given[count:]):
                values[leaf] = value
            return fill(skeleton, list(given[:count]), values)

        described = self.record.get("module")
        if described is None:
            call = self.module.call
            if self.record.get("written"):
                call = returning_call(call, self.record["written"])

            class Call(torch.nn.Module):  # type: ignore[misc]
                def forward(self, *given: Any) -> Any:
                    args, kwargs = arguments(given)
                    return tuple(tensors_in(call(*args, **kwargs)))

            return Call()
        built = build_module(described, self.samples)
        kind: Any = built.__class__

        class Captured(kind):  # type: ignore[misc]
            def forward(self, *given: Any) -> Any:
                args, kwargs = arguments(given)
                return tuple(tensors_in(kind.forward(self, *args, **kwargs)))

        # torch.nn.Module overrides attribute setting; the class is exchanged beneath it, weights and hooks staying.
        object.__setattr__(built, "__class__", Captured)
        return built
