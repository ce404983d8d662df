"""Puts judged kernels into a running program: for an operator, function, forward or Triton kernel, at known calls.

Lies in an overlay's folder beside `overlay.json`, the candidates, launcher_call and `package_files.CALL_FILES`;
`sitecustomize` of that folder installs it, so that a program runs without it where PYTHONPATH does not name the folder.
A call with other types, sizes, steps or values than a kernel was judged at goes to what was there before: the program's
own code, or a kernel put in earlier. While a kernel runs no other answers, so that it runs as it was judged.
"""

import atexit
import ctypes
import functools
import importlib
import importlib.util
import json
import math
import os
import sys
import threading
import warnings
import weakref
from typing import Any, Dict, List, Optional, Tuple, cast

HERE = os.path.dirname(os.path.abspath(__file__))
COUNTS = "GPU_MCP_OVERLAY_COUNTS"
"""Names the file that says at the program's end how often each kernel ran; the process's number is put behind it."""
NO_CALLS = {"calls": 0, "passed_on": 0}
RUNNING = threading.local()
"""`busy` while a kernel runs, or a forward is computed again for its gradients."""
PLAIN = (int, float, bool, str, type(None))
ALIGNED = 16
"""Bytes of a GPU thread's largest load or store: it ends the context at an address that is no multiple of them."""
MOST_KNOWN = 256
"""Kinds of calls that are known again without looking at each value."""


