"""Extensions of torch and tvm-ffi as single files: functions that a source binds, and the Python that calls one.

Source: pybind11's documentation (`module_::def`), PyTorch's "Custom C++ and CUDA Operators" (TORCH_LIBRARY, schemas),
torch/utils/cpp_extension.py of torch 2.13 (`_import_module_from_library`, TORCH_EXTENSION_NAME); apache-tvm-ffi 0.1.15
(tvm/ffi/function.h, `load_module`).
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.toolchains.c_source import strip_comments

MODULE = "kernel_extension"
"""What TORCH_EXTENSION_NAME is."""
FOLDER = "extension"
"""Where the judged workspace has the library."""
ENTRIES = ("launch", "forward", "run", "custom_kernel", "solve")
"""Names under which suites look for a kernel, in the order in which one is taken where none is asked for."""

_HEAD = (
    "import os",
    "import torch",
    f"folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), {FOLDER!r})",
)
_HEADERS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:torch|ATen|c10|pybind11)/", re.MULTILINE)
_MODULE = re.compile(r"\bPYBIND11_MODULE\s*\(\s*(\w+)\s*,")
_LIBRARY = re.compile(r"\bTORCH_LIBRARY(?:_FRAGMENT)?\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)\s*\{")
_BOUND = re.compile(r"\.\s*def\s*\(\s*\"(\w+)\"\s*,\s*(?:&|TORCH_FN\s*\(\s*&?)?\s*((?:\w+\s*::\s*)*\w+|\[)")
_TVM_HEADERS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]tvm/ffi/", re.MULTILINE)
_EXPORTED = re.compile(r"\bTVM_FFI_DLL_EXPORT_TYPED_FUNC\s*\(\s*(\w+)\s*,\s*((?:\w+\s*::\s*)*\w+|\[)")
_DEFAULT = re.compile(r"\barg\s*\(\s*\"\w+\"\s*\)\s*=|\"\w+\"_a\s*=")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\((\w+)\)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
MOST_MACROS, MOST_WRITTEN = 16, 1 << 17
"""Most macros that bind a function, of those that a source defines, and characters that a macro's uses may become: one
that uses the next ten times, and so on, would make a short source as long as memory."""
MOST_BOUND, MOST_PLACES = 100, 100
"""Functions and libraries of a source that are looked at, and places at which a function's definition is looked for."""
TYPE_CHARACTERS, PARAMETER_CHARACTERS = 200, 2000
"""Before a function's name, in which its type stands, and behind it, in which its parameters end. Sources are hostile:
no reading of one may take longer than its length allows."""
_NAME = string.ascii_letters + string.digits + "_"
_TYPE = _NAME + ":<>,*&" + string.whitespace
_SCHEMA = re.compile(r"\.\s*def\s*\(\s*\"([\w.]+)\s*\(([^\"]{0,4000}?)\)\s*->\s*([^\"]{0,400})\"")


@dataclass(frozen=True)
class BoundFunction:
    """A function that Python sees."""

    name: str
    place: str
    """What reaches it in Python: `extension.NAME` or `torch.ops.NAMESPACE.NAME`."""
    returns: bool
    """Whether it returns tensors; otherwise it writes into those that it is given."""
    parameters: int | None
    """How many it takes; None where the source does not say it plainly."""
    defaults: int = 0
    """Of them, how many have a value that a caller may leave out."""


@dataclass(frozen=True)
class Binding:
    """Interface by which the judge calls an extension."""

    kind: Literal["model", "launcher"]
    """As what kind of Python file: one whose results are returned, or a launcher."""
    module: str
    """Name of the library, without its suffix."""
    text: str
    """The Python file."""
    function: str
    by: Literal["torch", "tvm_ffi"]
    """Package that loads the library."""


def needs_torch(source: str) -> bool:
    """Say whether a C++ or CUDA source includes torch's headers, whatever it binds."""
    return bool(_HEADERS.search(strip_comments(source)))


def binds_torch(source: str) -> bool:
    """Say whether a C++ or CUDA source is an extension of torch."""
    code = strip_comments(source)
    return bool(_HEADERS.search(code) and (_MODULE.search(code) or _LIBRARY.search(code)))


def binds_tvm(source: str) -> bool:
    """Say whether a C++ or CUDA source exports functions of tvm-ffi."""
    code = strip_comments(source)
    return bool(_TVM_HEADERS.search(code) and _EXPORTED.search(code))


def is_extension(source: str) -> bool:
    """Say whether a source is called through Python, by torch or tvm-ffi."""
    return binds_torch(source) or binds_tvm(source)


