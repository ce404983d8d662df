"""Write the source of a dispatcher: one candidate that calls one of several by the sizes it is given.

The nearest of the shapes at which the candidates were timed decides, by the sizes' logarithms: 96 is as far from 64 as
from 144. The sources stand in it unchanged; what would collide between them is renamed or kept apart.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.problems.launcher_signatures import c_launcher, cuda_launcher
from gpu_mcp_server.toolchains.python_languages import imports_of

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_TOP = re.compile(
    r"^(?!typedef\b|struct\b|union\b|enum\b|return\b)[A-Za-z_][\w \t*]*?[ \t*](\w+)[ \t]*[({;=\[]", re.MULTILINE
)
_TAG = re.compile(r"^(?:typedef[ \t]+)?(?:struct|union|enum)[ \t]+(\w+)", re.MULTILINE)
_TYPE = re.compile(
    r"^typedef\b.*\(\*[ \t]*(\w+)\)|^typedef\b.*?(\w+)[ \t]*;[ \t]*$|^\}[ \t]*(\w+)[ \t]*;", re.MULTILINE
)
_SAFE = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class DispatchedPart:
    """A candidate of a dispatcher."""

    attempt_id: str
    text: str
    entry: str


def dispatcher_source(
    problem: Problem, language: str, parts: Sequence[DispatchedPart], choice: Sequence[tuple[Mapping[str, int], int]]
) -> str:
    """Return the dispatcher's text.

    Args:
        problem: Whose launcher it defines.
        language: c, cpp or cuda; any other is a Python launcher.
        parts: At least one.
        choice: Shapes, each with the number of the part that answers it and what is near.
    """
    symbols = [s for s in problem.symbols() if len({dims[s] for dims, _ in choice}) > 1]
    points = [([dims[s] for s in symbols], part) for dims, part in choice]
    if language in ("c", "cpp", "cuda"):
        return _compiled(problem, language, parts, symbols, points)
    return _python(problem, parts, symbols, points)


def nearest(points: Sequence[tuple[Sequence[int], int]], sizes: Sequence[int]) -> int:
    """Return the part of the nearest point, as the generated code does."""
    logs = [math.log(max(size, 1)) for size in sizes]
    return min(points, key=lambda p: sum((math.log(s) - one) ** 2 for s, one in zip(p[0], logs, strict=True)))[1]


def _compiled(
    problem: Problem, language: str, parts: Sequence[DispatchedPart], symbols: Sequence[str],
    points: Sequence[tuple[Sequence[int], int]],
) -> str:  # fmt: skip
    launcher = cuda_launcher(problem) if language == "cuda" else c_launcher(problem)
    head = launcher.removeprefix('extern "C" ')
    names = ", ".join(re.findall(r"\w+", each)[-1] for each in head.partition("(")[2].rstrip(")").split(","))
    includes = dict.fromkeys(line.strip() for part in parts for line in _INCLUDE.findall(part.text))
    blocks = [_apart(part, number, language) for number, part in enumerate(parts)]
    table = ", ".join(f"{{{', '.join(f'{math.log(size):.9f}' for size in sizes)}}}" for sizes, _ in points)
    ids = ", ".join(str(part) for _, part in points)
    calls = "".join(f"    case {n}: return {_entry(n)}({names});\n" for n in range(1, len(parts)))
    return "\n".join([
        "/* A dispatcher: the nearest of the timed shapes decides. Parts: "
        + ", ".join(part.attempt_id for part in parts) + " */",
        *(["#define _GNU_SOURCE"] if language == "c" else []),
        "#include <math.h>", "#include <stdint.h>", *includes, *blocks,
        f"static const double gpu_mcp_points[{len(points)}][{len(symbols)}] = {{{table}}};",
        f"static const int gpu_mcp_parts[{len(points)}] = {{{ids}}};",
        "static int gpu_mcp_nearest(const int64_t *sizes) {",
        f"    double at[{len(symbols)}];",
        f"    for (int k = 0; k < {len(symbols)}; k++) at[k] = log((double)(sizes[k] > 1 ? sizes[k] : 1));",
        "    int part = 0;",
        "    double least = INFINITY;",
        f"    for (int i = 0; i < {len(points)}; i++) {{",
        "        double far = 0;",
        f"        for (int k = 0; k < {len(symbols)}; k++)",
        "            far += (gpu_mcp_points[i][k] - at[k]) * (gpu_mcp_points[i][k] - at[k]);",
        "        if (far < least) { least = far; part = gpu_mcp_parts[i]; }",
        "    }",
        "    return part;",
        "}",
        head + " {" if language == "c" else f'extern "C" {head} {{',
        f"    const int64_t gpu_mcp_sizes[{len(symbols)}] = {{{', '.join(symbols)}}};",
        "    switch (gpu_mcp_nearest(gpu_mcp_sizes)) {",
        f"{calls}    default: return {_entry(0)}({names});",
        "    }",
        "}\n",
    ])  # fmt: skip


def _entry(number: int) -> str:
    return f"gpu_mcp_part{number}_launch"


def _apart(part: DispatchedPart, number: int, language: str) -> str:
    """Return a part without its includes, its names kept from those of others: C by macros, C++ in a namespace."""
    text = _INCLUDE.sub("", part.text)
    renamed = {part.entry: _entry(number)}
    macros = [*dict.fromkeys(_MACRO.findall(text))]
    if language == "c":
        found = [*_TOP.findall(text), *_TAG.findall(text), *("".join(each) for each in _TYPE.findall(text))]
        renamed |= {name: f"gpu_mcp_part{number}_{name}" for name in found if name not in (part.entry, *macros)}
    before = [f"#define {name} {new}" for name, new in renamed.items()]
    after = [f"#undef {name}" for name in [*renamed, *macros]]
    opened, closed = ([], []) if language == "c" else ([f"namespace gpu_mcp_part{number} {{"], ["}"])
    using = [] if language == "c" else [f"using gpu_mcp_part{number}::{_entry(number)};"]
    return "\n".join([f"/* {part.attempt_id} */", *before, *opened, text.strip("\n"), *closed, *after, *using])


def _python(
    problem: Problem, parts: Sequence[DispatchedPart], symbols: Sequence[str],
    points: Sequence[tuple[Sequence[int], int]],
) -> str:  # fmt: skip
    tensors = [t.name for t in [*problem.inputs, *problem.outputs]]
    modules = dict.fromkeys(name.partition(".")[0] for part in parts for name in imports_of(part.text).needed)
    values = {
        "NAMED": ", ".join(part.attempt_id for part in parts),
        "IMPORTS": "\n".join(f"import {name}" for name in modules if name != "__future__"),
        "ROWS": "".join(f"    ({tuple(math.log(size) for size in sizes)!r}, {part}),\n" for sizes, part in points),
        "SYMBOLS": ", ".join(symbols),
        "COUNT": str(len(tensors)),
        "PARTS": "".join(map(_python_part, parts)),
        "ARGUMENTS": ", ".join([*tensors, *problem.symbols()]),
    }
    return Template(_PYTHON).substitute(values)


def _python_part(part: DispatchedPart) -> str:
    lines = "".join(f"    {line!r}\n" for line in part.text.splitlines(True))
    return f"_PARTS.append(_launcher({_SAFE.sub('_', part.attempt_id)!r}, {part.entry!r}, (\n{lines})))\n"


_PYTHON = '''"""A dispatcher: the nearest of the timed shapes decides. Parts: $NAMED."""

import inspect
import linecache
import math
import sys
import types

$IMPORTS

_POINTS = (
$ROWS)
"""Logarithms of the sizes $SYMBOLS at which the parts were timed, and the part that answers."""
_PARTS = []
_CHOSEN = {}
"""Parts by sizes, once they are known."""


def _launcher(name, entry, text):
    """Load a part as a module of its own, whose source its compilers find."""
    file = "<%s>" % name
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = file
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), module.__dict__)
    function = getattr(module, entry)
    sized = len(inspect.signature(function).parameters) > $COUNT
    return function if sized else lambda *given: function(*given[:$COUNT])


$PARTS

def _part_for(sizes):
    """Return the part of the nearest point; apart from `launch`, as a tensor may be called `max`, and a size `at`."""
    chosen = _CHOSEN.get(sizes)
    if chosen is None:
        at = [math.log(max(size, 1)) for size in sizes]
        far = [(sum((a - b) ** 2 for a, b in zip(point, at)), part) for point, part in _POINTS]
        chosen = _CHOSEN[sizes] = _PARTS[min(far)[1]]
    return chosen


def launch($ARGUMENTS):
    return _part_for(($SYMBOLS,))($ARGUMENTS)
'''
