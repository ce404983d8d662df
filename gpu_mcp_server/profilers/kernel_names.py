"""Kernel names as people read them."""

import re

LONGEST = 90
MAX_REFERENCES = 18
"""Back-references in a symbol that is still written out: each can double the text, 250 characters grew to 570 MB."""
_MANGLED = re.compile(r"_Z[\w.$]{2,4000}$")
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_|Dp")
_CLONE = re.compile(r"\s*(\[clone \.kd\]|\(\.kd\)|\.kd)$")
_TEMPLATE = re.compile(r"<(?:[^<>()]|\([^()]*\))*>")
_CAST = re.compile(r"\([\w ]{1,40}\)(?=-?\d)")
_PART = re.compile(r"(\d{1,3})(?=[A-Za-z_])")


def demangle_name(name: str) -> str:
    """Return a C++ name in words; of one that would become too long, its parts; as it is when it is none."""
    name = _CLONE.sub("", name.replace("\n", "").strip())
    if not _MANGLED.match(name):
        return name
    if len(_REFERENCE.findall(name)) > MAX_REFERENCES:
        return _parts(name)
    import cxxfilt  # pyright: ignore[reportMissingTypeStubs]  # it has none; its import searches for libstdc++

    try:
        return str(cxxfilt.demangle(name))
    except cxxfilt.Error:
        return _parts(name)


def _parts(name: str) -> str:
    """Return the nested name at a symbol's beginning, without arguments."""
    at, parts = (3 if name.startswith("_ZN") else 2), list[str]()
    while match := _PART.match(name, at):
        end = match.end() + int(match[1])
        part = name[match.end() : end]
        if not part.startswith("_GLOBAL__N"):
            parts.append(part)
        at = end
    return "::".join(p for p in parts if p) or name


def short_name(name: str, limit: int = LONGEST) -> str:
    """Return a name without its parameters and return type, and without template arguments if it is too long."""
    text = demangle_name(name)
    plain = _CAST.sub("", text.replace("(anonymous namespace)::", ""))
    plain = plain.split("(", 1)[0] or text
    if plain.startswith("void "):
        plain = plain[5:]
    for _ in range(8):
        if len(plain) <= limit:
            break
        shorter = _TEMPLATE.sub("", plain)
        if shorter == plain:
            break
        plain = shorter
    plain = plain.strip() or text
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."
