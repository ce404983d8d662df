"""Options by which nvcc links a host's library, by `-lNAME`; and the package that brings a missing one.

Source: ld(1) for `-l:FILE` and `-rpath`; CUDA Installation Guide, "Install using pip"; names of packages as of PyPI.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.models.toolchains import Libraries
from gpu_mcp_server.toolchains.flags import FOUND_LIBRARIES

_WHEELS = {"cudnn": "cudnn", "nccl": "nccl"}
"""Their wheels are named by CUDA's version in all of them; others have lost it with CUDA 13."""
_WHEELS_OF_TOOLKIT = {
    **{"nvrtc": "cuda-nvrtc", "nvJitLink": "nvjitlink", "cublas": "cublas", "cublasLt": "cublas", "cufft": "cufft"},
    **{"curand": "curand", "cusparse": "cusparse", "cusolver": "cusolver"},
}
_SHOWN_PLACES = 12


@dataclass(frozen=True)
class Linking:
    """Options of a build that links libraries."""

    include: tuple[str, ...] = ()
    """Options before the source."""
    libraries: tuple[str, ...] = ()
    """Options behind it."""
    roots: tuple[str, ...] = ()


def linking_of(flags: Sequence[str], known: Libraries, host: str, cuda: str) -> Linking:
    """Return nvcc's options for `-l` flags.

    Args:
        flags: As `-lnccl`; what is no library of NVIDIA's stays as it is.
        known: What the host has.
        host: Its name.
        cuda: Version of its toolkit.

    Raises:
        ToolMissing: If the host lacks one; says where it was looked for and what to install.
    """
    include: dict[str, None] = {}
    options: list[str] = []
    roots: list[str] = []
    for flag in flags:
        name = flag.removeprefix("-l")
        if name not in FOUND_LIBRARIES:
            options.append(flag)
            continue
        library = known.found.get(name)
        if library is None:
            raise ToolMissing(f"lib{name}, which {flag} links,", host, hint=_how_to_get(name, known, cuda))
        folder, _, file = library.path.rpartition("/")
        options += [f"-L{folder}", f"-l:{file}"]
        if library.run:
            options += ["-Xlinker", "-rpath", "-Xlinker", library.run]
        include |= {f"-isystem={library.include}": None} if library.include else {}
        roots += library.roots
    return Linking(tuple(include), tuple(options), tuple(dict.fromkeys(roots)))


def _how_to_get(name: str, known: Libraries, cuda: str) -> str:
    shown = ", ".join(known.places[:_SHOWN_PLACES]) or "nowhere: the host has none of the usual folders"
    more = len(known.places) - _SHOWN_PLACES
    shown += f" and {more} more folders" if more > 0 else ""
    major = cuda.partition(".")[0]
    if name == "cuda":
        stub = f"apt-get install cuda-driver-dev-{'-'.join(cuda.split('.')[:2])}"
        how = f"Install the toolkit's stub ({stub}) or NVIDIA's driver there"
    else:
        suffix = f"-cu{major}" if name in _WHEELS or int(major or 0) < 13 else ""
        wheel = f"nvidia-{_WHEELS.get(name) or _WHEELS_OF_TOOLKIT[name]}{suffix}"
        how = f"Install it there: pip install {wheel} for judge_python, or NVIDIA's package for the whole host"
    return f"It was looked for in {shown}. {how}."
