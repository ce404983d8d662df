"""Toolchains of a host, as its probe found them."""

from gpu_mcp_server.models._base import Model


class CompilerInfo(Model):
    """A compiler on a host."""

    path: str
    version: str


class HipCompiler(CompilerInfo):
    """A compiler for AMD's GPUs."""

    name: str
    archs: list[str]
    device_libs: str
    """Folder of AMD's device libraries, which every kernel is linked with."""
    libraries: str
    """Folder of libamdhip64; empty when the compiler knows it."""
    roots: list[str] = []


class Nvrtc(CompilerInfo):
    """CUDA's run-time compiler as a library; its `path` is libnvrtc."""

    builtins: list[str]
    include: list[str]
    archs: list[str]
    roots: list[str]


class Hiprtc(CompilerInfo):
    """HIP's run-time compiler as a library; its `path` is libhiprtc, or libamdhip64 before ROCm 5.3."""

    archs: list[str]
    roots: list[str]


class Tool(CompilerInfo):
    """A disassembler, build system or converter."""

    roots: list[str] = []


class TorchBuild(Model):
    """Settings with which extensions of one torch are compiled."""

    include: str
    """Folder of Python.h."""
    standard: str
    """Of C++, as `c++20`."""
    cxx11: bool
    """Whether it was built with the newer strings of libstdc++."""
    libraries: list[str]
    """Torch's own, by their names for the linker."""


class Python(CompilerInfo):
    """An interpreter, with what it has for GPUs; `version` is Python's."""

    site: str
    """Its site-packages."""
    triton: str | None = None
    torch: str | None = None
    torch_build: TorchBuild | None = None
    """Where Python's headers are there too."""
    sycl: str | None = None
    """Intel's SYCL runtime, which compiles kernels itself."""
    archs: list[str] = []
    """What its Triton compiles for."""
    roots: list[str]


class LinkedLibrary(Model):
    """A shared library to link with."""

    path: str
    run: str
    """Folder in which a program must look for it; empty where the loader does by itself."""
    include: str
    """Folder of its headers; empty where nvcc looks by itself, or there are none."""
    roots: list[str] = []


class Libraries(Model):
    """NVIDIA's libraries."""

    places: list[str] = []
    """Folders in which they were looked for."""
    found: dict[str, LinkedLibrary] = {}
    """By name, as `-l` has it."""


class HeaderTree(Model):
    """Headers of a library that has no other part."""

    name: str
    """cutlass, flashinfer, thunderkittens, tvm-ffi, or include_paths of the settings."""
    folders: list[str]
    """Where the compiler looks."""
    version: str = ""
    """As a header says it."""
    sha256: str = ""
    """Of all names and contents; empty where they were too many to read."""
    roots: list[str] = []

    def title(self) -> str:
        """Say what it is, where it lies and its digest, on one line."""
        digest = f"sha256 {self.sha256[:16]}" if self.sha256 else "not hashed: too large"
        return f"{self.name} {self.version}".strip() + f" in {self.folders[0]}, {digest}"


class Toolchains(Model):
    """Build tools of a host besides gcc and nvcc."""

    hip: list[HipCompiler] = []
    """Best first."""
    nvrtc: Nvrtc | None = None
    hiprtc: Hiprtc | None = None
    tools: dict[str, Tool] = {}
    pythons: list[Python] = []
    libraries: Libraries = Libraries()
    headers: list[HeaderTree] = []
    """Trees of headers; those that the settings name first."""
