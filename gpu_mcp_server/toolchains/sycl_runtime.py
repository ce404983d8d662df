"""SYCL kernels compiled at run time by Intel's runtime from PyPI (extra `[sycl]`), where no SYCL compiler is.

A check: the kernels (free functions, as the extension sycl_ext_oneapi_free_function_kernels has them) are compiled
for the processor, and what the compiler says is kept. No program comes of it, and whole programs it cannot take.

Source: behaviour of intel-sycl-rt and intel-opencl-rt 2026.2; their wheels put `lib` and `include` into the prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FOLDER = ".gpu-mcp"
DRIVER, SOURCE = f"{FOLDER}/sycl_check", f"{FOLDER}/sycl_check.cpp"
WORKER = "sycl_check.cpp"
NOTE = (
    "compiled at run time for the processor by intel-sycl-rt, as a check: kernels that are free functions, and no "
    "program was made; install icpx or acpp for whole programs"
)


@dataclass(frozen=True)
class SyclRuntime:
    """Intel's runtime, as a host's Python has it."""

    prefix: str
    version: str
    roots: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment by which it finds itself, and its device on the processor."""
        lib = f"{self.prefix}/lib"
        return {"LD_LIBRARY_PATH": lib, "OCL_ICD_FILENAMES": f"{lib}/libintelocl.so"}


def runtime_of(site: str, version: str, roots: Sequence[str]) -> SyclRuntime:
    """Return the runtime whose Python package lies in a folder `site`."""
    return SyclRuntime(site.rpartition("/lib/python")[0], version, tuple(roots))


def phases(runtime: SyclRuntime, gxx: str, sources: Sequence[str], *, driver_is_there: bool) -> list[dict[str, object]]:
    """Return the phases: the driver is built by g++ where it is not there yet, then it compiles the sources."""
    lib = f"{runtime.prefix}/lib"
    argv = [gxx, "-O0", "-std=c++17", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", f"-I{runtime.prefix}/include"]
    argv += ["-o", DRIVER, SOURCE, f"-L{lib}", "-lsycl", f"-Wl,-rpath,{lib}", "-Wl,--allow-shlib-undefined"]
    made: list[dict[str, object]] = [] if driver_is_there else [{"name": "driver", "argv": argv}]
    return [*made, {"name": "build", "argv": [f"./{DRIVER}", *sources]}]
