"""Check commands and the files laid beside them, and explain one that could not be started."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_mcp_server.errors import BadRequest, LimitExceeded
from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.models.job import RankOptions

MAX_WALL_S = 7 * 86_400.0
MAX_ARGUMENTS = 1000
MAX_COMMAND_BYTES = 128 << 10
MAX_STDIN_BYTES = 1 << 20
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a program that cannot be started, as shells have them. Source: POSIX, Shell Command Language 2.8.2."""
_NOT_STARTED = re.compile(r"^cannot start (.{1,200}): (.{1,100})$", re.MULTILINE)


def check_command(argv: Sequence[str], env: Mapping[str, str], timeout_s: float, stdin: str) -> None:
    """Check a command against its limits.

    Raises:
        BadRequest, LimitExceeded: Naming the first that it breaks.
    """
    if not argv or not argv[0]:
        raise BadRequest("The command is empty.", hint='Give program and arguments as a list: ["make", "test"].')
    if len(argv) > MAX_ARGUMENTS or sum(len(a.encode()) for a in argv) > MAX_COMMAND_BYTES:
        raise LimitExceeded(
            f"The command is over {MAX_ARGUMENTS} arguments or {MAX_COMMAND_BYTES} bytes.",
            hint="Put it into a script file.",
        )
    if any("\0" in text for text in (*argv, *env, *env.values())):
        raise BadRequest(
            "A NUL byte is in the command or environment.", hint="Pass binary data as a file of the workspace."
        )
    if any(not name or "=" in name or name.startswith("LINK_") for name in env):
        raise BadRequest(
            "An environment variable's name cannot be used.", hint="Names are without '=' and do not begin with LINK_."
        )
    if not 0 < timeout_s <= MAX_WALL_S:
        raise BadRequest(
            f"timeout_s is {timeout_s:g}; it may be up to {MAX_WALL_S:g}.", hint="Long work belongs into several jobs."
        )
    if len(stdin.encode()) > MAX_STDIN_BYTES:
        raise LimitExceeded(f"stdin is over {MAX_STDIN_BYTES} bytes.", hint="Put it into a file of the workspace.")


def check_fetch(gpus: int, ranks: RankOptions | None, *, allowed: bool) -> None:
    """Check that a command may use the network.

    Raises:
        BadRequest: If the settings do not allow it, or it also wants what runs without.
    """
    if not allowed:
        raise BadRequest("Jobs with network access are switched off.", hint="A person can set allow_fetch = true.")
    if gpus or ranks is not None:
        raise BadRequest("A fetch job gets no GPU and no ranks.", hint="Fetch first, then run.")


def job_files(contents: Mapping[str, bytes]) -> tuple[list[FileRef], dict[str, bytes | Path]]:
    """Return files as a job gets them, with their contents by hash."""
    blobs: dict[str, bytes | Path] = {}
    files: list[FileRef] = []
    for path, data in contents.items():
        sha256 = hashlib.sha256(data).hexdigest()
        blobs[sha256] = data
        files.append(FileRef(path, sha256, len(data)))
    return files, blobs


def start_failure(stderr: str, code: int | None) -> tuple[str, int | None]:
    """Return what to say of a program that could not be started, and its exit code, whatever the sandbox made of it."""
    found = _NOT_STARTED.search(stderr) if code in (1, NOT_FOUND) else None
    if found is None:
        return "", code
    if found.group(2).startswith("No such file"):
        name = found.group(1)
        todo = f"one of the workspace is ./{name}, others a person installs on the host (gpu_status lists compilers)"
        if "/" in name:
            todo = "list_files shows what the workspace has"
        if " " in name:
            todo = f"command is a list without a shell: {json.dumps(['sh', '-c', name])}"
        return f"there is no program {name!r} in the sandbox: {todo}", NOT_FOUND
    return f"{found.group(1)!r} cannot be started: {found.group(2)}", NOT_EXECUTABLE
