"""Runs a Python program and writes down the calls of one operator, function, module or kernel, with their inputs.

Laid into the job as a file, with python_profile and `package_files.CALL_FILES`, and run by the program's own
interpreter: `capture_calls.py PLAN FOLDER SCRIPT|-m MODULE|-c TEXT ARGUMENTS`. PLAN is JSON: `kind`,
`target`, `record_s`, `sets`, `sample_bytes`, `each_bytes`.
"""

import functools
import importlib
import inspect
import json
import os
import re
import signal
import sys
import threading
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

Arguments = Tuple[Any, ...]
Named = Dict[str, Any]
SAMPLED = 65536
"""Values of an answer that are looked at."""
SEEN = 400
"""Names of operators or modules that are remembered, to say which there were."""
BUILDS = 4
"""Ways in which modules of one path are built, training and evaluation among them, whose calls are recorded."""


class CallRecorder:
    """Sets and counts of the calls so far."""

    def __init__(self, torch: Any, plan: Dict[str, Any], folder: str) -> None:
        self.torch, self.plan, self.folder = torch, plan, folder
        self.records: Any = importlib.import_module("call_writer")
        self.writer = self.records.SampleWriter(plan["sample_bytes"], plan["each_bytes"])
        self.sets: Dict[Any, Dict[str, Any]] = {}
        self.seen: Dict[str, int] = {}
        self.modules: List[Named] = []
        self.others = self.graphs = self.compiled = self.differing = 0
        self.wrong = self.overload = ""
        self.device = "cpu"
        self.written: List[str] = []
        self.pure: List[str] = []
        """Arguments of a Triton kernel that it writes, and those of them whose values before do not count."""
        self._lock = threading.RLock()
        self._began = False
        self._process, self.forks = os.getpid(), 0
        os.register_at_fork(after_in_parent=self._count_fork)

    def _count_fork(self) -> None:
        self.forks += 1

    def note_name(self, name: str) -> None:
        """Remember that something of this name ran."""
        if name in self.seen or len(self.seen) < SEEN:
            self.seen[name] = self.seen.get(name, 0) + 1

    def take(self, args: Arguments, kwargs: Named, names: List[str], build: int = 0) -> Optional[Named]:
        """Count a call that is about to be made; return its set where it is the first of it."""
        with self._lock:
            if not self._began:
                self._began = True
                signal.signal(signal.SIGALRM, self._time_is_up)
                signal.setitimer(signal.ITIMER_REAL, self.plan["record_s"])
            cuda = self.torch.cuda
            if cuda.is_available() and cuda.is_current_stream_capturing():
                self.graphs += 1
                return None
            skeleton = self.records.Skeleton()
            try:
                tree = skeleton.take((tuple(args), dict(kwargs)))
            except self.records.NotRecordable as error:
                self.wrong = str(error)
                return None
            if any(type(t).__name__ == "FakeTensor" for t in skeleton.tensors):
                return None
            key = (build, json.dumps(tree), self.records.key_of(skeleton.tensors, skeleton.leaves))
            if key in self.sets:
                self.sets[key]["calls"] += 1
                return None
            if len(self.sets) >= self.plan["sets"]:
                self.others += 1
                return None
            self.sets[key] = one = self._new_set(tree, skeleton, names)
            one["module"] = build
            return one

    def _new_set(self, tree: Any, skeleton: Any, names: List[str]) -> Dict[str, Any]:
        one: Dict[str, Any] = {"skeleton": tree, "leaves": skeleton.leaves, "calls": 1, "tensors": [], "why": ""}
        one["names"] = self.records.tensor_names(tree, names)
        number = len(self.sets)
        for place, tensor in enumerate(skeleton.tensors):
            if tensor.device.type != "cpu":
                self.device = str(tensor.device.type)
            try:
                one["tensors"].append(self.writer.add("set%d.%d" % (number, place), tensor))
            except self.records.NotRecordable as error:
                one["why"] = "%s: %s" % (one["names"][place], error)
                break
        one["bytes"] = sum(t.numel() * t.element_size() for t in skeleton.tensors)
        return one

    def hook_function(self, function: Any) -> Any:
        """Return a function that counts its calls, and sees whether one writes to its inputs."""
        hooks: Any = importlib.import_module("program_hooks")
        self.wrong = hooks.why_no_function(function, self.plan["target"])
        if self.wrong:
            return function
        names = parameters_of(function)

        def counted(*args: Any, **kwargs: Any) -> Any:
            return self.watch(function, args, kwargs, names)

        return hooks.stand_in(function, counted)

    def watch(
        self, function: Any, args: Arguments, kwargs: Named, names: List[str], build: int = 0, module: Any = None
    ) -> Any:
        """Make a call and see whether it writes to its inputs, or changes the buffers of a module that it calls."""
        one = self.take(args, kwargs, names, build)
        if one is None:
            return function(*args, **kwargs)
        given = self.records.tensors_in([list(args), kwargs])
        before = [t._version for t in given if not t.is_inference()]
        kept = {name: buffer.clone() for name, buffer in buffers_of(module).items()}
        found = function(*args, **kwargs)
        if before != [t._version for t in given if not t.is_inference()]:
            one["why"] = "it writes to its inputs"
        now = buffers_of(module)  # batch norm's statistics change, their version does not
        changed = [name for name in kept if not self._are_equal(kept[name], now.get(name))]
        if changed:
            one["why"] = (
                "it changes its buffers (%s), which a kernel in its place would leave as they are: capture it in "
                "evaluation mode, or an operator or function inside of it" % ", ".join(changed[:4])
            )
        self.note_answers(one, found)
        return found

    def _are_equal(self, one: Any, other: Any) -> bool:
        if other is None or one.shape != other.shape or one.dtype != other.dtype:
            return False
        first, second = (each.contiguous().reshape(-1).view(self.torch.uint8) for each in (one, other))
        return bool(self.torch.equal(first, second))  # by bytes: NaN that stays is no change

    def note_answers(self, one: Dict[str, Any], found: Any) -> None:
        """Note of what size the values of a set's answers usually are."""
        answers = self.records.tensors_in(found)
        if not answers:
            one["why"] = one["why"] or "it returns no tensor"
        form = self.records.Skeleton()
        try:
            one["answer"], one["answer_leaves"] = form.take(found), form.leaves
        except self.records.NotRecordable:
            one["answer"], one["answer_leaves"] = None, []  # it can be judged, but not put back
        sizes: List[float] = []
        for each in answers:
            if each.is_floating_point() and each.numel():
                some = self.torch.nan_to_num(each.detach().reshape(-1)[:SAMPLED].double(), 0.0, 0.0, 0.0)
                sizes.append(float(some.square().mean().sqrt()))
        one["answers"] = min((size for size in sizes if size > 0), default=None)

    def _time_is_up(self, *_: Any) -> None:
        self.end(True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def end(self, cut: bool = False) -> None:
        """Write what was seen, and whether the program was cut off; in a forked worker nothing."""
        if os.getpid() != self._process:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        here = os.path.realpath(os.getcwd()) + os.sep
        loaded: Dict[str, str] = {}
        for name, module in list(sys.modules.items()):
            path = os.path.realpath(str(getattr(module, "__file__", None) or "/"))
            if path.startswith(here) and path.endswith(".py") and ".gpu-mcp" not in path:
                loaded[name] = path[len(here) :]
        found = {
            "kind": self.plan["kind"], "sets": list(self.sets.values()), "seen": self.seen, "modules": self.modules,
            "others": self.others, "graphs": self.graphs, "compiled": self.compiled, "differing": self.differing,
            "wrong": self.wrong, "overload": self.overload, "device": self.device, "loaded": loaded,
            "written": self.written, "pure": self.pure, "forks": self.forks, "cut": cut, "python": sys.executable,
            "torch": str(self.torch.__version__), "interpreted": os.environ.get("TRITON_INTERPRET") == "1",
        }  # fmt: skip
        with open(os.path.join(self.folder, "inputs.safetensors"), "wb") as file:
            file.write(self.writer.content())
        with open(os.path.join(self.folder, "calls.json"), "w", encoding="utf-8") as out:
            json.dump(found, out)


def buffers_of(module: Any) -> Named:
    """Return the buffers of a module and of those inside it; none where there is no module."""
    return {} if module is None else dict(module.named_buffers())


def parameters_of(function: Any) -> List[str]:
    """Return the names of a function's positional parameters."""
    try:
        return [p.name for p in inspect.signature(function).parameters.values() if p.kind < 2]
    except (TypeError, ValueError):
        return []


def record_operator(recorder: CallRecorder) -> Callable[[], None]:
    """See each operator that the program calls below its gradients; return how that ends."""
    torch = recorder.torch
    modes: Any = importlib.import_module("torch.utils._python_dispatch")
    wanted = recorder.plan["target"].replace("::", ".")

    class Watching(modes.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(func)  # aten.mm.default
            packet = name.rpartition(".")[0]
            recorder.note_name(packet.replace(".", "::", 1))
            one = self._take(name, func, args, kwargs or {}) if wanted in (name, packet) else None
            found = func(*args, **(kwargs or {}))
            if one is not None:
                recorder.note_answers(one, found)
            return found

        def _take(self, name: str, func: Any, args: Any, kwargs: Any) -> Optional[Dict[str, Any]]:
            if recorder.overload and recorder.overload != name:
                recorder.differing += 1
            elif func._schema.is_mutable:
                recorder.wrong = recorder.wrong or "%s writes to its inputs" % name
            else:
                recorder.overload = name
                with torch.no_grad():
                    return recorder.take(args, kwargs, [a.name for a in func._schema.arguments])
            return None

    mode = Watching()
    mode.__enter__()
    return lambda: mode.__exit__(None, None, None)


def wrap_named(recorder: CallRecorder, wrap: Callable[[Any], Any]) -> None:
    """Put `wrap(it)` in the place of the target's function or kernel, once its module is there."""
    hooks: Any = importlib.import_module("program_hooks")
    where, _, name = recorder.plan["target"].partition(":")

    def replace(module: Any) -> None:
        recorder.note_name(where)
        if hooks.replace_function(module, name, wrap):
            recorder.note_name("%s:%s" % (where, name))

    if where == "__main__":
        hooks.MAIN[name] = wrap
    else:
        hooks.watch_import(where, replace)


class LaunchRecorder:
    """Records the launches of a Triton kernel, as calls that return what it writes."""

    def __init__(self, recorder: CallRecorder) -> None:
        self.recorder, self.records = recorder, recorder.records
        self.launches: Any = importlib.import_module("launch_hooks")
        self.forms: Dict[Any, Tuple[List[str], List[str]]] = {}
        """By types, sizes and values of the arguments: those that a launch writes."""

    def hook(self, kernel: Any) -> Any:
        """Return the kernel, whose launches are recorded from now on."""
        try:
            return self.launches.hook_launches(kernel, functools.partial(self.launch, kernel))
        except self.launches.NotCallable as error:
            self.recorder.wrong = str(error)
            return kernel

    def launch(self, kernel: Any, grid: Any, args: Any, kwargs: Any, original: Any) -> Any:
        """Make a launch, and record it where that is possible."""
        one = self._take(kernel, grid, args, kwargs, original)
        found = original(*args, **kwargs)
        if one is not None:
            named = self.launches.named_arguments(args, kwargs)
            self.recorder.note_answers(one, tuple(named[name] for name in self.recorder.written))
        return found

    def _take(self, kernel: Any, grid: Any, args: Any, kwargs: Any, original: Any) -> Optional[Dict[str, Any]]:
        recorder, launches = self.recorder, self.launches
        cuda = recorder.torch.cuda
        if cuda.is_available() and cuda.is_current_stream_capturing():
            recorder.graphs += 1  # trial launches would be captured, too
            return None
        try:
            raw = self.records.Skeleton()
            key = (json.dumps(raw.take((tuple(args), kwargs))), self.records.key_of(raw.tensors, raw.leaves))
            if key not in self.forms and len(self.forms) >= recorder.plan["sets"]:
                recorder.others += 1
                return None
            if key not in self.forms:
                self.forms[key] = launches.find_outputs(args, kwargs, original)
            form = self.forms[key]
            if recorder.written and form != (recorder.written, recorder.pure):
                recorder.differing += 1
                return None
            recorder.written, recorder.pure = form
            plain = launches.plain_grid(kernel, grid, args, kwargs)
            given, more = launches.as_call(plain, args, kwargs, recorder.pure)
        except (launches.NotCallable, self.records.NotRecordable) as error:
            recorder.wrong = str(error)
            return None
        return recorder.take(given, more, ["grid", *kernel.arg_names])


def record_module(recorder: CallRecorder) -> None:
    """Count the forward calls of modules by their path."""
    kind: Any = recorder.torch.nn.Module
    call = kind.__call__
    paths: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
    wanted = re.compile(re.escape(recorder.plan["target"]).replace(r"\*", r"\d+"))

    def path_of(module: Any) -> str:
        if module not in paths:
            outermost = type(module).__name__
            for path, part in module.named_modules():
                paths.setdefault(part, "%s.%s" % (outermost, path) if path else outermost)
            for path in list(paths.values()):
                recorder.note_name(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path))
        return paths[module]

    @functools.wraps(call)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = path_of(self)
        if wanted.fullmatch(path) is None and wanted.fullmatch(path.partition(".")[2]) is None:
            return call(self, *args, **kwargs)
        build = find_build(recorder, self)
        if build is None:
            return call(self, *args, **kwargs)
        names = parameters_of(self.forward)
        return recorder.watch(functools.partial(call, self), args, kwargs, names, build, self)

    kind.__call__ = counted


def find_build(recorder: CallRecorder, module: Any) -> Optional[int]:
    """Return which of the recorded builds a module is of; a new one is described now. None where it has no place."""
    records, known = recorder.records, recorder.modules
    try:
        own = records.describe_module(module, None)
        for at, build in enumerate(known):
            if records.plain_part(build) == own:
                return at
        if len(known) == BUILDS:
            recorder.differing += 1
            return None
        known.append(records.describe_module(module, recorder.writer, "%d." % len(known) if known else ""))
    except records.NotRecordable as error:
        recorder.wrong = str(error)
        return None
    return len(known) - 1


def run_program(plan: Dict[str, Any], rest: List[str]) -> None:
    """Run the program, its script with a hook where the function is the script's own."""
    where, _, name = plan["target"].partition(":")
    in_script = plan["kind"] in ("function", "launch") and where == "__main__" and not rest[0].startswith("-")
    if not in_script or not importlib.import_module("program_hooks").run_hooked(rest[0], rest[1:], name):
        importlib.import_module("python_profile").play(rest)


def main(arguments: List[str]) -> None:
    """Record the calls, and write them down whatever came of the program."""
    plan, folder, rest = json.loads(arguments[0]), os.path.abspath(arguments[1]), arguments[2:]
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        with open(os.path.join(folder, "calls.json"), "w", encoding="utf-8") as out:
            json.dump({"missing": str(error), "python": sys.executable}, out)
        sys.exit(3)
    recorder = CallRecorder(torch, plan, folder)

    def leave_as_it_is(model: Any = None, *_: Any, **__: Any) -> Any:
        recorder.compiled += model is not None
        return leave_as_it_is if model is None else model

    torch.compile = leave_as_it_is
    if plan["kind"] == "operator":
        record_operator(recorder)
    elif plan["kind"] == "function":
        wrap_named(recorder, recorder.hook_function)
    elif plan["kind"] == "launch":
        if not torch.cuda.is_available():
            os.environ.setdefault("TRITON_INTERPRET", "1")
        wrap_named(recorder, LaunchRecorder(recorder).hook)
    else:
        record_module(recorder)
    try:
        run_program(plan, rest)
    finally:
        sys.stdout.flush()
        recorder.end()


if __name__ == "__main__":
    sys.path[:] = dict.fromkeys([os.path.dirname(os.path.abspath(sys.argv[0])), *sys.path])  # -I and -P leave it out
    main(sys.argv[1:])
