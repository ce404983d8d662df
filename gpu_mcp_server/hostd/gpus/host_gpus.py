"""The GPUs of this host that jobs can have, of any vendor: an id, device nodes, and what a process must be told."""

from typing import Any, Dict, List, Mapping, Sequence

from ..protocol import VENDORS
from . import kfd, nvml
from .gpu_matching import vendor_of
from .kfd import KfdTopology
from .nvml import NvmlLibrary


class HostGpus:
    """NVIDIA's GPUs by NVML and AMD's by KFD, under ids that no two share.

    Attributes:
        nvml: For what only NVIDIA's GPUs have.
        kfd: The same of AMD's.
    """

    def __init__(self) -> None:
        self.nvml = NvmlLibrary()
        self.kfd = KfdTopology()

    def all_gpus(self) -> List[Dict[str, Any]]:
        """Describe every GPU that a job can have now, NVIDIA's first."""
        return [*self.nvml.gpus(), *self.kfd.gpus()]

    def left_out(self) -> List[str]:
        """Return which GPUs the last look left out, each with the reason."""
        return [*self.nvml.left_out, *self.kfd.left_out]

    def pids(self, uuid: str) -> List[int]:
        """Return the compute processes of a GPU; none when it is not there."""
        return self.nvml.pids(uuid) or self.kfd.pids(uuid)


def device_nodes(gpus: Sequence[Mapping[str, Any]]) -> List[str]:
    """Return the device nodes that a job with these GPUs needs, and no others."""
    theirs = {v: [dict(g) for g in gpus if vendor_of(g) == v] for v in VENDORS}
    return [*nvml.device_nodes(theirs["nvidia"]), *kfd.device_nodes(theirs["amd"])]


def environment_of_lease(gpus: Sequence[Mapping[str, Any]], hidden: bool) -> Dict[str, str]:
    """Return what the processes of a job are told of its GPUs, which are of one vendor.

    Args:
        gpus: Its GPUs.
        hidden: Whether the nodes of other GPUs are not in its sandbox: CUDA numbers its own from 0 then, and needs no
            CUDA_VISIBLE_DEVICES.
    """
    amd = bool(gpus) and vendor_of(gpus[0]) == "amd"
    env: Dict[str, str] = {}
    driver = nvml.driver_library()
    folder = kfd.runtime_folder() if amd else driver and driver[1]
    if folder:
        env["LD_LIBRARY_PATH"] = folder
    if amd:
        env[kfd.VISIBLE] = kfd.visible_devices([dict(g) for g in gpus], hidden)
    elif not hidden:
        # UUIDs instead of indices: CUDA orders devices by speed by default, NVML by PCI address.
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(g["uuid"]) for g in gpus)
    return env
