"""The reference's process: a problem's Python function computes what is expected, and is the baseline of the clock."""

import contextlib
import importlib
import os
import sys
import time
import traceback
import warnings
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, cast

from ..adapters.adapter_choice import load_file, prepare_files
from ..channel.packet_link import Link
from ..compiled_shapes import CompiledShapes
from ..folders import WORK
from ..memory import malloc_tuning
from ..memory.mapped_file import Mapping
from ..numerics.array_copies import has_same_bytes, own_copy
from ..numerics.input_views import View, input_memories, input_views, lay_views
from ..numerics.tensors import Tensor, tensors
from ..package_misfits import place_of_misfit
from ..timing.stream_gate import take_gate
from .answer_check import AnswerCheck
from .arrays_numpy import BadResult, NumpyArrays
from .double_precision import DoublePrecision

Reply = Dict[str, Any]

SOURCE = os.path.join(WORK, "reference.py")
ERROR_CHARACTERS = 2000


def last_words(error: BaseException) -> str:
    """Return a traceback without the judge's own frames, its beginning and its end if it is long."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != SOURCE:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames)).strip()
    own = type(error).__module__
    if own.partition(".")[0] == __name__.partition(".")[0]:  # where the judge keeps its classes tells an author nothing
        text = text.replace(own + ".", "")
    half = ERROR_CHARACTERS // 2
    text = text if len(text) <= ERROR_CHARACTERS else "%s ... %s" % (text[:half], text[-half:])
    return "\n".join(filter(None, [text, place_of_misfit(error)]))


def arrays_of(task: Dict[str, Any]) -> Any:
    """Return the framework's view of the buffers."""
    if task["framework"] == "torch":
        if task["device"] == "cuda":
            from .arrays_torch_cuda import TorchCudaArrays

            return TorchCudaArrays()
        from .arrays_torch import TorchArrays

        return TorchArrays()
    return NumpyArrays()


