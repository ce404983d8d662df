"""A program's own text as the reference of a problem: its modules, and its script without what it does when it runs."""

import ast
import builtins
import symtable
from collections.abc import Iterable, Iterator, Mapping

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.workers.program_hooks import source_lines

PLAIN_CALLS = (
    "torch.device", "torch.cuda.is_available", "int", "float", "str", "bool", "tuple", "list", "dict", "range", "len",
    "min", "max", "triton.runtime.driver.active.get_active_torch_device",
)  # fmt: skip
"""Calls that a script's assignment may make and still be a definition."""
OF_THE_RUN = ("sys.argv", "os.environ")
"""Values that are others where the reference runs: what is assigned from them is no definition."""
SETTINGS = (
    "torch.set_float32_matmul_precision", "torch.set_num_threads", "torch.set_grad_enabled",
    "torch.use_deterministic_algorithms",
)  # fmt: skip
"""Calls with constants that say how torch computes: the reference makes them too."""
LIBRARIES = (
    "torch", "torchvision", "numpy", "os", "sys", "time", "random", "math", "json", "logging", "warnings", "matplotlib",
    "tqdm", "PIL", "triton",
)  # fmt: skip
"""Modules whose functions change nothing that others read (`torch.save`), but by SETTERS; seeds are the judge's."""
SETTERS = ("set_", "use_")
"""Beginnings of their names."""


def decode_source(data: bytes, path: str) -> str:
    """Return a source file's text.

    Raises:
        BadRequest: If it is no UTF-8: another text would be judged or written back than the program runs.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"{path[:200]} is no UTF-8: byte {error.start} is {data[error.start]:#04x}.", hint="Save it as UTF-8."
        ) from error


def overlay_line(name: str) -> str:
    """Return the line that offers a script's own function or class to an overlay; it does nothing without one."""
    return (
        f'{name} = getattr(__import__("sys").modules.get("program_hooks"), "MAIN", {{}})'
        f'.get("{name}", lambda it: it)({name})  # itself without the overlay'
    )


def definitions_of(text: str) -> str:
    """Return a script's imports, functions, classes and plain assignments, without its other statements.

    Raises:
        BadRequest: If it is no Python, or a statement that is left out changes a value that the others read.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadRequest(f"The script is no Python: {str(error)[:200]}.", hint="Correct it.") from error
    lines = [line.rstrip("\r\n") for line in source_lines(text)]
    kept = _kept(body)
    found = "\n".join(_lines(lines, each) for each in kept) + "\n"
    bound, read = {name for each in kept for name in _stored(each)} | set(dir(builtins)), _globals_read(found)
    read |= {each.name for each in kept if isinstance(each, (ast.FunctionDef, ast.ClassDef))}  # captured by name
    libraries = _libraries(body)
    for each in body:
        if each in kept or _is_main_guard(each) or _compiles_itself(each) or _is_overlay_line(lines, each):
            continue
        if changed := sorted((_stored(each) | _mutated(each, libraries)) & bound & read):
            raise BadRequest(
                f"Line {each.lineno} of the script changes {changed[0]}, which its functions or definitions read; the "
                "reference would be judged without that line.",
                hint="Move the line into a module that the script imports, or behind if __name__ == '__main__'.",
            )
    return found


def _kept(body: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Return the definitions, without assignments of what the script computes when it runs."""
    kept: list[ast.stmt] = []
    defined, computed = set[str](), set[str]()
    for each in body:
        if _is_definition(each) and not (_loaded(each) & computed - defined):
            kept.append(each)
            defined |= _stored(each)
        else:
            computed |= _stored(each)
    return kept


def _loaded(node: ast.stmt) -> set[str]:
    """Return the names that a statement reads where it stands."""
    found = (each for each in _outside_functions(node) if isinstance(each, ast.Name))
    return {each.id for each in found if isinstance(each.ctx, ast.Load)}


def _is_main_guard(node: ast.stmt) -> bool:
    said = ("__name__ == '__main__'", "'__main__' == __name__")
    return isinstance(node, ast.If) and ast.unparse(node.test) in said


