"""Calls an attempt's candidate at one shape, for profilers and checkers: nothing is judged and nothing is timed.

Laid into the job as a file: `run_attempt.py TASK.json`. A library is called through the CUDA driver alone, each
tensor an allocation of its own, so that a checker sees where one ends; a Python launcher gets torch's tensors, a
ModelNew what its problem makes. On the processor inputs are read-only, as the judge's are, and a library's tensors end
at pages that no access may touch.
"""

import array
import ctypes
import faulthandler
import importlib
import importlib.util
import inspect
import json
import mmap
import os
import random
import signal
import sys
import time
from typing import Any, Callable, Dict, List

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


def guarded_memory(count: int, dtype: str, seed: int, write: bool) -> int:
    """Return the address of memory for `count` items between pages that nobody may touch; an input is read-only."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size, page = max(count * ITEM_BYTES[dtype], 1), mmap.PAGESIZE
    inside = (size + page - 1) // page * page
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = libc.mmap(None, ctypes.c_size_t(inside + 2 * page), 0, flags, -1, ctypes.c_long(0))
    if base in (None, ctypes.c_void_p(-1).value):
        sys.exit("no memory for %d bytes" % inside)
    first, at = base + page, base + page + (inside - size) // 64 * 64  # the end at the page, but for alignment
    libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(inside), mmap.PROT_READ | mmap.PROT_WRITE)
    if write:
        block, done = pattern(dtype, seed), 0
        while done < size:
            part = min(len(block), size - done)
            ctypes.memmove(at + done, block, part)
            done += part
        libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(inside), mmap.PROT_READ)
    return at


def play_processor(task: Dict[str, Any]) -> None:
    """Call `int launch(inputs..., outputs..., dimensions...)`."""
    arguments: List[Any] = []
    for n, tensor in enumerate(task["inputs"] + task["outputs"]):
        at = guarded_memory(tensor["count"], tensor["dtype"], n, n < len(task["inputs"]))
        arguments.append(ctypes.c_void_p(at))
    arguments += [ctypes.c_int64(size) for size in task["dims"]]
    launch = getattr(ctypes.CDLL(os.path.abspath(task["library"])), task["symbol"])
    launch.restype = ctypes.c_int
    for _ in range(task["calls"]):
        code = launch(*arguments)
        if code:
            sys.exit("%s returned %d" % (task["symbol"], code))


def random_tensors(t: Any, tensors: List[Dict[str, Any]], device: str) -> List[Any]:
    """Return tensors of torch's, with values as for other launchers."""
    found: List[Any] = []
    for tensor in tensors:
        dtype = getattr(t, tensor["dtype"])
        if dtype.is_floating_point:
            found.append((t.rand(tensor["shape"], device=device) * 2 - 1).to(dtype))
        else:
            found.append(t.randint(0, 4, tensor["shape"], device=device).to(dtype))
    return found


def seal_tensor(t: Any, value: Any) -> Any:
    """Return a plain tensor in the processor's memory as a read-only copy, anything else as it is."""
    plain = isinstance(value, t.Tensor) and value.device.type == "cpu" and value.layout == t.strided
    if not plain or not value.is_contiguous() or not value.numel():
        return value
    pages = mmap.mmap(-1, value.numel() * value.element_size())
    copy = t.frombuffer(pages, dtype=value.dtype).view(value.shape)
    copy.copy_(value.detach())
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(copy.data_ptr()), ctypes.c_size_t(len(pages)), mmap.PROT_READ)
    return copy.requires_grad_(value.requires_grad)


def load_module(path: str, name: str) -> Any:
    """Run a Python file and return its module, under a name by which it is found, as the judge does."""
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(path))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wait(t: Any, device: str) -> None:
    """Wait for what was launched."""
    if device == "cuda":
        t.cuda.synchronize()


def launcher_of(module: Any, symbol: str) -> Any:
    """Return the function that the judge would call, and its name."""
    names = (symbol, "run", "custom_kernel", "solve") if symbol == "launch" else (symbol,)
    name = next((name for name in names if hasattr(module, name)), symbol)
    return getattr(module, name), name


