"""AMD's GPUs as the kernel's compute driver (KFD) lists them: what a job can have of each. Never run on AMD hardware.

A GPU is a node of KFD's topology and the render node that it names; `/dev/kfd` is shared by all. ROCm's runtime opens
the render node of each GPU of the topology and passes over those that are not there (ENOENT) or that a control group
denies (EPERM): so a sandbox with one render node has one GPU. Any other error, such as EACCES, ends its search.

Sources: ROCm/ROCR-Runtime, libhsakmt/src/topology.c (`topology_sysfs_check_node_supported`, names of properties) and
runtime/hsa-runtime/core/runtime/amd_filter_device.cpp (`RvdFilter`: indices count the GPUs that were found, a UUID is
"GPU-" and 16 digits of `unique_id`, and 0 is no id); ROCm documentation, "GPU isolation techniques" and "Running ROCm
Docker containers"; Linux, drivers/gpu/drm/amd/amdkfd/kfd_process.c (`vram_<gpu_id>` of each process) and
Documentation/gpu/amdgpu (`mem_info_vram_*`, `gpu_busy_percent`, `product_name`).
"""

import os
from collections import Counter
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .nvml import process

SYS = "GPU_MCP_HOSTD_SYS"
"""Environment variable with the folder that stands for /sys when AMD's GPUs are looked for; for tests."""
DRIVER_NODE = "/dev/kfd"
RENDER_NODE = "/dev/dri/renderD%d"
VISIBLE = "ROCR_VISIBLE_DEVICES"
MOST_BYTES = 1 << 16
"""Of a file of sysfs; a page is usual."""
MOST_NODES = 256
LIBRARY = "libhsa-runtime64.so.1"
LIBRARY_FOLDERS = ("/opt/rocm/lib", "/opt/rocm/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")


class KfdTopology:
    """The GPUs of KFD's topology.

    Args:
        sys: What stands for /sys.

    Attributes:
        left_out: GPUs that the last look left out, each with the reason.
    """

    def __init__(self, sys: Optional[str] = None) -> None:
        self._sys = sys or os.environ.get(SYS) or "/sys"
        self._kfd = os.path.join(self._sys, "class/kfd/kfd")
        self._ids: Dict[str, int] = {}
        self.left_out: List[str] = []

    def gpus(self) -> List[Dict[str, Any]]:
        """Describe every GPU that a job can have, in ROCm's order; the fields are those of NVML's GPUs, and these.

        `rocr`: how ROCR_VISIBLE_DEVICES names it, empty where only an index does; `bdf`: its PCI address, as AMD's
        tools write it; `minor`: the number of its render node.
        """
        self.left_out = []
        nodes = self._nodes()
        usable = self._allowed([node for node in nodes if self._is_usable(node)])
        # Partitions of one GPU share its unique_id, which then names none of them.
        counts = Counter(node["unique_id"] for node in nodes)
        found = [self._gpu(index, node, counts[node["unique_id"]]) for index, node in enumerate(usable)]
        self._ids = {gpu["uuid"]: node["gpu_id"] for gpu, node in zip(found, usable)}
        return found

    def pids(self, uuid: str) -> List[int]:
        """Return the processes that hold memory of a GPU; none when it is not there."""
        if uuid not in self._ids:
            self.gpus()
        gpu_id = self._ids.get(uuid)
        return [] if gpu_id is None else sorted(self._memory_of_processes(gpu_id))

    def _nodes(self) -> List[Dict[str, int]]:
        """Return the properties of each node that is a GPU: KFD gives those of processors the id 0."""
        folder = os.path.join(self._kfd, "topology/nodes")
        try:
            names = sorted((n for n in os.listdir(folder) if n.isdigit()), key=int)[:MOST_NODES]
        except OSError:
            return []
        found: List[Dict[str, int]] = []
        for name in names:
            gpu_id = _number(os.path.join(folder, name, "gpu_id"))
            if gpu_id:
                about = _properties(os.path.join(folder, name, "properties"))
                about = {"unique_id": 0, "drm_render_minor": 0, **about}
                found.append({**about, "gpu_id": gpu_id, "node": int(name)})
        return found

    def _is_usable(self, node: Mapping[str, int]) -> bool:
        """Say whether this account can open what the GPU needs; the reason goes into `left_out` where it cannot."""
        path = RENDER_NODE % node["drm_render_minor"]
        if not os.path.exists(DRIVER_NODE):
            why = "%s is missing" % DRIVER_NODE
        elif not node["drm_render_minor"] or not os.path.exists(path):
            why = "its render node %s is missing" % (path if node["drm_render_minor"] else "has no number, so it")
        else:
            closed = [p for p in (DRIVER_NODE, path) if not os.access(p, os.R_OK | os.W_OK)]
            if not closed:
                return True
            why = "this account may not open %s; add it to the group that owns it (render)" % closed[0]
        self.left_out.append("AMD GPU of KFD node %d is left out: %s" % (node["node"], why))
        return False

    def _allowed(self, nodes: List[Dict[str, int]]) -> List[Dict[str, int]]:
        """Return the nodes that this process's own ROCR_VISIBLE_DEVICES leaves, as Slurm sets it for an allocation.

        Source: Slurm documentation, "Generic Resource (GRES) Scheduling", GPU management.
        """
        wish = os.environ.get(VISIBLE)
        if wish is None:
            return nodes
        words = {w.strip().upper() for w in wish.split(",")}
        return [n for i, n in enumerate(nodes) if str(i) in words or (_token(n["unique_id"]).upper() or None) in words]

    def _gpu(self, index: int, node: Dict[str, int], same_id: int) -> Dict[str, Any]:
        minor, unique_id = node["drm_render_minor"], node["unique_id"]
        token = _token(unique_id) if same_id == 1 else ""
        arch = _arch(node.get("gfx_target_version", 0))
        device = os.path.join(self._sys, "class/drm/renderD%d/device" % minor)
        used = self._memory_of_processes(node["gpu_id"])
        return {
            "vendor": "amd",
            "index": index,
            "uuid": token or "amd-renderD%d" % minor,
            "rocr": token,
            "bdf": _pci_address(node),
            "name": _text(os.path.join(device, "product_name")) or "AMD GPU" + (" " + arch if arch else ""),
            "arch": arch,
            "minor": minor,
            "memory_total_bytes": _number(os.path.join(device, "mem_info_vram_total")) or self._memory(node["node"]),
            "memory_used_bytes": _number(os.path.join(device, "mem_info_vram_used")),
            "utilization_percent": _number(os.path.join(device, "gpu_busy_percent")),
            "pids": sorted(used),
            "processes": [process(pid, used[pid]) for pid in sorted(used)[:16]],
            "nvlink": [],
        }

    def _memory(self, node: int) -> Optional[int]:
        banks = os.path.join(self._kfd, "topology/nodes/%d/mem_banks" % node)
        try:
            names = os.listdir(banks)[:MOST_NODES]
        except OSError:
            return None
        sizes = [_properties(os.path.join(banks, name, "properties")).get("size_in_bytes", 0) for name in names]
        return sum(sizes) or None

    def _memory_of_processes(self, gpu_id: int) -> Dict[int, int]:
        """Return how much memory of a GPU each process holds, of those that hold any."""
        folder = os.path.join(self._kfd, "proc")
        try:
            names = [n for n in os.listdir(folder) if n.isdigit()]
        except OSError:
            return {}
        held = {int(n): _number(os.path.join(folder, n, "vram_%d" % gpu_id)) for n in names}
        return {pid: used for pid, used in held.items() if used}