def _compiles_itself(node: ast.stmt) -> bool:
    """Say whether a statement is `f = torch.compile(f)`: the reference is what is compiled."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or not node.value.args:
        return False
    names = {ast.unparse(each) for each in (*node.targets, node.value.args[0])}
    return ast.unparse(node.value.func) == "torch.compile" and len(names) == 1


def _is_overlay_line(lines: list[str], node: ast.stmt) -> bool:
    """Say whether a statement is one that apply_attempt wrote: of the reference no kernel takes the place."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return isinstance(target, ast.Name) and _lines(lines, node) == overlay_line(target.id)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Return a statement and what stands in it, without the bodies of functions and classes."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        for each in ast.iter_child_nodes(node):
            yield from _outside_functions(each)


def _base(node: ast.AST) -> str:
    """Return the name at the root of `name.a[0].b`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _stored(node: ast.stmt) -> set[str]:
    """Return the names whose values a statement sets, removes or writes into."""
    found: set[str] = set()
    for each in _outside_functions(node):
        if isinstance(each, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(each.ctx, ast.Load):
            found.add(_base(each))
        elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(each.name)
        elif isinstance(each, ast.alias):
            found.add(each.asname or each.name.partition(".")[0])
    return found


def _mutated(node: ast.stmt, libraries: set[str]) -> set[str]:
    """Return the names whose methods a statement calls for their effect alone: `SIZES.append(3)`; no function's."""
    found: set[str] = set()
    for each in _outside_functions(node):
        call = each.value if isinstance(each, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            base = _base(call.func)
            if base not in libraries or call.func.attr.startswith(SETTERS):
                found.add(base)
    return found


def _libraries(body: Iterable[ast.stmt]) -> set[str]:
    """Return the names by which a script knows well-known modules."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import):
            aliases = [each for each in node.names if each.name.partition(".")[0] in LIBRARIES]
            found |= {each.asname or each.name.partition(".")[0] for each in aliases}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            found |= {each.asname or each.name for each in node.names}
    return found


def _is_setting(node: ast.stmt) -> bool:
    """Say whether a statement says by constants how torch computes."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in SETTINGS:
        return False
    return all(isinstance(each, ast.Constant) for each in (*call.args, *(word.value for word in call.keywords)))


def _globals_read(text: str) -> set[str]:
    """Return the names of its top level that a text reads, in functions too."""
    try:
        top = symtable.symtable(text, "script", "exec")
    except SyntaxError as error:
        raise BadRequest(f"The script's definitions are no Python: {error}.", hint="Correct it.") from error
    found = {each.get_name() for each in top.get_symbols() if each.is_referenced()}
    tables = list(top.get_children())
    while tables:
        table = tables.pop()
        tables += table.get_children()
        found |= {each.get_name() for each in table.get_symbols() if each.is_global() and each.is_referenced()}
    return found


def _lines(lines: list[str], node: ast.stmt) -> str:
    decorators: Iterable[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    return "\n".join(lines[first - 1 : node.end_lineno])


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Try):
        return all(map(_is_definition, [*node.body, *node.orelse, *(s for h in node.handlers for s in h.body)]))
    if _is_setting(node):
        return True
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return node.value is not None and all(_is_plain(each) for each in ast.walk(node.value))
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Pass))


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and ast.unparse(node) in OF_THE_RUN:
        return False
    return not isinstance(node, ast.Call) or ast.unparse(node.func) in PLAIN_CALLS


def module_files(loaded: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the file of each of the program's modules in a workspace, by import name."""
    there = set(names)
    found: dict[str, str] = {}
    for module, path in loaded.items():
        if path in there and not module.startswith("__"):
            ending = "/__init__.py" if path.endswith("__init__.py") else ".py"
            found[module.replace(".", "/") + ending] = path
    return found


def import_text(name: str) -> str:
    """Return the line that makes `call` of `module:function` or `module:Class.function`."""
    where, _, inside = name.partition(":")
    first, _, rest = inside.partition(".")
    return f"from {where} import {first} as call\n" + (f"\ncall = call.{rest}\n" if rest else "")
