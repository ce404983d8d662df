"""Calls of a program's operators, functions and modules as JSON beside safetensors; call_records reads them back.

Laid beside a program whose calls are recorded, and into an overlay that replaces them, with call_records.
"""

import ctypes
import enum
import importlib
import json
import math
import sys
from typing import Any, Dict, List, Optional, Tuple

torch: Any = importlib.import_module("torch")
records: Any = importlib.import_module("call_records")
fill, tensors_in = records.fill, records.tensors_in

DEEPEST: int = records.DEEPEST
TYPES: Dict[str, str] = records.TYPES
MAIN = "program_main"
"""Module name under which the definitions of the program's script are imported."""
QUANTILES, SAMPLED = 129, 65536
"""Quantiles kept of a tensor that is too large, and the most values to compute them from."""
WEIGHT_BYTES = 1024
"""Largest parameter whose values are kept; of a larger one the quantiles are."""
VARIED = ("float64", "float32", "float16", "bfloat16")
"""Types whose recorded values are varied."""
TORCH = ("dtype", "layout", "memory_format")


class NotRecordable(Exception):
    """A value has no form that can be written down; the words say which."""


def is_plain(value: Any) -> bool:
    """Say whether a value is written down as it is."""
    return kind_of_value(value) in ("NoneType", "bool", "int", "str") or (is_float(value) and math.isfinite(value))


def kind_of_value(value: Any) -> str:
    """Return the name of a value's type."""
    return str(value.__class__.__name__)


def is_float(value: Any) -> bool:
    """Say whether a value is one of Python's floats."""
    return kind_of_value(value) == "float"


