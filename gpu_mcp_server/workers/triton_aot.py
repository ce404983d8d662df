"""Compiles a Triton kernel ahead of time: no GPU, and no torch that the file does not import.

Triton 3.3 and later take `constexprs` and keep them in the signature, 3.2 takes `constants` beside it, older ones count
arguments by position. Errors go to stderr as `FILE:LINE:COL: error: ...`; Triton's own printing (the whole PTX, when
ptxas refuses it) stays on stdout.

Source: triton/compiler/compiler.py of 2.3.1, 3.1.0 and 3.9.0; triton/tools/compile.py for `TYPE:16`.
"""
# Triton has no types, and need not be installed where this is checked:
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, List, Tuple

from gpu_mcp_server.judge.candidate.gpu_stand_in import hook_torch, stand_in_driver
from gpu_mcp_server.judge.candidate.triton_cache_key import shorten_cache_keys
from gpu_mcp_server.judge.package_misfits import misfit_of
from gpu_mcp_server.workers.parts.triton_errors import is_of_compiler, line_of_function, place

BINARIES = ("cubin", "hsaco")
LISTINGS = ("ptx", "amdgcn")
RESULT = "result.json"


def complain(file: str, line: int, column: int, message: str, severity: str = "error") -> None:
    """Write one message as compilers do, on one line with its further lines below."""
    first, _, rest = message.strip().partition("\n")
    sys.stderr.write("%s:%d:%d: %s: %s\n" % (file, line, column, severity, first))
    for more in rest.splitlines()[:3]:
        sys.stderr.write("    %s\n" % more)


def kernel_of(module: Any, name: str) -> Any:
    """Return the kernel of that name, or the only one of the file.

    Raises:
        SystemExit: If there is none, or several and no name; says which there are.
    """
    from triton.runtime.jit import JITFunction

    found: Dict[str, Any] = {}
    for key, value in vars(module).items():
        inner = value
        while not isinstance(inner, JITFunction) and hasattr(inner, "fn"):
            inner = inner.fn  # autotuners and heuristics wrap the kernel
        if isinstance(inner, JITFunction) and getattr(inner, "__module__", "") == module.__name__:
            found[key] = inner
    if name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    raise SystemExit("%s; the file has %s" % (
        "there is no kernel %r" % name if name else "say which kernel",
        ", ".join(found) or "no function under @triton.jit",
    ))  # fmt: skip


def split(signature: Dict[str, str]) -> Tuple[Dict[str, str], List[str]]:
    """Return the types without `:16`, and the arguments that it marks as divisible by 16."""
    types = {name: kind.partition(":")[0] for name, kind in signature.items()}
    return types, [name for name, kind in signature.items() if kind.endswith(":16")]


def source_of(kernel: Any, types: Dict[str, str], constants: Dict[str, Any], divisible: List[str]) -> Any:
    """Return what `triton.compile` takes, for this Triton.

    Raises:
        SystemExit: If the signature does not fit the kernel.
    """
    ast_source = class_of("triton.compiler", "ASTSource")
    names = list(kernel.arg_names)
    missing = [n for n in names if n not in types and n not in constants]
    unknown = [n for n in (*types, *constants) if n not in names]
    if missing or unknown:
        said = ["signature and constants lack " + ", ".join(missing)] if missing else []
        said += ["it has no argument " + ", ".join(unknown)] if unknown else []
        raise SystemExit("kernel %s takes %s; %s" % (kernel.__name__, ", ".join(names), "; ".join(said)))
    types = {n: types[n] for n in names if n in types}  # before 3.3 their order counts, not their names
    if "constexprs" in inspect.signature(ast_source.__init__).parameters:
        whole = {n: types.get(n, "constexpr") for n in names}
        attrs: Any = {(names.index(n),): [["tt.divisibility", 16]] for n in divisible}
        return ast_source(fn=kernel, signature=whole, constexprs=constants, attrs=attrs)
    if version() >= (3, 2):
        attrs = class_of("triton.backends.compiler", "AttrsDescriptor").from_hints(
            {names.index(n): 16 for n in divisible}
        )
        return ast_source(fn=kernel, signature=types, constants=constants, attrs=attrs)
    attrs = class_of("triton.compiler.compiler", "AttrsDescriptor")(divisible_by_16={names.index(n) for n in divisible})
    by_position = {names.index(n): kind for n, kind in types.items()}
    return ast_source(kernel, by_position, {names.index(n): v for n, v in constants.items()}, attrs)


def class_of(module: str, name: str) -> Any:
    """Return a class that only some versions have."""
    return getattr(importlib.import_module(module), name)


def version() -> Tuple[int, ...]:
    """Return the version of Triton, as far as it is numbers."""
    import triton

    return tuple(int(p) for p in triton.__version__.split("+")[0].split(".")[:2])


def without_torch() -> None:
    """Answer for torch where there is none: Triton 2 asks it, while it compiles, whether it is the one for AMD."""
    if version() < (3, 0) and importlib.util.find_spec("torch") is None:
        torch: Any = ModuleType("torch")
        torch.version = SimpleNamespace(hip=None)
        sys.modules["torch"] = torch


