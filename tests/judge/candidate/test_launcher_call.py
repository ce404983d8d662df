"""Calls of a Python file's launchers: by the judge, and by an overlay in a program."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpu_mcp_server.judge.candidate.launcher_call import LauncherCall


class Cell:
    """As much of a tensor as a launcher's answers need."""

    shape = (2,)

    def __init__(self, value: int = 0, dtype: str = "q") -> None:
        self.value, self.dtype = value, dtype

    def copy_(self, other: "Cell") -> None:
        self.value = other.value


def can_cast(one: Any, other: Any) -> bool:
    return np.can_cast(one, other, "same_kind")


TORCH = SimpleNamespace(Tensor=Cell, can_cast=can_cast, int64="q")


def sized(x: Cell, y: Cell, out: Cell, n: int) -> None:
    out.value = x.value + y.value + n


def unsized(x: Cell, y: Cell, out: Cell) -> None:
    out.value = x.value + y.value + 5


def returning(x: Cell, y: Cell) -> Cell:
    return Cell(x.value + y.value + 5)


def two(x: Any, y: Any) -> Any:
    return x, y


def fraction(x: Cell, y: Cell) -> Cell:
    return Cell(x.value, "d")


def mask(x: Cell, y: Cell) -> Cell:
    return Cell(1, "B")


def number(x: Any, y: Any) -> Any:
    return 3


def packed(data: tuple[Cell, Cell]) -> Cell:
    return Cell(data[0].value + data[1].value + 5)


@pytest.mark.parametrize(
    ("name", "function"),
    [("launch", sized), ("launch", unsized), ("run", returning), ("custom_kernel", packed), ("solve", unsized)],
)
def test_each_form_of_launcher_answers_in_the_outputs(name: str, function: Any):
    call = LauncherCall(SimpleNamespace(**{name: function}), "launch", 2, 1)
    out = Cell()
    assert call.launch(TORCH, (Cell(1), Cell(2)), [out], [5]) == "" and out.value == 8


def test_answers_of_another_form_are_refused_and_a_file_without_a_launcher_has_none():
    with pytest.raises(ValueError, match="returned 2 results: 1 tensors are wanted"):
        LauncherCall(SimpleNamespace(run=two), "launch", 2, 1).launch(TORCH, (Cell(), Cell()), [Cell()], [])
    with pytest.raises(ValueError, match="returned a int"):
        LauncherCall(SimpleNamespace(run=number), "launch", 2, 1).launch(TORCH, (1, 2), [Cell()], [])
    with pytest.raises(ValueError, match="returned a tensor of d; wanted is q"):
        LauncherCall(SimpleNamespace(run=fraction), "launch", 2, 1).launch(TORCH, (Cell(), Cell()), [Cell()], [])
    out = Cell(0, "?")
    assert LauncherCall(SimpleNamespace(run=mask), "launch", 2, 1).launch(TORCH, (Cell(), Cell()), [out], []) == ""
    assert out.value == 1, "whole numbers say true and false"
    assert LauncherCall(SimpleNamespace(run=returning), "other", 2, 1).function is None


class Held:
    """A tensor over an array."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def numpy(self) -> Any:
        return self.array

    def copy_(self, other: "Held") -> None:
        self.array[:] = other.array


class Compiled:
    """A function as Numba compiles it: it knows arrays alone."""

    def __init__(self, function: Any) -> None:
        self.function, self.__wrapped__ = function, function

    def __call__(self, *given: Any) -> Any:
        assert all(type(each) in (np.ndarray, int) for each in given)
        return self.function(*given)


Compiled.__module__ = "numba.core.registry"


@pytest.mark.parametrize("function", [lambda x, y, out, n: np.add(x, y * n, out=out), lambda x, y: x + 3 * y])
def test_a_function_that_numba_compiled_is_given_arrays(function: Any):
    out, torch = Held(np.zeros(2)), SimpleNamespace(Tensor=Held, from_numpy=Held, can_cast=can_cast, int64="q")
    call = LauncherCall(SimpleNamespace(launch=Compiled(function)), "launch", 2, 1)
    call.launch(torch, (Held(np.ones(2)), Held(np.arange(2.0))), [out], [3])
    assert out.array.tolist() == [1.0, 4.0]
