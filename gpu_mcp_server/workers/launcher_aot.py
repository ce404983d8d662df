"""Compiles the kernels that a Python launcher launches, without a GPU.

The launcher is called on tensors of the processor's; each language compiles for the architecture that was asked for and
starts nothing. It reads a JSON of file, entry, signature (`fp32[64,1000]` by parameter), constants and arch. It writes
`result.json`, `kernel.cubin` and `kernel.ptx` of the first kernel; errors go to stderr as compilers write them.

Source: nvidia-cutlass-dsl 4.8 (cute.compile, CUTE_DSL_ARCH, artifacts), tilelang 0.1.15 (JITImpl.target, JITKernel),
triton 3.9 (runtime/driver.py, compiler/compiler.py), numba-cuda 0.30 (cuda.compile), warp 1.19 (compile_aot_module),
cuda-tile 1.7 (compilation.export_kernel), CuPy 14 (RawKernel, RawModule).
"""
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false

import contextlib
import glob
import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from typing import Any, Callable, Dict, List, Sequence, Tuple

from gpu_mcp_server.judge.candidate.gpu_stand_in import hook_torch, numbers_of, stand_in_driver
from gpu_mcp_server.judge.candidate.triton_cache_key import shorten_cache_keys
from gpu_mcp_server.judge.package_misfits import misfit_of
from gpu_mcp_server.workers.parts.triton_errors import is_of_compiler, place

TYPES = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "i1": "bool", "i8": "int8",
    "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64",
}  # fmt: skip
NAMES = ("launch", "run", "custom_kernel", "solve")
MOST_KERNELS = 32
OWN = tempfile.mkdtemp()


class KernelCollection:
    """Kernels that the launches compiled."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.kernels: List[Tuple[str, bytes, str]] = []
        """Name, cubin (empty where there is none) and PTX."""
        self.by: Dict[str, None] = {}

    def add(self, by: str, name: str, cubin: bytes, ptx: str) -> None:
        """Keep a kernel, as long as there are few."""
        self.by[by] = None
        if len(self.kernels) < MOST_KERNELS:
            self.kernels.append((name, cubin, ptx))


def complain(file: str, line: int, message: str, severity: str = "error") -> None:
    """Write one message as compilers do, on one line with its further lines below."""
    first, _, rest = re.sub(r"\x1b\[[0-9;]*m", "", message).strip().partition("\n")
    sys.stderr.write("%s:%d:1: %s: %s\n" % (file, line, severity, first[:500]))
    for more in rest.splitlines()[:8]:
        sys.stderr.write("    %s\n" % more[:300])


def version_of(package: str) -> str:
    """Return a package's version."""
    return str(importlib.import_module("importlib.metadata").version(package))


def hook_cute(made: KernelCollection) -> None:
    """Let CuTe DSL compile for the architecture; compiled functions launch nothing."""
    os.environ.update(CUTE_DSL_ARCH=made.arch, CUTE_DSL_KEEP_PTX="1", CUTE_DSL_KEEP_CUBIN="1", CUTE_DSL_DUMP_DIR=OWN)
    executor: Any = importlib.import_module("cutlass.cutlass_dsl.cuda_jit_executor").CudaDialectJitCompiledFunction
    title, seen = "CuTe DSL " + version_of("nvidia-cutlass-dsl"), set()

    def keep(function: Any, *_: Any, **__: Any) -> None:
        if id(function) not in seen:
            seen.add(id(function))
            kernels = list(function.kernel_info or ["kernel"])
            binary, ptx = artifact_bytes(function.artifacts.CUBIN), artifact_bytes(function.artifacts.PTX)
            made.add(title, str(kernels[0]), binary, ptx.decode("utf-8", "replace"))

    executor.__call__ = executor.run_compiled_program = keep


def artifact_bytes(artifact: Any) -> bytes:
    """Return the bytes of an artifact of CuTe DSL's, which is a file's name until it is read."""
    if isinstance(artifact, str) and len(artifact) < 1000 and "\0" not in artifact and os.path.isfile(artifact):
        with open(artifact, "rb") as file:
            return file.read()
    return artifact.encode() if isinstance(artifact, str) else bytes(artifact)


def hook_tilelang(made: KernelCollection) -> None:
    """Let TileLang generate CUDA for the architecture, and nvcc compile that."""
    os.environ["TILELANG_DEFAULT_TARGET"] = json.dumps({"kind": "cuda", "arch": made.arch})
    kernel: Any = importlib.import_module("tilelang.jit.kernel").JITKernel
    title = "TileLang " + version_of("tilelang")

    def keep(found: Any, *_: Any, **__: Any) -> None:
        binary, ptx = compile_cuda(str(found.get_kernel_source()), made.arch, tilelang_folders())
        made.add(title, str(found.prim_func.attrs["global_symbol"]), binary, ptx)

    kernel.__call__ = keep