def repeat(task: Dict[str, Any], call: Callable[[], Any]) -> None:
    """Call as often as the task says; where `REGION_S` asks for it, for so long, with the times told.

    perf, where `PERF_CONTROL` and `PERF_ANSWER` name its pipes, counts these calls alone.
    """
    limit_s = float(os.environ.get("REGION_S", 0))
    if not limit_s:
        for _ in range(task["calls"]):
            call()
        return
    call()
    tell_perf("enable")
    took: List[float] = []
    waited, began, used = waited_ns(), time.monotonic(), time.process_time()
    while len(took) < 3 or time.monotonic() - began < limit_s:
        start = time.monotonic()
        call()
        took.append(time.monotonic() - start)
    seconds = (time.monotonic() - began, time.process_time() - used)
    waited = waited_ns() - waited
    tell_perf("disable")
    if "TIMES" in os.environ:
        with open(os.environ["TIMES"], "w", encoding="ascii") as out:
            out.write("%d %d %d %d\n" % (len(took), 1e9 * seconds[0], 1e9 * seconds[1], waited))
            out.writelines("%d\n" % (1e9 * each) for each in took[-1000:])


def waited_ns() -> int:
    """Return how long this thread was ready and had no core; 0 where the kernel does not say it.

    Source: Documentation/scheduler/sched-stats.rst, second number of schedstat.
    """
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as text:
            return int(text.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def tell_perf(word: str) -> None:
    """Switch perf's counters on or off, and wait for its answer; nothing happens without perf."""
    if "PERF_CONTROL" in os.environ:
        with (
            open(os.environ["PERF_CONTROL"], "w", encoding="ascii") as control,
            open(os.environ["PERF_ANSWER"], "rb") as answer,
        ):
            control.write(word + "\n")
            control.flush()
            answer.readline()


def play_launcher(task: Dict[str, Any]) -> None:
    """Call `launch(*inputs, *outputs, *dimensions)` of a Python file, without what its parameters have no room for."""
    device = task.get("device", "cuda")
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    t: Any = importlib.import_module("torch")
    t.manual_seed(0)
    inputs = [seal_tensor(t, each) for each in random_tensors(t, task["inputs"], device)]
    outputs = [t.empty(o["shape"], dtype=getattr(t, o["dtype"]), device=device) for o in task["outputs"]]
    launch, name = launcher_of(load_module(task["library"], "candidate"), task["symbol"])
    given: List[Any] = [*inputs, *outputs, *task["dims"]]
    every = inspect.signature(launch).parameters.values()
    taken = sum(each.default is each.empty for each in every)
    if name == "custom_kernel" and taken == 1:
        given = [tuple(inputs) if len(inputs) != 1 else inputs[0]]
    elif taken in (len(inputs), len(inputs) + len(outputs)) and all(each.kind.value < 2 for each in every):
        given = given[:taken]
    repeat(task, lambda: launch(*given))
    wait(t, device)


def play_model(task: Dict[str, Any]) -> None:
    """Call `ModelNew` as KernelBench does; a problem that is a function has no arguments for it."""
    device = task.get("device", "cuda")
    t: Any = importlib.import_module("torch")
    if os.path.isdir("built"):  # extensions that were built ahead of the judgement
        load_module("judge_extensions.py", "judge_extensions").take_from(os.path.abspath("built"))
    problem = load_module("problem.py", "problem") if os.path.exists("problem.py") else None
    t.manual_seed(0)
    model = load_module(task["library"], "candidate").ModelNew(*(problem.get_init_inputs() if problem else []))
    model = model.to(device) if isinstance(model, t.nn.Module) else model
    given = problem.get_inputs() if problem else random_tensors(t, task["inputs"], device)
    given = [seal_tensor(t, each.to(device)) if isinstance(each, t.Tensor) else each for each in given]
    with t.no_grad():
        repeat(task, lambda: model(*given))
    wait(t, device)


KINDS = {"library": play_library, "processor": play_processor, "launcher": play_launcher, "model": play_model}


def tell_of_crashes(limit_s: float) -> None:
    """Have Python's frames written when the program crashes, and shortly before it counts as hung.

    An interrupt, which gdb passes on when it has seen a hang, ends the program: Python's own handler would not run.
    """
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if limit_s > 0:
        faulthandler.dump_traceback_later(max(1.0, limit_s - 2.0))
    if os.environ.get("CRASH_HANDLER"):
        ctypes.CDLL(os.environ["CRASH_HANDLER"]).install()


def main(arguments: List[str]) -> None:
    """Play a task."""
    with open(arguments[0], encoding="utf-8") as text:
        task = json.load(text)
    if "hang_s" in task:
        tell_of_crashes(float(task["hang_s"]))
    KINDS[task["kind"]](task)


if __name__ == "__main__":
    main(sys.argv[1:])
