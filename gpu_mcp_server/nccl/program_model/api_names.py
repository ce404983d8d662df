"""Names of NCCL and CUDA that the analysis knows, and what each argument means.

Source: nccl.h and nccl_device.h of NCCL 2.28.9 to 2.32.3; CUDA runtime API 13.0.
"""

ROLES: dict[str, tuple[str, ...]] = {
    "ncclAllReduce": ("send", "recv", "count", "type", "op", "comm", "stream"),
    "ncclBroadcast": ("send", "recv", "count", "type", "root", "comm", "stream"),
    "ncclBcast": ("recv", "count", "type", "root", "comm", "stream"),
    "ncclReduce": ("send", "recv", "count", "type", "op", "root", "comm", "stream"),
    "ncclAllGather": ("send", "recv", "count", "type", "comm", "stream"),
    "ncclReduceScatter": ("send", "recv", "count", "type", "op", "comm", "stream"),
    "ncclAlltoAll": ("send", "recv", "count", "type", "comm", "stream"),
    "ncclGather": ("send", "recv", "count", "type", "root", "comm", "stream"),
    "ncclScatter": ("send", "recv", "count", "type", "root", "comm", "stream"),
    "ncclSend": ("send", "count", "type", "peer", "comm", "stream"),
    "ncclRecv": ("recv", "count", "type", "peer", "comm", "stream"),
    "ncclPutSignal": (
        "send",
        "count",
        "type",
        "peer",
        "window",
        "offset",
        "signal",
        "context",
        "flags",
        "comm",
        "stream",
    ),
    "ncclSignal": ("peer", "signal", "context", "flags", "comm", "stream"),
    "ncclWaitSignal": ("descriptors", "signals", "comm", "stream"),
    "ncclAllToAll": ("send", "recv", "count", "type", "comm", "stream"),
    "ncclAllToAllv": ("send", "counts", "offsets", "recv", "counts", "offsets", "type", "comm", "stream"),
    "ncclAlltoAllv": ("send", "counts", "offsets", "recv", "counts", "offsets", "type", "comm", "stream"),
    "ncclAllReduceWithBias": ("send", "recv", "count", "type", "op", "comm", "stream", "send"),
}
"""What the arguments of each host call are, in order. The one-sided calls came with NCCL 2.29; ncclAllToAll(v) and
ncclAllReduceWithBias are RCCL's (rccl.h of ROCm 7)."""
PROFILED = "p"
"""Before a name: the same function below a tool that wraps it, as PMPI_ is."""
ROLES.update({PROFILED + name: roles for name, roles in list(ROLES.items())})
BUFFER_ROLES = {"send": "send", "recv": "recv", "window": "recv"}
"""Arguments that are memory: a put writes into a window on its peer, and so another peer into this rank's."""
ONE_SIDED = frozenset({"ncclPutSignal", "ncclSignal", "ncclWaitSignal"})
SPELLINGS = {"ncclAllToAll": "ncclAlltoAll", "ncclAllToAllv": "ncclAlltoAllv"}


def plain_collective(name: str) -> str:
    """Return a collective's name as nccl.h spells it, whatever prefix or library it was written with."""
    name = name.removeprefix(PROFILED) if name in ROLES else name
    return SPELLINGS.get(name, name)


FLOAT8 = frozenset({"ncclFloat8e4m3", "ncclFloat8e5m2"})
"""Types that the generated kernels do not know."""
POINT_TO_POINT = frozenset({"ncclSend", "ncclRecv"})
COMM_INIT = {
    "ncclCommInitRank": 0,
    "ncclCommInitAll": 0,
    "ncclCommInitRankConfig": 0,
    "ncclCommInitRankScalable": 0,
    "ncclCommSplit": 3,
    "ncclCommShrink": 3,
}
"""Which argument receives the communicator."""
COMM_END = frozenset({"ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort", "ncclCommRevoke"})
COMM_SPLIT = frozenset({"ncclCommSplit", "ncclCommShrink", "ncclCommGrow"})

_HIP = {
    "cudaMallocHost": "hipHostMalloc",
    "cudaHostAlloc": "hipHostAlloc",
    "cudaFreeHost": "hipHostFree",
    "cuMemcpyDtoD": "hipMemcpyDtoD",
    "cuMemcpyHtoD": "hipMemcpyHtoD",
    "cuMemcpyDtoH": "hipMemcpyDtoH",
}
"""HIP's names where they are not CUDA's with another beginning (hip_runtime_api.h of ROCm 7)."""


def hip_name(name: str) -> str:
    """Return what HIP calls a function of CUDA's runtime; a name of another library stays as it is."""
    return _HIP.get(name, "hip" + name.removeprefix("cuda") if name.startswith("cuda") else name)


def _cuda_and_hip_names(*names: str) -> frozenset[str]:
    return frozenset(names) | {hip_name(name) for name in names}