def tilelang_folders() -> List[str]:
    """Return the folders of the headers that TileLang's CUDA includes."""
    env: Any = importlib.import_module("tilelang.env")
    return [str(env.TILELANG_TEMPLATE_PATH), str(env.CUTLASS_INCLUDE_DIR)]


def compile_cuda(source: str, arch: str, folders: List[str], more: Sequence[str] = ()) -> Tuple[bytes, str]:
    """Return cubin and PTX of CUDA C++, by the nvcc of the PATH, with `more` of NVRTC's options.

    Raises:
        RuntimeError: With its messages, if it refuses the source or is not there.
    """
    with open(OWN + "/generated.cu", "w", encoding="utf-8") as file:
        file.write(source)
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise RuntimeError("nvcc: command not found: the kernel's CUDA is compiled by it")
    standard = [] if any(re.match("--?std", option) for option in more) else ["-std=c++17"]
    options = [*standard, *more, "-arch=" + arch, *("-I" + folder for folder in folders), OWN + "/generated.cu"]
    for kind in ("cubin", "ptx"):
        done = subprocess.run(
            [nvcc, "-" + kind, *options, "-o", OWN + "/generated." + kind], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or "nvcc failed")
    with open(OWN + "/generated.cubin", "rb") as cubin, open(OWN + "/generated.ptx", encoding="utf-8") as ptx:
        return cubin.read(), ptx.read()


def hook_triton(made: KernelCollection) -> None:
    """Give Triton a driver that compiles for the architecture and launches nothing; tuning takes the first choice."""
    os.environ["HELION_AUTOTUNE_EFFORT"] = "none"
    runtime: Any = importlib.import_module("triton.runtime")
    compiler: Any = importlib.import_module("triton.compiler.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget(
        "cuda", int(re.sub(r"\D", "", made.arch)), 32
    )
    title = "Triton " + version_of("triton")
    shorten_cache_keys()
    runtime.driver.set_active(stand_in_driver(target))
    start = compiler.CompiledKernel.__init__

    def keep(kernel: Any, *arguments: Any, **options: Any) -> None:
        start(kernel, *arguments, **options)
        made.add(title, str(kernel.metadata.name), bytes(kernel.asm["cubin"]), str(kernel.asm["ptx"]))

    compiler.CompiledKernel.__init__ = keep
    importlib.import_module("triton.runtime.autotuner").Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]


def hook_numba(made: KernelCollection) -> None:
    """Let numba.cuda compile for the types of a launch's arguments."""
    cuda: Any = importlib.import_module("numba.cuda")
    types: Any = importlib.import_module("numba").types
    title = "Numba CUDA " + version_of("numba-cuda")

    def type_of(value: Any) -> Any:
        if not hasattr(value, "dtype"):
            return {bool: types.boolean, float: types.float64}.get(type(value), types.int64)
        layout = "C" if value.is_contiguous() else "A"
        return types.Array(getattr(types, str(value.dtype).rpartition(".")[2]), len(value.shape), layout)

    def compile_only(kernel: Any, *arguments: Any) -> None:
        ptx, _ = cuda.compile(
            kernel.py_func, tuple(map(type_of, arguments)), device=False, abi="numba", cc=numbers_of(made.arch),
            output="ptx",
        )  # fmt: skip
        made.add(title, kernel.py_func.__name__, b"", ptx if isinstance(ptx, str) else ptx.decode())

    dispatcher: Any = importlib.import_module("numba.cuda.dispatcher").CUDADispatcher
    dispatcher.__getitem__ = lambda kernel, _: lambda *arguments: compile_only(kernel, *arguments)
    cuda.as_cuda_array = lambda value, *_: value
    cuda.external_stream = lambda *_: 0


def hook_cupy(made: KernelCollection) -> None:
    """Have nvcc compile the text of CuPy's raw kernels."""
    cupy: Any = importlib.import_module("cupy")
    title = "CuPy " + str(cupy.__version__)

    class Raw:
        """Stands for RawKernel and RawModule."""

        def __init__(self, code: str = "", name: str = "", options: Sequence[str] = (), *_: Any, **__: Any) -> None:
            self.code, self.name, self.options = code, name, options

        def get_function(self, name: str) -> "Raw":
            """Return one of its kernels."""
            return Raw(self.code, name, self.options)

        def __call__(self, *_: Any, **__: Any) -> None:
            made.add(title, self.name, *compile_cuda(self.code, made.arch, [], self.options))

    cupy.RawKernel = cupy.RawModule = Raw
    cupy.cuda.ExternalStream = cupy.cuda.Stream = lambda *_, **__: contextlib.nullcontext()
    cupy.asarray = cupy.from_dlpack = lambda value, *_, **__: value


