"""Several Python files of a candidate as one: the file that is loaded brings the others along as texts."""

import ast
import re
import warnings
from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePosixPath

from gpu_mcp_server.errors import LimitExceeded
from gpu_mcp_server.toolchains.python_languages import imports_of

MOST_FILES = 64
"""Files that a candidate may bring along."""

_BEGIN, _CALL, _END = "def _install_siblings(", "_install_siblings(", "\n\nif False:\n"
_PLACE = re.compile(r'\bcandidate\.py(:|",? line | line )(\d{1,9})')
"""Place in the candidate, as the judge, gdb's stand-in and Python name a line of the candidate."""
_INSTALL = """
def _install_siblings(texts, first):
    import importlib.machinery, linecache, sys
    class Siblings:
        def find_spec(self, name, path=None, target=None):
            package = any(each.startswith(name + ".") for each in texts)
            return importlib.machinery.ModuleSpec(name, self, is_package=package) if name in texts or package else None
        def create_module(self, spec):
            return None
        def exec_module(self, module):
            text, file = texts.get(module.__name__, ""), module.__name__ + ".py"
            linecache.cache[file] = (len(text), None, text.splitlines(True), file)
            exec(compile(text, file, "exec"), module.__dict__)
    sys.meta_path.insert(0 if first else len(sys.meta_path), Siblings())
_install_siblings(@MODULES@, @FIRST@)
"""


def joined_python(files: Mapping[str, str], path: str, *, first: bool = True) -> str:
    """Return one Python file that is the one at `path`, with the others importable.

    Args:
        files: Texts by path; those that are no Python files are left out.
        path: Of the file that is loaded.
        first: Whether they come before what is installed, and before the problem's own files; otherwise behind.
    """
    others = {_module_name(name): text for name, text in files.items() if name != path and name.endswith(".py")}
    if not others:
        return files[path]
    head = _INSTALL.replace("@MODULES@", repr(others)).replace("@FIRST@", repr(first))
    futures, body = _without_futures(files[path])  # the lines behind the head are as many as the file's own
    used = sorted({each.module for text in others.values() for each in imports_of(text).languages()})
    never = "".join(f"\n    import {module}" for module in used)  # so that the judge sees what they are written in
    return f"{futures}{head}{body}" + (f"{_END}{never[1:]}\n" if used else "")


def texts_in(source: str) -> list[str]:
    """Return the files that `joined_python` made one of, without what installs them; another file as it is."""
    begin, call = source.find(_BEGIN), source.find("\n" + _CALL)
    if not 0 <= begin < call:
        return [source]
    line, _, body = source[call + 1 :].partition("\n")
    try:
        others, _ = ast.literal_eval(line.removeprefix(_CALL[:-1]))
        texts = [str(text) for text in others.values()]
    except (SyntaxError, ValueError, RecursionError, MemoryError, AttributeError, TypeError):
        return [source]  # a candidate's own function of that name
    own, end, imports = body.rpartition(_END)
    # joined_python writes nothing but imports behind the end. Other lines there are code of the candidate.
    ours = end and all(row.startswith("    import ") for row in imports.splitlines())
    return [source[:begin].removesuffix("\n") + (own if ours else body), *texts]


async def siblings_of(text: str, read: Callable[[str], Awaitable[str | None]]) -> dict[str, str]:
    """Return the files that a Python file imports from its own folder, and what they import from there.

    Args:
        text: The file that is loaded.
        read: Returns the text of a file of its folder by its path in it; None if there is none.

    Raises:
        LimitExceeded: If there are more than `MOST_FILES`.
    """
    found: dict[str, str] = {}
    asked: set[str] = set()
    waiting = [("", text)]
    while waiting:
        package, source = waiting.pop()
        for name in _imported(source, package):
            path = name.replace(".", "/")
            for candidate in (f"{path}.py", f"{path}/__init__.py"):
                if candidate in asked:
                    continue
                asked.add(candidate)
                content = await read(candidate) if len(asked) <= 8 * MOST_FILES else None
                if content is None:
                    continue
                found[candidate] = content
                if len(found) > MOST_FILES:
                    raise LimitExceeded(
                        f"The candidate imports more than {MOST_FILES} files beside it.",
                        hint="Install their package into judge_python and put the candidate into another folder, or "
                        "join some of them.",
                    )
                inside = candidate.endswith("/__init__.py")
                waiting.append((name if inside else name.rpartition(".")[0], content))
    return found


def _imported(text: str, package: str) -> list[str]:
    """Return every module that a file may mean by its imports, packages above it first."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    named: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".") if package else []
            kept = above[: len(above) - node.level + 1] if node.level else []
            module = ".".join([*kept, *([node.module] if node.module else [])])
            named += [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
    parts = [name.split(".") for name in named if name and all(part.isidentifier() for part in name.split("."))]
    return list(dict.fromkeys(".".join(each[:count]) for each in parts for count in range(1, len(each) + 1)))


def with_own_places(words: str, source: str, name: str) -> str:
    """Return words of the judge in which lines of `candidate.py` are those of the file that was sent.

    Args:
        words: Of an error, a stack or a traceback.
        source: The candidate, as `joined_python` may have made it.
        name: Of its file; words about one that is no Python file stay as they are.
    """
    if not name.endswith(".py"):
        return words
    head = source.find("\n" + _CALL)
    ahead = source.count("\n", 0, head + 1) + 1 if source.find(_BEGIN) >= 0 <= head else 0
    return _PLACE.sub(lambda at: f"{name}{at[1]}{max(1, int(at[2]) - ahead)}", words)


def _module_name(name: str) -> str:
    return ".".join(PurePosixPath(name).with_suffix("").parts).removesuffix(".__init__")


def _without_futures(text: str) -> tuple[str, str]:
    """Return imports from the future, which must stand first, and the rest, its lines where they were."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Syntax that is newer than this Python may be right for the judge's, and is read by lines.
        futures = [line for line in text.splitlines() if line.startswith("from __future__ import")]
        rest = "\n".join("" if line in futures else line for line in text.splitlines())
        return "".join(f"{line}\n" for line in futures), rest
    moved: list[str] = []
    # By bytes, as Python counts columns, and by line ends as Python sees them: not those of `splitlines`.
    lines = text.encode().replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    for node in body:
        if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            continue
        moved.append(f"{ast.unparse(node)}\n")
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        # `pass` in its place, as a statement may stand before or behind it on its line.
        lines[first : last + 1] = [before + b"pass" + after, *[b""] * (last - first)]
    return "".join(moved), b"\n".join(lines).decode()
