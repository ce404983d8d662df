"""Runs a Python program under torch's profiler and writes down which operators, modules and kernels took its time.

Laid into the job as a file, together with python_profile, and run by the program's own interpreter:
`hotspot_trace.py PLAN OUTPUT SCRIPT|-m MODULE|-c TEXT ARGUMENTS`. PLAN is JSON: `warm_s`, `record_s`, `steps`. With
`beside`, a recording's path, it records the GPU's work alone, if that one was busy for less than BUSY_ENOUGH.

Source: torch 2.13's Chrome trace: categories cpu_op, user_annotation, kernel, gpu_memcpy, gpu_memset; args "Input
Dims", "Input type", "External id", which a kernel shares with the operator that launched it. Times are microseconds.
"""

import functools
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from types import FrameType
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

MARK = "gpu-mcp module: "
MOST_EVENTS, MOST_ROWS, MOST_SHAPES, MOST_KERNELS = 2000000, 200, 8, 8
AGAIN_S = 0.05
"""Until the next try to begin, after one in the middle of an import."""
COMPILER, COMPILING = " (dynamo_timed)", "torch.compile: compiling"
"""End of the names of the compiler's own parts, and the row that their time and all inside of them goes to."""
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
BUSY_ENOUGH = 0.9
"""Share of the recorded time from which on a second run would raise a bound by a tenth at most."""


def is_importing(frame: Optional[FrameType]) -> bool:
    """Say whether the program is in the middle of an import: what the profiler needs may be half there."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


class ModuleNames:
    """Marks each call of a module in the trace by the module's path, as `named_modules` of the outermost has it."""

    def __init__(self, torch: Any) -> None:
        # The faster one is not public; the other costs several times as much a call, which slows small modules.
        fast: Any = getattr(getattr(torch._C, "_profiler", None), "_RecordFunctionFast", None)
        self._new_mark: Callable[[str], Any] = fast or torch.profiler.record_function
        self._names: Dict[int, str] = {}
        self._threads = threading.local()
        nn = torch.nn.modules.module
        self._hooks = [nn.register_module_forward_pre_hook(self._enter)]
        try:
            self._hooks.append(nn.register_module_forward_hook(self._leave, always_call=True))
        except TypeError:  # torch before 2.1
            self._hooks.append(nn.register_module_forward_hook(self._leave))

    def _open(self) -> List[Any]:
        """Return the marks of this thread that are open."""
        return self._threads.__dict__.setdefault("open", [])

    def _enter(self, module: Any, _: Any) -> None:
        if id(module) not in self._names:
            outermost = type(module).__name__
            for path, part in module.named_modules():
                self._names.setdefault(id(part), "%s.%s" % (outermost, path) if path else outermost)
        mark = self._new_mark(MARK + self._names[id(module)])
        mark.__enter__()
        self._open().append(mark)

    def _leave(self, *_: Any) -> None:
        if self._open():
            self._open().pop().__exit__(None, None, None)

    def remove(self) -> None:
        """Take the marks out: torch.compile would trace them."""
        for hook in self._hooks:
            hook.remove()
        while self._open():  # of modules that are in the middle of their forward
            self._open().pop().__exit__(None, None, None)


class ProgramRecorder:
    """The part of the program's run that is recorded, begun and ended on the program's main thread."""

    def __init__(self, torch: Any, plan: Dict[str, Any], output: str) -> None:
        self._torch, self._plan, self._output = torch, plan, output
        self._profiler: Any = None
        self._began = self._end_s = 0.0
        self._steps = self._forks = 0
        self._process = os.getpid()
        self.compiled = 0
        self.names = ModuleNames(torch)
        if "beside" in plan:
            self.names.remove()

    def prepare(self) -> None:
        """Begin at once or after the warm-up; end after the recorded time."""
        os.register_at_fork(after_in_parent=self._count_fork)
        self._count_steps()
        compiler = getattr(self._torch, "compile", None)
        if compiler is not None:
            self._torch.compile = self._watch_compiler(compiler)
        if self._plan["warm_s"] > 0:
            with self._new_profiler():  # it imports parts of torch when it first starts
                pass
            signal.signal(signal.SIGALRM, self._begin)
            signal.setitimer(signal.ITIMER_REAL, self._plan["warm_s"])
        else:
            self._begin()

    def _count_fork(self) -> None:
        self._forks += 1

    def _watch_compiler(self, compiler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compiler)
        def compile_without_marks(*args: Any, **kwargs: Any) -> Any:
            self.compiled += 1
            self.names.remove()
            return compiler(*args, **kwargs)

        return compile_without_marks

    def _count_steps(self) -> None:
        optimizer = importlib.import_module("torch.optim.optimizer")
        register: Any = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if register is not None:
            register(self._step)

    def _step(self, *_: Any) -> None:
        if self._profiler is None:
            return
        self._steps += 1
        if self._plan["steps"] and self._steps >= self._plan["steps"]:
            self._time_is_up()

    def _new_profiler(self) -> Any:
        profiler: Any = self._torch.profiler
        has_operators = "beside" not in self._plan  # their records slow launches
        activities = [profiler.ProfilerActivity.CPU] if has_operators else []
        if self._torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        return profiler.profile(activities=activities, record_shapes=has_operators)

    def _begin(self, _: int = 0, frame: Optional[FrameType] = None) -> None:
        if is_importing(frame):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
            return
        self._profiler = self._new_profiler()
        self._profiler.__enter__()
        self._began = time.perf_counter()
        signal.signal(signal.SIGALRM, self._time_is_up)
        signal.setitimer(signal.ITIMER_REAL, self._plan["record_s"])

    def _time_is_up(self, *_: Any) -> None:
        self.end()
        leave()

    def end(self) -> None:
        """Stop and write what was seen; nothing the second time."""
        if os.getpid() != self._process:  # a forked worker that came to the program's end
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._profiler is None or self._end_s:
            return
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        self._end_s = time.perf_counter() - self._began
        self._profiler.__exit__(None, None, None)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            self._profiler.export_chrome_trace(path)
            with open(path, encoding="utf-8", errors="replace") as file:
                events = json.load(file).get("traceEvents", [])
        found: Dict[str, Any] = summarize(events)
        found.update(
            {
                "torch": str(self._torch.__version__),
                "device": self._torch.cuda.get_device_name() if self._torch.cuda.is_available() else None,
                "wall_s": self._end_s,
                "steps": self._steps,
                "compiled": self.compiled,
                "forks": self._forks,
            }
        )
        with open(self._output + ".part", "w", encoding="utf-8") as out:
            json.dump(found, out)
        os.rename(self._output + ".part", self._output)


