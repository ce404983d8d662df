"""AMD GPUs that are not there: a tree as the kernel's sysfs has it, and device nodes that no driver answers.

Numbers and names of properties are those that ROCR-Runtime's topology.c reads; the values are an MI300X's, from AMD's
published data sheets where they have them. Opening one of the nodes fails with ENXIO: who sees that has reached it.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

KFD, RENDER = Path("/dev/kfd"), "/dev/dri/renderD{}"
NOBODYS_MAJOR = 241
"""Of the range for local use; no driver of a test machine has it. Source: Linux, admin-guide/devices.txt."""
MI300X: dict[str, int] = {
    "cpu_cores_count": 0, "simd_count": 1216, "mem_banks_count": 1, "gfx_target_version": 90402, "vendor_id": 4098,
    "device_id": 29857, "num_xcc": 8,
}  # fmt: skip


def put_tree(sys: Path, *gpus: Mapping[str, Any]) -> None:
    """Write a topology: a processor, then GPUs with `minor`, `unique_id` and other properties; `pids`: who uses it."""
    nodes = sys / "class/kfd/kfd/topology/nodes"
    _put(nodes / "0", {"gpu_id": 0}, {"cpu_cores_count": 64, "simd_count": 0})
    for number, gpu in enumerate(gpus, 1):
        more = {k: v for k, v in gpu.items() if k not in ("minor", "pids", "name", "used")}
        bus = {"domain": 0, "location_id": number << 8, "drm_render_minor": gpu["minor"]}
        _put(nodes / str(number), {"gpu_id": 1000 + number}, {**MI300X, **bus, **more})
        _put(nodes / str(number) / "mem_banks/0", {}, {"heap_type": 1, "size_in_bytes": 192 << 30})
        device = sys / f"class/drm/renderD{gpu['minor']}/device"
        device.mkdir(parents=True, exist_ok=True)
        if "name" in gpu:
            (device / "product_name").write_text(f"{gpu['name']}\n")
            (device / "mem_info_vram_used").write_text(f"{gpu.get('used', 0)}\n")
        for pid, used in gpu.get("pids", {}).items():
            folder = sys / f"class/kfd/kfd/proc/{pid}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"vram_{1000 + number}").write_text(f"{used}\n")


def _put(folder: Path, files: Mapping[str, int], properties: Mapping[str, int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in properties.items()))


@contextlib.contextmanager
def device_nodes(*minors: int) -> Iterator[None]:
    """Make `/dev/kfd` and render nodes for as long as it lasts; root alone can."""
    made: list[Path] = []
    folder = Path("/dev/dri")
    turn = os.open(tempfile.gettempdir() + "/gpu-mcp-test-nodes.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(turn, fcntl.LOCK_EX)  # there is one place for them, and tests run side by side
    was_there = folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        for number, path in enumerate([KFD, *(Path(RENDER.format(m)) for m in minors)]):
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(NOBODYS_MAJOR, 100 + number))
            made.append(path)
            path.chmod(0o666)
        yield
    finally:
        for path in made:
            path.unlink()
        if not was_there:
            folder.rmdir()
        os.close(turn)