class Overlay:
    """One kernel, and the calls that it answers."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        self.plan = plan
        self.torch: Any = importlib.import_module("torch")
        self.records: Any = importlib.import_module("call_writer")
        self.calls = self.passed_on = 0
        self._models: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
        self._cases = {self.records.key_of_recorded(case): case for case in plan["cases"]}
        self._known: Dict[Any, Any] = {}
        """Cases by what is quickly asked of tensors and plain values that are given by position."""
        self._tensor_types = (self.torch.Tensor, self.torch.nn.Parameter)
        self._device = self.torch.device(plan["device"])
        compiler: Any = getattr(self.torch, "compiler", None)
        self._is_compiling: Any = getattr(compiler, "is_compiling", bool)
        """Returns true while torch.compile traces the program, which keeps its own code there."""
        self._load()

    def _load(self) -> None:
        """Load the candidate's file."""
        path = os.path.join(HERE, self.plan["candidate"])
        self._launch: Any = None
        self._file: Any = None
        self._by: Any = None
        """How the launcher is called, as the judge calls it."""
        if self.plan["form"] == "library":
            self._launch = getattr(ctypes.CDLL(path), self.plan["entry"])
            self._launch.restype = ctypes.c_int
            return
        name = "gpu_mcp_candidate_%s" % self.plan["attempt_id"].replace("-", "_")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        self._file = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._file)

    def answer(self, original: Any, args: Any, kwargs: Any, module: Any = None) -> Any:
        """Answer a call by the kernel where it is known, else by the program's own code."""
        if self._is_compiling() or getattr(RUNNING, "busy", False):  # busy: the kernel uses what it replaces
            return original(*args, **kwargs)
        case, tensors, leaves = self._case(args, kwargs)
        if case is None:
            self.passed_on += 1
            return original(*args, **kwargs)
        given = tensors if module is None else [*tensors, *self._weights(module)]
        RUNNING.busy = True
        try:
            below = self.plan["kind"] == "operator"  # torch differentiates it above
            if not below and self.torch.is_grad_enabled() and any(t.requires_grad for t in given):
                found = self._with_gradients(case, (len(tensors), leaves), given, original, module)
            else:
                found = self._run(case, leaves, given, module)
        finally:
            RUNNING.busy = False
        self.calls += 1
        return self.records.fill(case["answer"], list(found), case["answer_leaves"])

    def launch(self, kernel: Any, grid: Any, args: Any, kwargs: Any, original: Any) -> Any:
        """Answer a launch of a Triton kernel where it is known: the answers go where the program's kernel writes."""
        launches: Any = importlib.import_module("launch_hooks")
        named = launches.named_arguments(args, kwargs)
        if getattr(RUNNING, "busy", False) or any(name not in named for name in self.plan["written"]):
            return original(*args, **kwargs)
        plain = launches.plain_grid(kernel, grid, args, kwargs)
        case, tensors, leaves = self._case(*launches.as_call(plain, args, kwargs, self.plan["pure"]))
        if case is None:
            self.passed_on += 1
            return original(*args, **kwargs)
        targets = [named[name] for name in self.plan["written"]]
        memories = [t.untyped_storage().data_ptr() for t in (*tensors, *targets)]
        # What shares memory it cannot write to in place, nor what begins anywhere: it was judged with all apart.
        into = [
            t
            if name in self.plan["pure"]
            and t.is_contiguous()
            and t.data_ptr() % ALIGNED == 0
            and memories.count(t.untyped_storage().data_ptr()) == 1
            else None
            for name, t in zip(self.plan["written"], targets)
        ]
        RUNNING.busy = True
        try:
            found = self._run(case, leaves, tensors, None, into)
        finally:
            RUNNING.busy = False
        with self.torch.no_grad():
            for target, value in zip(targets, found):
                if value is not target:
                    target.copy_(value)
        self.calls += 1
        return None

    def _case(self, args: Any, kwargs: Any) -> Any:
        """Return the case that a call is one of, its tensors and its plain values; nothing where it is none."""
        key = None if kwargs else self._quick_key(args)
        known = self._known.get(key) if key is not None else None
        if known is not None:
            tensors = [each for each in args if type(each) in self._tensor_types]
            return known, tensors, [each for each in args if type(each) not in self._tensor_types]
        skeleton = self.records.Skeleton()
        try:
            if skeleton.take((tuple(args), dict(kwargs))) != self.plan["skeleton"]:
                return None, [], []
        except self.records.NotRecordable:
            return None, [], []
        if any(t.device.type != self.plan["device"] or not self._has_steps(t) for t in skeleton.tensors):
            return None, [], []
        case = self._cases.get(self.records.key_of(skeleton.tensors, skeleton.leaves))
        if case is not None and key is not None and len(self._known) < MOST_KNOWN:
            self._known[key] = case
        return case, skeleton.tensors, skeleton.leaves

    def _has_steps(self, tensor: Any) -> bool:
        """Say whether a tensor is one of those that kernels are judged at: no sparse one, no nested one."""
        return tensor.layout is self.torch.strided and not tensor.is_nested

    def _quick_key(self, args: Any) -> Any:
        """Return by what a call is known again, None if it has other values than tensors and plain ones."""
        key: List[Any] = []
        for each in args:
            kind = cast("Any", type(each))
            if kind in self._tensor_types and self._has_steps(each):
                key.append((each.dtype, each.shape, each.stride(), each.device))
            elif kind in PLAIN and not (kind is float and not math.isfinite(each)):
                key.append((kind, each))
            else:
                return None
        return tuple(key)

    def _weights(self, module: Any) -> List[Any]:
        found: List[Any] = []
        for name in self.plan["state"]:
            *before, last = name.split(".")
            owner = module
            for part in before:
                owner = owner._modules[part]
            found.append(owner._parameters[last] if last in owner._parameters else owner._buffers[last])
        return found

    def _run(
        self, case: Dict[str, Any], leaves: List[Any], given: List[Any], module: Any, into: Any = None
    ) -> List[Any]:
        """Return the kernel's answers, in the tensors of `into` where it can write there; no gradients go through."""
        if not self.torch.is_grad_enabled():
            return self._answers(case, leaves, given, module, into)
        with self.torch.no_grad():
            return self._answers(case, leaves, given, module, into)

    def _answers(self, case: Dict[str, Any], leaves: List[Any], given: List[Any], module: Any, into: Any) -> List[Any]:
        torch = self.torch
        if self.plan["form"] == "model":
            passed = [leaves[at] for at in self.plan["passed"]]
            count = len(given) - len(self.plan["state"])
            return list(self.records.tensors_in(self._model(module, given[count:])(*given[:count], *passed)))
        outputs = [
            torch.empty(o["shape"], dtype=getattr(torch, o["dtype"]), device=self._device) if there is None else there
            for o, there in zip(case["outputs"], into or [None] * len(case["outputs"]))
        ]
        if self.plan["form"] == "launcher":
            if self._by is None:
                self._by = importlib.import_module("launcher_call").LauncherCall(
                    self._file, self.plan["entry"], len(given), len(outputs)
                )
            self._by.launch(torch, tuple(given), outputs, case["dims"])
            return outputs
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*given, *outputs)]
        stream = []
        if self.plan["device"] == "cuda":
            stream = [ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)]
        code = self._launch(*pointers, *(ctypes.c_int64(n) for n in case["dims"]), *stream)
        if code:
            raise RuntimeError("the kernel of %s returned %d" % (self.plan["attempt_id"], code))
        return outputs

    def _model(self, module: Any, weights: List[Any]) -> Any:
        """Return the candidate's model, one for each module of the program, over that one's weights."""
        known = self._models
        owner = self if module is None else module
        if owner not in known:
            devices = [self.torch.cuda.current_device()] if self.plan["device"] == "cuda" else []
            with self.torch.random.fork_rng(devices):  # first weights are drawn: the program's random numbers stay
                model = self._file.ModelNew()
                if hasattr(model, "to"):
                    model = model.to(self.plan["device"])
            known[owner] = model
        model = known[owner]
        for name, value in zip(self.plan["state"], weights):
            place: Any = model
            *before, last = name.split(".")
            for part in before:
                place = getattr(place, part, None)
            for listed in (getattr(place, "_parameters", {}), getattr(place, "_buffers", {})):
                if last in listed and listed[last].shape == value.shape:
                    listed[last] = value
        return model

    def _with_gradients(
        self, case: Dict[str, Any], about: Tuple[int, List[Any]], given: List[Any], original: Any, module: Any
    ) -> List[Any]:
        """Return the kernel's answers, whose gradients are those of the program's own code, computed anew."""
        torch, records, overlay = self.torch, self.records, self
        count, leaves = about

        def again(values: List[Any]) -> List[Any]:
            args, kwargs = records.fill(overlay.plan["skeleton"], values[:count], leaves)
            if module is None:
                return list(records.tensors_in(original(*args, **kwargs)))
            state = dict(zip(overlay.plan["state"], values[count:]))
            return list(records.tensors_in(torch.func.functional_call(module, state, args, kwargs)))

        class Replaced(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, *values: Any) -> Any:
                ctx.save_for_backward(*values)
                return tuple(overlay._run(case, leaves, list(values), module))

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                RUNNING.busy = True
                try:
                    with torch.enable_grad():
                        values = [v.detach().requires_grad_(v.requires_grad) for v in ctx.saved_tensors]
                        found = again(values)
                finally:
                    RUNNING.busy = False
                wanted = [v for v in values if v.requires_grad]
                pairs = [(f, g) for f, g in zip(found, gradients) if f.requires_grad and g is not None]
                heads, tails = [f for f, _ in pairs], [g for _, g in pairs]
                made = iter(torch.autograd.grad(heads, wanted, tails, allow_unused=True))
                return tuple(next(made) if v.requires_grad else None for v in values)

        return list(Replaced.apply(*given))