class OperatorSums:
    """Sums over the calls of one operator, module or kernel."""

    def __init__(self) -> None:
        self.calls, self.self_us, self.device_us = 0, 0.0, 0.0
        self.unowned_us = 0.0
        """Of a kernel, where no operator launched it: a CUDA graph, another library."""
        self.parts: Dict[Tuple[str, ...], List[float]] = {}
        self.kernels: Dict[str, float] = {}
        self.modules: Dict[str, float] = {}

    def add(self, self_us: float, part: Tuple[str, ...] = ()) -> None:
        """Count one call."""
        self.calls += 1
        self.self_us += self_us
        own = self.parts.setdefault(part, [0, 0.0, 0.0])
        own[0] += 1
        own[1] += self_us

    def add_kernel(self, name: str, us: float, part: Tuple[str, ...], module: str) -> None:
        """Count a kernel that one of the calls launched."""
        self.device_us += us
        add_to(self.kernels, name[:300], us)
        if part in self.parts:
            self.parts[part][2] += us
        if module:
            add_to(self.modules, module, us)

    def to_json(self, name: str) -> Dict[str, Any]:
        """Return the row, its commonest parts alone."""
        parts = sorted(self.parts.items(), key=lambda kv: (-kv[1][2], -kv[1][1]))[:MOST_SHAPES]
        return {
            "name": name[:300],
            "calls": self.calls,
            "self_us": self.self_us,
            "device_us": self.device_us,
            "unowned_us": self.unowned_us,
            "shapes": [{"inputs": list(p), "calls": n, "self_us": us, "device_us": d} for p, (n, us, d) in parts if p],
            "kernels": largest(self.kernels),
            "modules": largest(self.modules),
        }


