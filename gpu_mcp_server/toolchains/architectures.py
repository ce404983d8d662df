"""Names of NVIDIA's architectures: `sm_90` for a family of devices, `sm_90a` for all that one device can do.

Source: nvcc documentation of CUDA 13.0, "GPU Feature List" and `--generate-code`; sm_90a came with CUDA 12.0.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIRST_WITH_SUFFIX = 90
"""Compute capability, times ten, from which on devices have instructions that exist with the suffix alone."""


@dataclass(frozen=True)
class CompileTarget:
    """Architecture to compile for."""

    arch: str
    note: str = ""
    """Why it is not the device's own name, where it could have been."""


def number_of(arch: str) -> int:
    """Return the compute capability, times ten; 0 where it is no architecture of NVIDIA's."""
    digits = arch.removeprefix("sm_").rstrip("af")
    return int(digits) if arch.startswith("sm_") and digits.isdecimal() else 0


def own_archs(gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the architectures of NVIDIA's devices among a host's GPUs, each once, in their order."""
    found = (str(g.get("arch") or "") for g in gpus)
    return list(dict.fromkeys(a for a in found if number_of(a)))


def device_target(own: Sequence[str], known: Collection[str], compiler: str) -> CompileTarget:
    """Return the first device's own name, with the suffix where the compiler knows it and every device can run it.

    Args:
        own: Architectures of the host's devices.
        known: Those that the compiler generates code for.
        compiler: Its name and version, for the note.
    """
    arch = own[0]
    if number_of(arch) < FIRST_WITH_SUFFIX:
        return CompileTarget(arch)
    newer = [a for a in own if number_of(a) > number_of(arch)]
    if newer:
        why = f"this host has {', '.join(newer)} too, which run no code of {arch}a"
    elif f"{arch}a" not in known:
        why = f"{compiler} does not know {arch}a"
    else:
        return CompileTarget(f"{arch}a")
    return CompileTarget(arch, f"compiled for {arch}, without the instructions of {arch}a alone: {why}")


def nvcc_options(arch: str) -> tuple[str, ...]:
    """Return nvcc's options for an architecture.

    The short form also makes PTX. With a suffix it makes it for the plain name (seen with CUDA 13.0), where ptxas
    refuses the instructions that were asked for.
    """
    name = arch.removeprefix("sm_")
    return (f"-arch={arch}",) if name.isdecimal() else ("-gencode", f"arch=compute_{name},code=sm_{name}")


def torch_list(own: Sequence[str], known: Collection[str], torch: Collection[str]) -> str:
    """Return TORCH_CUDA_ARCH_LIST for a host's devices, with the suffix where both nvcc and torch know it."""
    names: list[str] = []
    for arch in sorted(own, key=number_of):
        plain = f"{number_of(arch) // 10}.{number_of(arch) % 10}"
        suffixed = number_of(arch) >= FIRST_WITH_SUFFIX and f"{arch}a" in known and f"{plain}a" in torch
        names.append(plain + "a" * suffixed)
    return ";".join(names)