class Reference:
    """Answers the owner's requests."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.task: Dict[str, Any] = {}
        self.arrays: Any = None
        self.entry: Any = None
        self.first_entry: Any = None
        """That of the file's first run, while a second one's counts."""
        self.fresh_seed: Optional[int] = None
        """torch's, before the file ran."""
        self.kept: List[Any] = []
        self.dims: Dict[str, int] = {}
        self.compiled = CompiledShapes()
        self.memories: List[Tensor] = []
        """What the inputs lie in."""
        self.views: List[View] = []
        self.given: List[Sequence[Any]] = []
        """The inputs of each call, over these."""
        self.own: List[List[Any]] = []
        """Of the memories copies, where the function writes to them."""
        self.writes: Optional[bool] = None
        """Whether it does, once it was called at a shape."""
        self.module: Any = None
        """A module problem; its model answers instead of a function."""
        self.gate: Any = None
        """Behind which calls are launched that the owner times on the GPU alone."""

    def serve(self) -> None:
        """Answer until the owner closes the link."""
        double = DoublePrecision(self)
        verbs: Dict[str, Callable[[Dict[str, Any], List[int]], Reply]] = {
            "hello": self.hello, "start": self.start, "load": self.load, "open": self.open, "close": self.close,
            "gate": self.take_gate, "go": self.go, "finish": self.finish, "reload": self.reload, "store": self.store,
            "oracle": double.answer_fp64, "sensitivity": double.sensitivity, "decide": double.decide,
            "describe": self.describe, "specify": self.specify, "make": self.make,
            "check": AnswerCheck(self).check_answer,
        }  # fmt: skip
        for message, descriptors in self.link.requests():
            try:
                reply = verbs[message["do"]](message, descriptors)
            except BadResult as error:
                reply = {"error": str(error)[:ERROR_CHARACTERS]}
            except Exception as error:
                reply = {"error": last_words(error)}
            reply["seq"] = message["seq"]
            self.link.send(reply)

    def hello(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Take the public part of the task and import the framework."""
        self.task = message["task"]
        self.arrays = arrays_of(self.task)
        return {"versions": dict(self.arrays.versions(), python=sys.version.split()[0])}

    def start(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Make ready what the device needs: a context, on a GPU; with a seed of weights load the problem meanwhile."""
        reply: Reply = {}
        if "torch_seed" in message:
            self.arrays.begin()
            reply = self.load(message, descriptors)
        self.arrays.start()
        return reply

    def load(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Run the problem's source and find its function."""
        prepare_files(self.task)
        torch: Any = importlib.import_module("torch") if "torch" in sys.modules else None
        if torch is not None:
            self.fresh_seed = torch.initial_seed()
        module = load_file(SOURCE, "problem_reference")
        if self.task.get("problem") == "module":
            return self._load_module(module, message)
        self.entry = getattr(module, self.task["entry"], None)
        if not callable(self.entry):
            return {"error": "the reference defines no function %s" % self.task["entry"]}
        if self.task.get("backward"):
            from ..numerics.autograd import with_gradients

            kinds = [spec["dtype"] for spec in self.task["inputs"][: int(self.task["backward"])]]
            torch, forward = importlib.import_module("torch"), self.entry

            def entry(*given: Any) -> Any:
                return with_gradients(torch, forward, kinds, given)

            self.entry = entry
        return {}

    def reload(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Run the source once more, as a new process would; with `back` have the first run's function again."""
        if message.get("back"):
            self.entry = self.first_entry
            return {}
        self.first_entry, fresh_seed = self.entry, self.fresh_seed
        if fresh_seed is not None:
            # Every process begins with the same seed, whatever the file has set since.
            importlib.import_module("torch").manual_seed(fresh_seed)
        try:
            return self.load(message, descriptors)
        finally:
            self.fresh_seed = fresh_seed

    def _load_module(self, module: Any, message: Dict[str, Any]) -> Reply:
        from .kernelbench_problem import ModuleProblem

        self.module = ModuleProblem(module, self.task, int(message["torch_seed"]), getattr(self.arrays, "device", None))
        if self.task.get("inputs"):
            self._begin_module()
        return {}

    def _begin_module(self) -> None:
        """Make the model; one with cases is made anew at each."""
        if not self.task.get("cases"):
            self.module.construct()
        self.entry = self.module.call

    def describe(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Say what a module problem takes and returns."""
        return self.module.describe()  # type: ignore[no-any-return]

    def specify(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Take over tensors that were described, and make the model."""
        self.task.update({name: message[name] for name in message if name not in ("do", "seq")})
        if self.task.get("cases"):
            self.module.module.take_cases(self.task["cases"])
        self._begin_module()
        return {}

    def make(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Write inputs that only the problem's code can make into a memory file, or into memory of the GPU."""
        memory: Any
        if "gpu_bytes" in message:
            memory = self.arrays.adopt(descriptors[0], message["gpu_bytes"])
        else:
            memory = Mapping(descriptors[0], writable=True)
        try:
            try:
                self.module.make(memory.address, message, on_gpu="gpu_bytes" in message)
            finally:
                self.arrays.finish()  # nothing may be under way to what is unmapped
        finally:
            memory.close()
        return {}

    def open(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Map the buffers of a shape."""
        self.kept, self.given, self.own = [], [], []
        self.dims = dims = message["named_dims"]
        self.compiled.turn_to(dims, timed=message.get("timed") is True)
        if self.module is not None:
            self.module.turn_to(dims)
        self.memories, outputs = input_memories(self.task, dims), tensors(self.task["outputs"], dims)
        self.views = input_views(self.task, dims)
        self.arrays.open(self.memories, outputs, message, descriptors)
        self.given = [self.laid_inputs(each) for each in self.arrays.inputs]
        if not self.writes:
            self.writes = None  # what it does may depend on the shape
        return {}

    def close(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Let the buffers of a shape go."""
        self.kept, self.given, self.own = [], [], []
        self.arrays.close()
        return {}

    def take_gate(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Map the page with the words of gates."""
        self.gate, reply = take_gate(self.gate, self.arrays, descriptors[0], message)
        return reply

    def launch_behind_gate(self, calls: int, value: int) -> Reply:
        """Launch calls behind a closed gate; return while nothing has run."""
        if self.writes is not False:
            return {"ungated": "the reference writes to its inputs, and works on copies"}
        self.kept = []
        self.gate.enter(value)
        self.gate.close(value)
        with self._calling():
            self.kept = [self._answer(number) for number in range(calls)]
        self.gate.end(value)
        return {}

    def call_between_words(self, calls: int, value: int, *, empty: bool) -> Reply:
        """Call one by one, each behind a sweep of the cache, between two words that the GPU writes.

        Or write the words alone, and say how long two events are apart.
        """
        self.kept = []
        with self._calling():
            for number in range(calls):
                self.gate.begin_swept(value + number)
                if not empty:
                    self.kept.append(self._answer(number))
                self.gate.end(value + number)
                self.arrays.finish()
        return {"events_s": self.gate.time_events(calls)} if empty else {}

    def finish(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Wait for calls that were launched behind a gate."""
        self.arrays.finish()
        return {}

    def _calling(self) -> ContextManager[Any]:
        """Return what is around a round's calls; around each it takes as long as launching some kernels."""
        return cast("ContextManager[Any]", self.module.no_grad()) if self.module else contextlib.nullcontext()

    def _answer(self, number: int) -> Any:
        given = self.given[number]
        return self.entry(given) if self.module else self.entry(*given)

    def go(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Switch in and call the function once for each set, in as many passes as are asked for; the last one's count.

        Where results are stored at once (CPU), the time of storing is told, so that the owner takes it off: a
        candidate writes in place and a Python function returns.
        """
        self.arrays.ping()
        if "spin_s" in message:
            return {"spun_s": self.arrays.spin(float(message["spin_s"]))}
        if message.get("by_events"):
            return self.call_between_words(message["calls"], message["gate"], empty=message.get("empty") is True)
        if "gate" in message:
            return self.launch_behind_gate(message["calls"], message["gate"])
        storing, begin_ns = 0, time.perf_counter_ns()
        with self._calling():
            for left in reversed(range(message.get("passes", 1))):
                storing += self._call_all(message["calls"], stores=not left)
        self.arrays.finish()
        storing += self._learn(message["calls"])
        ran_ns = time.perf_counter_ns() - begin_ns - storing
        return {
            "ran_ns": ran_ns,
            "store_us": storing / 1000,
            "notes": self.arrays.notes(),
            "peak_bytes": self.arrays.peak_bytes(),
        }

    def _call_all(self, calls: int, *, stores: bool) -> int:
        """Answer each set, and store the results where they are not kept; return the nanoseconds besides answering."""
        self.kept, besides = [], self._renew(calls)
        for number in range(calls):
            result = self._answer(number)
            if self.arrays.store_later:
                self.kept.append(result)
            elif stores:
                begin = time.perf_counter_ns()
                self.arrays.store(number, self.results(result))
                besides += time.perf_counter_ns() - begin
            del result
        return besides

    def _renew(self, calls: int) -> int:
        """Give a function that writes to its inputs, or may, copies of its own; return the nanoseconds it took."""
        if self.writes is False:
            return 0
        self.arrays.finish()
        begin = time.perf_counter_ns()
        for number in range(calls):
            given = self.arrays.inputs[number]
            if number == len(self.own):
                self.own.append([own_copy(each) for each in given])
            else:
                for mine, theirs in zip(self.own[number], given):
                    mine[...] = theirs
            self.given[number] = self.laid_inputs(self.own[number])
        self.arrays.finish()
        return time.perf_counter_ns() - begin

    def _learn(self, calls: int) -> int:
        """See at a shape's first call whether the function writes to its inputs; return the nanoseconds it took."""
        if self.writes is not None:
            return 0
        begin = time.perf_counter_ns()
        pairs = [pair for number in range(calls) for pair in zip(self.arrays.inputs[number], self.own[number])]
        self.writes = not all(has_same_bytes(theirs, mine) for theirs, mine in pairs)
        if self.writes:
            self.arrays.said["the reference writes to its inputs: it works on copies, whose making is not timed"] = None
        else:
            self.own, self.given = [], [self.laid_inputs(each) for each in self.arrays.inputs]
        return time.perf_counter_ns() - begin

    def store(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Store the results that were kept, outside the clock."""
        for number, result in enumerate(self.kept):
            self.arrays.store(number, self.results(result))
        self.kept = []
        self.arrays.finish()
        return {"notes": self.arrays.notes()}

    def laid_inputs(self, memories: Sequence[Any]) -> Sequence[Any]:
        """Return the inputs that lie in some memories, which without layouts are the inputs."""
        if not self.task.get("layouts"):
            return memories
        return lay_views(importlib.import_module("torch"), memories, self.views)

    def results(self, result: Any) -> Sequence[Any]:
        """Return the outputs as a sequence of the declared length."""
        found = cast("Sequence[Any]", result) if isinstance(result, (tuple, list)) else (result,)
        for kind in map(type, cast("Sequence[object]", found)):
            if kind in (type(None), dict, str):
                advice = ": return what it computes, also what it writes in place" if kind is type(None) else ""
                raise BadResult("%s returned %s, not an array%s" % (self.task["entry"], kind.__name__, advice))
        if len(found) != len(self.task["outputs"]):
            raise BadResult(
                "%s returned %d values, the problem declares %d outputs"
                % (self.task["entry"], len(found), len(self.task["outputs"]))
            )
        return found


def main() -> int:
    """Serve the owner."""
    warnings.simplefilter("ignore")
    link = Link.from_environment("owner")
    malloc_tuning.keep()
    Reference(link).serve()
    return 0
