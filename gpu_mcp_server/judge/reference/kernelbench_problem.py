"""A KernelBench problem in the reference's process: `Model`, `get_inputs`, `get_init_inputs`, the file unchanged.

Source: https://github.com/ScalingIntelligence/KernelBench, src/kernelbench/eval.py: the generator is seeded before
`get_init_inputs()` and again before the model is constructed; models are left in training mode; no gradients.
"""

import copy
import importlib
import inspect
import math
import re
from typing import Any, Dict, List, Sequence, Tuple, cast

from ..adapters.adapter_choice import adapted_module
from ..memory.torch_views import tensors_at
from ..numerics.input_views import input_memories, layouts_at, owners_of, with_constants
from ..numerics.tensors import ITEM_BYTES
from .described_cases import RESERVED, EmptyTensor, joined_cases
from .input_layouts import layouts_of, memory_of
from .made_inputs import InputMaker
from .tensor_recorder import MetaAddresses, Recorder, dtype_of

torch: Any = importlib.import_module("torch")

INPUTS_ALONE = ("complex64", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
"""Types whose outputs are compared nowhere."""
OTHERWISE = {
    "complex128": ": pass torch.view_as_real of it, and torch.view_as_complex makes it again",
    "uint64": ": pass it as int64, by view",
}
"""What may stand for a tensor of a type that the judge does not know."""
CODES = (*INPUTS_ALONE, "float4_e2m1fn_x2")
"""Types that the problem's own code makes."""
STATE_TENSORS = 2000
"""Parameters and buffers beyond which they are no inputs, and a ModelNew has only the common seed to get the same."""


def parameter_names(forward: Any, count: int) -> List[str]:
    """Return names for a function's arguments that can be parameters in C."""
    try:
        found = [p.name for p in inspect.signature(forward).parameters.values() if p.kind < 2]
    except (TypeError, ValueError):
        found = []
    return [found[i] if i < len(found) else "x%d" % i for i in range(count)]


def unique(names: Sequence[str], taken: Sequence[str] = ()) -> List[str]:
    """Return the names in lower case, of at most 24 letters, digits and underscores, no two alike."""
    chosen, used = list(taken), set(taken)
    numbers: Dict[str, int] = {}
    for name in names:
        plain = re.sub(r"[^a-z0-9_]", "_", name.lower())[-24:].lstrip("_0123456789") or "t"
        number, tried = numbers.get(plain, 2), plain
        while tried in used or tried in RESERVED:
            number, tried = number + 1, "%s_%d" % (plain, number)
        numbers[plain] = number
        used.add(tried)
        chosen.append(tried)
    return chosen[len(taken) :]


def as_tuple(found: Any) -> Tuple[Any, ...]:
    """Return a model's results as a tuple."""
    return tuple(cast("Sequence[Any]", found)) if isinstance(found, (tuple, list)) else (found,)


class ModuleProblem:
    """The loaded file."""

    def __init__(self, module: Any, task: Dict[str, Any], seed: int, device: Any) -> None:
        module = adapted_module(module, task)
        for name in ("Model", "get_inputs", "get_init_inputs"):
            if not callable(getattr(module, name, None)):
                raise ValueError("a KernelBench problem defines %s; this file does not" % name)
        self.module, self.task, self.seed, self.device = module, task, seed, device
        self.model: Any = None
        self.wide: Any = None
        self.first_state: Dict[str, Any] = {}
        self.dims: Dict[str, int] = {}
        """The shape at hand."""
        self.makers = {on_gpu: InputMaker(module.get_inputs, device if on_gpu else None) for on_gpu in (False, True)}

    def turn_to(self, dims: Dict[str, int]) -> None:
        """Take a shape; where there are cases, the model is another one for each."""
        before, self.dims = self.dims.get("case"), dims
        if "case" in dims and dims["case"] != before:
            self.module.select(int(dims["case"]))
            self.wide = None
            self.construct()

    def _initial(self) -> Any:
        torch.manual_seed(self.seed)
        initial = self.module.get_init_inputs()
        torch.manual_seed(self.seed)
        return initial

    def construct(self) -> None:
        """Make the model, its weights from the owner's seed."""
        with torch.no_grad():
            model = self.module.Model(*self._initial())
            self.model = model if self.device is None else model.to(self.device)
        self.first_state = {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def no_grad(self) -> Any:
        """Return the context of calls."""
        return torch.no_grad()

    def call(self, inputs: Sequence[Any]) -> Any:
        """Answer the inputs, in that context; what comes behind them is the state, which the model has itself."""
        return self.model(*self._arguments(inputs))

    def call_wide(self, inputs: Sequence[Any]) -> Any:
        """Answer in double precision."""
        if self.wide is None:
            self.wide = copy.deepcopy(self.model).double()
            self.wide.load_state_dict(self.first_state)
            # `double` leaves tensors that are neither parameters nor buffers, as many a recurrent model's first state.
            # Of one byte they are codes, whose bytes a model may read.
            for part in self.wide.modules():
                held = cast("Dict[str, Any]", vars(part))
                wider = {k: v for k, v in held.items() if torch.is_tensor(v) and v.is_floating_point()}
                held.update({k: v.double() for k, v in wider.items() if v.element_size() > 1})
        with torch.no_grad():
            return self.wide(*self._arguments(inputs))

    def check(self, inputs: Sequence[Any], answers: Sequence[Any]) -> Tuple[bool, str]:
        """Say whether the problem's own check takes answers to some inputs, and what it says."""
        found: Tuple[bool, str] = self.module.check(self._arguments(inputs), answers)
        return found

    def _arguments(self, inputs: Sequence[Any]) -> List[Any]:
        given = len(self.task["inputs"]) - len(self.task.get("state") or [])
        constants: Dict[str, Any] = self.task.get("constants") or {}
        if "case" in self.dims:
            constants = self.task["case_constants"][int(self.dims["case"]) - 1]
        return with_constants(inputs[:given], constants)

    def make(self, address: int, message: Dict[str, Any], *, on_gpu: bool) -> None:
        """Write what only this code can make, the state or some of the inputs, for every set."""
        memories, owners = input_memories(self.task, self.dims), owners_of(self.task, self.dims)
        layouts = layouts_at(self.task, self.dims)
        which: List[int] = message["which"]
        items = [memories[number] for number in which]
        device, weights = self.device if on_gpu else None, message["kind"] == "weights"
        for number, targets in enumerate(tensors_at(torch, address, message["where"], items, device)):
            values = self._state() if weights else self._inputs(message["seed"] + number, on_gpu=on_gpu)
            for memory, target in zip(which, targets):
                target.copy_(memory_of(values[owners[memory]], layouts, owners[memory]))

    def _state(self) -> Dict[int, Any]:
        first = len(self.task["inputs"]) - len(self.task["state"])
        return {first + i: self.first_state[key] for i, key in enumerate(self.task["state"])}

    def _inputs(self, seed: int, *, on_gpu: bool) -> Dict[int, Any]:
        made = self.makers[on_gpu].make(seed, self.dims)
        return dict(enumerate(v for v in made if torch.is_tensor(v)))

    def describe(self) -> Dict[str, Any]:
        """Return tensors, constants and state; of a problem with cases those of all that are small enough, joined."""
        if not self.task.get("adapter"):
            return self._described()
        return joined_cases(self.module, self.task, self._described_case)

    def _described_case(self, number: int) -> Dict[str, Any]:
        self.module.select(number)
        self.model = None
        return self._described()

    def _described(self) -> Dict[str, Any]:
        """Return what one case takes and returns, computed without data where torch's meta device allows it."""
        notes: List[str] = []
        recorder, given = self._given(notes)
        tensors = [v for v in given if torch.is_tensor(v)]
        constants = {str(i): v for i, v in enumerate(given) if not torch.is_tensor(v)}
        for value in constants.values():
            if value is not None and not isinstance(value, (bool, int, float, str)):
                nested = isinstance(value, (list, tuple, dict))
                advice = ": give forward each tensor by itself; a GPU MODE task takes nested ones" if nested else ""
                kind = type(cast("object", value)).__name__
                raise ValueError("an input is a %s; inputs are tensors and plain numbers%s" % (kind, advice))
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError("an input is the constant %r; write it into the model instead" % value)
            if isinstance(value, str) and value != value.encode("utf-8", "replace").decode("utf-8"):
                raise ValueError("an input is a text that is no UTF-8: %s" % ascii(value)[:100])
        names = list(getattr(self.module, "names", tuple)())
        names = names if len(names) == len(given) else parameter_names(self.module.Model.forward, len(given) + 1)[1:]
        tensor_names = [names[i] for i, v in enumerate(given) if torch.is_tensor(v)]
        chosen = unique(tensor_names)
        inputs = [self._spec(n, v, d) for n, v, d in zip(chosen, tensors, recorder.distributions(tensors))]
        layouts = layouts_of(tensors, chosen)
        made = [spec["name"] for spec in inputs if spec["distribution"] == "made"]
        if made:
            notes.append("made by the problem's own code, from a seed of the judge: " + ", ".join(made))
        state, results = self._shapes(given, notes, made=bool(made))
        kept = state if len(state) <= STATE_TENSORS else {}
        if len(kept) < len(state):
            notes.append(
                "%d weights, too many to be inputs: a ModelNew makes its own from the common seed" % len(state)
            )
        weights = unique([key.replace(".", "_") for key in kept], chosen)
        inputs += [self._spec(n, v, "weights") for n, v in zip(weights, kept.values())]
        outputs = unique(["y" if len(results) == 1 else "y%d" % i for i in range(len(results))], [*chosen, *weights])
        return {
            "inputs": inputs,
            "outputs": [self._spec(n, v, "normal", answer=True) for n, v in zip(outputs, results)],
            "state": list(kept),
            "constants": constants,
            "layouts": layouts,
            "notes": notes,
        }

    def _given(self, notes: List[str]) -> Tuple[Recorder, List[Any]]:
        """Return the inputs, without data where torch's meta device allows it, and how those were drawn."""
        recorder = Recorder()
        try:
            with torch.device("meta"), MetaAddresses(), recorder:
                return recorder, self._listed_inputs()
        except Exception as error:
            notes.append("inputs are made by the problem's own code (%s)" % str(error).strip()[:100])
        return Recorder(), self._listed_inputs()

    def _listed_inputs(self) -> List[Any]:
        """Return what `get_inputs` lists; a dictionary's keys and a tensor's rows are no inputs."""
        found: Any = self.module.get_inputs()
        if isinstance(found, dict) or torch.is_tensor(found):
            what = type(cast("object", found)).__name__
            raise ValueError("get_inputs returned a %s: return a list of what forward takes, in its order" % what)
        return list(found)

    def _shapes(self, given: Sequence[Any], notes: List[str], *, made: bool) -> Tuple[Dict[str, Any], Tuple[Any, ...]]:
        """Return state and results, as meta tensors if that is possible; `made` inputs may depend on each other."""
        initial = self._initial()
        try:
            with torch.device("meta"), MetaAddresses(), torch.no_grad():
                model = self.module.Model(*initial)
                blank = [v.to("meta") if torch.is_tensor(v) else v for v in given]
                return dict(model.state_dict()), as_tuple(model(*blank))
        except Exception:
            notes.append("shapes of the outputs come from a real call")
        self.construct()
        with torch.no_grad():
            found = self._listed_inputs() if made else given
            real = [self._stand_in(v) if torch.is_tensor(v) and v.device.type == "meta" else v for v in found]
            if self.device is not None:
                real = [v.to(self.device) if torch.is_tensor(v) else v for v in real]
            return dict(self.first_state), as_tuple(self.model(*real))

    def _stand_in(self, value: Any) -> Any:
        """Return a tensor with numbers for a meta tensor."""
        if dtype_of(value) in CODES and value.element_size() == 1:  # torch converts nothing to fours
            return torch.full(value.shape, 0x33, dtype=torch.uint8).view(value.dtype)
        if value.is_floating_point():
            return torch.rand(value.shape, dtype=torch.float32).to(value.dtype)
        return torch.zeros(value.shape, dtype=value.dtype)

    def _spec(self, name: str, value: Any, distribution: str, *, answer: bool = False) -> Dict[str, Any]:
        if not torch.is_tensor(value) or dtype_of(value) not in ITEM_BYTES:
            what = dtype_of(value) if torch.is_tensor(value) else type(value).__name__
            advice = OTHERWISE.get(what, "")
            advice += ": return a tensor or a tuple of tensors" if answer and not torch.is_tensor(value) else ""
            advice += ", also what it writes in place" if value is None else ""
            raise ValueError("%s is %s, which the judge does not know%s" % (name, what, advice))
        if answer and dtype_of(value) in INPUTS_ALONE:
            pairs = ": return torch.view_as_real of it" if value.is_complex() else ""
            raise ValueError("%s is %s, which the judge does not compare%s" % (name, dtype_of(value), pairs))
        if dtype_of(value) in CODES:
            distribution = distribution if distribution == "weights" else "made"
        if value.numel() < 1:
            raise EmptyTensor("%s has no element, and nothing of an empty tensor can be judged" % name)
        return {"name": name, "dtype": dtype_of(value), "shape": list(value.shape), "distribution": distribution}
