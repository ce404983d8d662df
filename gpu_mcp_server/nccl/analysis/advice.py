"""Instructions to the agent where the program cannot act, with the API of the NCCL that is installed."""

from gpu_mcp_server.nccl.program_model.api_names import GIN_FIRST, RUNTIME_FIRST

Version = tuple[int, int, int]
CHECKED_FIRST: Version = (2, 29, 2)
"""From here on requirements carry a magic number and a version."""
RCCL_DOCUMENTED: Version = (2, 30, 4)
"""The first RCCL whose documentation has the device API, as experimental."""
EXAMPLES = "https://github.com/NVIDIA/nccl/tree/v{version}-1/{folder}/06_device_api"

PUT = """put with an offset that the sender knows (LSA): let all ranks exchange their receive offsets once, then
  T* to = (T*)ncclGetLsaPointer(recv_window, offset_at_peer, peer); copy; bar.sync(coop, acq_rel) before and after"""
FLAGS = """a ping-pong without a group needs flags, no barrier: a counter in a window of its own, after the data
  cuda::atomic_ref<uint64_t, cuda::thread_scope_system>(c).store(n, cuda::memory_order_release), and load(acquire)"""
ALLOCATE = """communicated buffers come from ncclMemAlloc (ncclx::mem_alloc): same sizes, same order on all ranks"""


def is_old(version: Version | None, api: str) -> bool:
    """Say whether a version has no device API of a kind."""
    return version is not None and version < (GIN_FIRST if api == "gin" else (*RUNTIME_FIRST, 0))


def rccl_advice(version: Version | None) -> list[str]:
    """Return what RCCL's public headers and documentation tell of its device API; nothing of it was compiled here."""
    found = [
        "RCCL's nccl_device.h has the names of NCCL's: ncclDevComm, ncclGetLsaPointer, ncclLsaBarrierSession, ncclGin; "
        "its hip_compat.h gives cuda::memory_order to hipcc",
        "on AMD: 64 threads a wave on most GPUs (warpSize), no multicast (multimem)",
        "the GIN backend that RCCL documents is its host proxy",
        "https://rocm.docs.amd.com/projects/rccl/en/develop/how-to/device-api-gin.html",
    ]
    if version is None or version < RCCL_DOCUMENTED:
        said = ".".join(map(str, RCCL_DOCUMENTED))
        found.insert(0, f"RCCL documents the device API from {said} on, as experimental: look for nccl_device.h first")
    return found


def advice(reasons: list[str], version: Version | None) -> list[str]:
    """Return how to do what the reasons name."""
    found: list[str] = []
    text = " ".join(reasons)
    if "receiver's offset" in text:
        found.append(PUT)
    if "ping-pong" in text:
        found.append(FLAGS)
    if "cannot be registered" in text or "allocation is not here" in text:
        found.append(ALLOCATE)
    if found:
        found.append(_requirements(version))
        found.append(f"NVIDIA's kernels for it: {_examples(version)}")
    return found


def _requirements(version: Version | None) -> str:
    if version is None:
        return "requirements: NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER from 2.29.2 on, memset before; ncclx.cuh does both"
    said = ".".join(map(str, version))
    if version >= CHECKED_FIRST:
        return f"NCCL {said}: requirements must start as NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER (else error 5)"
    return f"NCCL {said}: requirements are set to 0 by memset; lsaBarrierCount at least the grid (else it hangs)"


def _examples(version: Version | None) -> str:
    if version is None:
        return "docs/examples/06_device_api in NVIDIA/nccl, at the tag of the installed version"
    folder = "examples" if version < CHECKED_FIRST else "docs/examples"
    return EXAMPLES.format(version=".".join(map(str, version)), folder=folder)