ALLOCATIONS: dict[str, tuple[int, int, str]] = {
    "cudaMalloc": (0, 1, "device"),
    "cuMemAlloc": (0, 1, "device"),
    "cudaMallocManaged": (0, 1, "managed"),
    "cuMemAllocManaged": (0, 1, "managed"),
    "cudaMallocAsync": (0, 1, "pooled"),
    "cudaMallocFromPoolAsync": (0, 1, "pooled"),
    "cudaMallocPitch": (0, 2, "pitched"),
    "cudaMallocHost": (0, 1, "host"),
    "cudaHostAlloc": (0, 1, "host"),
    "ncclMemAlloc": (0, 1, "nccl"),
    "ncclx::mem_alloc": (0, 1, "nccl"),
    "nvshmem_malloc": (-1, 0, "nvshmem"),
}
"""Function: (argument that receives the pointer, argument with the bytes, kind of memory)."""
FREES = _cuda_and_hip_names(
    "cudaFree", "cudaFreeAsync", "cudaFreeHost", "ncclMemFree", "ncclx::buf_free", "cuMemFree", "nvshmem_free"
)

COPIES: dict[str, tuple[int, int]] = {
    "cudaMemcpy": (0, 1),
    "cudaMemcpyAsync": (0, 1),
    "cudaMemcpy2D": (0, 2),
    "cudaMemcpy2DAsync": (0, 2),
    "cudaMemcpyPeer": (0, 2),
    "cudaMemcpyPeerAsync": (0, 2),
    "cuMemcpyDtoD": (0, 1),
    "cuMemcpyHtoD": (0, 1),
    "cuMemcpyDtoH": (0, 1),
}
"""Function: (destination, source)."""
FILLS = {"cudaMemset": 0, "cudaMemsetAsync": 0, "cudaMemset2D": 0, "cudaMemset2DAsync": 0}
HOST_SYNCS = _cuda_and_hip_names(
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cudaMemcpy",
)
"""The host waits for the device. cudaEventRecord and cudaStreamWaitEvent do not belong here: nobody waits in them."""
STREAM_ORDER = _cuda_and_hip_names("cudaEventRecord", "cudaStreamWaitEvent", "cudaEventRecordWithFlags")
TIMERS = frozenset(
    {"MPI_Wtime", "now", "gettimeofday", "clock_gettime", "omp_get_wtime", "get_time", "time_now", "clock"}
    | {"timespec_get", "__rdtsc", "QueryPerformanceCounter", "sdkStartTimer", "sdkStopTimer"}
)
GRAPH_CAPTURE = _cuda_and_hip_names("cudaStreamBeginCapture", "cudaGraphLaunch", "cudaStreamBeginCaptureToGraph")
LAUNCH_CALLS: dict[str, tuple[int, int | None]] = {
    "cudaLaunchKernel": (0, None),
    "cudaLaunchCooperativeKernel": (0, None),
    "cudaLaunchCooperativeKernelMultiDevice": (0, None),
    "cudaLaunchKernelExC": (1, None),
    "cudaLaunchKernelEx": (1, 2),
    "cuLaunchKernel": (0, None),
    "cuLaunchCooperativeKernel": (0, None),
    "cuLaunchKernelEx": (1, None),
}
"""Function: (argument that names the kernel, first of the kernel's own arguments where they stand in the call)."""
ALLOCATIONS.update({hip_name(name): where for name, where in list(ALLOCATIONS.items())})
COPIES.update({hip_name(name): where for name, where in list(COPIES.items())})
FILLS.update({hip_name(name): where for name, where in list(FILLS.items())})
LAUNCH_CALLS.update({hip_name(name): where for name, where in list(LAUNCH_CALLS.items())})
LAUNCH_CALLS.update({"hipLaunchKernelGGL": (0, 5), "hipModuleLaunchKernel": (0, None)})

POINTER_GETTERS = frozenset(
    {
        "ncclGetLocalPointer",
        "ncclGetLsaPointer",
        "ncclGetPeerPointer",
        "ncclGetMultimemPointer",
        "ncclGetLsaMultimemPointer",
    }
)
"""Device functions that turn a window (their first argument) into a pointer."""
PEER_POINTERS = POINTER_GETTERS - {"ncclGetLocalPointer"}
DEVICE_API = POINTER_GETTERS | {
    "ncclCommWindowRegister",
    "ncclCommWindowDeregister",
    "ncclDevCommCreate",
    "ncclDevCommDestroy",
}
RUNTIME_FIRST = (2, 28)
"""The first NCCL with a device API (LSA); GIN came with 2.28.7."""
GIN_FIRST = (2, 28, 7)

INTERESTING = frozenset(
    {*ROLES, *COMM_INIT, *COMM_END, *ALLOCATIONS, *FREES, *COPIES, *FILLS, *HOST_SYNCS, *STREAM_ORDER, *TIMERS}
    | {*GRAPH_CAPTURE, *LAUNCH_CALLS, *DEVICE_API, "ncclGroupStart", "ncclGroupEnd"}
)
"""Calls that a macro may hide and that the analysis then has to see."""