def hook_warp(made: KernelCollection) -> None:
    """Let Warp compile the module of a kernel that is launched."""
    warp: Any = importlib.import_module("warp")
    warp.init()
    title, folder, seen = "Warp " + version_of("warp-lang"), OWN + "/warp", set()

    def compile_only(kernel: Any, *_: Any, **__: Any) -> None:
        if kernel.key in seen:
            return
        seen.add(kernel.key)
        major, minor = numbers_of(made.arch)
        for use_ptx in (True, False):  # its compiler is often newer than each ptxas here, which would refuse the PTX
            warp.compile_aot_module(kernel.module, arch=10 * major + minor, module_dir=folder, use_ptx=use_ptx)
        for path in sorted(glob.glob(folder + "/*.cubin")):
            with open(path, "rb") as cubin, open(path[:-5] + "ptx", encoding="utf-8") as ptx:
                made.add(title, kernel.key, cubin.read(), ptx.read())

    warp.launch = compile_only
    warp.stream_from_torch = lambda *_: None


def hook_cutile(made: KernelCollection) -> None:
    """Let cuTile export each kernel that is launched, for the types of its arguments."""
    tile: Any = importlib.import_module("cuda.tile")
    exported: Any = importlib.import_module("cuda.tile.compilation")
    title = "cuTile " + version_of("cuda-tile")

    def constraint_of(value: Any, parameter: inspect.Parameter) -> Any:
        if hasattr(value, "dtype"):
            kind = getattr(tile, str(value.dtype).rpartition(".")[2])
            return exported.ArrayConstraint(
                kind, len(value.shape), index_dtype=tile.int32, stride_lower_bound_incl=0, alias_groups=(),
                may_alias_internally=False, stride_constant=[None] * (len(value.shape) - 1) + [1],
            )  # fmt: skip
        return value if "Constant" in str(parameter.annotation) else exported.ScalarConstraint(tile.int32)

    def compile_only(_: Any, __: Any, kernel: Any, arguments: Any) -> None:
        function = inspect.unwrap(getattr(kernel, "_pyfunc", kernel))
        parameters = inspect.signature(function).parameters.values()
        how = exported.CallingConvention.cutile_python_v1()
        signature = exported.KernelSignature([constraint_of(*each) for each in zip(arguments, parameters)], how)
        exported.export_kernel(
            kernel, [signature], OWN + "/tile.cubin", gpu_code=made.arch.rstrip("af"), output_format="cubin"
        )
        with open(OWN + "/tile.cubin", "rb") as file:
            made.add(title, function.__name__, file.read(), "")

    tile.launch = compile_only


HOOKS: Dict[str, Callable[[KernelCollection], None]] = {
    "triton": hook_triton,
    "helion": hook_triton,
    "cutlass": hook_cute,
    "tilelang": hook_tilelang,
    "numba": hook_numba,
    "cupy": hook_cupy,
    "warp": hook_warp,
    "cuda.tile": hook_cutile,
}
"""Hooks by the package that a file imports, in the order in which they are set."""


def arguments_of(name: str, function: Any, request: Dict[str, Any]) -> List[Any]:
    """Return what the launcher of that name is called with.

    Raises:
        SystemExit: If a parameter has no type.
    """
    signature, constants = request["signature"], request["constants"]
    plain = function if inspect.isroutine(function) else getattr(function, "func", function)  # TileLang's object has it
    parameters = inspect.signature(plain).parameters.values()
    names = [one.name for one in parameters if one.default is one.empty and one.kind < 2]
    packed = name == "custom_kernel" and len(names) == 1  # a suite's, whose data are all the tensors
    names = list(signature) if packed else names
    missing = [name for name in names if name not in signature and name not in constants]
    if missing:
        raise SystemExit(
            "%s takes %s; signature and constants lack %s: tensors go into signature as fp32[64,1000], numbers into "
            "constants" % (name, ", ".join(names), ", ".join(missing))
        )
    found: List[Any] = []
    for name in names:
        if name in constants:
            found.append(constants[name])
            continue
        torch: Any = importlib.import_module("torch")
        kind, _, sizes = signature[name].strip("*]").partition("[")
        found.append(torch.empty([int(size) for size in sizes.split(",")], dtype=getattr(torch, TYPES[kind])))
    return [tuple(found) if len(found) != 1 else found[0]] if packed else found


