"""Calls of a program's operators, functions and modules, read back from JSON beside safetensors.

Stands alone: the same file lies, with workers/parts/call_writer.py, which writes them, beside a program whose calls are
recorded, and in an overlay that replaces them.
"""

import dataclasses
import importlib
import json
from typing import Any, Dict, List, Sequence, cast

torch: Any = importlib.import_module("torch")

DEEPEST = 24
"""Values within values, and modules within modules."""
TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""Source: safetensors' format description, https://github.com/huggingface/safetensors, README, "Format"."""


def fill(skeleton: Any, tensors: Sequence[Any] = (), leaves: Sequence[Any] = ()) -> Any:
    """Return a skeleton's value with tensors and plain values put in, or the one that `plain_value` wrote down."""
    kind, inner = next(iter(skeleton.items()))
    if kind == "value":
        return inner
    if kind == "tensor":
        return tensors[inner]
    if kind == "leaf":
        return leaves[inner]
    if kind == "float":
        return float(inner)
    if kind == "torch":
        return getattr(torch, inner)
    if kind == "device":
        return next((t.device for t in tensors if torch.is_tensor(t)), torch.device(inner))
    if kind == "dict":
        return {key: fill(each, tensors, leaves) for key, each in inner.items()}
    if kind == "name":
        return import_name(inner)
    if kind == "made":
        return made_of(import_name(inner["class"]), fill(inner["parts"], tensors, leaves))
    if kind == "object":
        return made_of(import_name(inner), {key: fill(each) for key, each in skeleton["own"].items()})
    listed = [fill(each, tensors, leaves) for each in inner]
    return listed if kind == "list" else tuple(listed)


def parts_of(value: Any) -> Any:
    """Return what a named tuple, a dictionary of its own class or a dataclass is made of; None for other values."""
    kind: Any = type(cast("object", value))
    given = value
    if isinstance(value, tuple) and (hasattr(kind, "_fields") or hasattr(kind, "n_fields")):  # torch's answers of max
        return tuple(given)
    if isinstance(value, dict) and kind is not dict:
        return dict(given)
    if dataclasses.is_dataclass(kind):
        names = [*(field.name for field in dataclasses.fields(kind)), *getattr(given, "__dict__", {})]
        return {name: getattr(given, name) for name in names if hasattr(given, name)}
    return None


def made_of(kind: Any, parts: Any) -> Any:
    """Return a value of a class from its parts."""
    if isinstance(parts, tuple):
        return kind(*cast("Any", parts)) if hasattr(kind, "_fields") else kind(parts)
    if issubclass(kind, dict):
        return cast("Any", kind(**parts))
    made: Any = kind.__new__(kind)
    for name, part in parts.items():
        object.__setattr__(made, name, part)
    return made


def tensors_in(found: Any, depth: int = 0) -> List[Any]:
    """Return the tensors of an answer in order, out of its tuples, lists, dictionaries and dataclasses."""
    if torch.is_tensor(found):
        return [found]
    parts = parts_of(found)
    found = found if parts is None else parts
    if depth > DEEPEST or not isinstance(found, (tuple, list, dict)):
        return []
    return [tensor for each in items_of(found) for tensor in tensors_in(each, depth + 1)]


def items_of(value: Any) -> List[Any]:
    """Return what a tuple or list holds, or a dictionary's values."""
    return [*(value.values() if isinstance(value, dict) else value)]


def read_samples(content: bytes) -> Dict[str, Any]:
    """Return the tensors of a safetensors file by name."""
    size = int.from_bytes(content[:8], "little")
    header: Dict[str, Any] = json.loads(content[8 : 8 + size])
    names = {short: long for long, short in TYPES.items()}
    found: Dict[str, Any] = {}
    for name, about in header.items():
        first, last = (8 + size + int(at) for at in about["data_offsets"])
        dtype = getattr(torch, names[about["dtype"]])
        flat = torch.frombuffer(bytearray(content[first:last]), dtype=dtype) if last > first else None
        found[name] = torch.empty(about["shape"], dtype=dtype) if flat is None else flat.reshape(about["shape"])
    return found


def import_name(text: str) -> Any:
    """Return the class or function of `module:name`."""
    where, _, name = text.partition(":")
    found: Any = importlib.import_module(where)
    for part in name.split("."):
        found = getattr(found, part)
    return found
