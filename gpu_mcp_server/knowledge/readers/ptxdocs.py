"""Pages that CCCL generates for PTX instructions: many variants of a call, shown as one entry an instruction."""

import re
import textwrap

from gpu_mcp_server.knowledge.readers.entries import Entry

VARIANTS = 40
_TYPES = re.compile(r"\b(?:[us]?\d+|f\d+|bf\d+(?:x2)?|int\d+_t|uint\d+_t|[.](?:[sub]f?\d+\w*))\b")


def instruction_entry(text: str, place: str) -> Entry:
    """Return the instruction that a generated page documents; variants that differ in types only are shown once."""
    base = place.rsplit("/", 1)[-1].removesuffix(".rst")
    heads = re.findall(r"^(\S[^\n]*)\n\^{3,}", text, re.MULTILINE)
    parts = [head.split(".") for head in heads] or [[base]]
    common = 0
    while all(len(part) > common and part[common] == parts[0][common] for part in parts):
        common += 1
    name = ".".join(parts[0][: max(common, 1)])
    wrappers = sorted(set(re.findall(r"static inline [\w:<>]+\s+(\w+)\(", text)))
    shown: dict[str, str] = {}
    for block in re.findall(r"\.\. code(?:-block)?::[^\n]*\n\n(.*?)(?=\n\S|\Z)", text, re.DOTALL):
        code = textwrap.dedent(block).strip()
        shown.setdefault(_TYPES.sub("T", code), code)
    said = f"PTX instruction {name}; C++ wrapper in namespace cuda::ptx. {len(heads)} variants: "
    body = said + "; ".join(heads[:VARIANTS]) + "\n\n" + "\n\n".join(shown.values())
    symbols = tuple(dict.fromkeys([name, base, *wrappers, *heads[:60]]))
    return Entry("instruction", symbols, name, body[:12_000], "", place, 1, text.count("\n") + 1)
