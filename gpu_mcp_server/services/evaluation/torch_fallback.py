"""Detect a candidate that went on without its extension, which did not compile: a verdict's first line says so."""

import re
from collections.abc import Iterable

OTHER_KERNELS = re.compile(r"\b(?:triton|ctypes|cupy|numba|cutlass|tilelang|pycuda|torch\.compile)\b")
"""What a Python file may compute with besides torch and its extensions."""
FAILED, BUILT = "did not compile: extension ", "was built: extension "
"""What the candidate's process says of a build (judge/candidate/torch_extensions.py): a word that is not needed for
one that failed before, and that can only take back what would be said otherwise."""


def fallback_of(source: str, failed: bool, notes: Iterable[str]) -> str:
    """Return what a verdict says first of a candidate none of whose extensions was built; empty where one was.

    Args:
        source: The candidate's text.
        failed: Whether extensions were built ahead of it, and none compiled.
        notes: Of the verdict's shapes, among them the candidate's own.
    """
    said = set(notes)
    own = any(note.startswith(FAILED) for note in said)
    if not (failed or own):
        return ""
    if any(note.startswith(BUILT) for note in said):
        return "an extension of it did not compile; it says that it built another one" if failed else ""
    how = "without it" if OTHER_KERNELS.search(source) else "with torch"
    return f"its extension did not compile; it computed {how}"
