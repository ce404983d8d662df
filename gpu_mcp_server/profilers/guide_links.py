"""Links from suggestions to sections of our guides; `search_docs` finds a section by its heading."""

from collections.abc import Mapping

LINKS: Mapping[str, tuple[str, str]] = {
    "coalesce": ("coalescing", "Why is a strided or column-wise loop slow, and what is the cure?"),
    "vector loads": ("coalescing", "When do float4 and other vector loads help?"),
    "spills": ("occupancy", "Registers spill to local memory: how do I stop it?"),
    "occupancy limit": ("occupancy", "Too many registers per thread: how do I get more resident warps?"),
    "occupancy": ("occupancy", "What block size and grid size should I launch?"),
    "atomics": ("atomics", "Many threads increment few addresses: how do I make a histogram or counter fast?"),
    "conflicts": ("shared-memory-bank-conflicts", "How do I remove bank conflicts?"),
    "divergence": ("reading-ncu", "What limits my kernel: where do I look first?"),
    "imbalance": ("reading-ncu", "What limits my kernel: where do I look first?"),
    "launch": ("launch-overhead-graphs", "How do I capture work into a CUDA graph?"),
    "small grid": ("gemm-tiling", "Small M and N but large K leave SMs idle: what helps?"),
    "tail": ("gemm-tiling", "What is wave quantization?"),
    "barrier": ("reductions", "How do the lanes of a warp add up a value without shared memory?"),
    "stalls": ("reading-ncu", "What do the stall reasons mean, and what can I do?"),
    "counters": ("reading-ncu", "What limits my kernel: where do I look first?"),
    "fewer bytes": ("softmax-norms", "How many bytes must a row-wise kernel move?"),
    "block order": ("gemm-tiling", "In which order should blocks walk the output?"),
    "register tiles": ("gemm-tiling", "Why is my tiled shared-memory kernel still slow?"),
    "constants": ("l2-residency", "A small table that all threads read at the same index"),
    "tensor cores": ("tensor-cores", "Which instruction should I use on which GPU?"),
    "fast math": ("precision-tolerances", "What does -use_fast_math change?"),
    "formats": ("precision-tolerances", "How precise are the formats?"),
    "amd": ("reading-rocprof", "What limits my kernel on MI200, MI250X or MI300X?"),
    "overlap": ("streams", "Why does my cudaMemcpyAsync not overlap with kernels?"),
    "nccl": ("nccl-host", "How do I average gradients, and how is speed reported?"),
}
UNIT_LINKS: Mapping[str, str] = {
    "dram": "fewer bytes",
    "l2": "block order",
    "l2 store": "coalesce",
    "l1": "register tiles",
    "tex": "counters",
    "address": "counters",
    "control": "divergence",
    "constant": "constants",
    "fma": "tensor cores",
    "alu": "counters",
    "xu": "fast math",
    "fp64": "formats",
    "tensor": "tensor cores",
    "issue": "vector loads",
}
"""By the family of a unit."""


def link_guide(text: str, topic: str) -> str:
    """Return a suggestion with the guide's section that explains it."""
    guide, section = LINKS[topic]
    return f"{text} [guide {guide}: {section}]"
