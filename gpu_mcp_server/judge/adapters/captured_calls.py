"""Calls that were recorded in a user's program, of an operator, function, module or kernel: each set of inputs a case.

Inputs come from the recording, laid out as they were, their values varied from the judge's secret seed; indices and
masks come as they were.
"""

import base64
import functools
import json
from typing import Any, Dict, List, Sequence, Tuple, cast

from .call_records import fill, import_name, read_samples, tensors_in, torch
from .case_module import CaseModule
from .kernel_launches import returning_call

RECORD, SAMPLES = "capture.json", "inputs.safetensors"
PEEK = 64
"""Elements that tell most tensors from a constant one: looking through all takes as long as drawing them."""


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


def make_tensor(about: Dict[str, Any], samples: Dict[str, Any], *, vary: bool = True) -> Any:
    """Return an input as it was recorded, laid out as it was; varied from torch's seed where it may be.

    It lies where its sample does, or on torch's default device where its values are drawn from quantiles.
    """
    dtype = getattr(torch, about["dtype"])
    if torch.empty(0).device.type == "meta":
        return torch.empty_strided(about["shape"], about["strides"], dtype=dtype)
    shape, strides = list(about["shape"]), list(about["strides"])
    dense = [1 if size > 1 and step == 0 else size for size, step in zip(shape, strides)]
    if "stored" in about:
        value = samples[about["stored"]].reshape(dense)
        if vary and not about["fixed"]:
            if "constant" not in about:  # asked once: on a GPU the answer is waited for
                about["constant"] = is_constant(value)
            value = vary_values(value, constant=about["constant"])
    else:
        value = draw_values(about["quantiles"], dense)
    if overlaps(dense, strides):
        return value.to(dtype).expand(shape)
    laid = torch.empty_strided(dense, strides, dtype=dtype, device=value.device)
    return laid.copy_(value).expand(shape)


def overlaps(shape: List[int], strides: List[int]) -> bool:
    """Say whether two elements may share memory: a step is shorter than what lies within it."""
    reach = 0
    for step, size in sorted((step, size) for step, size in zip(strides, shape) if size > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def vary_values(value: Any, *, constant: bool) -> Any:
    """Return recorded values otherwise: rows permuted, each value shrunk by 0 to 1/2, signs and zeros kept.

    Where all values are one, each moves away from it: a bias of zeros must not be able to be left out. What is drawn
    lies where the values do, on a GPU too.
    """
    wide = value.double() if value.dtype == torch.float64 else value.float()
    drawn = torch.rand(wide.shape, dtype=wide.dtype, device=wide.device)
    if constant:
        return wide + (drawn - 0.5) * (float(wide.reshape(-1)[0].abs()) / 2 or 0.5)
    if value.dim() and value.shape[0] > 1:
        wide = wide[torch.randperm(value.shape[0], device=wide.device)]
    most = 1 - torch.rand((), dtype=wide.dtype, device=wide.device) / 4
    return drawn.mul_(-0.25).add_(most).mul_(wide)


def is_constant(value: Any) -> bool:
    """Say whether a tensor has several elements, all alike, or a zero alone, which no factor would change."""
    flat = value.reshape(-1)
    if flat.numel() == 1:
        return bool(flat[0] == 0)
    return flat.numel() > 1 and all(bool((part == flat[0]).all()) for part in (flat[:PEEK], flat))


def draw_values(quantiles: Sequence[float], shape: List[int]) -> Any:
    """Return values that are distributed as the recorded ones were, between their quantiles evenly."""
    drawn, first = torch.rand(shape), quantiles[0]
    if first == quantiles[-1]:
        return first + (drawn - 0.5) * (abs(first) / 2 or 0.5)
    known, steps = table_of(tuple(quantiles), str(drawn.device))
    place = drawn.reshape(-1).mul_(len(quantiles) - 1)
    below = place.int().clamp_(max=len(quantiles) - 2)
    return place.sub_(below).mul_(steps.index_select(0, below)).add_(known.index_select(0, below)).reshape(shape)


@functools.lru_cache(maxsize=64)
def table_of(quantiles: Tuple[float, ...], device: str) -> Any:
    """Return quantiles and the steps between them, where values are drawn: kept, as each draw would wait for both."""
    known = torch.tensor(quantiles, dtype=torch.float32, device=device)
    return known, known[1:] - known[:-1]


def build_module(described: Dict[str, Any], samples: Dict[str, Any]) -> Any:
    """Return a module as it was described, without its `__init__`; weights varied from torch's seed."""
    kind = import_name(described["class"])
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    for name, plain in described["own"].items():
        object.__setattr__(module, name, fill(plain))
    for name, about in described["parameters"].items():
        made = None if about is None else torch.nn.Parameter(make_tensor(about, samples), requires_grad=False)
        module.register_parameter(name, made)
    for name, about in described["buffers"].items():
        made = None if about is None else make_tensor(about, samples, vary=False)
        module.register_buffer(name, made, persistent=name not in described["transient"])
    for name, child in described["children"].items():
        module.add_module(name, None if child is None else build_module(child, samples))
    return module
