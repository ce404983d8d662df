"""Runs a Python candidate without a GPU to see which extensions it has torch build; `requests.json` is the list.

Whatever the file does or raises, this ends well: what was asked for until then is what is known. Many candidates build
behind `torch.cuda.is_available()`, in their model's constructor or in its first call. So where the job will have a GPU
this process says that it has one, and tensors are described without memory. A file that asks more of that GPU fails
here, perhaps before it builds: it is run as on a machine without a GPU as well.
"""
# Modules of the candidate's workspace: pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
from typing import Any, Callable, Dict, Generator, List, Optional, Tuple

RESULT = "requests.json"
TAKE = "_import_module_from_library"
"""torch's, behind the step that the judge's module names."""
MOST = 8
"""Extensions of one file."""
CALL_S = 60
"""For a call without data, in which a candidate may wait for what never comes; what it asked for by then is kept."""


def prepare() -> None:
    """Import torch before there is a job; IMPORTS is put before this source."""
    for name in globals().get("IMPORTS", ()):
        importlib.import_module(name)


def load_file(name: str) -> Any:
    """Run a file of the workspace."""
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(name + ".py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class NotBuilt:
    """Stands for an extension while a file is only asked what it wants built."""

    def __getattr__(self, name: str) -> Any:
        """Return something that may be kept and not be called."""
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*_: Any, **__: Any) -> Any:
            raise RuntimeError("%s is not built yet" % name)

        return call


def take_down_requests(extensions: Any, note: Callable[[Dict[str, Any]], None]) -> None:
    """Have torch tell what it would build, and build nothing; `extensions` is the judge's module of that name."""
    torch_extensions: Any = importlib.import_module("torch.utils.cpp_extension")
    step = getattr(torch_extensions, extensions.STEP)

    def noted(*given: Any, **named: Any) -> None:
        note(extensions.request_of(step, given, named)[0])

    setattr(torch_extensions, extensions.STEP, noted)
    setattr(torch_extensions, TAKE, lambda *_, **__: NotBuilt())  # type: ignore[misc]


def constant(value: Any) -> Callable[..., Any]:
    """Return a function that returns a value whatever it is given."""

    def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


@contextlib.contextmanager
def describe_gpu(capability: Tuple[int, ...]) -> Generator[None, None, None]:
    """Have torch say in the body that there is a GPU, for which tensors have no memory."""
    torch: Any = importlib.import_module("torch")
    overrides: Any = importlib.import_module("torch.overrides")
    on_meta = torch.device("meta")
    answers: Dict[str, Any] = dict.fromkeys(("synchronize", "set_device", "init"))
    answers.update(is_available=True, device_count=1, current_device=0, get_device_capability=capability)
    without = {name: getattr(torch.cuda, name) for name in answers}

    def moved(value: Any) -> Any:
        named_cuda = isinstance(value, str) and value.partition(":")[0] == "cuda"
        return on_meta if named_cuda or isinstance(value, torch.device) else value

    class OnMeta(overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, _: Any, given: Any = (), named: Any = None) -> Any:
            if function == torch.Tensor.is_cuda.__get__:  # a new object each time
                return True
            if function == torch.Tensor.device.__get__:
                return torch.device("cuda", 0)
            if function is torch.Tensor.cuda:
                return given[0].to(on_meta)
            return function(*map(moved, given), **{name: moved(value) for name, value in (named or {}).items()})

    for name, answer in answers.items():
        setattr(torch.cuda, name, constant(answer))
    try:
        with OnMeta():
            yield
    finally:
        for name, function in without.items():
            setattr(torch.cuda, name, function)


def end(*_: Any) -> None:
    """End this process at once, without the candidate's threads and exit handlers."""
    sys.stdout.flush()
    os._exit(0)


def run_candidate(requests: List[Dict[str, Any]], capability: Optional[Tuple[int, ...]]) -> None:
    """Load the candidate; where that asked for nothing construct its model too, and where a GPU is meant call it.

    Raises what the file does, but not what its call does: without a GPU it would not be called.
    """
    with contextlib.nullcontext() if capability is None else describe_gpu(capability):
        module = load_file("candidate")
        if requests:
            return
        problem = load_file("problem") if os.path.exists("problem.py") else None
        model = module.ModelNew(*(problem.get_init_inputs() if problem else []))
        if not requests and capability is not None and problem is not None:
            torch: Any = importlib.import_module("torch")
            # Of inputs only the kinds matter, and those of a problem may be larger than this sandbox.
            signal.signal(signal.SIGALRM, end)
            signal.alarm(CALL_S)
            with contextlib.suppress(BaseException):
                with torch.device("meta"):
                    inputs = problem.get_inputs()
                model(*inputs)


def main(words: List[str]) -> None:
    """Take down what the candidate asks for; a word such as 9.0 is the compute capability of the GPU to come."""
    requests: List[Dict[str, Any]] = []

    def keep() -> None:
        with open(RESULT, "w", encoding="utf-8") as file:
            json.dump(requests, file)

    def note(request: Dict[str, Any]) -> None:
        if len(requests) < MOST and request not in requests:
            requests.append(request)
            keep()

    keep()
    os.environ["TORCH_EXTENSIONS_DIR"] = os.path.abspath("extensions")
    take_down_requests(load_file("judge_extensions"), note)
    claimed: List[Any] = [tuple(int(part) for part in word.split(".")) for word in words]
    for capability in [*claimed, None]:
        with contextlib.suppress(BaseException):
            run_candidate(requests, capability)
            break
    end()
