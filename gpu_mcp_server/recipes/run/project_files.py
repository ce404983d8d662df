"""The files of a project that roles write together: which role owns which, and what a role's change makes of them."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.models.recipe import ProjectChange
from gpu_mcp_server.services.workspaces.workspace_store import checked_path

Role = Literal["coder", "builder", "tester"]

TESTS = "tests"
"""Folder of the tester's programs."""
BUILD_FILE = "CMakeLists.txt"
BUILD_SUFFIX = ".cmake"
RESERVED = "build"
"""Folder that CMake makes."""
MAX_FILES, MAX_BYTES = 100, 4 << 20
OWNED: Mapping[Role, str] = {
    "coder": f"all files but those below {TESTS}/ and build files",
    "builder": f"{BUILD_FILE} in every folder, and *{BUILD_SUFFIX}",
    "tester": f"files below {TESTS}/, but no build files",
}


def owner_of_file(path: str) -> Role:
    """Return whose a file is."""
    pure = PurePosixPath(path)
    if pure.name == BUILD_FILE or pure.suffix == BUILD_SUFFIX:
        return "builder"
    return "tester" if pure.parts[0] == TESTS else "coder"


def apply_change(files: Mapping[str, str], change: ProjectChange, role: Role) -> tuple[dict[str, str] | None, str]:
    """Return the files with a role's changes, or why they cannot be made; all of them or none."""
    texts = dict(files)
    for number, each in enumerate(change.changes, 1):
        try:
            path = checked_path(each.path)
        except GpuMcpError as error:
            return None, f"change {number}: {error}"
        if PurePosixPath(path).parts[0] == RESERVED:
            return None, f"change {number}: {path}: CMake makes the folder {RESERVED}/; write no file there"
        if owner_of_file(path) != role:
            return None, f"change {number}: {path} is the {owner_of_file(path)}'s; yours are {OWNED[role]}"
        if not each.old:
            texts[path] = each.new
            continue
        times = texts.get(path, "").count(each.old)
        if times != 1:
            there = f"`old` stands {times} times in {path}, it must stand there once"
            return None, f"change {number}: {there if path in texts else f'there is no file {path}'}"
        texts[path] = texts[path].replace(each.old, each.new)
    size = sum(len(text.encode()) for text in texts.values())
    if len(texts) > MAX_FILES or size > MAX_BYTES:
        limits = f"the limits are {MAX_FILES} files and {MAX_BYTES} bytes"
        return None, f"the project would have {len(texts)} files with {size} bytes; {limits}"
    return texts, ""


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write a project below a folder."""
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def read_files(folder: Path) -> dict[str, str]:
    """Return the text files of a folder; hidden ones and those that are no UTF-8 are left out."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inside.parts) or inside.parts[0] == RESERVED
        if hidden or path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
            continue
        try:
            found[inside.as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if len(found) >= MAX_FILES:
            break
    return found
