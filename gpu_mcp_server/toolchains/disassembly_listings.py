"""Assembly by kernel: SASS of nvdisasm and cuobjdump, PTX, AMDGCN of llvm-objdump and of Triton, the processor's.

Source: outputs of nvdisasm and cuobjdump 13.1, llvm-objdump 19, NVRTC 13.0 and Triton 3.9; the PTX ISA for `.loc`;
outputs of gcc 12 and clang 19, and the manual of GNU as for `.file` and `.loc`.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from gpu_mcp_server.toolchains.diagnostics import demangle_text

View = Literal["sass", "ptx", "amdgcn", "asm"]

_SASS_SECTION = re.compile(r"^//-+ \.text\.(\S+)\s+-+$|^\s*Function : (\S+)\s*$")
_SASS_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?P<text>(?:@!?U?P\d+ )?\s*(?P<opcode>[A-Z][A-Z0-9_.x]*)[^;]*);")
_SASS_PLACE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_PTX_ENTRY = re.compile(r"^\s*(?:\.(?:visible|weak|extern)\s+)*\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")
_PTX_LINE = re.compile(r"^\s*(?:@!?%p\d+\s+)?(?P<opcode>[a-z][a-z0-9_.:]*)(?:\s[^;]*)?;")
_PTX_FILE = re.compile(r'^[^\S\n]*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_PTX_PLACE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_AMD_LABEL = re.compile(r"^(?:[0-9a-f]{8,16} )?<?([A-Za-z_$][\w.$]*)>?:\s*(?:;.*)?$")
_AMD_LINE = re.compile(
    r"^\s+(?P<opcode>(?:s|v|ds|global|flat|buffer|scratch|image|exp|tbuffer)_[a-z0-9_]+)(?:\s[^/;]*)?(?:\s*(?://|;).*)?$"
)
_AMD_PLACE = re.compile(r"^\s*;\s+(/?[\w./+-]+\.\w+):(\d+)|^\s*\.loc\s+\d+\s+(\d+)[^;]*;\s*([\w./+-]+\.\w+):")
_ASM_FILE = re.compile(r'^[^\S\n]*\.file\s+(\d+)\s+"([^"\n]*)"(?:\s+"([^"\n]*)")?', re.MULTILINE)
_ASM_LABEL = re.compile(r"^([A-Za-z_$][\w.$]*):")
_ASM_LINE = re.compile(r"^\s+(?P<opcode>[a-z][a-z0-9.]*)(?:\s|$)")


@dataclass(frozen=True)
class Instruction:
    """One instruction."""

    opcode: str
    text: str
    file: str | None = None
    line: int | None = None


@dataclass
class KernelCode:
    """One kernel or device function."""

    name: str
    """Demangled."""
    instructions: list[Instruction] = field(default_factory=list[Instruction])


def parse(text: str, view: View) -> list[KernelCode]:
    """Return the functions of a listing in its order; those without instructions are left out. Never raises."""
    reader = {"sass": _Sass, "ptx": _Ptx, "amdgcn": _Amd, "asm": _Asm}[view](text)
    for line in text.splitlines():
        reader.take(line[:4000])
    return [k for k in reader.found.values() if k.instructions]


def view_of(text: str) -> View | None:
    """Return what kind of listing a text is."""
    if re.search(r"^[^\S\n]*\.version \d", text, re.MULTILINE) and ".target sm_" in text:
        return "ptx"
    if "amdgcn" in text[:2000] or re.search(r"^[^\S\n]+s_endpgm\b", text, re.MULTILINE):
        return "amdgcn"
    return "sass" if re.search(r"/\*[0-9a-f]{4}\*/ +", text) else None


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.found: dict[str, KernelCode] = {}
        self._current: KernelCode | None = None
        self._file: str | None = None
        self._line: int | None = None

    def take(self, line: str) -> None:
        """Take one line of the listing."""
        raise NotImplementedError  # pragma: no cover

    def _begin(self, name: str) -> None:
        self._current = self.found.setdefault(name, KernelCode(demangle_text(name)))
        self._file = self._line = None

    def _at(self, file: str, line: str) -> None:
        self._file, self._line = file.rpartition("/")[2], int(line)

    def _add(self, opcode: str, text: str) -> None:
        if self._current is not None:
            self._current.instructions.append(Instruction(opcode, text.strip(), self._file, self._line))


class _Sass(_Reader):
    def take(self, line: str) -> None:
        if section := _SASS_SECTION.match(line):
            self._begin(section[1] or section[2])
        elif place := _SASS_PLACE.match(line):
            self._at(place[1], place[2])
        elif match := _SASS_LINE.match(line):
            self._add(match["opcode"], re.sub(r"\s+", " ", match["text"]))


class _Ptx(_Reader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._files = dict(_PTX_FILE.findall(text))  # they stand at its end

    def take(self, line: str) -> None:
        if entry := _PTX_ENTRY.match(line):
            self._begin(entry[2])
        elif place := _PTX_PLACE.match(line):
            self._at(self._files.get(place[1], f"file {place[1]}"), place[2])
        elif match := _PTX_LINE.match(line):
            self._add(match["opcode"], line.rpartition(";")[0])


class _Amd(_Reader):
    def take(self, line: str) -> None:
        if place := _AMD_PLACE.match(line):
            self._at(place[1] or place[4], place[2] or place[3])
        elif (label := _AMD_LABEL.match(line)) and not label[1].startswith((".L", "L")):
            self._begin(label[1])
        elif match := _AMD_LINE.match(line):
            if match["opcode"] == "s_nop" and self._pads():
                return
            self._add(match["opcode"], re.split(r"\s*(?://|;)", line, maxsplit=1)[0])

    def _pads(self) -> bool:
        """Say whether a nop is filling: behind the end, or one of many."""
        code = self._current.instructions if self._current else []
        return bool(code) and (code[-1].opcode == "s_endpgm" or [i.opcode for i in code[-2:]] == ["s_nop"] * 2)


class _Asm(_Reader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._files = {number: last or first for number, first, last in _ASM_FILE.findall(text)}

    def take(self, line: str) -> None:
        if label := _ASM_LABEL.match(line):
            self._begin(label[1])
        elif place := _PTX_PLACE.match(line):
            self._at(self._files.get(place[1], f"file {place[1]}"), place[2])
        elif match := _ASM_LINE.match(line):
            self._add(match["opcode"], re.sub(r"\s+", " ", line.split("#")[0]))


_KINDS: dict[View, tuple[tuple[str, str], ...]] = {
    # The first that matches counts; the pattern's group, if it has one, is the width in bits.
    "sass": (
        ("tensor", r"(?:UTC\w*|[BDHIOQ]G?)MMA"),
        ("async copy", r"(?:LDGSTS|UBLKCP|UTMALDG|UTMASTG|UBLKRED)"),
        ("global load", r"LDG(?=.*?\.(128|64|U8|S8|U16|S16)(?:\.|$))?"),
        ("global store", r"STG(?=.*?\.(128|64|U8|S8|U16|S16)(?:\.|$))?"),
        ("shared load", r"(?:LDSM|LDS(?!M)(?=.*?\.(128|64|U8|S8|U16|S16)(?:\.|$))?)"),
        ("shared store", r"(?:STSM|STS(?!M)(?=.*?\.(128|64|U8|S8|U16|S16)(?:\.|$))?)"),
        ("local memory", r"(?:LDL|STL)"),
        ("atomic", r"(?:ATOM|ATOMS|ATOMG|RED|REDG|REDAS)(?:\.|$)"),
        ("branch", r"(?:BRA|BRX|JMP|CALL|RET|EXIT|BSSY|BSYNC|WARPSYNC)(?:\.|$)"),
        ("barrier", r"(?:BAR|B2R|SYNCS|MEMBAR|DEPBAR|LDGDEPBAR)"),
        ("shuffle", r"(?:SHFL|MOVM|REDUX|VOTE)"),
        ("special function", r"MUFU"),
        ("FP64", r"(?:DADD|DMUL|DFMA)"),
        ("FP32", r"(?:FADD|FMUL|FFMA)"),
        ("half precision", r"(?:HADD2|HMUL2|HFMA2)"),
        ("conversion", r"(?:F2F|F2I|I2F|I2FP|F2FP|FRND)"),
    ),
    "ptx": (
        ("tensor", r"(?:wgmma|mma|wmma|tcgen05)\."),
        ("async copy", r"cp\.async"),
        ("global load", r"ld\.global(?=.*?(\.v\d)?\.[bfsu])"),
        ("global store", r"st\.global(?=.*?(\.v\d)?\.[bfsu])"),
        ("shared load", r"(?:ld\.shared|ldmatrix)"),
        ("shared store", r"(?:st\.shared|stmatrix)"),
        ("local memory", r"(?:ld|st)\.local"),
        ("atomic", r"(?:atom|red)\."),
        ("branch", r"(?:bra|call|ret|exit)\b"),
        ("barrier", r"(?:bar|barrier|membar|fence|mbarrier)\b"),
        ("shuffle", r"(?:shfl|vote|redux)\b"),
        ("FP64", r"(?:add|sub|mul|fma)\.(?:\w+\.)*f64"),
        ("FP32", r"(?:add|sub|mul|fma)\.(?:\w+\.)*f32"),
        ("half precision", r"(?:add|sub|mul|fma)\.(?:\w+\.)*(?:b?f16)"),
        ("conversion", r"cvt\."),
    ),
    "asm": (
        ("gather or scatter", r"vp?(?:gather|scatter)"),
        ("atomic", r"lock\b|xchg|ld(?:add|ax)|cas|stlx"),
        ("vector 512 bit", r".*%zmm"),
        ("vector 256 bit", r".*%ymm"),
        ("scalar float", r"v?[a-z0-9]+s[sd]\b|f\w+ [sd]\d"),
        ("vector 128 bit", r".*%xmm|.*\bv\d+\.\d+[bhsd]\b"),
        ("vector of SVE", r".*\bz\d+\.[bhsd]\b"),
        ("call", r"(?:call|blr?)\b"),
        ("branch", r"(?:j[a-z]+|b|b\.[a-z]+|cbn?z|tbn?z|ret)\b"),
        ("stack", r".*\(%rsp|.*\[sp\b|push|pop"),
    ),
    "amdgcn": (
        ("tensor", r"v_(?:mfma|smfmac|wmma|swmmac)_"),
        ("global load", r"(?:global|flat|buffer)_load_(?:[a-z]*?(?:dwordx?|b)(\d*))?"),
        ("global store", r"(?:global|flat|buffer)_store_(?:[a-z]*?(?:dwordx?|b)(\d*))?"),
        ("scalar load", r"s_(?:buffer_)?load_"),
        ("LDS load", r"ds_(?:read|load)"),
        ("LDS store", r"ds_(?:write|store)"),
        ("scratch memory", r"scratch_"),
        ("atomic", r"(?:global|flat|buffer|ds)_(?:atomic|add|sub|min|max|cmpst)"),
        ("branch", r"s_(?:c?branch|setpc|swappc|endpgm|call)"),
        ("barrier", r"s_barrier"),
        ("wait", r"s_wait"),
        ("lane exchange", r"(?:ds_b?permute|ds_swizzle|v_readlane|v_readfirstlane|v_writelane)"),
        ("FP64", r"v_(?:add|mul|fma|fmac)_f64"),
        ("FP32", r"v_(?:pk_)?(?:add|sub|mul|fma|fmac|mac)_f32"),
        ("half precision", r"v_(?:pk_)?(?:add|sub|mul|fma|fmac)_(?:b?f16)"),
        ("special function", r"v_(?:exp|log|rcp|rsq|sqrt|sin|cos)_"),
        ("conversion", r"v_cvt_"),
    ),
}
_SCRATCH = re.compile(r"buffer_\w+ .*\boff, s\[\d+:\d+\]")
"""Private memory before the scratch_ instructions; compilers index global memory through buffers with `offen`."""
_WIDTHS = {"U8": "8 bit", "S8": "8 bit", "U16": "16 bit", "S16": "16 bit", "64": "64 bit", "128": "128 bit"}


_TENSOR_TYPES = {
    **dict.fromkeys(("HMMA", "HGMMA"), ("fp16",)),
    **dict.fromkeys(("QMMA", "QGMMA"), ("fp8",)),
    **dict.fromkeys(("OMMA", "UTCOMMA"), ("fp4",)),
    **dict.fromkeys(("IMMA", "IGMMA", "UTCIMMA"), ("int8",)),
    **dict.fromkeys(("BMMA", "BGMMA"), ("binary",)),
    "DMMA": ("fp64",),
    "UTCHMMA": ("fp16", "bf16", "tf32"),
    "UTCQMMA": ("fp8", "fp6", "fp4"),
}
"""Types of operands where an instruction's suffixes name none; tcgen05 has them in a descriptor made as it runs.

