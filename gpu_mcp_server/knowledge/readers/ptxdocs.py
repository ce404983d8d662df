"""Reader of CCCL's generated pages and headers for PTX: many variants of a call, one entry an instruction."""

import re
import textwrap

from gpu_mcp_server.knowledge.readers.entries import Entry

VARIANTS = 40
_TYPES = re.compile(r"\b(?:[us]?\d+|f\d+|bf\d+(?:x2)?|int\d+_t|uint\d+_t|[.](?:[sub]f?\d+\w*))\b")

_HEADER_BLOCK = re.compile(r"/\*\n(// .*?)\*/", re.DOTALL)


def instruction_entry(text: str, place: str) -> Entry:
    """Return the instruction of a generated page or header; variants that differ in types only are shown once."""
    base, _, form = place.rsplit("/", 1)[-1].rpartition(".")
    if form == "h":
        blocks = _HEADER_BLOCK.findall(text)
        heads = [head for block in blocks for head in re.findall(r"^// ([\w.:]+)[^\n]*;", block, re.MULTILINE)]
    else:
        blocks = re.findall(r"\.\. code(?:-block)?::[^\n]*\n\n(.*?)(?=\n\S|\Z)", text, re.DOTALL)
        heads = re.findall(r"^(\S[^\n]*)\n\^{3,}", text, re.MULTILINE)
    parts = [head.split(".") for head in heads] or [[base]]
    common = 0
    while all(len(part) > common and part[common] == parts[0][common] for part in parts):
        common += 1
    name = ".".join(parts[0][: max(common, 1)])
    wrappers = sorted(set(re.findall(r"__device__ static inline [\w:<>]+\s+(\w+)\(", "\n".join(blocks))))
    shown: dict[str, str] = {}
    for block in blocks:
        code = textwrap.dedent(block).strip()
        shown.setdefault(_TYPES.sub("T", code), code)
    said = f"PTX instruction {name}; C++ wrapper in namespace cuda::ptx. {len(heads)} variants: "
    body = said + "; ".join(heads[:VARIANTS]) + "\n\n" + "\n\n".join(shown.values())
    symbols = tuple(dict.fromkeys([name, base, *wrappers, *heads[:60]]))
    return Entry("instruction", symbols, name, body[:12_000], "", place, 1, text.count("\n") + 1)
