"""A plain, trusting harness for one KernelBench-shaped candidate: the judge is compared with it.

`python plain_harness.py cpu|cuda` reads two lines of JSON. The first, {"reference": text, "candidate": text, "folder":
where files may go}, has both files imported, which is when most extensions are compiled. The second, any line, has the
candidate compared and timed: whoever sends it has made sure that the GPU is free. Each is answered by a line of JSON.

It believes what it is told, as KernelBench does: the generator is seeded alike before each construction; the answers of
a few seeds are compared by allclose at both tolerances; a call is timed by CUDA events in the candidate's process, the
cache overwritten before each, both sides by turns. Source of the order of seeds and of training mode:
https://github.com/ScalingIntelligence/KernelBench, src/kernelbench/eval.py.
"""

import importlib.util
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

TOLERANCES = {"1e-4": 1e-4, "1e-2": 1e-2}
SEED = 42
TRIALS = 4
CALLS, CALLS_S = 100, 1.0
"""Timed calls of each side: so many, or as many as there is time for, but not fewer than five."""
FLUSH_BYTES = 256 << 20
"""More than any GPU's cache holds."""


def loaded(text: str, path: Path) -> Any:
    """Return a file's module; an extension that it asks for when it is imported is compiled now."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def tensors_of(found: Any) -> list[Any]:
    """Return a result's tensors in order."""
    import torch

    each = found if isinstance(found, (tuple, list)) else [found]
    return [x for x in each if torch.is_tensor(x)]


def is_close(expected: Sequence[Any], got: Sequence[Any], tolerance: float) -> bool:
    """Say whether all tensors are alike by allclose."""
    import torch

    if [x.shape for x in expected] != [x.shape for x in got]:
        return False
    return all(
        torch.allclose(a, b.to(a.dtype), atol=tolerance, rtol=tolerance) for a, b in zip(expected, got, strict=True)
    )


def largest_difference(expected: Sequence[Any], got: Sequence[Any]) -> float:
    """Return by how much the farthest element is off; infinite where shapes differ."""
    if [x.shape for x in expected] != [x.shape for x in got]:
        return float("inf")
    pairs = [(a.double() - b.double()).abs().max().item() for a, b in zip(expected, got, strict=True) if a.numel()]
    return max(pairs, default=0.0)


class Pair:
    """Reference and candidate, as two models on one device."""

    def __init__(self, reference: Any, candidate: Any, device: str) -> None:
        self.reference, self.candidate, self.device = reference, candidate, device
        self.models: list[Any] = []

    def construct(self) -> None:
        """Make both models, each after the same seed."""
        import torch

        classes = [self.reference.Model, getattr(self.candidate, "ModelNew", None) or self.candidate.Model]
        torch.manual_seed(SEED)
        initial = self.reference.get_init_inputs()
        for each in classes:
            torch.manual_seed(SEED)
            self.models.append(each(*initial).to(self.device))

    def inputs(self, seed: int) -> list[Any]:
        """Return inputs of a seed, on the device."""
        import torch

        torch.manual_seed(seed)
        return [x.to(self.device) if torch.is_tensor(x) else x for x in self.reference.get_inputs()]

    def answer(self, side: int, inputs: Sequence[Any], seed: int) -> Any:
        """Return a model's answer, whose random numbers are those of a seed."""
        import torch

        torch.manual_seed(seed)
        result = self.models[side](*inputs)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return result

    def compared(self) -> dict[str, Any]:
        """Return how answers agree, whether inputs are written to, and whether the same call answers the same twice."""
        right: dict[str, list[bool]] = {name: [] for name in TOLERANCES}
        found: dict[str, Any] = {"off": [], "writes": [], "right": right, "kind": "Tensor", "repeat_off": 0.0}
        for trial in range(TRIALS):
            seed = SEED + trial
            given, before = self.inputs(seed), self.inputs(seed)
            expected = [x.clone() for x in tensors_of(self.answer(0, self.inputs(seed), seed))]
            result = self.answer(1, given, seed)
            kinds = {type(x).__name__ for x in tensors_of(result)} - {"Tensor", "Parameter"}
            found["kind"] = min(kinds, default=found["kind"])
            got = [x.clone() for x in tensors_of(result)]
            found["writes"] += [i for i in written_to(before, given) if i not in found["writes"]]
            found["off"].append(largest_difference(expected, got))
            for name, tolerance in TOLERANCES.items():
                right[name].append(is_close(expected, got, tolerance))
            again = tensors_of(self.answer(1, before, seed))
            found["repeat_off"] = max(found["repeat_off"], largest_difference(got, again))
        return found

    def by_turns(self, model: Any) -> Callable[[], Any]:
        """Return a call that finds other inputs each time, more of them than the cache holds."""
        one = self.inputs(SEED)
        size = sum(x.nbytes for x in tensors_of(one))
        copies = min(MOST_COPIES, 1 + COPIES_BYTES // max(1, size))
        given = itertools.cycle([self.inputs(SEED + number) for number in range(copies)])
        return lambda: model(*next(given))

    def timed(self) -> dict[str, Any]:
        """Return the median time of a call of each side, timed by turns."""
        calls = [partial(model, *self.inputs(SEED)) for model in self.models]
        clock = EventClock() if self.device == "cuda" else HostClock()
        for call in calls * 3:
            clock.seconds(call)
        taken: list[list[float]] = [[], []]
        end = time.monotonic() + 2 * CALLS_S
        while len(taken[1]) < 5 or (len(taken[1]) < CALLS and time.monotonic() < end):
            for side, call in enumerate(calls):
                taken[side].append(clock.seconds(call))
        reference, candidate = (statistics.median(side) for side in taken)
        queued = (
            [queued_seconds(self.by_turns(model)) * 1e6 for model in self.models] if self.device == "cuda" else None
        )
        return {
            "queued_us": queued,
            "reference_us": reference * 1e6,
            "candidate_us": candidate * 1e6,
            "speedup": reference / max(candidate, 1e-9),
            "calls": len(taken[1]),
        }


def written_to(before: Sequence[Any], after: Sequence[Any]) -> list[int]:
    """Return the positions of the arguments that a call changed."""
    import torch

    pairs = [(i, a, b) for i, (a, b) in enumerate(zip(before, after, strict=True)) if torch.is_tensor(a)]
    return [i for i, a, b in pairs if not torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))]


