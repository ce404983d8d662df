"""A PyTorch module as KernelBook and AgentKernelArena have it: named freely, made by keywords, inputs by `yield`."""

import importlib
import inspect
import types
from typing import Any, Dict, Iterable, List, cast

from .case_module import CaseModule

torch: Any = importlib.import_module("torch")


class KernelBook(CaseModule):
    """Each of the input sets that `get_inputs` yields is a case."""

    def __init__(self, module: Any, task: Dict[str, Any], files: Dict[str, str]) -> None:
        super().__init__(module, task, files)
        self.kind = _module_class(module)
        self.entry, self.Model = self.kind.__name__, self._maker(self.kind)
        if self.cases == [{}]:
            self.cases = [{"set": number} for number in range(len(self._sets()))]

    def _sets(self) -> List[List[Any]]:
        found: Any = self.module.get_inputs()
        if isinstance(found, types.GeneratorType):
            return [list(each) for each in cast("Iterable[List[Any]]", found)]
        return [list(found)]

    def get_inputs(self) -> List[Any]:
        """Return the set of the case at hand."""
        return self._sets()[int(self.case["set"])]

    def candidate_model(self, module: Any) -> Any:
        """Return the candidate's class of the same name, made as the problem's is."""
        kind = getattr(module, self.kind.__name__, None)
        return None if kind is None else self._maker(kind)

    def _maker(self, kind: Any) -> Any:
        """Return what makes a module of a class by the problem's arguments; its `forward` names the inputs."""

        def construct(*_: Any) -> Any:
            given: List[Any] = list(self.module.get_init_inputs())
            if len(given) == 2 and isinstance(given[0], list) and isinstance(given[1], dict):
                return kind(*cast("List[Any]", given[0]), **cast("Dict[str, Any]", given[1]))
            return kind(*given)

        construct.forward = getattr(kind, "forward", None)  # type: ignore[attr-defined]
        return construct


def _module_class(module: Any) -> Any:
    """Return the module that the file is about: Model, else the last by name that it defines."""
    model = getattr(module, "Model", None)
    if model is not None:
        return model
    kinds: List[Any] = [each for _, each in inspect.getmembers(module, inspect.isclass)]
    own = [k for k in kinds if issubclass(k, torch.nn.Module) and k.__module__ == module.__name__]
    if not own:
        raise ValueError("the file defines no torch.nn.Module")
    return own[-1]
