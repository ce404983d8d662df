"""Docstrings of installed Python packages, read by importing them in a process of their own."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import cast

from gpu_mcp_server.knowledge.readers.entries import Entry
from gpu_mcp_server.package_files import WORKERS

LIMIT_S = 60.0
"""Of the import: 0.5 s for Triton where it is installed, longer on a busy machine with a cold cache."""
WORKER = WORKERS / "docstrings.py"


class UnreadablePackage(Exception):
    """The package could not be imported; the text says what Python said."""


def package_entries(modules: Sequence[str], python: str = sys.executable) -> list[Entry]:
    """Return an entry for each documented function and class.

    Args:
        modules: `MODULE=PREFIX`, the ways to name the same object from the best down.
        python: Interpreter that has the package.

    Raises:
        UnreadablePackage: If nothing could be imported, or it took longer than the limit.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own program under a known interpreter
            [python, "-I", str(WORKER), *modules],
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        found = cast("list[list[str | int]]", json.loads(done.stdout or b"[]"))
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise UnreadablePackage(f"{modules[0]}: {error}") from error
    if not found:
        raise UnreadablePackage(f"{modules[0]}: {done.stderr.decode('utf-8', 'replace').strip()[-300:] or 'nothing'}")
    return _entries([tuple(each) for each in found])


def _entries(found: Sequence[tuple[str | int, ...]]) -> list[Entry]:
    """Return the objects as entries; those with one docstring, such as tl.sum and tl.tensor.sum, are one."""
    texts: dict[tuple[str, str], tuple[str, list[str], str, str, str, int]] = {}
    for name, kind, signature, text, file, line in found:
        name, text = str(name), str(text)
        key = (name.split(".")[0], text)
        if key in texts:
            texts[key][1].append(name)
        else:
            texts[key] = (str(kind), [name], str(signature), text, str(file), int(line))
    entries: list[Entry] = []
    for kind, names, signature, text, file, line in texts.values():
        short = [name.rsplit(".", 1)[-1] for name in names[:1]]
        place = re.sub(r"^.*/(?:site|dist)-packages/", "", file)
        shown = f"{'class ' if kind == 'type' else ''}{names[0]}{signature if kind == 'function' else ''}"
        entries.append(Entry(kind, tuple(names + short), names[0], plain(text), shown[:1_500], place, line, line))
    return entries


def plain(text: str) -> str:
    """Return a docstring without reStructuredText's roles."""
    text = re.sub(r":\w+(?::\w+)?:`~?([^`<]*?)(?:\s*<[^`]*>)?`", r"\1", text)
    text = re.sub(r"^:param (\w+):", r"Parameter: \1 -", text, flags=re.MULTILINE)
    return re.sub(r"^:(?:type|rtype) .*\n?", "", text, flags=re.MULTILINE).strip()