COPIES_BYTES, MOST_COPIES = 128 << 20, 64
QUEUED_CALLS, CLOCK_HZ = 60, 1.9e9
"""Timed one by one; the clock that a GPU's `_sleep` counts cycles of, about."""


def queued_seconds(call: Callable[[], Any]) -> float:
    """Return the median device time of a call whose launch waits behind other work, an empty pair's time off."""
    import torch

    cuda: Any = torch.cuda
    begin = time.perf_counter()
    call()
    cuda.synchronize()
    ahead_s = min(max(3 * (time.perf_counter() - begin), 3e-4), 5e-3)

    def measured(what: Callable[[], Any]) -> float:
        taken: list[float] = []
        for _ in range(QUEUED_CALLS):
            first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda._sleep(int(ahead_s * CLOCK_HZ))
            first.record()
            what()
            last.record()
            cuda.synchronize()
            taken.append(float(first.elapsed_time(last)) / 1e3)
        return statistics.median(taken)

    return measured(call) - measured(lambda: None)


class HostClock:
    """The processor's clock."""

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return what a call took."""
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin


class EventClock:
    """CUDA events around a call that is queued behind a pass over more memory than the cache holds."""

    def __init__(self) -> None:
        import torch

        self.cuda: Any = torch.cuda
        self.flush: Any = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return what a call took on the device."""
        begin, end = self.cuda.Event(enable_timing=True), self.cuda.Event(enable_timing=True)
        self.flush.zero_()
        begin.record()
        call()
        end.record()
        self.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


class Stages:
    """Stage that is under way, and the seconds that each one took."""

    def __init__(self) -> None:
        self.name, self.seconds = "import", dict[str, float]()
        self._begin = time.monotonic()

    def end(self, following: str) -> None:
        """Note what the part took that is over, and begin the following one."""
        self.seconds[self.name] = time.monotonic() - self._begin
        self.name, self._begin = following, time.monotonic()


def run(task: dict[str, Any], device: str, ask: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Import both files, ask whether the device is free, compare and time; return what came of it."""
    import torch

    stages, found = Stages(), dict[str, Any]()
    try:
        folder = Path(task["folder"])
        pair = Pair(*(loaded(task[name], folder / f"plain_{name}.py") for name in ("reference", "candidate")), device)
        stages.end("wait")
        ask({"imported": stages.seconds["import"]})
        stages.end("construct")
        with torch.no_grad():
            pair.construct()
            stages.end("compare")
            found = pair.compared()
            stages.end("time")
            found |= pair.timed()
            stages.end("end")
    except Exception as error:
        found |= {"error": f"{type(error).__name__}: {error}"[:600], "stage": stages.name}
    return {**found, "seconds": stages.seconds}


def main() -> None:
    """Serve one candidate; what it prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    def ask(what: dict[str, Any]) -> str:
        tell(what)
        return sys.stdin.readline()

    import torch  # noqa: F401 - ahead of the first line, while something else goes on

    task = json.loads(sys.stdin.readline() or "null")
    if task is not None:
        tell(run(task, sys.argv[1], ask))


if __name__ == "__main__":
    main()