def replaced_function(overlay: Overlay, function: Any) -> Any:
    """Return a function that the kernel answers for where it can."""

    def instead(*args: Any, **kwargs: Any) -> Any:
        return overlay.answer(function, args, kwargs)

    return importlib.import_module("program_hooks").stand_in(function, instead)


def replaced_kernel(overlay: Overlay, kernel: Any) -> Any:
    """Return a Triton kernel whose launches the judged one answers where it can."""
    launches: Any = importlib.import_module("launch_hooks")
    return launches.hook_launches(kernel, functools.partial(overlay.launch, kernel))


def replaced_class(overlay: Overlay, kind: Any) -> Any:
    """Return a class of modules whose forward the kernel answers for, where they are built as the judged one."""
    forward, records = kind.forward, overlay.records
    judged = records.plain_part(overlay.plan["module"])
    alike: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()

    def is_alike(module: Any) -> bool:
        inside = [*module.modules()][1:] if module._modules else []  # not itself: a value must not keep its key alive
        state = inside, module.training, [part.training for part in inside]
        known = alike.get(module)
        if known is None or known[0] != state:
            try:
                known = state, records.describe_module(module, None) == judged
            except records.NotRecordable:
                known = state, False
            alike[module] = known
        return bool(known[1])

    @functools.wraps(forward)
    def instead(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = functools.partial(forward, self)
        if type(self) is not kind or not is_alike(self):
            overlay.passed_on += 1
            return original(*args, **kwargs)
        return overlay.answer(original, args, kwargs, self)

    kind.forward = instead
    return kind


def replace_operator(overlay: Overlay) -> None:
    """Register the kernel as the operator's implementation on its device; other calls go to the one before."""
    torch, plan = overlay.torch, overlay.plan
    space, name, overload = plan["overload"].split(".")
    named = name if overload == "default" else "%s.%s" % (name, overload)
    key = {"cpu": "CPU", "cuda": "CUDA"}[plan["device"]]
    before = torch.library.get_kernel("%s::%s" % (space, named), key)
    library = torch.library.Library(space, "IMPL")

    def instead(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return overlay.answer(functools.partial(before.call_boxed, keys), args, kwargs)

    with warnings.catch_warnings():  # that there was an implementation: it is called where the kernel is not
        warnings.simplefilter("ignore")
        library.impl(named, instead, key, with_keyset=True)
    overlay.library = library  # type: ignore[attr-defined]


def write_counts(overlays: List[Optional[Overlay]]) -> None:
    """Say how often each kernel ran; one that was never loaded answered nothing."""
    told = [{"calls": each.calls, "passed_on": each.passed_on} if each else NO_CALLS for each in overlays]
    with open("%s.%d" % (os.environ[COUNTS], os.getpid()), "w", encoding="utf-8") as file:
        json.dump(told, file)


def install() -> None:
    """Arrange that each kernel is put in when the program imports what it replaces."""
    with open(os.path.join(HERE, "overlay.json"), encoding="utf-8") as file:
        plans: List[Dict[str, Any]] = json.load(file)["kernels"]
    made: List[Optional[Overlay]] = [None] * len(plans)
    sys.modules.setdefault("program_main", sys.modules["__main__"])  # answers of classes that the script defines
    if os.environ.get(COUNTS):
        atexit.register(write_counts, made)
    for number in range(len(plans)):
        install_kernel(number, plans[number], made)


def install_kernel(number: int, plan: Dict[str, Any], made: List[Optional[Overlay]]) -> None:
    """Arrange that one is put in, and loaded then."""
    hooks: Any = importlib.import_module("program_hooks")

    def overlay() -> Overlay:
        found = made[number] = made[number] or Overlay(plan)
        return found

    where, _, name = plan["replaces"].partition(":")
    puts = {"module": replaced_class, "launch": replaced_kernel}
    put: Any = puts.get(plan["kind"], replaced_function)

    def put_in(it: Any) -> Any:
        return put(overlay(), it)

    def replace(_: Any) -> None:
        if plan["kind"] == "operator":
            replace_operator(overlay())
        else:
            hooks.replace_function(sys.modules[where], name, put_in)

    if plan["kind"] != "operator" and where in ("__main__", "program_main"):
        before = hooks.MAIN.get(name)
        hooks.MAIN[name] = put_in if before is None else both(before, put_in)
    elif plan["kind"] == "operator" or where.partition(".")[0] == "torch":
        hooks.watch_import("torch", replace)  # as a whole: what the kernel needs is not there in the middle of it
    else:
        hooks.watch_import(where, replace)


def both(first: Any, second: Any) -> Any:
    """Return a function that puts a kernel in after another one."""

    def put_in(it: Any) -> Any:
        return second(first(it))

    return put_in
