"""Trees of files as one blob: a project, or what was built of it."""

import io
import tarfile
from collections.abc import Mapping
from typing import NamedTuple

from gpu_mcp_server.errors import LimitExceeded

MAX_TREE_BYTES = 64 << 20
MAX_TREE_FILES = 2000


class ArchiveFile(NamedTuple):
    """A file of a tree."""

    data: bytes
    mode: int = 0o644


Tree = Mapping[str, ArchiveFile]


def pack(tree: Tree) -> bytes:
    """Return a tree as an archive; the same files are the same bytes.

    Raises:
        LimitExceeded: If it has more than 2,000 files or 64 MiB.
    """
    total = sum(len(file.data) for file in tree.values())
    if len(tree) > MAX_TREE_FILES or total > MAX_TREE_BYTES:
        raise LimitExceeded(
            f"The project has {len(tree)} files of {total} bytes; the limit is {MAX_TREE_FILES} files and "
            f"{MAX_TREE_BYTES} bytes.",
            hint="Let the build remove what the run does not need.",
        )
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree):
            about = tarfile.TarInfo(path)
            about.size, about.mode = len(tree[path].data), tree[path].mode
            archive.addfile(about, io.BytesIO(tree[path].data))
    return whole.getvalue()


def unpack(data: bytes) -> dict[str, ArchiveFile]:
    """Return the tree that `pack` made an archive of; nothing is written."""
    tree: dict[str, ArchiveFile] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for about in archive:
            content = archive.extractfile(about) if about.isreg() else None
            if content is not None:
                tree[about.name] = ArchiveFile(content.read(), about.mode)
    return tree
