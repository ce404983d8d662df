"""Chooses the adapter that a task names, and puts it around the problem's file."""

import importlib
import importlib.util
import os
import sys
from typing import Any, Dict

from .case_module import CaseModule, install_modules, read_files

ADAPTERS = {
    "gpumode": ("gpumode_task", "GpuModeTask"),
    "trace": ("trace_definition", "TraceDefinition"),
    "module": ("kernel_book", "KernelBook"),
    "captured": ("captured_calls", "CapturedCalls"),
    "sweep": ("shape_sweep", "ShapeSweep"),
}
"""By the kind that a task names: module, imported where it is wanted, and class."""
_PREPARED: Dict[str, Dict[str, str]] = {}


def prepare_files(task: Dict[str, Any]) -> None:
    """Make importable what the problem's file imports; ahead of that file."""
    if not task.get("adapter") or "files" in _PREPARED:
        return
    files = _PREPARED["files"] = read_files()
    if task["adapter"].get("aiter"):
        from .aiter_definitions import install_aiter

        install_aiter()
    if task.get("device") != "cuda":
        from .cuda_on_cpu import pretend_cuda

        if any("cuda" in text for text in files.values()) or task["adapter"].get("cuda"):
            pretend_cuda()
    install_modules(files)


def load_file(path: str, name: str) -> Any:
    """Run a Python file and return its module; raises what it raises."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("%s cannot be read" % os.path.basename(path))
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs: dataclasses and pickling look their own module up in sys.modules.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def adapted_module(module: Any, task: Dict[str, Any]) -> Any:
    """Return a problem's module as KernelBench's, by the adapter that its task names."""
    adapter: Dict[str, Any] = task.get("adapter") or {}
    kind = adapter.get("kind")
    if not kind:
        return module
    name, kind = ADAPTERS[kind]
    made: CaseModule = getattr(importlib.import_module("." + name, __package__), kind)(module, task, _PREPARED["files"])
    return made