def bound_functions(source: str) -> list[BoundFunction]:
    """Return the functions that a source binds: by tvm-ffi, where torch binds none, else by pybind11 first."""
    code = strip_comments(source)
    found: dict[str, BoundFunction] = {}
    exported = () if binds_torch(source) else islice(_EXPORTED.finditer(code), MOST_BOUND)
    for name, function in (each.groups() for each in exported):
        found[name] = BoundFunction(name, f"extension.{name}", *_shape_of(code, function))
    module = _MODULE.search(code)
    if module:
        for name, function, defaults in _bindings(_expanded(code, code[module.end() :])):
            returns, count = _shape_of(code, function)
            found.setdefault(name, BoundFunction(name, f"extension.{name}", returns, count, defaults))
    for library in islice(_LIBRARY.finditer(code), MOST_BOUND):
        place, body = f"torch.ops.{library[1]}", code[library.end() : _end_of_block(code, library.end())]
        for name, arguments, result in (each.groups() for each in islice(_SCHEMA.finditer(body), MOST_BOUND)):
            each_one = [a for a in _split(arguments) if a != "*"]
            defaults = sum("=" in a for a in each_one)
            bound = BoundFunction(name, f"{place}.{name}", result.strip("() \t\n") != "", len(each_one), defaults)
            found.setdefault(name, bound)
        for name, function, _ in _bindings(body):
            returns, count = _shape_of(code, function)
            found.setdefault(name, BoundFunction(name, f"{place}.{name}", returns, count))
    return list(found.values())


def binding_of(source: str, entry: str, inputs: int, outputs: int, dims: int) -> Binding:
    """Return how a function of an extension is called for a problem.

    A function that returns tensors gets the inputs; one that returns nothing, or takes more, gets inputs, outputs and,
    where it has parameters for them, the dimensions.

    Args:
        source: C++ or CUDA.
        entry: The function's name in Python; `launch` also stands for the only one, or the usual one.
        inputs: How many tensors the problem gives.
        outputs: How many it wants.
        dims: How many symbols its shapes have.

    Raises:
        BadRequest: If there is no such function, or its parameters fit neither way of calling.
    """
    known = {bound.name: bound for bound in bound_functions(source)}
    names = (entry, *ENTRIES) if entry == ENTRIES[0] else (entry,)
    chosen = next((known[name] for name in names if name in known), None)
    if chosen is None and entry == ENTRIES[0] and len(known) == 1:
        (chosen,) = known.values()
    if chosen is None:
        raise BadRequest(
            f"The extension binds no function {entry!r}; it binds {', '.join(known) or 'none in plain words'}.",
            hint='Name one as entry; it is bound by m.def("NAME", &function), a schema, or '
            "TVM_FFI_DLL_EXPORT_TYPED_FUNC.",
        )
    given = _given(chosen, inputs, outputs, dims)
    returns = chosen.returns and given == inputs
    by, name, load, call = _loading(source, chosen)
    how = [f"def {entry}(*given):", f"    {chosen.place}(*given[:{given}])"]
    model = ["class ModelNew(torch.nn.Module):", "    def forward(self, *inputs):", f"        return {call}"]
    text = "\n".join([*_HEAD, *load, *(model if returns else how)]) + "\n"
    return Binding("model" if returns else "launcher", name, text, chosen.name, by)


def _given(chosen: BoundFunction, inputs: int, outputs: int, dims: int) -> int:
    """Return how many arguments a function is called with."""
    if chosen.parameters is None:
        return inputs if chosen.returns else inputs + outputs
    ways = [inputs] if chosen.returns else []
    ways += [inputs + outputs, inputs + outputs + dims]
    least = chosen.parameters - chosen.defaults
    fitting = [way for way in ways if least <= way <= chosen.parameters]
    # One that writes its answers is given all that it takes, if it can be: a size may have a default, too.
    all_of_them = chosen.parameters in fitting and fitting[0] != inputs
    way = chosen.parameters if all_of_them else next(iter(fitting), None)
    if way is None:
        optional = f", {chosen.defaults} of them with a default" if chosen.defaults else ""
        raise BadRequest(
            f"{chosen.name} has {chosen.parameters} parameters{optional}; the problem gives {inputs} inputs, "
            f"{outputs} outputs and {dims} dimensions.",
            hint=f"Let it take {' or '.join(map(str, ways))}: the inputs and return tensors, or inputs and outputs, or "
            "those and the dimensions.",
        )
    return way