def name_linker() -> None:
    """Say where AMD's linker is: Triton before 3.3 looks below /opt/rocm and for a plain ld.lld alone."""
    named = ["ld.lld"] + ["ld.lld-%d" % n for n in range(30, 13, -1)]
    found = next((path for path in map(shutil.which, named) if path), None)
    if found:
        os.environ.setdefault("TRITON_HIP_LLD_PATH", found)


def compile_for(source: Any, target: Any, options: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return what every stage made, and the metadata.

    Triton 2 would go on to build and load a launcher, which needs the driver: its stages are run here without.
    """
    import triton

    if version() >= (3, 0):
        shorten_cache_keys()
        made = triton.compile(source, target=target, options=options)
        about = made.metadata if isinstance(made.metadata, dict) else made.metadata._asdict()
        return dict(made.asm), about
    backend = class_of("triton.compiler.backends.cuda", "CUDABackend")(target)
    chosen = backend.parse_options(dict(options, **source.parse_options()))
    about = dict(vars(chosen), target=target, **source.metadata())
    stages: Dict[str, Any] = {}
    backend.add_stages(stages, chosen)
    module = source.make_ir(chosen)
    asm: Dict[str, Any] = {}
    for kind, stage in list(stages.items())[list(stages).index(source.ext) :]:
        module = asm[kind] = stage(module, about)
    return asm, about


def target_of(backend: str, arch: str, warp: int) -> Any:
    """Return a target as this Triton names it."""
    number: Any = int(arch) if arch.isdigit() else arch
    try:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(backend, number, warp)
    except ImportError:
        return (backend, number)


def stand_in(file: str, target: Any, arch: str) -> None:
    """Let a file that asks for a GPU as it is loaded find one: Triton's driver, and torch's where it imports that."""
    if importlib.util.find_spec("triton") is None:
        return
    path = os.path.abspath(file)
    with open(path, encoding="utf-8", errors="replace") as text:
        imports = re.search(r"^[ \t]*(?:import|from)[ \t][^\n#]*\btorch\b", text.read(), re.MULTILINE)
    if version() >= (3, 0):
        importlib.import_module("triton.runtime").driver.set_active(stand_in_driver(target))
    if imports and target.backend == "cuda" and importlib.util.find_spec("torch"):
        hook_torch(arch, path)


def load(file: str, kernel: str) -> Any:
    """Import the file; what it cannot import or run is an error at its line, and a warning behind the kernel."""
    spec = importlib.util.spec_from_file_location("kernels", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        complain(file, error.lineno or 1, error.offset or 1, "SyntaxError: %s" % error.msg)
        sys.exit(1)
    except BaseException as error:
        at = error.__traceback__
        line = 1
        while at is not None:
            if at.tb_frame.f_code.co_filename.endswith(file):
                line = at.tb_lineno
            at = at.tb_next
        there = kernel in vars(module)
        told = place(error, "", file) if is_of_compiler(error) else (line, 1, "%s: %s" % (type(error).__name__, error))
        complain(file, told[0], told[1], misfit_of(error) or told[2], "warning" if there else "error")
        if not there:
            sys.exit(1)
    return module


def main(arguments: List[str]) -> None:
    """Compile one kernel; write its binary, its listing and `result.json`.

    Args:
        arguments: One JSON text: file, kernel, signature, constants, backend, arch, warp, options.
    """
    request: Dict[str, Any] = json.loads(arguments[0])
    target = target_of(request["backend"], request["arch"], request["warp"])
    stand_in(request["file"], target, request["arch"])
    module = load(request["file"], request["kernel"])
    without_torch()
    name_linker()
    line = 1
    try:
        kernel = kernel_of(module, request["kernel"])
        line = max(1, line_of_function(kernel.src, request["file"]))
        types, divisible = split(request["signature"])
        names = set(kernel.arg_names)
        constants = {k: v for k, v in request["constants"].items() if k in names or k not in request["options"]}
        source = source_of(kernel, types, constants, divisible)
    except SystemExit as lack:
        complain(request["file"], line, 1, str(lack))
        sys.exit(1)
    try:
        asm, about = compile_for(source, target, request["options"])
    except BaseException as error:
        if type(error).__name__ == "PTXASError" or "ptxas" in str(error)[:300]:
            sys.stderr.write(str(error)[:20000] + "\n")
        else:
            line, column, words = place(error, kernel.src, request["file"])
            complain(request["file"], line, column, misfit_of(error) or words)
        sys.exit(1)
    for kind in (*BINARIES, *LISTINGS):
        data = asm.get(kind)
        if data is not None:
            with open("kernel." + kind, "wb") as out:
                out.write(data.encode() if isinstance(data, str) else data)
    kept = {k: about.get(k) for k in ("name", "shared", "num_warps", "num_stages", "num_ctas", "global_scratch_size")}
    kept["binary"] = next(k for k in BINARIES if k in asm)
    with open(RESULT, "w") as out:
        json.dump(kept, out)
    os._exit(0)
