"""A function or module of torch, by its name: one line makes a problem."""

import re
from collections.abc import Sequence
from typing import Any, cast, get_args

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import DType, ImportOverrides, Problem
from gpu_mcp_server.services.problems.suite_problems import suite_problem

_NAME = re.compile(r"torch(\.[A-Za-z_][A-Za-z0-9_]{0,60}){1,6}")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_EXAMPLE = "shapes [[1024, 4096]] for one input; [[[64, 32], [32, 16]]] for two."
CALLED_ALONE = (
    "The reference calls the name with its inputs alone, all of one dtype. For a function that takes more, import a "
    "file with Model, get_inputs and get_init_inputs."
)
"""Next step where the call of a name fails."""
TEXT = '''"""{name} as a problem."""

import torch

INPUTS = []


class Model(torch.nn.Module):
    """{name}."""
{made}
    def forward(self, {arguments}):
        return {called}({arguments})


def get_inputs():
    return [{drawn} for shape in INPUTS]


def get_init_inputs():
    return []
'''


def torch_problem(name: str, shapes: Sequence[Any], dtype: str, wish: ImportOverrides) -> Problem:
    """Return the problem of a function such as torch.nn.functional.gelu, or of a module such as torch.nn.GELU.

    Args:
        name: As Python has it; it is looked up where the reference runs.
        shapes: Each a list of sizes for one input, or a list of such lists.
        dtype: Of all inputs.
        wish: What shall be otherwise.

    Raises:
        BadRequest: If it is no name of torch, or shapes or dtype are none.
    """
    if not _NAME.fullmatch(name):
        raise BadRequest(f"{name[:80]!r} is no function of torch.", hint="Such as torch.nn.functional.gelu.")
    if dtype not in get_args(DType) or dtype.startswith(("float8", "float4", "complex")):
        raise BadRequest(f"Inputs cannot be drawn as {dtype[:40]!r}.", hint=f"Choose {', '.join(_FLOATS)} or integers.")
    cases = [_inputs_of(shape) for shape in shapes]
    counts = {len(case) for case in cases}
    if len(counts) != 1:
        raise BadRequest("The shapes are of different numbers of inputs.", hint=_EXAMPLE)
    count = counts.pop()
    module = name.rpartition(".")[2][0].isupper()
    made = f"\n    def __init__(self):\n        super().__init__()\n        self.inner = {name}()\n" if module else ""
    drawn = f"torch.randn(shape, dtype=torch.{dtype})"
    if dtype not in _FLOATS:
        drawn = f"torch.randint(0, {2 if dtype == 'bool' else 100}, shape).to(torch.{dtype})"
    reference = TEXT.format(
        name=name,
        made=made,
        called="self.inner" if module else name,
        arguments=", ".join(f"x{i}" if count > 1 else "x" for i in range(count)),
        drawn=drawn,
    )
    title = f"{name} {dtype}"
    return suite_problem(title, reference, kind="sweep", cases=[{"INPUTS": case} for case in cases], wish=wish)


def _inputs_of(shape: Any) -> list[list[int]]:
    """Return the sizes of each input."""
    said = str(shape)[:80]
    given: list[Any] = cast("list[Any]", shape) if isinstance(shape, list) else []
    inputs: list[Any] = [given] if given and {type(each) for each in given} == {int} else given
    lists = [cast("list[Any]", each) if type(each) is list else [0] for each in inputs]
    sizes = [size for each in lists for size in each]
    if not inputs or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes):
        raise BadRequest(f"{said} gives no sizes.", hint=f"Give {_EXAMPLE}")
    return cast("list[list[int]]", lists)
