"""Read kernels' facts from GPU object files: NVIDIA's cubins, AMD's code objects, AMD's bundles in libraries.

Source: LLVM, "User Guide for AMDGPU Backend" (note NT_AMDGPU_METADATA, a msgpack map); clang, "ClangOffloadBundler"
(layout of a bundle). NVIDIA documents no layout of `.nv.info`: attributes 0x2f (registers) and 0x11 (frame) agree with
`ptxas -v` for cubins of nvcc 13.0 and Triton 3.9, sm_80 and sm_90; spilled bytes stand nowhere in a cubin.
"""

import io
import re
import struct
from collections.abc import Iterator
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs] - it ships none

from gpu_mcp_server.models.build import KernelResources
from gpu_mcp_server.toolchains.diagnostics import demangle_text

ELF = b"\x7fELF"
MACHINE_CUDA, MACHINE_AMD = 190, 224
_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
_REGCOUNT, _FRAME_SIZE = 0x2F, 0x11
_WITH_SIZE = 0x04
_AMD_NOTE = 32
_RESERVED = 1024
"""Shared memory of the system's own, which a cubin counts from sm_90 on and `ptxas -v` does not."""


def kernels_of(data: bytes, arch: str = "") -> list[KernelResources]:
    """Return the kernels of a cubin or code object, or of the code objects inside a HIP library.

    Never raises: what is no such file has none.
    """
    try:
        if machine_of(data) == MACHINE_CUDA:
            return _cuda(data, arch)
        return [k for _, part in code_objects(data) for k in _amd(part, arch)]
    except Exception:  # pyelftools raises whatever its reading of nonsense runs into
        return []


def machine_of(data: bytes) -> int | None:
    """Return the machine of an ELF file, `None` if it is none."""
    return struct.unpack_from("<H", data, 18)[0] if data[:4] == ELF and len(data) > 64 else None


def code_objects(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield target and bytes of each AMD code object in a file: itself, or what a clang bundle in it holds."""
    if machine_of(data) == MACHINE_AMD:
        yield "", data
        return
    start = data.find(_MAGIC)
    while start >= 0:
        at = start + len(_MAGIC)
        (count,) = struct.unpack_from("<Q", data, at)
        at += 8
        for _ in range(min(count, 64)):
            offset, size, length = struct.unpack_from("<QQQ", data, at)
            name = data[at + 24 : at + 24 + min(length, 200)].decode("ascii", "replace")
            at += 24 + length
            part = data[start + offset : start + offset + size]
            if machine_of(part) == MACHINE_AMD:
                yield name.rpartition("--")[2], part
        start = data.find(_MAGIC, max(at, start + 1))


def _elf(data: bytes) -> Any:
    from elftools.elf.elffile import ELFFile

    return ELFFile(io.BytesIO(data))


def _amd(data: bytes, arch: str) -> Iterator[KernelResources]:
    for segment in _elf(data).iter_segments():
        if segment["p_type"] != "PT_NOTE":
            continue
        for note in segment.iter_notes():
            if note["n_name"] != "AMDGPU" or note["n_type"] not in (_AMD_NOTE, "NT_AMDGPU_METADATA"):
                continue
            about = cast("dict[str, Any]", cast("Any", msgpack).unpackb(_description(note)))
            target = arch or str(about.get("amdhsa.target", "")).rpartition("-")[2]
            for kernel in about.get("amdhsa.kernels", []):
                yield KernelResources(
                    kernel=demangle_text(kernel[".name"]),
                    registers_per_thread=kernel[".vgpr_count"],
                    accumulation_registers=kernel.get(".agpr_count"),
                    scalar_registers=kernel.get(".sgpr_count"),
                    spilled_registers=kernel.get(".vgpr_spill_count", 0) + kernel.get(".sgpr_spill_count", 0),
                    stack_bytes=kernel.get(".private_segment_fixed_size", 0),
                    shared_bytes=kernel.get(".group_segment_fixed_size", 0),
                    arch=target,
                )


def _description(note: Any) -> bytes:
    found = note["n_descdata"] if "n_descdata" in note else note["n_desc"]
    return found if isinstance(found, bytes) else str(found).encode("latin-1")


def _cuda(data: bytes, arch: str) -> list[KernelResources]:
    elf = _elf(data)
    table = elf.get_section_by_name(".symtab")
    symbols = [s.name for s in table.iter_symbols()] if table else []
    found: dict[str, dict[str, int]] = {
        s.name[len(".text.") :]: {} for s in elf.iter_sections() if s.name.startswith(".text.")
    }
    for section in elf.iter_sections():
        name = section.name.removeprefix(".nv.shared.")
        if name in found:
            found[name]["shared"] = section["sh_size"]
    info = elf.get_section_by_name(".nv.info")
    for attribute, value in _attributes(info.data()) if info else ():
        if attribute in (_REGCOUNT, _FRAME_SIZE) and len(value) >= 8:
            index, number = struct.unpack_from("<II", value)
            if index < len(symbols) and symbols[index] in found:
                found[symbols[index]]["registers" if attribute == _REGCOUNT else "frame"] = number
    found_arch = arch or _cuda_arch(elf.header["e_flags"])
    return [
        KernelResources(
            kernel=demangle_text(name),
            registers_per_thread=about["registers"],
            spill_store_bytes=None,
            spill_load_bytes=None,
            stack_bytes=about.get("frame", 0),
            shared_bytes=max(about.get("shared", 0) - (_RESERVED if _number(found_arch) >= 90 else 0), 0),
            arch=found_arch,
        )
        for name, about in found.items()
        if "registers" in about
    ]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind == _WITH_SIZE:
            yield attribute, data[at : at + size]
            at += size


def _cuda_arch(flags: int) -> str:
    """Return the architecture: its number is in the lowest byte, from CUDA 13 on in the second."""
    low, second = flags & 0xFF, (flags >> 8) & 0xFF
    number = low if low >= 50 else second
    return f"sm_{number}" if number >= 50 else ""


def _number(arch: str) -> int:
    digits = re.sub(r"\D", "", arch)
    return int(digits) if digits else 0


def architecture_in(text: str) -> str:
    """Return the architecture that PTX or AMDGCN is for, empty when it does not say."""
    match = re.search(
        r'^[^\S\n]*\.target\s+(sm_\w+)|^[^\S\n]*\.amdgcn_target\s+"\S*-(gfx[0-9a-f]+)', text, re.MULTILINE
    )
    return next((g for g in match.groups() if g), "") if match else ""
