"""Extensions that a Python candidate compiles with torch: what is asked for, and what was built of it beforehand.

torch makes every extension (`load`, `load_inline`) in one step, which writes a ninja file and builds. That step is
replaced: by taking down the request when the file is tried without a GPU (workers/discover_extensions.py), by taking
the library that was built of the same request when it is judged. What was not built beforehand is built as ever.

Source: torch/utils/cpp_extension.py, `_jit_compile`, of torch 2.6 to 2.13.
"""

import contextlib
import functools
import hashlib
import importlib
import inspect
import json
import os
import shutil
from typing import Any, Callable, Dict, List, Tuple

STEP = "_write_ninja_file_and_build_library"
ENVIRONMENT = (
    "TORCH_CUDA_ARCH_LIST", "CC", "CXX", "PYTORCH_NVCC", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CPATH",
    "CPLUS_INCLUDE_PATH", "LIBRARY_PATH",
)  # fmt: skip
"""Variables that a candidate may set and compilers heed."""
FAILURE_CHARACTERS = 20000

Request = Dict[str, Any]

FAILED_HERE, BUILT_HERE = "did not compile: extension ", "was built: extension "
"""Begin the candidate's own words on its extensions; services/evaluation/extension_builds.py reads them."""
said: Dict[str, None] = {}
"""What became of extensions in this process."""


def request_of(step: Callable[..., Any], given: Tuple[Any, ...], named: Dict[str, Any]) -> Tuple[Request, str]:
    """Return what decides the library that a step builds, and the folder that it builds in.

    Raises:
        OSError, TypeError, ValueError: If it cannot be told, as of sources that are not there.
    """
    bound = inspect.signature(step).bind(*given, **named)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    arguments.pop("verbose", None)
    folder = str(arguments.pop("build_directory"))
    sources: List[Tuple[str, str]] = []
    for path in arguments.pop("sources"):
        with open(path, encoding="utf-8") as file:
            sources.append((os.path.basename(path), file.read()))
    if len({name for name, _ in sources}) < len(sources):
        raise ValueError("two sources have one name")
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    request = {"arguments": arguments, "sources": sources, "environment": kept}
    return json.loads(json.dumps(request)), folder


def key_of(request: Request) -> str:
    """Return a request's name."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def prepare() -> None:
    """Import ahead of a job what takes torch's module most of its import.

    The module itself asks for a GPU when it is imported, and CUDA would remember that none was shown yet.
    """
    with contextlib.suppress(Exception):  # torch says what is wrong with it if it is ever needed
        importlib.import_module("setuptools.command.build_ext")


def note_failures() -> None:
    """Have it noted where torch makes no extension and fails before that step, as without a folder to build in."""
    torch_extensions: Any = importlib.import_module("torch.utils.cpp_extension")
    for name in ("load", "load_inline"):
        setattr(torch_extensions, name, _noting(getattr(torch_extensions, name)))


def _noting(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def noting(*given: Any, **named: Any) -> Any:
        try:
            return make(*given, **named)
        except Exception:
            said[FAILED_HERE + str(given[0] if given else named.get("name"))] = None
            raise

    return noting


def take_from(folder: str) -> None:
    """Have torch take the libraries in `folder` instead of building them again.

    `KEY.so` is a library, `KEY.txt` what the compiler said of a source that it refused.
    """
    torch_extensions: Any = importlib.import_module("torch.utils.cpp_extension")
    step = getattr(torch_extensions, STEP, None)
    if step is None:
        return

    def taken(*given: Any, **named: Any) -> Any:
        try:
            request, directory = request_of(step, given, named)
        except (OSError, TypeError, ValueError):
            return step(*given, **named)
        built = os.path.join(folder, key_of(request))
        name = str(request["arguments"]["name"])
        if os.path.exists(built + ".so"):
            os.makedirs(directory, exist_ok=True)
            shutil.copyfile(built + ".so", os.path.join(directory, name + ".so"))
            said[BUILT_HERE + name] = None
            return None
        if os.path.exists(built + ".txt"):
            said[FAILED_HERE + name] = None
            with open(built + ".txt", encoding="utf-8", errors="replace") as file:
                raise RuntimeError("Error building extension '%s': %s" % (name, file.read(FAILURE_CHARACTERS)))
        said[FAILED_HERE + name] = None
        version = importlib.import_module("torch").version
        if request["arguments"].get("with_cuda") and not (version.cuda or version.hip):
            raise RuntimeError("Torch not compiled with CUDA enabled")  # its builder's error is an IndexError
        result = step(*given, **named)
        del said[FAILED_HERE + name]
        said[BUILT_HERE + name] = None
        return result

    setattr(torch_extensions, STEP, taken)
