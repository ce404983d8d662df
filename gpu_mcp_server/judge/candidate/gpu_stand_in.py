"""Stand-in for a GPU, where a Python file is loaded without one; its text goes into other programs' too.

Source: torch 2.13 (torch.overrides.TorchFunctionMode, torch.cuda), triton 3.9 (runtime/driver.py).
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

import contextlib
import importlib
import re
import sys
from types import SimpleNamespace
from typing import Any, Tuple

PROCESSORS = 132
"""Multiprocessors of the GPU that is not there: an H100's."""


def skip_launch(*_: Any, **__: Any) -> None:
    """Stand for a launch and start nothing."""


def numbers_of(arch: str) -> Tuple[int, int]:
    """Return an architecture as two numbers."""
    digits = re.sub(r"\D", "", arch)
    return int(digits[:-1]), int(digits[-1])


def stand_in_driver(target: Any) -> Any:
    """Return a driver for Triton that knows a target and launches nothing."""
    about = {"max_shared_mem": 1 << 20, "multiprocessor_count": PROCESSORS, "warpSize": 32, "max_num_regs": 65536}
    return SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda *_: 0,
        get_active_torch_device=lambda: importlib.import_module("torch").device("cuda", 0),
        get_benchmarker=lambda: lambda *_, **__: [0.0, 0.0, 0.0],
        map_python_to_cpp_type=str,
        launcher_cls=lambda *_: skip_launch,
        utils=SimpleNamespace(load_binary=lambda *_: (None, None, 0, 0, 1024), get_device_properties=lambda _: about),
    )


def hook_torch(arch: str, path: str) -> None:
    """Have torch answer for a GPU that is not there, as far as launchers ask before they launch.

    A tensor of the GPU is one of the processor's. The file itself sees a GPU; libraries see what is there.
    """
    torch: Any = importlib.import_module("torch")
    stream = SimpleNamespace(cuda_stream=0, device=0, stream_id=0, synchronize=skip_launch)
    major, minor = numbers_of(arch)
    about = SimpleNamespace(name=arch, major=major, minor=minor, multi_processor_count=PROCESSORS, total_memory=1 << 36)
    available = torch.cuda.is_available
    torch.cuda.is_available = lambda: sys._getframe(1).f_code.co_filename == path or available()
    torch.cuda.current_stream = lambda *_: stream
    torch.cuda.current_device = lambda: 0
    torch.cuda.synchronize = skip_launch
    torch.cuda.set_device = lambda *_: None  # one of its own: Dynamo tells torch's functions apart
    torch.cuda.device = lambda *_: contextlib.nullcontext()
    torch.cuda.get_device_capability = lambda *_: (major, minor)
    torch.cuda.get_device_properties = lambda *_: about
    if not torch.cuda.default_generators:
        seed_and_offset = torch.zeros(16, dtype=torch.uint8)
        of_gpu = SimpleNamespace(get_state=seed_and_offset.clone, set_state=skip_launch, initial_seed=lambda: 0)
        torch.cuda.default_generators = (of_gpu,)
    core: Any = importlib.import_module("torch._C")
    if not hasattr(core, "_cuda_getCurrentRawStream"):
        core._cuda_getCurrentRawStream = lambda *_: 0  # what Inductor writes imports it
    on_gpu = re.compile(r"cuda(?::\d+)?")
    shown = {torch.Tensor.is_cuda.__get__: True, torch.Tensor.device.__get__: torch.device("cuda", 0)}

    class OnProcessor(torch.overrides.TorchFunctionMode):
        """Puts on the processor what is to be on a GPU."""

        def __torch_function__(self, function: Any, _: Any, given: Any = (), named: Any = None) -> Any:
            """Call a function of torch's."""
            if function in shown and sys._getframe(1).f_code.co_filename == path:
                return shown[function]
            if function is torch.Tensor.cuda:
                return given[0]
            if function is torch.device:
                return function(*given, **(named or {}))
            is_gpu = lambda one: isinstance(one, (str, torch.device)) and on_gpu.fullmatch(str(one))  # noqa: E731
            given = tuple("cpu" if is_gpu(one) else one for one in given)
            return function(*given, **{key: "cpu" if is_gpu(one) else one for key, one in (named or {}).items()})

    OnProcessor().__enter__()
