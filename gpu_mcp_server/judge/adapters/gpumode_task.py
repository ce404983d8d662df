"""A task of GPU MODE: `generate_input(**spec) -> data`, `ref_kernel(data)`, `check_implementation(data, output)`.

Data are tensors in tuples, lists, dictionaries, dataclasses and modules, with plain values beside them. The tensors are
the inputs; what lies around them is made anew in each process, from the same case.
"""

import contextlib
import copy
import dataclasses
import importlib
import inspect
import sys
from typing import Any, Callable, Dict, Generator, List, Optional, Sequence, Tuple, cast

from ..numerics.array_copies import has_same_bytes
from .aiter_definitions import NOTE, is_stand_in
from .case_module import CaseModule, verdict_of

torch: Any = importlib.import_module("torch")

SEEDS, SMALL_SEEDS = 2**31 - 1, 1 << 16
"""How many seeds are drawn from. From the fewer, which suites have, where a task adds its seed to what it draws:
answers to all of them would have to be known for each case."""
LOOKED_AT = 1 << 16
"""Elements that tell how large values are."""
PLAIN = (int, float, str, bool, type(None), complex)

Build = Callable[[Sequence[Any]], Any]


class Parts:
    """Data taken apart: its tensors, and what puts them together again."""

    def __init__(self, data: Any) -> None:
        self.leaves: List[Any] = []
        self.values: List[Any] = []
        """What else is in it, for comparison."""
        self.build = self._part(data, "data")

    @classmethod
    def blank(cls, parts: "Parts") -> "Parts":
        """Return the same with tensors that have no memory."""
        made = copy.copy(parts)
        made.leaves = [_like(each, "meta") for each in parts.leaves]
        return made

    def _part(self, value: Any, where: str) -> Build:
        if torch.is_tensor(value):
            place = len(self.leaves)
            self.leaves.append(value)
            return lambda leaves: leaves[place]
        if isinstance(value, (tuple, list)):
            return self._sequence(cast("Sequence[Any]", value), where)
        if isinstance(value, dict):
            named = {k: self._part(v, "%s[%r]" % (where, k)) for k, v in cast("Dict[Any, Any]", value).items()}
            return lambda leaves: {k: part(leaves) for k, part in named.items()}
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._object(value, where)
        if isinstance(value, (*PLAIN, torch.dtype, torch.device, torch.Size)):
            self.values.append((where, value if not isinstance(value, torch.device) else str(value)))
            return lambda leaves: value
        raise ValueError("%s is a %s, which is neither tensors nor plain values" % (where, type(value).__name__))

    def _sequence(self, value: Sequence[Any], where: str) -> Build:
        parts = [self._part(each, "%s[%d]" % (where, i)) for i, each in enumerate(value)]
        kind: Any = type(value)
        if hasattr(kind, "_fields"):
            return lambda leaves: kind(*[part(leaves) for part in parts])
        if isinstance(value, tuple):
            return lambda leaves: tuple([part(leaves) for part in parts])
        return lambda leaves: [part(leaves) for part in parts]

    def _object(self, value: Any, where: str) -> Build:
        fields = {f.name: self._part(getattr(value, f.name), where + "." + f.name) for f in dataclasses.fields(value)}

        def build(leaves: Sequence[Any]) -> Any:
            made = copy.copy(value)
            for name, part in fields.items():
                object.__setattr__(made, name, part(leaves))
            return made

        return build

    def _module(self, value: Any) -> Build:
        places: Dict[str, int] = {}
        for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
            places[name] = len(self.leaves)
            self.leaves.append(tensor.detach())

        def build(leaves: Sequence[Any]) -> Any:
            made = copy.deepcopy(value)
            for name, tensor in [*made.named_parameters(), *made.named_buffers()]:
                tensor.data = leaves[places[name]]
            return made

        return build