class Skeleton:
    """The arguments of calls with holes for tensors and plain values: what calls of one kind have in common."""

    def __init__(self) -> None:
        self.tensors: List[Any] = []
        self.leaves: List[Any] = []

    def take(self, value: Any, depth: int = 0) -> Any:
        """Return a value with its tensors and plain values taken out.

        Raises:
            NotRecordable: If it is of no known kind.
        """
        if depth > DEEPEST:
            raise NotRecordable("a value that is nested more than %d deep" % DEEPEST)
        if torch.is_tensor(value):
            check_memory(value)
            self.tensors.append(value)
            return {"tensor": len(self.tensors) - 1}
        if is_plain(value):
            self.leaves.append(value)
            return {"leaf": len(self.leaves) - 1}
        if is_float(value):
            return {"float": repr(value)}
        if isinstance(value, enum.Enum):
            return {"name": name_of_member(value)}
        parts = records.parts_of(value)
        if parts is not None:
            return {"made": {"class": name_of_made(value, parts), "parts": self.take(parts, depth + 1)}}
        if isinstance(value, (tuple, list)):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [self.take(each, depth + 1) for each in records.items_of(value)]}
        if kind_of_value(value) == "dict" and all(isinstance(key, str) for key in value):
            return {"dict": {key: self.take(each, depth + 1) for key, each in value.items()}}
        for kind in TORCH:
            if isinstance(value, getattr(torch, kind)):
                return {"torch": str(value).replace("torch.", "")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if type(value).__module__.startswith("triton.language"):  # tl.float16, as kernels take it
            return {"name": name_of_constant(value, "triton.language")}
        text = "an argument of type %s: capture a function inside of it that takes tensors and plain values"
        raise NotRecordable(text % kind_of_value(value))


def tensor_names(tree: Any, names: List[str]) -> List[str]:
    """Return a name for each tensor of a call: its parameter's, with its place where it is in a list."""
    found: Dict[int, str] = {}

    def walk(node: Any, name: str) -> None:
        ((kind, inner),) = node.items()
        if kind == "tensor":
            found[inner] = name
        elif kind in ("list", "tuple"):
            for place, each in enumerate(inner):
                walk(each, "%s_%d" % (name, place))
        elif kind == "dict":
            for key, each in inner.items():
                walk(each, key)
        elif kind == "made":
            walk(inner["parts"], name)

    args, kwargs = tree["tuple"]
    for place, each in enumerate(args["tuple"]):
        walk(each, names[place] if place < len(names) else "x%d" % place)
    walk(kwargs, "")
    return [found[number] for number in sorted(found)]


def check_memory(tensor: Any) -> None:
    """Raise `NotRecordable` for a tensor that has no steps or no memory: sparse, nested, or inside of torch.func."""
    if tensor.is_nested:
        raise NotRecordable("a nested tensor")
    if tensor.layout is not torch.strided:
        raise NotRecordable("a tensor of layout %s" % str(tensor.layout).replace("torch.", ""))
    if type(tensor).__name__ != "FakeTensor":  # those of a trace of torch.compile are passed over, without a word
        try:
            tensor.data_ptr()
        except RuntimeError:
            raise NotRecordable("a tensor without memory, as torch.func (vmap, grad) passes it") from None


def about_tensor(value: Any) -> Dict[str, Any]:
    """Return type, sizes and steps of a tensor, by which calls are told apart.

    Raises:
        NotRecordable: If it has none.
    """
    check_memory(value)
    return {
        "dtype": str(value.dtype).replace("torch.", ""),
        "shape": [int(size) for size in value.shape],
        "strides": [int(step) for step in value.stride()],
    }


class SampleWriter:
    """Collects samples of tensors within a limit, as one safetensors file."""

    def __init__(self, most_bytes: int, most_each: int) -> None:
        self.left, self.most_each = most_bytes, most_each
        self.header: Dict[str, Any] = {}
        self.parts: List[bytes] = []
        self.at = 0

    def add(self, name: str, value: Any, most: Optional[int] = None) -> Dict[str, Any]:
        """Keep a tensor's values, or their quantiles where it is too large; return how it is made again.

        Args:
            name: Of the sample.
            value: The tensor.
            most: Bytes of it that are kept; as many as of each unless given.

        Raises:
            NotRecordable: If it is too large and its values are no floats.
        """
        about = about_tensor(value)
        if about["dtype"] not in TYPES:
            raise NotRecordable("a tensor of %s" % about["dtype"])
        wide = [at for at, (size, step) in enumerate(zip(value.shape, value.stride())) if size > 1 and step == 0]
        for at in wide:  # expanded: one value stands for all
            value = value.narrow(at, 0, 1)
        count = value.numel() * value.element_size()
        if count <= min(self.left, self.most_each if most is None else most):
            kept = value.detach().to("cpu").contiguous()
            self.left -= count
            self.header[name] = {
                "dtype": TYPES[about["dtype"]], "shape": list(kept.shape), "data_offsets": [self.at, self.at + count],
            }  # fmt: skip
            self.parts.append(ctypes.string_at(kept.data_ptr(), count) if count else b"")
            self.at += count
            fixed = about["dtype"] not in VARIED or bool(torch.isinf(kept).any())
            return dict(about, stored=name, fixed=fixed)
        if about["dtype"] not in VARIED:
            text = "%s%s has %d bytes; indices and masks may have %d each, and %d are left for all"
            raise NotRecordable(text % (about["dtype"], about["shape"], count, self.most_each, self.left))
        return dict(about, quantiles=quantiles_of(value), fixed=False)

    def content(self) -> bytes:
        """Return the file."""
        header = json.dumps(self.header).encode()
        header += b" " * (-len(header) % 8)
        return len(header).to_bytes(8, "little") + header + b"".join(self.parts)


def quantiles_of(value: Any) -> List[float]:
    """Return quantiles of a tensor's values, least and greatest among them."""
    flat = value.detach().reshape(-1)
    step = max(1, flat.numel() // SAMPLED)
    some = torch.nan_to_num(flat[::step].to("cpu", torch.float64)).sort().values
    places = torch.linspace(0, some.numel() - 1, QUANTILES).round().long()
    return [float(v) for v in some[places]]


_USUAL: Any = frozenset(torch.nn.Module().__dict__)


def describe_module(module: Any, writer: Optional[SampleWriter], prefix: str = "", depth: int = 0) -> Dict[str, Any]:
    """Return what a module is made of: its class, plain attributes, weights by type and size, children.

    Without a writer values of weights are left out; `prefix` stands before their names.

    Raises:
        NotRecordable: If an attribute has no form that can be written down.
    """
    if depth > DEEPEST:
        raise NotRecordable("a module that is nested more than %d deep" % DEEPEST)
    own: Dict[str, Any] = {}
    for name, value in module.__dict__.items():
        if name in _USUAL and name != "training":
            continue
        try:
            own[name] = plain_value(value)
        except NotRecordable as error:
            text = "%s, the attribute %s of %s: capture a module, function or operator inside of it"
            raise NotRecordable(text % (error, name, type(module).__name__)) from None
    found: Dict[str, Any] = {"class": name_of(type(module)), "own": own}
    for kind, most in (("parameters", WEIGHT_BYTES), ("buffers", None)):
        found[kind] = {
            name: _about_weight(writer, prefix + name, value, most)
            for name, value in getattr(module, "_" + kind).items()
        }
    found["transient"] = sorted(module._non_persistent_buffers_set)
    found["children"] = {
        name: None if child is None else describe_module(child, writer, "%s%s." % (prefix, name), depth + 1)
        for name, child in module._modules.items()
    }
    return found


def _about_weight(writer: Optional[SampleWriter], name: str, value: Any, most: Optional[int]) -> Any:
    if value is None or writer is None:
        return value if value is None else about_tensor(value)
    return writer.add("weight." + name, value, most)


def plain_value(value: Any, depth: int = 0) -> Any:
    """Return an attribute's value as JSON; raise `NotRecordable` if it is of no known kind."""
    if depth > DEEPEST:
        raise NotRecordable("a value that is nested more than %d deep" % DEEPEST)
    if is_plain(value):
        return {"value": value}
    if is_float(value):
        return {"float": repr(value)}
    if isinstance(value, (tuple, list)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [plain_value(each, depth + 1) for each in records.items_of(value)]}
    if isinstance(value, enum.Enum):
        return {"name": name_of_member(value)}
    if kind_of_value(value) == "dict" and all(isinstance(key, str) for key in value):
        return {"dict": {key: plain_value(each, depth + 1) for key, each in value.items()}}
    for kind in TORCH:
        if isinstance(value, getattr(torch, kind)):
            return {"torch": str(value).replace("torch.", "")}
    if torch.is_tensor(value) or isinstance(value, (torch.device, torch.nn.Module)):
        raise NotRecordable("a %s" % kind_of_value(value))
    if callable(value) and hasattr(value, "__qualname__"):
        return {"name": name_of(value)}
    if hasattr(value, "__dict__") and not callable(value):
        own = {key: plain_value(each, depth + 1) for key, each in value.__dict__.items()}
        return {"object": name_of(type(value)), "own": own}
    raise NotRecordable("a value of type %s" % kind_of_value(value))


def name_of(value: Any) -> str:
    """Return `module:name` of a class or function; raise `NotRecordable` if it cannot be found again by it."""
    inside = str(getattr(value, "__module__", None) or "builtins")
    for name in (str(value.__qualname__), str(value.__name__)):  # torch.tanh calls itself _VariableFunctionsClass.tanh
        found = sys.modules.get(inside)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None and "<" not in name:
            return "%s:%s" % (MAIN if inside == "__main__" else inside, name)
    raise NotRecordable("%s, which has no name in its module" % value.__qualname__)


def name_of_member(value: enum.Enum) -> str:
    """Return `module:name` of an enumeration's member; raise `NotRecordable` where it is none by a name."""
    if value.name not in type(value).__members__:
        raise NotRecordable("%s, which is no member of its enumeration" % value)
    return "%s.%s" % (name_of(type(value)), value.name)


def name_of_constant(value: Any, module: str) -> str:
    """Return `module:name` of what a module holds; raise `NotRecordable` if it does not."""
    for name, each in vars(sys.modules[module]).items():
        if each is value:
            return "%s:%s" % (module, name)
    raise NotRecordable("an argument of type %s, which %s does not hold" % (kind_of_value(value), module))


def name_of_made(value: Any, parts: Any) -> str:
    """Return `module:name` of a value's class; raise `NotRecordable` where it cannot be made of its parts."""
    try:
        records.made_of(type(value), parts)
    except Exception as error:
        raise NotRecordable("a %s, which cannot be made of its parts (%s)" % (type(value).__name__, error)) from None
    return name_of(type(value))


def key_of(tensors: List[Any], leaves: List[Any]) -> Tuple[Any, ...]:
    """Return by what a call is known again: its tensors' types, sizes and steps, and its plain values."""
    told = [_key_part(str(t.dtype)[6:], t.shape, t.stride()) for t in tensors]
    return (*told, *[(type(v).__name__, v) for v in leaves])


def key_of_recorded(one: Dict[str, Any]) -> Tuple[Any, ...]:
    """Return the same of a set that was written down."""
    told = [_key_part(t["dtype"], t["shape"], t["strides"]) for t in one["tensors"]]
    return (*told, *[(type(v).__name__, v) for v in one["leaves"]])


def _key_part(dtype: str, shape: Any, strides: Any) -> Tuple[Any, ...]:
    return (dtype, *shape, None, *[step if size > 1 else 0 for size, step in zip(shape, strides)])


def plain_part(described: Dict[str, Any]) -> Dict[str, Any]:
    """Return a module's description without what differs between modules that are built alike: values of weights."""
    weights = {
        kind: {
            name: about and {key: about[key] for key in ("dtype", "shape", "strides")}
            for name, about in described[kind].items()
        }
        for kind in ("parameters", "buffers")
    }
    children = {name: child and plain_part(child) for name, child in described["children"].items()}
    return dict(described, children=children, **weights)
