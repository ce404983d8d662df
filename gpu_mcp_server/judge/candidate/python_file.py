"""Provides the base of Python candidates: torch over the owner's memory, private caches, errors in words."""

import contextlib
import importlib
import os
import re
import sys
import traceback
from typing import Any, Callable, Dict, List, Tuple

from ..adapters.adapter_choice import load_file, prepare_files
from ..compiled_shapes import CompiledShapes
from ..folders import WORK
from ..memory.torch_views import tensors_at
from ..numerics.array_copies import has_same_bytes
from ..numerics.input_views import View, input_memories, input_views, lay_views
from ..numerics.tensors import tensors
from ..package_misfits import place_of_misfit
from . import torch_extensions
from .call_loop import saying
from .graph_captures import GraphCaptures
from .triton_cache_key import shorten_cache_keys
from .triton_interpreter import TritonInterpreter

Reply = Dict[str, Any]

SOURCE = os.path.join(WORK, "candidate.py")
PROBLEM = os.path.join(WORK, "problem.py")
"""The problem's file, beside a `ModelNew` only: it says what that is constructed with."""
BUILT = os.path.join(WORK, "built")
"""Extensions that were built beforehand, if the file asks for some."""
CACHES = {
    "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": "torch_extensions", "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda", "CUPY_CACHE_DIR": "cupy", "CUTE_DSL_CACHE_DIR": "cute", "HELION_CACHE_DIR": "helion",
    "JAX_COMPILATION_CACHE_DIR": "jax", "NUMBA_CACHE_DIR": "numba", "TILELANG_CACHE_DIR": "tilelang",
    "WARP_CACHE_PATH": "warp",
}  # fmt: skip
"""Where compilers may write, below the workspace: private to this candidate, gone with it."""
TRITON = "Triton's interpreter"
INTERPRETERS = {
    TRITON: ("TRITON_INTERPRET", "1"),
    "Numba's simulator of CUDA": ("NUMBA_ENABLE_CUDASIM", "1"),
    "Helion's interpreter": ("HELION_INTERPRET", "1"),
}
"""The variable that chooses each; Helion refuses to start where Triton's is set too."""
COMPILED_GRAPHS = "torch._inductor.cudagraph_trees"
"""Module of torch that records them. Their memory is in a pool of their own, and what one returned is gone at its next
run. Source: torch 2.11 and 2.13."""
ERROR_CHARACTERS = 1500


