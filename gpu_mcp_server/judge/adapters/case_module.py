"""Defines the interface of adapters: a module of KernelBench's form whose inputs differ from case to case."""

import importlib.abc
import importlib.machinery
import json
import os
import sys
from typing import Any, Dict, List, Sequence, Tuple, cast

from ..folders import WORK

FILES = os.path.join(WORK, "problem_files.json")
"""Texts of the files beside the problem's own, by name."""


class CaseModule:
    """A problem with cases; in its place an adapter fills in what its suite says."""

    Model: Any = None
    """Takes what `get_init_inputs` gives, answers what `get_inputs` gives."""

    entry = ""
    """What a candidate may define instead of ModelNew, for an error's words."""

    def __init__(self, module: Any, task: Dict[str, Any], files: Dict[str, str]) -> None:
        self.module, self.task, self.files = module, task, files
        self.cases: List[Dict[str, Any]] = list(task.get("cases") or [])
        self.facts: Dict[str, Any] = dict(task.get("adapter") or {})
        self.number = 1

    @property
    def case(self) -> Dict[str, Any]:
        """The case at hand."""
        return self.cases[self.number - 1]

    def take_cases(self, cases: Sequence[Dict[str, Any]]) -> None:
        """Take the cases to judge, in their order: some may have been left out."""
        self.cases, self.number = list(cases), 1

    def select(self, number: int) -> None:
        """Turn to a case, counted from 1."""
        self.number = number

    def names(self) -> Sequence[str]:
        """Return names of what `get_inputs` gives; empty where `Model.forward` says them."""
        return ()

    def get_inputs(self) -> List[Any]:
        """Return the inputs of the case at hand, drawn after torch's seed."""
        raise NotImplementedError

    def get_init_inputs(self) -> List[Any]:
        """Return what the model is constructed with."""
        return []

    def examine(self) -> Dict[str, Any]:
        """Return what only a run of the case at hand tells: facts for later, tolerances."""
        return {}

    def check(self, given: Sequence[Any], answers: Sequence[Any]) -> Tuple[bool, str]:
        """Say whether the problem's own check takes answers to inputs of the case at hand, and what it says."""
        raise ValueError("the problem brings no check of its own")

    def candidate_model(self, module: Any) -> Any:
        """Return a class in place of ModelNew for a candidate of the suite's own form; None if it has none."""
        return None


def verdict_of(found: Any) -> Tuple[bool, str]:
    """Return whether a check passes an answer, and its text, from a bool, (bool, text) or the text of a failure.

    A bool may be one of numpy's, or a tensor of one, as `(a == b).all()` gives it.

    Raises:
        ValueError: If it is none of these.
    """
    parts: List[Any] = list(cast("Sequence[Any]", found)) if isinstance(found, (tuple, list)) else [found]
    if parts and (isinstance(parts[0], bool) or str(getattr(parts[0], "dtype", "")) in ("bool", "torch.bool")):
        passed = parts[0] if isinstance(parts[0], bool) else parts[0].item()
        return bool(passed), str(parts[1]) if len(parts) > 1 else ""
    if isinstance(found, (str, list, tuple)):
        return not found, str(cast("Any", found))
    raise ValueError("the problem's own check returns %s: neither a bool nor (bool, text)" % type(found).__name__)


def read_files() -> Dict[str, str]:
    """Return the texts beside the problem's own."""
    if not os.path.exists(FILES):
        return {}
    with open(FILES, encoding="utf-8") as file:
        return cast("Dict[str, str]", json.load(file))


def install_modules(files: Dict[str, str]) -> None:
    """Make Python files importable by their names, each run when it is first imported."""
    texts = {name[:-3].replace("/", "."): text for name, text in files.items() if name.endswith(".py")}
    if texts:
        sys.meta_path.insert(0, _Finder(texts))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Finds modules among texts; compilers of kernels get their source from it."""

    def __init__(self, texts: Dict[str, str]) -> None:
        self.texts = texts

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return how a module is loaded, None if it is not ours."""
        package = self.is_package(fullname)
        ours = fullname in self.texts or package
        return importlib.machinery.ModuleSpec(fullname, self, is_package=package) if ours else None

    def is_package(self, fullname: str) -> bool:
        """Say whether there are modules in it."""
        return any(each.startswith(fullname + ".") for each in self.texts)

    def get_filename(self, fullname: str) -> str:
        """Return the name that errors give."""
        return "%s.py" % fullname

    def get_source(self, fullname: str) -> str:
        """Return a module's text, empty of a package without one."""
        return self.texts.get(fullname, self.texts.get(fullname + ".__init__", ""))
