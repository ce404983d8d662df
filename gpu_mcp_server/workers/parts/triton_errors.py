"""Errors of Triton's compiler, which say their place within a function; included in what compiles Python files ahead.

Source: triton 3.9 (compiler/errors.py, compiler/code_generator.py).
"""

import ast
import re
from typing import Tuple


def is_of_compiler(error: BaseException) -> bool:
    """Say whether an error is Triton's compiler's, of a place in a function."""
    return getattr(error, "node", None) is not None and isinstance(getattr(error, "src", None), str)


def line_of_function(source: str, file: str) -> int:
    """Return the line at which a function begins that Triton cut out of the file; 0 where the file has none such."""
    name = re.search(r"def\s+(\w+)", source)
    with open(file, encoding="utf-8") as text:
        tree = ast.parse(text.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and name and node.name == name.group(1):
            return node.lineno if source.lstrip().startswith("def") else node.lineno - len(node.decorator_list)
    return 0


def place(error: BaseException, source: str, file: str) -> Tuple[int, int, str]:
    """Return line, column and words of an error of Triton's compiler, in what it says it compiled, or in `source`.

    An error in a function that a kernel calls is the cause of the kernel's: the innermost of the file has the place.
    """
    own, cause = error, error.__cause__
    while cause is not None and is_of_compiler(cause):
        error, cause = cause, cause.__cause__
        own = error if line_of_function(str(getattr(error, "src", "")), file) else own
    node = getattr(own, "node", None)
    words = getattr(error, "error_message", None) or str(error).rpartition("^\n")[2] or str(error)
    if cause is not None and not getattr(error, "error_message", None):
        words = "%s: %s" % (type(cause).__name__, str(cause).splitlines()[0] if str(cause) else "")
    first = max(1, line_of_function(getattr(own, "src", None) or source, file))
    return (
        first + getattr(node, "lineno", 1) - 1,
        getattr(node, "col_offset", 0) + 1,
        "%s: %s" % (type(error).__name__, str(words).strip()),
    )