def words(error: BaseException) -> str:
    """Return an error: one line with its place in the candidate, its further lines, and its place in a package."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == SOURCE]
    at = " (candidate.py line %s)" % frames[-1].lineno if frames else ""
    if isinstance(error, SyntaxError) and error.filename == SOURCE:
        at = " (candidate.py line %s)" % error.lineno
    try:
        # The candidate's exception class may define `__str__`, which can raise in turn.
        text = str(error.msg if isinstance(error, SyntaxError) and error.filename == SOURCE else error)
    except Exception as worse:
        text = "its text raises %s" % type(worse).__name__
    lines = text.strip().splitlines()
    said = [lines[0][:300]] if lines else []
    # Of an assertion of its own: the text seldom says what did not hold.
    if isinstance(error, AssertionError) and at and (frames[-1].line or "").startswith("assert"):
        said.append("of `%s`" % str(frames[-1].line)[:200])
    first = "%s: %s%s" % (type(error).__name__, " ".join(said), at)
    if isinstance(error, NameError):
        first += _hint_at_problem(text)
    more = "\n".join(lines[1:])[-ERROR_CHARACTERS:]
    return "\n".join(filter(None, [first, more, place_of_misfit(error)]))


def _hint_at_problem(text: str) -> str:
    """Return what to do about a missing name that the problem has: KernelBench's own harness has both in one namespace.

    Source: load_custom_model in KernelBench's eval.py, for its backend `cuda`; its other backends load the file alone.
    """
    missing = re.match(r"name '(\w+)' is not defined", text)
    if missing is None or not os.path.isfile(PROBLEM):
        return ""
    given = r"^(?:(?:class|def) +{0}\b|(?:import|from) .*\b{0}\b|[\w, ]*\b{0}\b[\w, ]*=)".format(missing.group(1))
    with open(PROBLEM, encoding="utf-8", errors="replace") as file:
        if re.search(given, file.read(), re.MULTILINE) is None:
            return ""
    return ": the problem's file has it, and a candidate runs without that file; copy what it needs into the candidate"


class PythonFile:
    """A Python file that works on torch tensors over the owner's memory, by an interpreter where the task names one."""

    def __init__(self, task: Dict[str, Any], memory: Any) -> None:
        self.task, self.memory = task, memory
        self.symbol = str(task["symbol"])
        for name, folder in CACHES.items():
            path = os.path.join(WORK, ".cache", folder)
            os.makedirs(path, exist_ok=True)
            # A shared cache would let one candidate plant code or read results of another.
            os.environ[name] = path
        self.interpreted = str(task.get("interpreted") or "")
        self.interpreter: Any = None
        """What stands for a GPU around Triton's interpreter."""
        self._choose_interpreter()
        self.torch: Any = importlib.import_module("torch")
        if os.path.isdir(BUILT):
            torch_extensions.take_from(BUILT)
        with open(SOURCE, encoding="utf-8", errors="replace") as file:
            if "cpp_extension" in file.read():
                torch_extensions.note_failures()
        self.extensions: List[Any] = []
        if task.get("libraries") == "forbidden":
            from .ghost_replay import watch_extensions

            self.extensions = watch_extensions()
        self.module: Any = None
        self.device: Any = None
        self.captures: Any = None
        self.compiled = CompiledShapes()
        self.memories: List[Tuple[Any, ...]] = []
        """What the inputs of each set lie in."""
        self.views: List[View] = []
        self.inputs: List[Tuple[Any, ...]] = []
        self.outputs: List[Tuple[Any, ...]] = []
        self.dims: List[int] = []
        self.said: Dict[str, None] = {}

    def _choose_interpreter(self) -> None:
        """Choose the interpreter, if any, before the kernels' language is imported."""
        if self.interpreted in INTERPRETERS:
            name, value = INTERPRETERS[self.interpreted]
            os.environ[name] = value
        if self.interpreted == TRITON:
            with contextlib.suppress(ImportError):  # the file says itself that it wants Triton, or does without
                self.interpreter = TritonInterpreter(SOURCE, words)

    def versions(self) -> Dict[str, str]:
        """Return what runs it besides this Python."""
        return {"torch": str(self.torch.__version__)}

    def load(self, message: Dict[str, Any]) -> Reply:
        """Run the file; what it compiles at import is compiled now."""
        try:
            if self.task["device"] == "cuda":
                self.device = self.torch.device("cuda", 0)
                self.torch.cuda.set_device(self.device)
                self.captures = GraphCaptures(self.torch)
            prepare_files(self.task)
            sys.argv = [SOURCE]  # a parser of arguments at the file's top would stumble over ours
            shorten_cache_keys()
            # Of a file that is interpreted all runs that can without a GPU.
            self.module = self.interpreter.load() if self.interpreter else load_file(SOURCE, "candidate")
            shorten_cache_keys()  # where the file was the first to import Triton
            return self.take(self.module, message)
        # BaseException: a candidate that calls sys.exit at import must yield an error, not end the process silently.
        except BaseException as error:
            return {"error": "the file cannot be loaded: " + words(error)}

    def take(self, module: Any, message: Dict[str, Any]) -> Reply:
        """Find in the module what will be called."""
        raise NotImplementedError

    def open(self, message: Dict[str, Any], bases: List[int]) -> None:
        """Lay tensors over the buffers of a shape."""
        dims = message["named_dims"]
        self.compiled.turn_to(dims, timed=message.get("timed") is True)
        self.dims = [int(size) for size in message["dims"]]
        memories, outputs = input_memories(self.task, dims), tensors(self.task["outputs"], dims)
        self.memories = tensors_at(self.torch, bases[0], message["inputs"], memories, self.device)
        self.views = input_views(self.task, dims)
        # The views are made once per shape: building tensors at each call would be inside its time.
        self.inputs = [lay_views(self.torch, each, self.views) for each in self.memories]
        self.outputs = tensors_at(self.torch, bases[1], message["outputs"], outputs, self.device)

    def close(self) -> None:
        """Forget the buffers."""
        self.memories, self.inputs, self.outputs = [], [], []

    def call(self, number: int) -> None:
        """Answer one set of inputs."""
        raise NotImplementedError

    def with_inputs(self, number: int, answer: Callable[[Tuple[Any, ...]], Any]) -> Any:
        """Return what `answer` makes of the inputs of a call.

        An interpreter gets copies: it writes its arguments back, and the judge's inputs are read-only.

        Raises:
            ValueError: If it wrote to its inputs: on a GPU that faults, and copies would let it pass.
        """
        if not self.interpreted:
            return answer(self.inputs[number])
        copies = [each.clone() for each in self.memories[number]]
        found = answer(lay_views(self.torch, copies, self.views))
        for at, (given, used) in enumerate(zip(self.memories[number], copies)):
            if not has_same_bytes(given, used):
                name = next(view.item.name for view in self.views if view.memory == at)
                raise ValueError("writes to input %s: inputs are read-only" % name)
        return found

    def run(self, calls: int, first: int = 0, behind: Any = None) -> Reply:
        """Answer `calls` sets, from `first` on, with separators behind them; tell what was not as on a GPU."""
        reply: Reply = {}
        number, say = first, saying(self.memory.returned)
        try:
            for number in range(first, first + calls):
                self.call(number)
                if behind is not None:
                    behind(number)
                # The count comes behind the call, as a stop between the two must not claim an unfinished call.
                say(number + 1)
        except BaseException as error:
            reply = {"error": "call %d raised %s" % (number + 1, words(error))}
        if self.interpreter:
            if "NameError: " in str(reply.get("error")):
                reply["error"] += self.interpreter.failures()
            self.said.update(dict.fromkeys(self.interpreter.notes()))
        return reply

    def first(self) -> Reply:
        """Call at a shape, untimed, until all that is made once is made."""
        reply = self.run(1)
        # That was a compiled graph's warm-up. The next call records it, which would block behind a closed gate.
        return (reply or self.run(1) or self.run(1)) if self.has_compiled_graphs() else reply

    def has_compiled_graphs(self) -> bool:
        """Say whether torch.compile runs by CUDA graphs, as in its modes reduce-overhead and max-autotune."""
        trees: Any = sys.modules.get(COMPILED_GRAPHS)
        # Other parts of torch import the module too; a manager is there once a graph is to be recorded.
        return bool(self.device and trees and trees.get_manager(self.device.index, False) is not None)

    def ghost(self, calls: int) -> Reply:
        """Answer the first `calls` sets with this file's own kernels doing nothing."""
        from .ghost_replay import Ghost, parts

        with Ghost(self.torch, self.extensions, parts(self.module, getattr(self, "model", None))) as ghost:
            reply = self.run(calls)
        return dict(reply, launches=ghost.launches)

    def notes(self) -> List[str]:
        """Return what was weaker than usual."""
        return [*self.said, *torch_extensions.said, *filter(None, [self.compiled.why_kept])]