class GpuModeTask(CaseModule):
    """The task with its tensors as inputs."""

    entry = "custom_kernel"

    def __init__(self, module: Any, task: Dict[str, Any], files: Dict[str, str]) -> None:
        super().__init__(module, task, files)
        if not hasattr(module, "generate_input") and hasattr(module, "generate_inputs"):
            module.generate_input = module.generate_inputs
        several: Sequence[Dict[str, Any]] = self.facts.get("functions") or []
        if several:
            self.entry = " and ".join("a function *_" + str(each["name"]) for each in several)
        if several and not hasattr(module, "ref_kernel"):
            module.ref_kernel = joined_functions(module, several)
        for name in ("generate_input", "ref_kernel"):
            if not callable(getattr(module, name, None)):
                raise ValueError("reference.py defines no %s" % name)
        sys.modules.setdefault("reference", module)
        self.parts: Dict[int, Parts] = {}
        self.forms: Dict[int, Parts] = {}
        """Form of the reference's answer, by case."""
        self.Model = self._model_of(module.ref_kernel, keep=False)

    def take_cases(self, cases: Sequence[Dict[str, Any]]) -> None:
        """Take the cases to judge, and renumber the facts known of each."""
        super().take_cases(cases)
        self.parts, self.forms = {}, {}

    def make(self) -> Any:
        """Return data of the case at hand, from torch's generator where the task takes a seed."""
        return self._made(int(torch.randint(0, self.facts.get("seeds", SEEDS), (1,), device="cpu").item()))

    def _made(self, seed: int) -> Any:
        takes = inspect.signature(self.module.generate_input).parameters
        return self.module.generate_input(**self.case, **({"seed": seed} if "seed" in takes else {}))

    def get_inputs(self) -> List[Any]:
        """Return the tensors that a candidate reads."""
        parts = Parts(self.make())
        known = self.parts.get(self.number)
        if known is None:
            known = self.parts[self.number] = Parts.blank(parts)
        if known.values != parts.values or len(known.leaves) != len(parts.leaves):
            raise ValueError("values beside the tensors differ from seed to seed")
        scratch: List[int] = self.facts.get("scratch") or []
        return [each for place, each in enumerate(parts.leaves) if place not in scratch]

    def answer(self, function: Any, given: Sequence[Any], *, keep: bool) -> Any:
        """Call a function of the task's form with tensors in their places, and return the tensors of its answer."""
        if self.number not in self.parts:
            self.get_inputs()
        scratch: List[int] = self.facts.get("scratch") or []
        written: List[int] = self.facts.get("written") or []
        leaves = self._leaves(given, written if keep else ())
        found = function(self.parts[self.number].build(leaves))
        if found is None:  # it answers in place
            return tuple(leaves[place] for place in [*scratch, *written])
        answers = Parts(found)
        if function is self.module.ref_kernel and self.number not in self.forms:
            self.forms[self.number] = Parts.blank(answers)
        types: List[str] = self.facts.get("types") or []
        answers.leaves = [
            each.to(getattr(torch, types[i])) if i < len(types) and each.is_floating_point() else each
            for i, each in enumerate(answers.leaves)
        ]
        return answers.leaves[0] if len(answers.leaves) == 1 else tuple(answers.leaves)

    def _leaves(self, given: Sequence[Any], copied: Sequence[int]) -> List[Any]:
        """Return the tensors of the case's data: those given, some of them copied, and memory for answers."""
        scratch: List[int] = self.facts.get("scratch") or []
        rest, leaves = list(given), cast("List[Any]", [])
        for place, blank in enumerate(self.parts[self.number].leaves):
            if place in scratch:
                leaves.append(_like(blank, next((each.device for each in given if torch.is_tensor(each)), None)))
                continue
            leaf = rest.pop(0)
            leaves.append(_copy(leaf) if place in copied else leaf)
        return leaves

    def check(self, given: Sequence[Any], answers: Sequence[Any]) -> Tuple[bool, str]:
        """Say whether the task's own check takes an answer, in the form of the reference's, and what it says."""
        if self.number not in self.forms:
            raise ValueError("its check reads answers that the reference writes in place")
        data = self.parts[self.number].build(self._leaves(given, range(len(self.parts[self.number].leaves))))
        return verdict_of(self.module.check_implementation(data, self.forms[self.number].build(list(answers))))

    def _model_of(self, function: Any, *, keep: bool) -> Any:
        task = self

        class Kernel(torch.nn.Module):  # type: ignore[misc]
            def forward(self, *given: Any) -> Any:
                return task.answer(function, given, keep=keep)

        return Kernel

    def candidate_model(self, module: Any) -> Any:
        """Return a model of `custom_kernel`, or of the several functions that are asked for.

        Tensors that it answers in are copies.
        """
        several: List[Dict[str, Any]] = self.facts.get("functions") or []
        function = joined_functions(module, several) if several else getattr(module, "custom_kernel", None)
        return self._model_of(function, keep=True) if function is not None else None

    def examine(self) -> Dict[str, Any]:
        """Return which tensors are for answers, or written to, and the tolerance of the own check.

        A tensor of an answer's form that the reference neither reads nor writes is memory for one, too: the answer is
        of its type then, though a reference may compute a wider one.
        """
        data = self.make()
        parts = Parts(data)
        before = [each.detach().clone() for each in parts.leaves]
        used = [_copy(each) for each in parts.leaves]
        found = self.module.ref_kernel(parts.build(used))
        answers = [each.detach().clone() for each in Parts(found).leaves]
        written = [i for i, (one, other) in enumerate(zip(used, before)) if not has_same_bytes(one, other)]
        like = [_form(each) for each in answers]
        places = [i for i, each in enumerate(before) if i in written or _form(each) in like]
        scratch = [i for i in places if self._is_scratch(parts, before, i, answers)]
        said: Dict[str, Any] = {"scratch": scratch, "written": [i for i in written if i not in scratch]}
        if self._follow_the_seed(scratch):
            said["seeds"] = SMALL_SEEDS
        meant = [next((before[i] for i in scratch if _form(before[i]) == _form(each)), each) for each in answers]
        if any(one.dtype != other.dtype for one, other in zip(meant, answers)):
            said["types"] = [str(each.dtype).replace("torch.", "") for each in meant]
        told = self._tolerance(parts, before, answers, found)
        if is_stand_in():
            told["note"] = "; ".join(each for each in (told.get("note"), NOTE) if each)
        return {"facts": said, **told}

    def _follow_the_seed(self, scratch: Sequence[int]) -> bool:
        """Say whether values are about as large as the seed: of a large one float32 keeps nothing that is added."""
        follow: Optional[List[bool]] = None
        for seed in (SEEDS // 3, SEEDS - 1):
            leaves = [each for place, each in enumerate(Parts(self._made(seed)).leaves) if place not in scratch]
            sizes = [_mean_size(each) for each in leaves]
            near = [0.5 < size / seed < 2 for size in sizes]
            follow = near if follow is None else [one and other for one, other in zip(follow, near)]
        return any(follow or ())

    def _is_scratch(self, parts: Parts, before: Sequence[Any], place: int, answers: Sequence[Any]) -> bool:
        for filler in (0, 1):
            leaves = [_copy(each) for each in before]
            leaves[place].fill_(filler)
            found = Parts(self.module.ref_kernel(parts.build(leaves))).leaves
            if not all(has_same_bytes(one, other) for one, other in zip(found, answers)):
                return False
        return True

    def _tolerance(self, parts: Parts, before: Sequence[Any], answers: Sequence[Any], found: Any) -> Dict[str, Any]:
        check = getattr(self.module, "check_implementation", None)
        if check is None:
            return {}
        with _noting_tolerances(self.module) as read:
            output = Parts(found).build([each.clone() for each in answers])
            verdict: Any = check(parts.build([_copy(each) for each in before]), output)
        said: Dict[str, Any] = {"note": ""}
        passed, why = verdict_of(verdict)
        if not passed:
            said["note"] = "the task's own check refuses its reference: %s" % why[:150]
        if not read:
            note = "the task's own check decides on every answer that differs from the reference's"
            return dict(said, checker=True, note=said["note"] or note, rtol=0.0, atol=0.0)
        return dict(said, rtol=max(r for r, _ in read), atol=max(a for _, a in read))


def joined_functions(module: Any, several: Sequence[Dict[str, Any]]) -> Optional[Callable[[Any], Any]]:
    """Return the several functions of a task as one that answers with all their answers; None if the module lacks one.

    Each is the module's only one that ends with its name behind an underscore.
    """
    found: List[Tuple[Any, List[int]]] = []
    for each in several:
        every: List[str] = list(module.__dict__)
        own = [name for name in every if ("_" + name).endswith("_" + each["name"])]
        named = [name for name in own if inspect.isroutine(getattr(module, name))]
        if len(named) != 1:
            return None
        found.append((getattr(module, named[0]), list(each["takes"])))
    return lambda data: tuple([function(*[data[place] for place in takes]) for function, takes in found])


@contextlib.contextmanager
def _noting_tolerances(module: Any) -> Generator[List[Tuple[float, float]], None, None]:
    """Yield a list that gets the relative and absolute tolerance of each comparison in the body."""
    read: List[Tuple[float, float]] = []

    def replace(owner: Any, name: str, exact: bool) -> None:
        old = getattr(owner, name, None)
        if old is None:
            return

        def noting(*args: Any, **kwargs: Any) -> Any:
            if exact:
                read.append((0.0, 0.0))
            else:
                bound = inspect.signature(old).bind(*args, **kwargs) if owner is not torch else None
                values: Dict[str, Any] = dict(bound.arguments) if bound else dict(kwargs)
                read.append((float(values.get("rtol", 1e-5)), float(values.get("atol", 1e-8))))
            return old(*args, **kwargs)

        undo.callback(setattr, owner, name, old)
        setattr(owner, name, noting)

    with contextlib.ExitStack() as undo:
        for owner in {id(each): each for each in (module, sys.modules.get("utils")) if each is not None}.values():
            replace(owner, "verbose_allclose", exact=False)
            replace(owner, "verbose_allequal", exact=True)
        replace(torch, "allclose", exact=False)
        yield read


def _like(tensor: Any, device: Any) -> Any:
    """Return a tensor of the same type, shape and strides elsewhere, with nothing in it; on `meta` without memory."""
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=device)


def _form(tensor: Any) -> Any:
    """Return what an answer has in common with memory for it: sizes but ones, and the type unless it is of floats."""
    return [size for size in tensor.shape if size != 1], "float" if tensor.is_floating_point() else tensor.dtype


def _mean_size(tensor: Any) -> float:
    """Return the mean absolute value of some elements; 0 of a type that has no large numbers."""
    # Torch computes with no pairs of four bits, and all of a large tensor as doubles may be more than there is memory.
    if not tensor.is_floating_point() or tensor.element_size() == 1 or not tensor.numel():
        return 0.0
    return float(tensor.reshape(-1)[:: -(-tensor.numel() // LOOKED_AT)].double().abs().mean())


def _copy(tensor: Any) -> Any:
    return _like(tensor, tensor.device).copy_(tensor)