Source: CUDA Binary Utilities 13.1, Instruction Set Reference, for the names; for the types what ptxas 13.0 makes of
mma, wgmma and tcgen05.mma (tests/toolchains/data/tensor_cores.cu).
"""
_TENSOR_SUFFIXES = {
    **{"BF16": "bf16", "TF32": "tf32", "E4M3": "fp8", "E5M2": "fp8", "E3M2": "fp6", "E2M3": "fp6", "E2M1": "fp4"},
    **{"S8": "int8", "U8": "int8", "S4": "int4", "U4": "int4"},
}


def tensor_types(opcode: str) -> tuple[str, ...]:
    """Return the types that the operands of an instruction of NVIDIA's tensor cores may have; none of any other."""
    name, *suffixes = opcode.split(".")
    named = tuple(_TENSOR_SUFFIXES[suffix] for suffix in suffixes if suffix in _TENSOR_SUFFIXES)
    return tuple(dict.fromkeys(named)) or _TENSOR_TYPES[name] if name in _TENSOR_TYPES else ()


@cache
def _compiled_kinds(view: View) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((name, re.compile(pattern)) for name, pattern in _KINDS[view])


def opcode_summary(instructions: Iterable[Instruction], view: View) -> dict[str, int]:
    """Return how many instructions of each kind there are; loads and stores of global memory by their width."""
    counts: Counter[str] = Counter()
    for instruction in instructions:
        if view == "amdgcn" and _SCRATCH.match(instruction.text):
            counts["scratch memory"] += 1
            continue
        for name, pattern in _compiled_kinds(view):
            match = pattern.match(instruction.text if view == "asm" else instruction.opcode)
            if match:
                width = _width(match[1] if pattern.groups else None, name, view)
                counts[f"{name} {width}" if width else name] += 1
                break
        else:
            counts["other"] += 1
    return dict(sorted(counts.items(), key=lambda item: (item[0] == "other", -item[1])))


def _width(found: str | None, name: str, view: View) -> str:
    if "load" not in name and "store" not in name:
        return ""
    if view == "asm":
        return ""
    if view == "sass":
        return _WIDTHS.get(found or "", "32 bit")
    if view == "ptx":
        return found.removeprefix(".") if found else ("scalar" if "global" in name else "")
    if "global" not in name:
        return ""
    lanes = {"": 32, "2": 64, "3": 96, "4": 128}.get(found or "", 0)
    return f"{lanes or found} bit"