def _loading(source: str, chosen: BoundFunction) -> tuple[Literal["torch", "tvm_ffi"], str, list[str], str]:
    """Return the package that loads a library, the library's name, the lines that do it, and a call with results."""
    call = f"{chosen.place}(*inputs)"
    if not binds_torch(source):
        load = ["import tvm_ffi", f'extension = tvm_ffi.load_module(os.path.join(folder, "{MODULE}.so"))']
        return "tvm_ffi", MODULE, load, f"torch.from_dlpack({call})"
    module = _MODULE.search(strip_comments(source))
    name = module[1] if module and module[1] != "TORCH_EXTENSION_NAME" else MODULE
    load = [
        "from torch.utils import cpp_extension",
        f"extension = cpp_extension._import_module_from_library({name!r}, folder, {module is not None})",
    ]
    return "torch", name, load, call


def _bindings(body: str) -> list[tuple[str, str, int]]:
    """Return names in Python with the functions that they are bound to, and how many parameters have defaults."""
    found = list(islice(_BOUND.finditer(body), MOST_BOUND))
    ends = [*(each.start() for each in found[1:]), len(body)][: len(found)]
    rest = [body[each.end() : end][:PARAMETER_CHARACTERS] for each, end in zip(found, ends, strict=True)]
    return [(each[1], each[2], len(_DEFAULT.findall(text))) for each, text in zip(found, rest, strict=True)]


def _expanded(code: str, body: str) -> str:
    """Return a module's body with the uses of the source's macros that bind their only argument written out."""
    binding = [found for found in _MACRO.findall(code) if re.search(r"\.\s*def\s*\(", found[2])]
    for name, parameter, text in binding[:MOST_MACROS]:
        quoted = re.sub(rf"#\s*{parameter}\b|\b[A-Z_]+\(\s*{parameter}\s*\)", r'"\\0"', text).replace("\\\n", " ")
        written = re.sub(rf"\b{parameter}\b", r"\\0", quoted)
        use, holes = re.compile(rf"\b{name}\(\s*(\w+)\s*\)"), written.count("\\0")
        if sum(len(written) + holes * len(each[1]) for each in use.finditer(body)) <= MOST_WRITTEN:
            body = use.sub(lambda each, text=written: text.replace("\\0", each[1]), body)
    return body


def _shape_of(code: str, function: str) -> tuple[bool, int | None]:
    """Return whether a C++ function returns something, and how many parameters it has, as its definition says."""
    if function == "[":
        return True, None
    name = re.split(r"\s*::\s*", function)[-1]
    for match in islice(re.finditer(rf"(?<!\w){name}\s*\(", code), MOST_PLACES):
        kind = _type_before(code, match.start())
        if not kind or kind.endswith(("return", "else")):
            continue
        end = match.end() + _end_of_parentheses(code[match.end() : match.end() + PARAMETER_CHARACTERS], 0)
        if code[end : end + 40].lstrip().startswith(("{", ";", "const", "noexcept")):
            return kind.split()[-1] != "void", len(_split(code[match.end() : end - 1]))
    return True, None


def _type_before(code: str, at: int) -> str:
    """Return the type that stands before a function's name, at a statement's or a line's begin; empty if none does."""
    before = code[max(0, at - TYPE_CHARACTERS) : at]
    other = before.rstrip(_TYPE)
    found = before[len(other) :]
    if other and other[-1] not in ";}":
        found = found.partition("\n")[2]
    while found.rstrip().endswith("::"):  # of the name itself
        found = found.rstrip()[:-2].rstrip().rstrip(_NAME)
    return found.strip() if found and (found[-1].isspace() or found[-1] in "*&") else ""


def _split(parameters: str) -> Sequence[str]:
    """Return the parameters between parentheses, split at commas that lie in no brackets."""
    depth, parts = 0, [""]
    for letter in parameters:
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    kept = [p.strip() for p in parts if p.strip()]
    return [] if kept == ["void"] else kept


def _end_of_parentheses(code: str, start: int) -> int:
    return _end(code, start, "(", ")")


def _end_of_block(code: str, start: int) -> int:
    return _end(code, start, "{", "}")


def _end(code: str, start: int, opening: str, closing: str) -> int:
    """Return the place behind the bracket that closes one which was opened before `start`."""
    depth = 1
    for bracket in re.finditer(f"[{re.escape(opening + closing)}]", code[start:]):
        depth += 1 if bracket[0] == opening else -1
        if not depth:
            return start + bracket.end()
    return len(code)
