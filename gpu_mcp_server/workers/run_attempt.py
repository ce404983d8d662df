"""Calls an attempt's launcher at one shape, for profilers and checkers: nothing is judged and nothing is timed.

Laid into the job as a file: `run_attempt.py TASK.json`. A library is called through the CUDA driver alone, each
tensor an allocation of its own, so that a checker sees where one ends; a Triton file gets torch's tensors.
"""

import array
import ctypes
import importlib
import json
import os
import random
import sys
from typing import Any, Dict, List

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
ITEM_BYTES.update({"int8": 1, "uint8": 1, "int32": 4, "int64": 8, "bool": 1})
ITEM_BYTES.update({"float8_e4m3fn": 1, "float8_e5m2": 1, "float4_e2m1fn_x2": 1})
BLOCK_ITEMS = 1 << 16


def pattern(dtype: str, seed: int) -> bytes:
    """Return values for one block: floats in [-1, 1), whole numbers from 0 to 3."""
    chance = random.Random(seed)
    if dtype in ("float32", "float64"):
        code = "f" if dtype == "float32" else "d"
        return array.array(code, [chance.uniform(-1, 1) for _ in range(BLOCK_ITEMS)]).tobytes()
    if dtype in ("float16", "bfloat16"):  # sign, an exponent of at most 0, some mantissa
        top = 0x38 if dtype == "float16" else 0x3F
        return bytes(b for _ in range(BLOCK_ITEMS) for b in (chance.randrange(64), top | chance.choice((0, 0x80))))
    size = ITEM_BYTES[dtype]
    return b"".join(chance.randrange(2 if dtype == "bool" else 4).to_bytes(size, "little") for _ in range(BLOCK_ITEMS))


class Cuda:
    """The driver's few calls."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver; an error ends the program, in the driver's own words."""
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            sys.exit("%s: %s" % (name, (text.value or b"CUDA error %d" % code).decode()))

    def allocate_filled(self, count: int, dtype: str, seed: int, write: bool) -> ctypes.c_void_p:
        """Return memory for `count` items, written when it is an input."""
        size = count * ITEM_BYTES[dtype]
        at = ctypes.c_void_p()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(max(size, 1)))
        if write and size:
            block = pattern(dtype, seed)
            done = min(len(block), size)
            self.call("cuMemcpyHtoD_v2", at, block, ctypes.c_size_t(done))
            while done < size:  # each copy doubles what is there
                more = min(done, size - done)
                to = ctypes.c_void_p((at.value or 0) + done)
                self.call("cuMemcpyDtoD_v2", to, at, ctypes.c_size_t(more))
                done += more
        return at


def play_library(task: Dict[str, Any]) -> None:
    """Call `int launch(inputs..., outputs..., dimensions..., stream)`."""
    cuda = Cuda()
    arguments: List[Any] = []
    for n, tensor in enumerate(task["inputs"] + task["outputs"]):
        arguments.append(cuda.allocate_filled(tensor["count"], tensor["dtype"], n, n < len(task["inputs"])))
    arguments += [ctypes.c_int64(size) for size in task["dims"]]
    arguments.append(ctypes.c_void_p(0))
    launch = getattr(ctypes.CDLL(os.path.abspath(task["library"])), task["symbol"])
    launch.restype = ctypes.c_int
    for _ in range(task["calls"]):
        code = launch(*arguments)
        if code:
            sys.exit("%s returned %d" % (task["symbol"], code))
    cuda.call("cuCtxSynchronize")


def play_triton(task: Dict[str, Any]) -> None:
    """Call `launch(*inputs, *outputs, *dimensions)` of a Python file."""
    import runpy

    t: Any = importlib.import_module("torch")
    t.manual_seed(0)
    tensors: List[Any] = []
    for n, tensor in enumerate(task["inputs"] + task["outputs"]):
        dtype = getattr(t, tensor["dtype"])
        if n >= len(task["inputs"]):
            tensors.append(t.empty(tensor["shape"], dtype=dtype, device="cuda"))
        elif dtype.is_floating_point:
            tensors.append((t.rand(tensor["shape"], device="cuda") * 2 - 1).to(dtype))
        else:
            tensors.append(t.randint(0, 4, tensor["shape"], device="cuda").to(dtype))
    launch = runpy.run_path(task["library"], run_name="candidate")[task["symbol"]]
    for _ in range(task["calls"]):
        launch(*tensors, *task["dims"])
    t.cuda.synchronize()


def main(arguments: List[str]) -> None:
    """Play a task."""
    with open(arguments[0], encoding="utf-8") as text:
        task = json.load(text)
    (play_triton if task["kind"] == "triton" else play_library)(task)


if __name__ == "__main__":
    main(sys.argv[1:])
