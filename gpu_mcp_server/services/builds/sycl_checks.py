"""The program that compiles SYCL kernels at run time: built once a host and version, then laid beside the kernels."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.hostd.protocol import FileRef, OutputFile
from gpu_mcp_server.package_files import WORKERS
from gpu_mcp_server.services.builds.build_cache import BuildCache, key_of
from gpu_mcp_server.services.hosts.host_connections import HostProbe
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.toolchains import sycl_runtime
from gpu_mcp_server.toolchains.projects import SYCL_COMPILERS
from gpu_mcp_server.toolchains.sycl_runtime import SyclRuntime


@dataclass(frozen=True)
class SyclCheckPlan:
    """Phases and files of a check besides the kernels."""

    phases: list[dict[str, object]]
    whole: list[dict[str, object]]
    """The same as if the program had to be built: what decides the result."""
    files: list[FileRef] = field(default_factory=list[FileRef])
    blobs: dict[str, bytes | Path] = field(default_factory=dict[str, bytes | Path])
    key: str = ""


def runtime_at(probe: HostProbe) -> SyclRuntime | None:
    """Return the runtime that stands in for a compiler on a host; None where there is a compiler, or neither."""
    if any(name in probe.toolchains.tools for name in SYCL_COMPILERS):
        return None
    python = next((p for p in probe.toolchains.pythons if p.sycl), None)
    return sycl_runtime.runtime_of(python.site, python.sycl or "", python.roots) if python else None


async def plan_check(
    runtime: SyclRuntime, probe: HostProbe, host: str, sources: Sequence[str], artifacts: Artifacts, cache: BuildCache
) -> SyclCheckPlan:
    """Return the phases of a check, with the program where it was built before, otherwise with its source.

    Raises:
        ToolMissing: If the host has no g++, which the program needs once.
    """
    gxx = probe.compilers.get("g++")
    if gxx is None:
        raise ToolMissing("g++, which the check of SYCL kernels needs,", host, hint="apt-get install g++.")
    source = (WORKERS / sycl_runtime.WORKER).read_bytes()
    sha256 = hashlib.sha256(source).hexdigest()
    key = key_of("sycl check", [runtime.prefix, runtime.version, sha256], probe)
    whole = sycl_runtime.phases(runtime, gxx.path, sources, driver_is_there=False)
    kept = await cache.get(key)
    if kept is None or not artifacts.has(kept["sha256"]):
        files = [FileRef(sycl_runtime.SOURCE, sha256, len(source))]
        return SyclCheckPlan(whole, whole, files, {sha256: source}, key)
    files = [FileRef(sycl_runtime.DRIVER, kept["sha256"], kept["size"], 0o755)]
    phases = sycl_runtime.phases(runtime, gxx.path, sources, driver_is_there=True)
    return SyclCheckPlan(phases, whole, files, {kept["sha256"]: artifacts.blob_path(kept["sha256"])}, key)


async def cache_driver(made: SyclCheckPlan, outputs: Sequence[OutputFile], cache: BuildCache) -> None:
    """Note the program that a first check built; its content is kept already."""
    for output in outputs:
        if output.path == sycl_runtime.DRIVER:
            await cache.put(made.key, {"sha256": output.sha256, "size": output.size})
