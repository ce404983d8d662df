"""Report equipment that a candidate needs and its host lacks, in words: no verdict, and no attempt."""

import ast
import re
from collections.abc import Mapping
from typing import Any

from gpu_mcp_server.errors import BadRequest, MachineLacks
from gpu_mcp_server.services.hosts.host_connections import HostProbe, JudgePython
from gpu_mcp_server.toolchains.python_languages import package_of

GPU = "Name device cuda and a host that has a GPU (gpu_status)."
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
BUILD_LOG = re.compile(
    r"^(?:/bin/)?sh: (?:line )?\d+: (?P<a>nvcc|ninja|gcc|cc|g\+\+|c\+\+): (?:command )?not found"
    r"|^(?:.*Error: )?\[Errno 2\] No such file or directory: '(?P<b>nvcc|ninja|gcc|cc|g\+\+|c\+\+)'"
    r"|^(?:.*Error: )?Command '\['which', '(?P<c>gcc|cc|g\+\+|c\+\+)'\]' returned non-zero"
    r"|^(?:.*Error: )?(?P<ninja>Ninja is required to load C\+\+ extensions)"
    r"|^(?:.*Error: )?(?P<nvcc>CUDA_HOME environment variable is not set)",
    re.MULTILINE,
)
"""How a build of torch's says that a program is missing. Source: torch/utils/cpp_extension.py 2.13, dash, bash."""
WITHOUT_CUDA = re.compile(r"^Torch not compiled with CUDA enabled$", re.MULTILINE)
"""What workers/extension_build.py says of sources in CUDA where torch has none."""


def error_of(lack: Mapping[str, Any], host: str, python: JudgePython | None) -> MachineLacks:
    """Return the error that names what an owner found missing.

    Args:
        lack: As an owner wrote it: `kind`, `name`, whose need it is (`role`), and the error in which it `said` so.
        host: The host's name.
        python: The judge's interpreter there.
    """
    who = "reference" if lack.get("role") == "reference" else "candidate"
    kind, name = str(lack.get("kind")), str(lack.get("name"))[:300]
    where = f"judge_python ({python.path})" if python else "judge_python"
    match kind:
        case "module":
            package = package_of(name)
            hint = f"Install {package or 'it'} into {where}, or name a host that has it."
            hint += "" if package else f" If it is a file of your own, put it beside the {who}, or its text into it."
            return MachineLacks(f"the {who} imports the module {name!r}", host, hint)
        case "library":
            hint = f"It comes with NVIDIA's driver. {GPU}" if name in DRIVER else "Install it, or name another host."
            return MachineLacks(f"the {who} loads the library {name!r}", host, hint)
        case "gpu":
            asks = f"has kernels in {name}, which run on a GPU alone" if name else "asks for a GPU"
            said = f"Its error (not believed): {lack['said']}. " if lack.get("said") else ""
            return MachineLacks(f"the {who} {asks}", host, said + GPU, without="as it is judged on the processor of")
        case "packages":
            hint = f"Install versions that fit each other into {where}, or name another host."
            need = f"packages that the {who} imports do not fit each other: {name}"
            return MachineLacks(need, host, hint, without="as installed on")
        case "program":
            return program_error(name, who, host)
        case _:
            hint = "Build it against the libraries that the host has, or name another host."
            return MachineLacks(f"the {who} needs the symbol {name}", host, hint)


def program_error(name: str, who: str, host: str) -> MachineLacks:
    """Return the error that names a program that is missing."""
    hint = f"Install {name} there so that PATH has it, or name another host; `gpu-mcp-server doctor` looks for it."
    return MachineLacks(f"the {who} has {name!r} run", host, hint)


def check_cuda_in(log: str, name: str, python: JudgePython, host: str) -> None:
    """Return if an extension was not built for another reason than a torch without CUDA.

    Raises:
        MachineLacks: If that is the reason.
    """
    if WITHOUT_CUDA.search(log):
        hint = f"Name a host that has a GPU (gpu_status). If {host!r} has one: a judge_python whose torch has CUDA."
        need = f"the candidate has torch compile CUDA (extension {name})"
        raise MachineLacks(need, host, hint, without=f"and torch {python.torch} has no CUDA on")


def program_missing_in(log: str, probe: HostProbe) -> str:
    """Return the program for want of which an extension was not built; empty where the source is at fault.

    The compiler's words may be the candidate's (`#error`): a compiler that the host is known to have is not missing.
    """
    found = BUILD_LOG.search(log)
    if found is None:
        return ""
    name = next((text for group in "abc" if (text := found[group])), None) or ("ninja" if found["ninja"] else "nvcc")
    known = {"nvcc": probe.nvcc is not None, "ninja": False}
    return "" if known.get(name, name in probe.compilers) else name


def check_one_file(text: str) -> None:
    """Return if a Python candidate imports nothing from beside itself when it is loaded.

    Raises:
        BadRequest: If it does: a candidate is one file.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the judge says so
    for line in body:
        if isinstance(line, ast.ImportFrom) and line.level:
            name = "." * line.level + (line.module or ", ".join(alias.name for alias in line.names))
            raise BadRequest(
                f"The candidate imports {name[:100]} from a file beside it (line {line.lineno}).",
                hint="A candidate is one file: put the text of that one into it.",
            )
