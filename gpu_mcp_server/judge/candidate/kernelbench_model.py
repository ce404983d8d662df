"""Kind `model`: a Python file with KernelBench's `ModelNew`. Its results lie in the owner's arena, or are copied."""

import contextlib
import os
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, cast

from ..adapters.adapter_choice import adapted_module, load_file
from ..numerics.input_views import with_constants
from .model_weights import compared_weights, unchanged_statistics
from .python_file import PROBLEM, PythonFile, Reply, words
from .reused_outputs import ReusedOutputs
from .torch_mempool import HERE, Pool, layout_of


class ModelFile(PythonFile):
    """Constructs `ModelNew` as KernelBench does, and calls it."""

    def __init__(self, task: Dict[str, Any], memory: Any) -> None:
        super().__init__(task, memory)
        self.model: Any = None
        self.pool: Optional[Pool] = None
        self.kept: List[Sequence[Any]] = []
        self.copied: Set[Tuple[int, int]] = set()
        """Call and output of answers of a round that were copied into their places as they were asked for."""
        self.reused: Optional[ReusedOutputs] = None
        """Outputs that the model keeps, if that is how it answers at this shape."""
        self.strides: Optional[List[List[int]]] = None
        """Of the results at this shape, once they are known."""
        self.known: Dict[str, List[List[int]]] = {}
        """These by shape."""
        self.decided = self.pooled = self.settled = False
        """Whether results are known to be able to stay in the arena; whether they do at this shape; weights settled."""
        self.why_copied = self.weights_said = self.differ = ""
        self.case = 0
        """For which the model was constructed, of a problem with cases."""

    def take(self, module: Any, message: Dict[str, Any]) -> Reply:
        """Construct the model; of a problem with cases when a case is opened."""
        self.message = message
        self.given = len(self.task["inputs"]) - len(self.task.get("state") or [])
        self.constants: Dict[str, Any] = self.task.get("constants") or {}
        self.problem: Any = None
        if self.task.get("adapter"):
            self.problem = adapted_module(load_file(PROBLEM, "problem"), self.task)
            made = getattr(module, "ModelNew", None) or self.problem.candidate_model(module)
            wanted = "neither ModelNew nor %s" % self.problem.entry if self.problem.entry else "no class ModelNew"
            return {} if made is not None else {"error": "the file has %s" % wanted}
        return self._construct(getattr(module, "ModelNew", None))

    def _construct(self, made: Any) -> Reply:
        if made is None:
            return {"error": "the file has no class ModelNew" + self._other_entry()}
        torch, seed = self.torch, int(self.message.get("torch_seed") or 0)
        with torch.no_grad():
            problem = self.problem
            if problem is None and os.path.exists(PROBLEM):
                problem = load_file(PROBLEM, "problem")  # it may draw or seed itself
            # Seeded at the same two places as the reference's model, so that both draw equal weights.
            torch.manual_seed(seed)
            initial: Sequence[Any] = problem.get_init_inputs() if problem else []
            torch.manual_seed(seed)
            try:
                model = made(*initial)
            except BaseException as error:
                return {"error": "ModelNew cannot be constructed with %d arguments: %s" % (len(initial), words(error))}
            if not isinstance(model, torch.nn.Module) and self.task.get("state") and self.task.get("copy_state"):
                return {"error": "ModelNew is no torch.nn.Module, and the problem copies its weights into it"}
            if self.device is not None:
                try:
                    model = model.to(self.device)
                except BaseException as error:
                    return {"error": "ModelNew cannot be moved to %s: %s" % (self.device, words(error))}
        self.model = model
        return {}

    def _other_entry(self) -> str:
        """Return what to do about a file without ModelNew that has a launcher or another module, its last one."""
        if hasattr(self.module, self.symbol):
            return ": its %s wants the language launcher" % self.symbol
        names = cast("Dict[str, Any]", vars(self.module))
        here = [n for n, each in names.items() if getattr(each, "__module__", "") == self.module.__name__]
        own = [n for n in here if isinstance(names[n], type) and issubclass(names[n], self.torch.nn.Module)]
        return ": if its {0} is the answer, end the file with ModelNew = {0}".format(own[-1]) if own else ""

    def _turn_to(self, case: int) -> None:
        """Construct the model of a case."""
        self.problem.select(case)
        self.problem.get_inputs()  # what lies around the tensors is known before a call is timed
        reply = self._construct(getattr(self.module, "ModelNew", None) or self.problem.candidate_model(self.module))
        if reply:
            raise ValueError(str(reply["error"]))
        self.constants, self.settled, self.case = self.task["case_constants"][case - 1], False, case

    def settle(self, weights: Sequence[Any]) -> None:
        """Compare the model's weights with the problem's, and take these over where the problem wishes that."""
        self.settled = True
        names: Sequence[str] = self.task.get("state") or []
        if not names:
            return
        own: Dict[str, Any] = dict(self.model.state_dict()) if hasattr(self.model, "state_dict") else {}
        copied = bool(self.task.get("copy_state"))
        found = compared_weights(self.torch, dict(zip(names, weights)), own, copied=copied)
        self.weights_said, self.differ = found.said, found.differ
        self.said[self.weights_said] = None

    def open(self, message: Dict[str, Any], bases: List[int]) -> None:
        """Lay tensors over the buffers, and a memory pool over the arena if there is one."""
        super().open(message, bases)
        case = int(message["named_dims"].get("case") or 0)
        if case and case != self.case:
            self._turn_to(case)
        self.said, self.strides = {}, self.known.get(str(message["named_dims"]))
        self.at = str(message["named_dims"])
        if len(bases) == 4:
            try:
                size, sets = int(message["arena"]["bytes"]), int(message["inputs"]["sets"])
                self.pool = Pool(self.captures, bases[2], size, bases[3], sets, len(self.outputs[0]))
                self.pooled = not self.why_copied
            except Exception as error:
                self.why_copied = "torch took no allocator: %s" % words(error).splitlines()[0]
        self._say_where()

    def _say_where(self) -> None:
        if self.pool is None or self.why_copied:
            why = "as always on the processor" if self.device is None else "no allocator could be built for it"
            self.said["the outputs are copied into the judge's, within the clock: %s" % (self.why_copied or why)] = None
        elif self.decided:
            how = "outputs that the model keeps get other memory in each call" if self.reused else ""
            how = how or "the outputs lie in the judge's memory"
            self.said["%s: no copy in the clock" % how] = None
        if self.weights_said:
            self.said[self.weights_said] = None

    def close(self) -> None:
        """Forget the buffers."""
        super().close()
        self.kept = []
        self.pooled = False
        if self.reused is not None:
            with contextlib.suppress(RuntimeError):  # without memory for that the arena stays mapped
                self.reused.renew()  # out of the arena, which ends here
        if self.pool is not None:
            if self.pool.close():
                self.memory.keep_arena()
            self.pool = None

    def first(self) -> Reply:
        """Make the first calls at a shape, which are not timed."""
        reply = self._try_pool()
        names: Sequence[str] = self.task.get("state") or []
        if names and not reply and not self.differ and hasattr(self.model, "state_dict"):
            # A call that failed on the GPU raises here, too; the owner hears of it from the next request.
            with contextlib.suppress(Exception), open(PROBLEM, encoding="utf-8", errors="replace") as file:
                self.differ = unchanged_statistics(names, dict(self.model.state_dict()), file.read())
        return reply

    def _try_pool(self) -> Reply:
        """Call at a shape, untimed, and see whether results can stay where they are, and how they are laid out."""
        # Outside the pool: workspaces and graphs that a model makes once would stay in the arena, which ends.
        self.pooled = False
        reply = super().first()
        if reply or self.pool is None or self.why_copied:
            return reply
        if self.has_compiled_graphs():
            self.why_copied = "torch.compile's CUDA graphs answer in memory of their own"
            self._say_where()
            return {}
        try:
            with self.torch.no_grad(), self.pool.use():
                one = self.results(0)
                first = self.pool.places(one, self.outputs[0])  # before a second call, which may take it away
                two = self.results(0)
                self.why_copied = self.pool.why_not(first, self.pool.places(two, self.outputs[0]))
                self.reused = self._find_reused(one, two) if self.why_copied else None
            if self.reused is not None:
                self.why_copied = ""
            self.strides = self.known[self.at] = [place.layout.strides for place in first]
            del one, two
        except BaseException as error:
            return {"error": "call 1 raised %s" % words(error)}
        self.decided, self.pooled = True, not self.why_copied
        self._say_where()
        return self.run(1)

    def _find_reused(self, one: Sequence[Any], two: Sequence[Any]) -> Optional[ReusedOutputs]:
        """Return the outputs that two calls on the first set share, if a third writes all of them to other memory."""
        reused, pool = ReusedOutputs(self.torch, one, two), self.pool
        if pool is None or not reused.tensors or not all(layout_of(result).dense for result in two):
            return None
        places = reused.take(two)
        try:
            before = reused.sample()
            reused.renew(junk=True)
            three = self.results(0)
            inside = all(pool.offset(result, target) != HERE for result, target in zip(three, self.outputs[0]))
            if inside and reused.are_written(three, before):
                return reused
        except Exception:
            self.torch.cuda.synchronize()  # if more was wrong than the change of memory, the next call says so
        for tensor, place in zip(reused.tensors, places):
            tensor.data = place
        return None

    def run(self, calls: int, first: int = 0, behind: Any = None) -> Reply:
        """Answer `calls` sets, from `first` on: name what was returned, or copy it at once.

        What was returned is kept until a round begins with the first set again.
        """
        if not self.pooled or self.pool is None:
            with self.torch.no_grad():
                return super().run(calls, first, behind)
        del self.kept[first:]
        number = first
        self.copied = set()
        try:
            with self.torch.no_grad(), self.pool.use():
                for number in range(first, first + calls):
                    if self.reused is not None:
                        self.reused.renew()
                    results = self.results(number)
                    self.kept.append(self.reused.take(results) if self.reused is not None else results)
                    if behind is not None:
                        behind(number, self._address)
            for number, results in enumerate(self.kept[first:], first):
                for place, (result, target) in enumerate(zip(results, self.outputs[number])):
                    copied = (number, place) in self.copied
                    offset = HERE if copied else self._offset(place, result, target)
                    if offset == HERE and not copied:
                        target.copy_(result)
                    self.pool.name(number, place, offset)
        except BaseException as error:
            return {"error": "call %d raised %s" % (number + 1, words(error))}
        return {}

    def _address(self, number: int, output: int) -> Optional[int]:
        """Return where an answer lies; `None` where it is not in the arena, and is copied into its place."""
        result, target = self.kept[number][output], self.outputs[number][output]
        if self._offset(output, result, target) != HERE:
            return int(result.data_ptr())
        self.copied.add((number, output))
        target.copy_(result)
        return None

    def _offset(self, place: int, result: Any, target: Any) -> int:
        """Return where a result lies in the arena, `HERE` where it does not, or not as was said of its layout."""
        if self.pool is None or self.strides is None or layout_of(result).strides != self.strides[place]:
            return HERE
        return self.pool.offset(result, target)

    def run_copied(self, calls: int) -> Reply:
        """Answer them and copy each result at once, so that it is seen when it is there."""
        if not self.pooled or self.pool is None:
            return self.run(calls)
        self.kept = []
        with self.torch.no_grad(), self.pool.use():
            return super().run(calls)

    def answer(self, inputs: Sequence[Any]) -> Any:
        """Call the model; where the problem declares backward, have torch differentiate it as well.

        Weights of the problem lie behind the inputs, for a comparison before the first call.
        """
        if not self.settled:
            self.settle(inputs[self.given :])
        inputs = inputs[: self.given]
        forward = int(self.task.get("backward") or 0)
        if not forward:
            return self.model(*with_constants(inputs, self.constants))
        from ..numerics.autograd import with_gradients

        kinds = [spec["dtype"] for spec in self.task["inputs"][:forward]]
        return with_gradients(self.torch, self.model, kinds, inputs)

    def results(self, number: int) -> Sequence[Any]:
        """Return what the model answers to one set, if it is what the problem has."""
        found: Any = self.with_inputs(number, self.answer)
        results = cast("Sequence[Any]", found if isinstance(found, (tuple, list)) else (found,))
        targets = self.outputs[number]
        if len(results) != len(targets):
            what = "%d values" % len(results) if results is found else "one %s" % type(cast("object", found)).__name__
            raise ValueError("ModelNew returned %s, the problem has %d" % (what, len(targets)))
        for place, result in enumerate(results):
            self._compare(self.task["outputs"][place]["name"], result, targets[place])
        return results

    def _compare(self, name: str, result: Any, target: Any) -> None:
        """Raise if a result is not what the problem has; the rule for types is the reference's (arrays_torch.py)."""
        if not isinstance(result, self.torch.Tensor):
            raise TypeError("ModelNew returned %s for output %s, not a tensor" % (type(result).__name__, name))
        if tuple(result.shape) != tuple(target.shape):
            raise ValueError("output %s has shape %s, expected %s" % (name, list(result.shape), list(target.shape)))
        if result.is_complex() or (result.is_floating_point() and not target.is_floating_point()):
            raise TypeError("output %s is %s, expected %s" % (name, result.dtype, target.dtype))

    def call(self, number: int) -> None:
        """Call the model and copy what it returns."""
        for target, result in zip(self.outputs[number], self.results(number)):
            target.copy_(result)
