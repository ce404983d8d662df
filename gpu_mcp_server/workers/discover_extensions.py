"""Runs a Python candidate without a GPU to see which extensions it has torch build; `requests.json` is the list.

Whatever the file does or raises, this ends well: what was asked for until then is what is known.
"""
# Modules of the candidate's workspace: pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import importlib
import importlib.util
import json
import os
import sys
from typing import Any, Callable, Dict, List

RESULT = "requests.json"
TAKE = "_import_module_from_library"
"""torch's, behind the step that the judge's module names."""
MOST = 8
"""Extensions of one file."""


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


def main(_: List[str]) -> None:
    """Load the candidate; construct its model as well where loading asked for nothing."""
    requests: List[Dict[str, Any]] = []

    def keep() -> None:
        with open(RESULT, "w", encoding="utf-8") as file:
            json.dump(requests, file)

    def note(request: Dict[str, Any]) -> None:
        if len(requests) < MOST:
            requests.append(request)
            keep()

    keep()
    os.environ["TORCH_EXTENSIONS_DIR"] = os.path.abspath("extensions")
    take_down_requests(load_file("judge_extensions"), note)
    with contextlib.suppress(BaseException):
        module = load_file("candidate")
        if not requests:
            initial = load_file("problem").get_init_inputs() if os.path.exists("problem.py") else []
            module.ModelNew(*initial)
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of the candidate's own are nobody's business