def device_nodes(gpus: List[Dict[str, Any]]) -> List[str]:
    """Return the device nodes that a job with these GPUs needs, and no others."""
    return [DRIVER_NODE, *(RENDER_NODE % g["minor"] for g in gpus)] if gpus else []


def visible_devices(gpus: List[Dict[str, Any]], hidden: bool) -> str:
    """Return ROCR_VISIBLE_DEVICES for a job's GPUs.

    HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, which HIP reads as well, stay unset: they are indices into what this
    one leaves, so an index of the host would name nothing, and an empty one would take the job's own GPU away.
    Source: ROCm documentation, "GPU isolation techniques" and "HIP environment variables".

    Args:
        gpus: The job's.
        hidden: Whether nodes of other GPUs are not in its sandbox, so that indices count its own alone.
    """
    ordered = sorted(gpus, key=lambda gpu: int(gpu["index"]))
    return ",".join(g["rocr"] or str(n if hidden else g["index"]) for n, g in enumerate(ordered))


def runtime_folder() -> Optional[str]:
    """Find ROCm's runtime library; return its folder."""
    own = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f.startswith("/")]
    return next((f for f in (*own, *LIBRARY_FOLDERS) if os.path.exists(os.path.join(f, LIBRARY))), None)


def add_details(gpus: List[Dict[str, Any]], rows: List[Dict[str, Any]]) -> Tuple[List[Dict[str, Any]], List[Any]]:
    """Add to GPUs what AMD's management library or programs say of them, by PCI address.

    Returns:
        The GPUs, and the rows that belong to none, which no job can have. Partitions of one GPU share an address: each
        has the row's figures.
    """
    by_address = {str(row["bdf"]).lower(): row for row in rows if row.get("bdf")}
    found: List[Dict[str, Any]] = []
    for gpu in gpus:
        row = by_address.get(str(gpu.get("bdf"))) if gpu.get("vendor") == "amd" else None
        more = {k: v for k, v in (row or {}).items() if k not in ("uuid", "index", "arch", "processes", "bdf")}
        kept = {k: v for k, v in more.items() if v is not None and (k != "name" or v != "AMD GPU")}
        found.append({**gpu, **kept})
    known = {str(gpu.get("bdf")) for gpu in gpus}
    return found, [row for row in rows if str(row.get("bdf")).lower() not in known]


def _token(unique_id: int) -> str:
    return "GPU-%016x" % unique_id if unique_id else ""


def _arch(version: int) -> Optional[str]:
    """Return the compiler's name of `gfx_target_version`, 10000 x major + 100 x minor + stepping, as in 90402: gfx942.

    Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_device.c; LLVM, "User Guide for AMDGPU Backend".
    """
    return "gfx%d%x%x" % (version // 10000, version // 100 % 100, version % 100) if version else None


def _pci_address(node: Mapping[str, int]) -> str:
    """Return the address in `domain` and `location_id`: bus, device and function."""
    at = node.get("location_id", 0)
    return "%04x:%02x:%02x.%d" % (node.get("domain", 0), at >> 8 & 0xFF, at >> 3 & 0x1F, at & 7)


def _properties(path: str) -> Dict[str, int]:
    """Return the numbers of a file with a name and a number in each line."""
    pairs = [line.split() for line in (_text(path) or "").splitlines()]
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}


def _number(path: str) -> Optional[int]:
    said = _text(path)
    return int(said) if said and said.isdigit() and len(said) < 20 else None


def _text(path: str) -> Optional[str]:
    try:
        with open(path, "rb") as source:
            said = source.read(MOST_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in said)
