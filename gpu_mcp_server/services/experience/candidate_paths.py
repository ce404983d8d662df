"""Paths of candidates' files in a git repository: whatever a file was called, its name is harmless on a checkout."""

import hashlib
import re

PLAIN = re.compile(r"\.?[A-Za-z0-9_][A-Za-z0-9._+@,=-]*(?<![. ])", re.ASCII)
MAX_PART = 120
"""Characters of one name; file systems have 255 bytes."""


def harmless(path: str) -> str:
    """Return a path whose names git and file systems take for nothing special; different paths stay different.

    Names beginning with `.git` (and `git~`, its short form on NTFS) are hooks, attributes or submodules to git; those
    with controls, spaces, quotes, backslashes, colons or other letters mean something to somebody. All their bytes but
    letters and digits are written as %XX.

    Source: git's verify_path (read-cache.c) and fsck's checks of trees: CVE-2014-9390, CVE-2018-11235, CVE-2019-1352.
    """
    return "/".join(_part(part) for part in path.split("/"))


def quoted(path: str) -> str:
    """Return a path as `git fast-import` reads it: in double quotes, as in C."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _part(part: str) -> str:
    low = part.lower()
    plain = PLAIN.fullmatch(part) is not None and not low.startswith((".git", "git~"))
    if not plain:
        part = "".join(
            chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02X}"
            for byte in part.encode("utf-8", "replace")
        )
    if len(part) > MAX_PART:
        return part[: MAX_PART - 17] + "%" + hashlib.sha256(part.encode()).hexdigest()[:16]
    return part or "%"
