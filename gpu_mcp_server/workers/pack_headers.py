"""Packs the headers and manual pages that documentation is read from, as they lie on this host.

Only regular files below the folders that were asked for; what is too large is left out and named.
"""

import glob
import io
import json
import os
import re
import shutil
import sys
import tarfile
from typing import Any, Dict, Iterator, List, Set, Tuple

PACKED, LISTED = "headers.tar.gz", "headers.json"
FILE_BYTES = 16 << 20
TOTAL_BYTES = 192 << 20
MOST_FILES = 12000


def prefixes(program: str) -> List[str]:
    """Return the folders that a program is installed below."""
    found = shutil.which(program)
    paths = [] if found is None else [found, os.path.realpath(found)]
    return list(dict.fromkeys(os.path.dirname(os.path.dirname(p)) for p in paths))


def roots(patterns: List[str], sites: List[str]) -> Iterator[str]:
    """Return the folders that the patterns of a source name here, each once, best first."""
    bases = {"toolkit": "nvcc", "hip": "hipcc", "mpi": "mpicc"}
    seen: Set[str] = set()
    for pattern in patterns:
        named = re.match(r"\{(\w+)\}", pattern)
        starts = [""]
        if named:
            starts = sites if named.group(1) == "site" else prefixes(bases.get(named.group(1), "/"))
        for start in starts:
            found = glob.glob(start + pattern[named.end() if named else 0 :])
            for root in sorted(found, key=lambda p: [int(n) for n in re.findall(r"\d+", p)], reverse=True):
                real = os.path.realpath(root)
                if os.path.isdir(root) and real not in seen:
                    seen.add(real)
                    yield root


def files(root: str, source: Dict[str, Any]) -> List[str]:
    """Return a source's files below a root, relative to it; none if the first pattern has none."""
    found: Dict[str, None] = {}
    for number, pattern in enumerate(source["files"]):
        matches = sorted(p for p in glob.glob(os.path.join(root, pattern), recursive=True) if os.path.isfile(p))
        if not matches and number == 0:
            return []
        found.update(dict.fromkeys(os.path.relpath(p, root) for p in matches))
    version = source.get("version_file") or ""
    if version and not version.startswith("..") and os.path.isfile(os.path.join(root, version)):
        found[version] = None
    return list(found)


def main(arguments: List[str]) -> None:
    """Pack.

    Args:
        arguments: JSON with `sources` (id, roots, files, version_file) and `sites` (folders of Python's packages).
    """
    asked: Dict[str, Any] = json.loads(arguments[0])
    places: List[Dict[str, str]] = []
    left_out: List[str] = []
    total = count = 0
    with tarfile.open(PACKED, "w:gz", compresslevel=6) as archive:
        for source in asked["sources"]:
            for root in roots(source["roots"], asked["sites"]):
                folder = str(len(places))
                taken: List[Tuple[str, bytes]] = []
                for name in files(root, source):
                    path = os.path.join(root, name)
                    size = os.path.getsize(path)
                    if size > FILE_BYTES or total + size > TOTAL_BYTES or count >= MOST_FILES:
                        left_out.append(path)
                        continue
                    with open(path, "rb") as file:
                        taken.append((name, file.read(FILE_BYTES)))
                    total, count = total + len(taken[-1][1]), count + 1
                for name, data in taken:
                    member = tarfile.TarInfo(folder + "/" + name)
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
                if taken:
                    places.append({"source": source["id"], "folder": folder, "root": root})
    with open(LISTED, "w") as file:
        json.dump({"places": places, "left_out": left_out[:20]}, file)
    sys.stdout.write("%d files, %d bytes\n" % (count, total))
