"""Calls of a program's operators, functions and modules, read back from JSON beside safetensors.

Stands alone: the same file lies, with workers/parts/call_writer.py, which writes them, beside a program whose calls are
recorded, and in an overlay that replaces them.
"""

import importlib
import json
from typing import Any, Dict, List

torch: Any = importlib.import_module("torch")

DEEPEST = 24
"""Values within values, and modules within modules."""
TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""Source: safetensors' format description, https://github.com/huggingface/safetensors, README, "Format"."""


def fill(skeleton: Any, tensors: List[Any], leaves: List[Any]) -> Any:
    """Return a skeleton's value with tensors and plain values put in."""
    ((kind, inner),) = skeleton.items()
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
    listed = [fill(each, tensors, leaves) for each in inner]
    return listed if kind == "list" else tuple(listed)


def tensors_in(found: Any, depth: int = 0) -> List[Any]:
    """Return the tensors of an answer in order, out of its tuples, lists and dictionaries."""
    if torch.is_tensor(found):
        return [found]
    if depth > DEEPEST or not isinstance(found, (tuple, list, dict)):
        return []
    return [tensor for each in items_of(found) for tensor in tensors_in(each, depth + 1)]


def items_of(value: Any) -> List[Any]:
    """Return what a tuple or list holds, or a dictionary's values."""
    return [*(value.values() if hasattr(value, "values") else value)]


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


def value_of(plain: Any) -> Any:
    """Return the value that `plain_value` wrote down."""
    kind, inner = next(iter(plain.items()))
    if kind == "object":
        kind_of_it = import_name(inner)
        made = kind_of_it.__new__(kind_of_it)
        for key, each in plain["own"].items():
            object.__setattr__(made, key, value_of(each))
        return made
    if kind == "name":
        return import_name(inner)
    if kind == "dict":
        return {key: value_of(each) for key, each in inner.items()}
    if kind in ("list", "tuple"):
        listed = [value_of(each) for each in inner]
        return listed if kind == "list" else tuple(listed)
    return getattr(torch, inner) if kind == "torch" else float(inner) if kind == "float" else inner


def import_name(text: str) -> Any:
    """Return the class or function of `module:name`."""
    where, _, name = text.partition(":")
    found: Any = importlib.import_module(where)
    for part in name.split("."):
        found = getattr(found, part)
    return found
