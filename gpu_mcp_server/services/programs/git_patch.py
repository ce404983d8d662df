"""Writes changed files as a patch that `git apply` takes, binary files too.

Source: git's Documentation/diff-format.adoc; for binary files, diff.c and base85.c of git.
"""

import base64
import difflib
import hashlib
import string
import zlib
from collections.abc import Iterator, Mapping

LENGTHS = string.ascii_uppercase + string.ascii_lowercase
"""First character of a line of base85, by the number of bytes in it less one."""


def git_patch(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return a patch from files to changed or added ones.

    Args:
        before: Contents by path; a file that is not there is added.
        after: Contents of the changed files.
    """
    return "".join(part for path, new in sorted(after.items()) for part in _file_patch(path, before.get(path), new))


def _file_patch(path: str, old: bytes | None, new: bytes) -> Iterator[str]:
    if old == new:
        return
    yield f"diff --git a/{path} b/{path}\n"
    if old is None:
        yield "new file mode 100644\n"
    if b"\0" in new + (old or b"") or not _is_text(new) or not _is_text(old or b""):
        yield f"index {_blob_name(old)}..{_blob_name(new)}\nGIT binary patch\n"
        yield from (*_literal(new), *_literal(old or b""))
        return
    end = "\t" if " " in path else ""  # as git ends a name with spaces
    first = "/dev/null" if old is None else f"a/{path}{end}"
    for line in difflib.unified_diff(_lines(old or b""), _lines(new), first, f"b/{path}{end}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _lines(data: bytes) -> list[str]:
    """Return lines with their ends; git ends them at line feeds alone."""
    *whole, last = data.decode().split("\n")
    return [f"{line}\n" for line in whole] + ([last] if last else [])


def _blob_name(data: bytes | None) -> str:
    if data is None:
        return "0" * 40
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()


def _literal(data: bytes) -> Iterator[str]:
    yield f"literal {len(data)}\n"
    packed = zlib.compress(data)
    for at in range(0, len(packed), len(LENGTHS)):
        part = packed[at : at + len(LENGTHS)]
        yield f"{LENGTHS[len(part) - 1]}{base64.b85encode(part, pad=True).decode()}\n"
    yield "\n"
