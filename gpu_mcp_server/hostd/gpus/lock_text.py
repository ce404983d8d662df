"""The text in a lock's file: who holds it, for people, and what the next holder waits for, should all of it be killed.

It names control groups by their lists of processes, and process 1 of each sandbox. `left` names those who were still
there when the lock was last taken by somebody who found it free. A stranger may have written any of it.
"""

import json
import os
from typing import Any, Callable, Dict, List, Sequence, cast

from ..sandbox.processes import Identity, still_alive

TEXT_BYTES = 16384
MAX_NAMED = 64
"""Groups, and sandboxes, that one text names: more share no GPU."""
GROUPS = "/sys/fs/cgroup/"


def read_text(fd: int) -> Dict[str, Any]:
    """Return what a lock's file says; a stranger may have written it."""
    try:
        # pread leaves the offset alone, which holders that inherited the descriptor share.
        said: Any = json.loads(os.pread(fd, TEXT_BYTES, 0).decode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("Dict[str, Any]", said) if isinstance(said, dict) else {}


def write_text(fd: int, text: Dict[str, Any]) -> None:
    """Put a text in place of the last; a full disk does not matter to the lock."""
    short: Dict[str, Any] = {n: v[-MAX_NAMED:] if isinstance(v, list) else v for n, v in text.items()}
    data = json.dumps(short).encode()
    try:
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))  # to nothing first would have ext4 flush it when it is closed: 3 ms
    except OSError:
        pass


def left_over(text: Dict[str, Any]) -> Dict[str, Any]:
    """Return who was still there when the lock was last taken by somebody who found it free."""
    left: Any = text.get("left")
    return cast("Dict[str, Any]", left) if isinstance(left, dict) else {}


def _groups_in(text: Dict[str, Any]) -> List[str]:
    """Return the groups that a text names, each by its list of processes, as far as there are some."""
    found: List[str] = []
    for path in as_list(text.get("groups"))[:MAX_NAMED]:
        if not isinstance(path, str) or "/../" in path:
            continue
        # The text may be a stranger's: without this check it could have root open any path.
        if not (path.startswith(GROUPS) and path.endswith("/cgroup.procs")):
            continue
        try:
            with open(path, "rb") as pids:
                # One byte suffices: a group with any process in it is not empty.
                if pids.read(1):
                    found.append(path)
        except OSError:
            continue
    return found


def _sandboxes_in(text: Dict[str, Any]) -> List[Identity]:
    """Return process 1 of each sandbox that a text names, as far as it lives and this process can see it."""
    return still_alive(as_list(text.get("sandboxes"))[:MAX_NAMED])


STILL_THERE: Dict[str, Callable[[Dict[str, Any]], Sequence[Any]]] = {"groups": _groups_in, "sandboxes": _sandboxes_in}
"""What a text names of a holder's processes, and which of it is not empty yet."""


def as_list(value: Any) -> List[Any]:
    """Return a value that is a list, and an empty one in place of any other."""
    return cast("List[Any]", value) if isinstance(value, list) else []
