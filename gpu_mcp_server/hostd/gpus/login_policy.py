"""Reads the administrator's policy for logins that share a host's GPUs: `/etc/gpu-mcp-server/pool.json`.

Like `{"speaks_for_others": ["gpu-team"], "weights": {"ada": 2}}`: the users that `gpu-team` names are owners of their
own, and `ada` gets twice the share of another login. Root speaks for others without being named. `"job_uids": [first,
last]` is the range of uids that jobs of a hostd that is root run under; every hostd of the host must use the same.
"""

import json
import os
import pwd
import stat
from typing import Any, Dict, List, Optional, cast

from .fair_share import Policy

JOB_UIDS = range(61000, 61184)
"""Unless the file says otherwise. Source: systemd's UIDS-GIDS.md leaves them unused."""
LEAST_JOB_UIDS = 8
"""A judge's job has three, and some wait ahead of their jobs."""
FILE = "/etc/gpu-mcp-server/pool.json"
ELSEWHERE = "GPU_MCP_HOSTD_POOL"
"""Environment variable with another path; for tests."""
MAX_BYTES = 1 << 20


def policy(path: str = "") -> Policy:
    """Read the file; what others may write, or what cannot be read, counts for nothing."""
    said = _read(path or os.environ.get(ELSEWHERE) or FILE)
    speakers = [_uid(name) for name in _listed(said.get("speaks_for_others"))]
    weights: Dict[int, float] = {}
    for name, weight in _mapping(said.get("weights")).items():
        uid = _uid(name)
        # Unknown names are passed over: one typing error must not void the whole policy.
        if uid is not None and isinstance(weight, (int, float)) and not isinstance(weight, bool):
            weights[uid] = float(weight)
    return Policy((0, *(uid for uid in speakers if uid is not None)), weights)


def job_uids(path: str = "") -> range:
    """Return the uids of jobs, the last of which is for trying the sandbox."""
    said = _listed(_read(path or os.environ.get(ELSEWHERE) or FILE).get("job_uids"))
    whole = [n for n in said if isinstance(n, int) and not isinstance(n, bool)]
    # Zero is refused: a job must never run as root by a typing error.
    if len(whole) == len(said) == 2 and whole[0] > 0 and whole[0] + LEAST_JOB_UIDS <= whole[1] + 1 < 1 << 31:
        return range(whole[0], whole[1] + 1)
    return JOB_UIDS


def _read(path: str) -> Dict[str, Any]:
    try:
        with open(path, "rb") as text:
            # The open file is looked at, not its path, which could be exchanged between two looks.
            about = os.fstat(text.fileno())
            if about.st_uid not in (0, os.geteuid()) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return {}
            said: Any = json.loads(text.read(MAX_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return _mapping(said)


def _mapping(value: Any) -> Dict[str, Any]:
    return cast("Dict[str, Any]", value) if isinstance(value, dict) else {}


def _listed(value: Any) -> List[Any]:
    return cast("List[Any]", value) if isinstance(value, list) else []


def _uid(name: Any) -> Optional[int]:
    try:
        return pwd.getpwnam(name).pw_uid if isinstance(name, str) else None
    except (KeyError, ValueError):
        return None
