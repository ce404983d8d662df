"""Ghost replay, the candidate's side: a call in which its own kernels do nothing.

Triton's kernels are not launched. Functions of extensions that torch loaded get copies of their tensors, so that what
they write is lost, and new tensors that they return are replaced by NaN. An answer that is right all the same does not
come from them. This runs beside the candidate's own code, which could see it; it finds a call to a library that nobody
hid, as `try: kernel() except: torch.matmul()` is one, or a kernel whose result is dropped.

Source: the idea is KernelGenBench's; triton/runtime/jit.py and interpreter.py, `run`, of Triton 3.2 to 3.9.
"""

import importlib
import sys
from typing import Any, Callable, Dict, List, Sequence, Tuple, cast

RUNNERS = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
TAKE = "_import_module_from_library"


def watch_extensions() -> List[Any]:
    """Return a list that gets every extension module that torch loads from now on."""
    loaded: List[Any] = []
    extensions: Any = importlib.import_module("torch.utils.cpp_extension")
    take = getattr(extensions, TAKE, None)
    if take is not None:

        def taken(*given: Any, **named: Any) -> Any:
            module = take(*given, **named)
            loaded.append(module)
            return module

        setattr(extensions, TAKE, taken)
    return loaded


class Ghost:
    """A context in which the candidate's own kernels do nothing."""

    def __init__(self, torch: Any, extensions: List[Any], places: List[Dict[str, Any]]) -> None:
        self.torch, self.extensions = torch, extensions
        self.places = places
        """Dictionaries of the candidate's in which functions of extensions may lie under other names."""
        self.launches = 0
        self.undo: List[Callable[[], None]] = []

    def __enter__(self) -> "Ghost":
        """Put ghosts in the kernels' places."""
        for module_name, name in RUNNERS:
            # Only what is loaded already is replaced: a candidate without Triton must not import it here.
            runner = getattr(sys.modules.get(module_name), name, None)
            if runner is not None:
                self._replace(runner, "run", self._nothing)
        module: Any
        for module in self.extensions:
            attributes: Dict[str, Any] = dict(module.__dict__)
            for name, function in attributes.items():
                if callable(function) and not name.startswith("__"):
                    ghost = self._ghost_of(function)
                    self._replace(module, name, ghost)
                    # `from extension import kernel` binds the function under another name, which a replaced attribute
                    # misses.
                    self._replace_elsewhere(function, ghost)
        return self

    def __exit__(self, *_: Any) -> None:
        """Put everything back."""
        while self.undo:
            self.undo.pop()()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        # The undo list restores in reverse order, so a name that was replaced twice gets its first value back.
        self.undo.append(lambda: setattr(owner, name, before))

    def _replace_elsewhere(self, function: Any, ghost: Any) -> None:
        for place in self.places:
            for name, value in list(place.items()):
                if value is function:
                    place[name] = ghost
                    self.undo.append(lambda place=place, name=name: place.__setitem__(name, function))

    def _nothing(self, *_: Any, **__: Any) -> None:
        # The count lets the owner tell a fallback from kernels that this replay cannot see.
        self.launches += 1

    def _ghost_of(self, function: Any) -> Callable[..., Any]:
        def ghost(*given: Any, **named: Any) -> Any:
            self.launches += 1
            copies: Dict[int, Any] = {}
            result = function(
                *[self._copied(value, copies) for value in given],
                **{name: self._copied(value, copies) for name, value in named.items()},
            )
            return self._spoiled(result, copies)

        return ghost

    def _copied(self, value: Any, copies: Dict[int, Any]) -> Any:
        if isinstance(value, (list, tuple)):
            several = cast("Sequence[Any]", value)
            return [self._copied(each, copies) for each in several]
        if not isinstance(value, self.torch.Tensor):
            return value
        copy = value.clone()
        # The address identifies a copy that the function returns: the wrapper around it may be a new object.
        copies[copy.data_ptr()] = value
        return copy

    def _spoiled(self, result: Any, copies: Dict[int, Any]) -> Any:
        if isinstance(result, (list, tuple)):
            several = cast("Sequence[Any]", result)
            return tuple(self._spoiled(each, copies) for each in several)
        if not isinstance(result, self.torch.Tensor):
            return result
        given = copies.get(result.data_ptr())
        # An in-place function returns its argument; the untouched original stands for it.
        if given is not None and given.shape == result.shape:
            return given
        # No NaN exists for bool and integers, so every element becomes a surely different one.
        if result.dtype == self.torch.bool:
            return ~result
        return result + 1 if not result.is_floating_point() else self.torch.full_like(result, float("nan"))


def parts(module: Any, model: Any) -> List[Dict[str, Any]]:
    """Return the dictionaries in which a candidate may keep functions: its file's, and those of its model's parts."""
    found: List[Dict[str, Any]] = [vars(module)]
    whole: Tuple[Any, ...] = tuple(model.modules()) if hasattr(model, "modules") else ()
    return [*found, *(vars(each) for each in whole)]
