"""Triton's interpreter for files that were written for a GPU: they find one, tune nothing and ask for no binary.

Source: triton 3.9 (runtime/interpreter.py, runtime/autotuner.py, runtime/driver.py).
"""
# pyright: reportUnknownMemberType=false

import ast
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, List

import numpy as np

from .gpu_stand_in import hook_torch, stand_in_driver
from .libdevice_stand_in import add_libdevice

REGISTERS = 64
"""Of a thread, told to a launcher that sizes its grid by them: the interpreter compiles nothing."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


class InterpretedKernel:
    """Stands for the binary that a launcher has compiled ahead: it asks for registers, and launches it."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.n_regs, self.n_spills = REGISTERS, 0
        self.metadata = SimpleNamespace(shared=1024, num_warps=4)

    def _init_handles(self) -> None:
        """Load nothing."""

    def __getitem__(self, grid: Any) -> Any:
        return self.function[grid]


class TritonInterpreter:
    """Environment of a file that Triton interprets; `words` tells its errors.

    Raises:
        ImportError: If there is no Triton.
    """

    def __init__(self, path: str, words: Callable[[BaseException], str]) -> None:
        self.path, self.words = path, words
        self.failed: List[str] = []
        """What statements of the file's top raised."""
        self.loading = self.tuned = self.warmed = False
        tuner: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
        runtime: Any = importlib.import_module("triton.runtime")
        target: Any = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
        interpreter: Any = importlib.import_module("triton.runtime.interpreter")
        function, convert = interpreter.InterpretedFunction, interpreter._implicit_cvt
        driver, run = stand_in_driver(target), function.run
        driver.get_device_interface = driver.get_empty_cache_for_benchmark = self._refuse_clock
        runtime.driver.set_active(driver)

        def launch(kernel: Any, *given: Any, **named: Any) -> Any:
            if self.loading:
                raise RuntimeError("a launch at the file's top: the judge makes its own")
            return run(kernel, *given, **named)

        def warmup(kernel: Any, *_: Any, **__: Any) -> InterpretedKernel:
            self.warmed = True
            return InterpretedKernel(kernel)

        def untimed(*_: Any, **__: Any) -> List[float]:
            # Equal times for all make the tuner's minimum the first configuration, deterministically.
            self.tuned = True
            return [0.0, 0.0, 0.0]

        def typed(given: Any) -> Any:
            if type(given) is not float:
                return convert(given)
            # The compiler makes it a scalar of float32; the interpreter leaves Python's, which has no type to cast.
            kind = interpreter.tl.float32
            return interpreter.tl.tensor(interpreter.TensorHandle(np.array([given], np.float32), kind), kind)

        interpreter._implicit_cvt = typed
        add_libdevice(interpreter)
        tuner._bench, function.run, function.warmup = untimed, launch, warmup
        hook_torch("sm_90", path)

    def _refuse_clock(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("there is no GPU to time: Triton's interpreter runs it")

    def load(self) -> Any:
        """Run the file and return its module; tests and benchmarks at its top may fail, definitions may not."""
        with open(self.path, encoding="utf-8") as file:
            text = file.read()
        flags = compile(text, self.path, "exec", dont_inherit=True).co_flags & 0x1FF0000  # of the future
        module = sys.modules["candidate"] = ModuleType("candidate")
        module.__file__ = self.path
        self.loading = True
        for statement in ast.parse(text).body:
            try:
                only = ast.Module([statement], [])
                exec(compile(only, self.path, "exec", flags, dont_inherit=True), module.__dict__)
            except (Exception, SystemExit) as error:
                if isinstance(statement, DEFINITIONS):
                    raise
                self.failed.append(self.words(error))
        self.loading = False
        return module

    def failures(self) -> str:
        """Return what did not run as the file was loaded, behind an error of a name that it was to define."""
        firsts = "; ".join(each.partition("\n")[0][:200] for each in self.failed[:5])
        return "; as the file was loaded: " + firsts if firsts else ""

    def notes(self) -> List[str]:
        """Return what was not as on a GPU."""
        first = self.failed[0].partition("\n")[0][:300] if self.failed else ""
        more = ", and %d more" % (len(self.failed) - 1) if len(self.failed) > 1 else ""
        return [
            *(["not run as the file was loaded: %s%s" % (first, more)] if self.failed else []),
            *(["registers that it asks for are made up: the interpreter compiles nothing"] if self.warmed else []),
            *(["autotuning takes the first configuration: on the processor nothing is tuned"] if self.tuned else []),
        ]
