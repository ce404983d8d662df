"""Recognises the languages of a Python file's kernels by its imports, with the packages that they need.

The text is hostile: it is parsed and never run, and only so much of it is kept.
Source: the packages' own names on PyPI and modules; Triton 3.9, numba-cuda 0.30 and Helion 1.5 for their interpreters.
"""

import ast
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_MODULES = 64
NAME_CHARACTERS = 120


@dataclass(frozen=True)
class PythonLanguage:
    """A package that compiles kernels which are written in Python, or as text in it."""

    name: str
    module: str
    """Module whose import shows that the file uses it."""
    package: str
    """Its name for pip."""
    interpreter: str = ""
    """Simulator of its kernels on a CPU, for correctness alone."""
    gpu_alone: bool = False
    """True if its kernels need a GPU. Otherwise, without an interpreter, they run on a CPU unchanged."""


PYTHON_LANGUAGES = (
    PythonLanguage("Helion", "helion", "helion", "Helion's interpreter"),
    PythonLanguage("Gluon", "triton.experimental.gluon", "triton", gpu_alone=True),
    PythonLanguage("Triton", "triton", "triton", "Triton's interpreter"),
    PythonLanguage("CuTe DSL", "cutlass", "nvidia-cutlass-dsl", gpu_alone=True),
    PythonLanguage("TileLang", "tilelang", "tilelang", gpu_alone=True),
    PythonLanguage("cuTile", "cuda.tile", "cuda-tile", gpu_alone=True),
    PythonLanguage("Numba CUDA", "numba.cuda", "numba-cuda", "Numba's simulator of CUDA"),
    PythonLanguage("Numba", "numba", "numba"),
    PythonLanguage("CuPy", "cupy", "cupy-cuda13x", gpu_alone=True),
    PythonLanguage("Warp", "warp", "warp-lang"),
    PythonLanguage("JAX", "jax", "jax"),
)
"""The narrower of two names comes first: a file is in the first whose module an import begins with."""


@dataclass(frozen=True)
class Imports:
    """Imports of a Python file."""

    needed: Sequence[str]
    """Modules without which it cannot be loaded: by statements at its top that nothing catches."""
    named: Sequence[str]
    """All imported modules, imports inside of functions included."""

    def languages(self) -> list[PythonLanguage]:
        """Return the languages of its kernels."""
        found = dict.fromkeys(language for name in self.named if (language := _language_of(name)))
        return [each for each in PYTHON_LANGUAGES if each in found]

    def needed_modules(self) -> list[str]:
        """Return the modules of known languages that must be there before the file is loaded."""
        return [name for name in self.needed if _language_of(name)]


def imports_of(text: str) -> Imports:
    """Return a file's imports; none for a file that is no Python: its loading reports the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Imports((), ())
    top = [name for statement in tree.body for name in _modules_of(statement)]
    every = [name for node in ast.walk(tree) for name in _modules_of(node)]
    return Imports(_kept(top), _kept([*top, *every]))


def package_of(module: str) -> str:
    """Return pip's name of the package that has a module of a known language; empty for every other."""
    language = _language_of(module)
    return language.package if language else ""


def _language_of(module: str) -> PythonLanguage | None:
    return next((each for each in PYTHON_LANGUAGES if f"{module}.".startswith(f"{each.module}.")), None)


def _kept(names: Iterable[str]) -> tuple[str, ...]:
    short = dict.fromkeys(name for name in names if 0 < len(name) <= NAME_CHARACTERS)
    return tuple(short)[:MOST_MODULES]


def _modules_of(node: ast.AST) -> list[str]:
    """Return the modules of one import: of `from a import b` it is `a.b` where that is a language's own module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        known = {each.module for each in PYTHON_LANGUAGES}
        return [name for name in inner if name in known] or [node.module]
    return []
