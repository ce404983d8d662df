"""A definition of flashinfer-trace or SOL-ExecBench: `run(*inputs)` over axes, a workload a case."""

import base64
import importlib
import inspect
import json
from typing import Any, Dict, List, Sequence, Tuple, cast

from .case_module import CaseModule

torch: Any = importlib.import_module("torch")

WHOLE = {"int64": (0, 100), "int32": (0, 100), "int16": (0, 100), "int8": (-128, 128), "uint8": (0, 256)}
"""Least, and the first too large, of numbers that are drawn for a type where a workload says `random`."""


class TraceDefinition(CaseModule):
    """Inputs by the workload: drawn, a scalar, or made by the definition's own function."""

    entry = "run"

    def __init__(self, module: Any, task: Dict[str, Any], files: Dict[str, str]) -> None:
        super().__init__(module, task, files)
        self.definition: Dict[str, Any] = json.loads(files["definition.json"])
        self.Model = self._model_of(module.run)

    def names(self) -> Sequence[str]:
        """Return the definition's names."""
        return list(self.definition["inputs"])

    def get_inputs(self) -> List[Any]:
        """Return the inputs in the definition's order."""
        case, inputs = self.case, cast("Dict[str, Dict[str, Any]]", self.definition["inputs"])
        sizes: Dict[str, int] = case["axes"]
        how: Dict[str, Dict[str, Any]] = case["inputs"]
        scalars = {name: each.get("value") for name, each in how.items() if each.get("type") == "scalar"}
        made: Dict[str, Any] = {}
        if any(each.get("type") == "custom" for each in how.values()):
            function = getattr(self.module, str(self.definition.get("custom_inputs_entrypoint")))
            # CPU: what is made travels to where it is wanted
            made = dict(function(dict(sizes, **scalars), torch.device(self.facts.get("device") or "cpu")))
        found: List[Any] = []
        for name, spec in inputs.items():
            if name in scalars:
                # A 0-d tensor where the definition declares a shape.
                plain, value = spec.get("shape") is None, scalars[name]
                found.append(value if plain else torch.tensor(value, dtype=getattr(torch, str(spec["dtype"]))))
            elif name in made:
                found.append(made[name])
            elif how.get(name, {}).get("type") == "safetensors":
                content = bytearray(base64.b64decode(self.files[str(how[name]["file"])]))
                flat = torch.frombuffer(content, dtype=getattr(torch, str(spec["dtype"])))
                found.append(flat.reshape(tuple(how[name]["shape"])))
            else:
                found.append(_drawn(spec, sizes))
        return found

    def candidate_model(self, module: Any) -> Any:
        """Return a model of `run`, or what the packed solution names, with outputs handed in or returned."""
        said: Dict[str, Any] = getattr(module, "SOLUTION", {})
        function = getattr(module, str(said.get("function") or "run"), None)
        if function is None:
            return None
        inputs, outputs = list(self.definition["inputs"]), self.task["outputs"]
        handed = said.get("destination_passing_style")
        if handed is None:
            handed = _parameters(function) == len(inputs) + len(outputs)
        return _handed_model(self, function) if handed else self._model_of(function)

    def _model_of(self, function: Any) -> Any:
        names = list(self.definition.get("outputs") or {})

        class Run(torch.nn.Module):  # type: ignore[misc]
            def forward(self, *given: Any) -> Any:
                found = function(*given)
                return _in_order(cast("Dict[str, Any]", found), names) if isinstance(found, dict) else found

        return Run


def _drawn(spec: Dict[str, Any], sizes: Dict[str, int]) -> Any:
    dtype = str(spec["dtype"])
    shape = _shape(spec, sizes)
    if dtype == "bool":
        return torch.randint(0, 2, shape).to(torch.bool)
    if dtype in WHOLE:
        least, end = WHOLE[dtype]
        return torch.randint(least, end, shape, dtype=getattr(torch, dtype))
    if dtype.startswith("float4"):
        packed = (*shape[:-1], shape[-1] // 2) if dtype == "float4_e2m1" else shape
        return torch.randint(0, 256, packed, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    if dtype.startswith("float8"):
        return torch.randn(shape).to(getattr(torch, dtype))
    return torch.randn(shape, dtype=getattr(torch, dtype))


def _in_order(found: Dict[str, Any], names: Sequence[str]) -> Tuple[Any, ...]:
    """Return outputs as the definition orders them, whatever the order in which `run` names them."""
    return tuple(found[name] for name in names) if set(found) == set(names) else tuple(found.values())


def _handed_model(adapter: TraceDefinition, function: Any) -> Any:
    class Handed(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *given: Any) -> Any:
            sizes: Dict[str, int] = adapter.case["axes"]
            device = next((each.device for each in given if torch.is_tensor(each)), None)
            outputs: List[Any] = []
            for spec in cast("Dict[str, Dict[str, Any]]", adapter.definition["outputs"]).values():
                shape = _shape(spec, sizes)
                outputs.append(torch.empty(shape, dtype=getattr(torch, str(spec["dtype"])), device=device))
            function(*given, *outputs)
            return tuple(outputs)

    return Handed


def _shape(spec: Dict[str, Any], sizes: Dict[str, int]) -> Tuple[int, ...]:
    """Return a tensor's sizes: each a number, also as text, or an axis."""
    named: List[Any] = list(spec.get("shape") or ())
    return tuple(int(sizes[size]) if size in sizes else int(size) for size in named)


def _parameters(function: Any) -> int:
    try:
        return len(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return 0