def summarize(events: Iterable[Dict[str, Any]]) -> Dict[str, Any]:
    """Return sums by operator, module and kernel.

    An operator's own time is without the operators inside it; a module's is whole. The rest is the host's, and waits.
    """
    on_host: Dict[Any, List[Dict[str, Any]]] = {}
    on_device: List[Dict[str, Any]] = []
    seen = 0
    for event in events:
        if event.get("ph") != "X" or not isinstance(event.get("dur"), (int, float)):
            continue
        seen += 1
        category = event.get("cat")
        if category in DEVICE and len(on_device) < MOST_EVENTS:  # they come last: none would be left of a long run
            on_device.append(event)
        elif seen <= MOST_EVENTS and category in ("cpu_op", "user_annotation"):
            on_host.setdefault(event.get("tid"), []).append(event)
    rows: Dict[str, OperatorSums] = {}
    modules: Dict[str, OperatorSums] = {}
    launched: Dict[Any, Tuple[str, str, Tuple[str, ...]]] = {}
    covered: List[Tuple[float, float]] = []
    for listed in on_host.values():
        covered += add_thread(listed, rows, modules, launched, bool(on_device))
    kernels: Dict[str, OperatorSums] = {}
    for event in on_device:
        name = str(event.get("name"))
        kernels.setdefault(name, OperatorSums()).add(float(event["dur"]))
        args: Dict[str, Any] = event.get("args") or {}
        owner = launched.get(args.get("External id"))
        if owner is None:
            kernels[name].unowned_us += float(event["dur"])
        else:
            rows[owner[0]].add_kernel(name, float(event["dur"]), owner[2], owner[1])
            add_to_modules(modules, owner[1], float(event["dur"]))
    by_time: Callable[[Tuple[str, OperatorSums]], float] = lambda kv: -max(kv[1].self_us, kv[1].device_us)  # noqa: E731
    listed_rows = {"operators": rows, "modules": modules, "kernels": kernels}
    return {
        **{k: [r.to_json(n) for n, r in sorted(v.items(), key=by_time)[:MOST_ROWS]] for k, v in listed_rows.items()},
        "covered_us": union_us(covered),
        "device_busy_us": union_us([(float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in on_device]),
        "device_events": len(on_device),
        "events": seen,
        "events_left_out": seen > MOST_EVENTS,
    }


def add_thread(
    listed: List[Dict[str, Any]],
    rows: Dict[str, OperatorSums],
    modules: Dict[str, OperatorSums],
    launched: Dict[Any, Tuple[str, str, Tuple[str, ...]]],
    on_gpu: bool,
) -> List[Tuple[float, float]]:
    """Add one thread's operators, which nest; return when its outermost ones ran."""
    listed.sort(key=lambda e: (float(e["ts"]), -float(e["dur"])))
    outermost: List[Tuple[float, float]] = []
    stack: List[List[Any]] = []  # [end, event, time of children, module around it, compiling]

    def close(top: List[Any]) -> None:
        _, event, inner, module, compiling = top
        name = str(event.get("name"))
        own = max(0.0, float(event["dur"]) - inner)
        if name.startswith(MARK):
            modules.setdefault(name[len(MARK) :], OperatorSums()).add(float(event["dur"]))
            return
        name = COMPILING if compiling else name
        args: Dict[str, Any] = event.get("args") or {}
        rows.setdefault(name, OperatorSums()).add(own, part_of(args))
        if module and not on_gpu:
            add_to(rows[name].modules, module, own)
        if args.get("External id") is not None:
            launched[args["External id"]] = (name, module, part_of(args))

    for event in listed:
        start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        while stack and stack[-1][0] <= start:
            close(stack.pop())
        marked = str(event.get("name")).startswith(MARK)
        module = str(event["name"])[len(MARK) :] if marked else stack[-1][3] if stack else ""
        if not marked:
            around = next((s for s in reversed(stack) if not str(s[1].get("name")).startswith(MARK)), None)
            if around is not None:
                around[2] += float(event["dur"])
            else:
                outermost.append((start, end))
        compiling = str(event.get("name")).endswith(COMPILER) or bool(stack and stack[-1][4])
        stack.append([end, event, 0.0, module, compiling])
    while stack:
        close(stack.pop())
    return outermost


def add_to(sums: Dict[str, float], name: str, us: float) -> None:
    """Add to one of the sums."""
    sums[name] = sums.get(name, 0.0) + us


def add_to_modules(modules: Dict[str, OperatorSums], path: str, us: float) -> None:
    """Add a kernel's time to the module whose forward launched it, and to those around that."""
    while path:
        if path in modules:
            modules[path].device_us += us
        path = path.rpartition(".")[0]


def largest(sums: Dict[str, float]) -> Dict[str, float]:
    """Return the largest sums by name."""
    return dict(sorted(sums.items(), key=lambda kv: -kv[1])[:MOST_KERNELS])


def part_of(args: Dict[str, Any]) -> Tuple[str, ...]:
    """Return the type and shape of each input of an operator: `float[64, 128]`; of a scalar its type."""
    dims: Any = args.get("Input Dims") or []
    types: Any = args.get("Input type") or []
    found = ["%s%s" % (t, list(d)) if d else str(t) for d, t in zip(dims, types) if t]
    return tuple(text[:120] for text in found[:12])


def union_us(spans: List[Tuple[float, float]]) -> float:
    """Return how long at least one of the spans lasts."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def is_slowed(recording: str) -> bool:
    """Say whether the records of launches may have kept a program's GPU waiting."""
    with open(recording, encoding="utf-8") as file:
        found = json.load(file)
    return 0 < float(found["device_busy_us"]) < BUSY_ENOUGH * 1e6 * float(found["wall_s"])


def leave() -> None:
    """End the program: the rest of it is not run."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main(arguments: List[str]) -> None:
    """Record the program, and write what was seen whatever came of it."""
    plan, output, rest = json.loads(arguments[0]), os.path.abspath(arguments[1]), arguments[2:]
    if "beside" in plan and not is_slowed(plan["beside"]):
        return
    beside: Any = importlib.import_module("python_profile")  # it lies beside this file
    try:
        torch: Any = beside.import_profiler()
    except ImportError as error:
        with open(output, "w", encoding="utf-8") as out:
            json.dump({"missing": str(error), "python": sys.executable}, out)
        sys.exit(3)
    recording = ProgramRecorder(torch, plan, output)
    recording.prepare()
    try:
        beside.play(rest)
    finally:
        sys.stdout.flush()
        recording.end()


if __name__ == "__main__":
    sys.path[:] = dict.fromkeys([os.path.dirname(os.path.abspath(sys.argv[0])), *sys.path])  # -I and -P leave it out
    main(sys.argv[1:])