def line_of(error: BaseException, path: str) -> int:
    """Return the line of the file at which an error arose; 1 where it arose elsewhere."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno or 1
    return ([1] + [f.lineno or 1 for f in traceback.extract_tb(error.__traceback__) if f.filename == path])[-1]


def place_of(error: BaseException, path: str) -> Tuple[int, str]:
    """Return line and words of an error."""
    own = (line_of(error, path), 1, "%s: %s" % (type(error).__name__, error))
    line, _, words = place(error, "", path) if is_of_compiler(error) else own
    return line, misfit_of(error) or words


def launch(request: Dict[str, Any], made: KernelCollection) -> None:
    """Load the file and call its launcher; an error is told, and is one as long as nothing was compiled."""
    path = os.path.abspath(request["file"])
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for package, hook in HOOKS.items():
            if re.search(
                r"^[ \t]*(?:from[ \t]+|import[ \t]+(?:[^\n#]*,[ \t]*)?)%s\b" % re.escape(package), text, re.MULTILINE
            ):
                hook(made)
        hook_torch(made.arch, path)
        spec: Any = importlib.util.spec_from_file_location("candidate", path)
        module = sys.modules["candidate"] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            if not request["entry"] or not hasattr(module, request["entry"]):
                raise
            complain(request["file"], *place_of(error, path), "warning")
        name = request["entry"] or next((name for name in NAMES if hasattr(module, name)), "launch")
        if not hasattr(module, name):
            own = [
                n for n, one in vars(module).items() if callable(one) and getattr(one, "__module__", "") == "candidate"
            ]
            has = "it has " + ", ".join(own[:12]) if own else "it defines none"
            raise SystemExit("the file has no function %s, and none was named as kernel: %s" % (name, has))
        function = getattr(module, name)
        function(*arguments_of(name, function, request))
        if not made.kernels:
            raise SystemExit("%s launched no kernel of a language that compiles without a GPU" % name)
    except SystemExit as error:
        complain(request["file"], 1, str(error))
    except BaseException as error:
        line, said = place_of(error, path)
        said = "\n".join(re.findall(r"(?m)^.*\berror\b.*$", said)[:6]) or said if said.count("\n") > 40 else said
        complain(request["file"], line, said, "warning" if made.kernels else "error")


def assemblers() -> List[str]:
    """Return the ptxas that are here: of pip's packages, which are as new as the languages, then the PATH's."""
    places = ("/nvidia/cu*/bin/ptxas", "/triton/backends/nvidia/bin/ptxas*")
    found = [path for top in sys.path for at in places for path in sorted(glob.glob(top + at), reverse=True)]
    return [*found, *filter(None, [shutil.which("ptxas")])]


def assemble(ptx: str, arch: str) -> Tuple[bytes, str]:
    """Return the cubin of PTX by the first assembler that takes it, and what that or the last one says."""
    with open(OWN + "/kernel.ptx", "w", encoding="utf-8") as file:
        file.write(ptx.rstrip("\0"))
    said = "ptxas: not found"
    for program in assemblers():
        command = [program, "-v", "-arch=" + arch, OWN + "/kernel.ptx", "-o", OWN + "/kernel.cubin"]
        done = subprocess.run(command, capture_output=True, text=True)
        said = (done.stderr + done.stdout)[-20000:]
        if not done.returncode:
            with open(OWN + "/kernel.cubin", "rb") as file:
                return file.read(), said
    return b"", said.replace("fatal   :", "error   :") if len(said) < 2000 else said


def main(arguments: List[str]) -> None:
    """Compile, and write what came of it.

    Raises:
        SystemExit: If there is no binary.
    """
    sys.stdout = sys.stderr
    request = json.loads(arguments[0])
    made = KernelCollection(request["arch"])
    launch(request, made)
    binaries: List[bytes] = []
    for _, cubin, ptx in made.kernels:
        own, said = assemble(ptx, made.arch) if ptx else (b"", "")
        sys.stderr.write(said if own or not cubin else "")  # a ptxas older than the language refuses nothing
        binaries.append(cubin or own)
    first = next((number for number, binary in enumerate(binaries) if binary), -1)
    if first < 0:
        if binaries:
            complain(request["file"], 1, "the language makes PTX alone, and no ptxas here takes it")
        raise SystemExit(1)
    with open("kernel.cubin", "wb") as file:
        file.write(binaries[first])
    with open("kernel.ptx", "w", encoding="utf-8") as file:
        file.write(made.kernels[first][2])
    with open("result.json", "w", encoding="utf-8") as file:
        json.dump({"compiler": ", ".join(made.by), "kernels": [name[:200] for name, _, _ in made.kernels]}, file)
