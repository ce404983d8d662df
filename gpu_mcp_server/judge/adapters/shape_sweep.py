"""KernelBench's file with a sweep of shapes: before each, constants of the module are set (KernelBench-Hard, Mega)."""

from typing import Any, Dict, List

from .case_module import CaseModule


class ShapeSweep(CaseModule):
    """`Model`, `get_inputs` and `get_init_inputs` as they stand."""

    entry = "Model"

    def __init__(self, module: Any, task: Dict[str, Any], files: Dict[str, str]) -> None:
        super().__init__(module, task, files)
        for name in ("Model", "get_inputs", "get_init_inputs"):
            if not callable(getattr(module, name, None)):
                raise ValueError("the problem's file defines no %s" % name)
        self.Model = module.Model

    def select(self, number: int) -> None:
        """Set the constants of a case."""
        super().select(number)
        for name, value in self.case.items():
            setattr(self.module, name, value)

    def get_inputs(self) -> List[Any]:
        """Return the module's own.

        Raises:
            ValueError: If there are none: such a task calls its model in a loop of its own check.
        """
        found = list(self.module.get_inputs())
        if not found:
            raise ValueError(
                "get_inputs gives no inputs; the task's own check.py makes them, and no judge can run that"
            )
        return found

    def get_init_inputs(self) -> List[Any]:
        """Return the module's own."""
        return list(self.module.get_init_inputs())

    def candidate_model(self, module: Any) -> Any:
        """Return the candidate's `Model`, as these suites call it."""
        return getattr(module, "Model", None)
