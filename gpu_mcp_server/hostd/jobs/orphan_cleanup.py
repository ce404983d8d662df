"""Ends and clears away a job whose supervisor was killed: no part of it may live on.

Its keepers end by themselves, when all below them has ended, and hold the lock of the workspace until then. Where they
were killed as well, bubblewrap dies with its parent; but it can be killed before its inner half has asked the kernel
for that. So process 1 of each sandbox is noted, and has a mark in its environment: with it all of its namespace dies.
"""

import os
import time
from typing import Any, Dict, List

from ..files import file_trees
from ..sandbox import cgroup, processes
from ..sandbox.confinement import MARK

WARM = "warm-"
"""How the groups of sandboxes begin that wait for a job; they are entered as soon as they are made."""
STALE_S = 60.0
PATIENCE_S = 5.0
PAUSE_S = 0.002


def remove_workdirs(path: str, private: Dict[str, Any]) -> None:
    """Remove the workspaces of a finished job, and note that nothing is left of it but its folder, `path`."""
    state = os.path.dirname(os.path.dirname(path))
    for workdir in private.get("workdirs", []):
        # The notes may be damaged, so nothing outside the folder of workspaces is removed.
        if os.path.dirname(workdir) == os.path.join(state, "work"):
            file_trees.remove(workdir)
    try:
        os.unlink(os.path.join(state, "open", os.path.basename(path)))
    except OSError:
        pass


def remove_cgroups(private: Dict[str, Any]) -> None:
    """Remove the empty groups of a job whose supervisor was killed after it had written the record."""
    hierarchy = cgroup.own_hierarchy()
    for parent in hierarchy.parents.values() if hierarchy is not None else ():
        for name in private.get("groups", []):
            try:
                os.rmdir(os.path.join(parent, str(name)))
            except OSError:
                continue


def kill_leftovers(private: Dict[str, Any]) -> str:
    """Kill groups, sandboxes and whatever else is known of a job; return what is still there in the end, in words."""
    _kill_groups([str(g) for g in private.get("groups", [])])
    workdirs = [str(w) for w in private.get("workdirs", [])]
    began = time.monotonic()
    while True:
        keepers = [pid for pid, _, _ in processes.still_alive(private.get("keepers", []))]
        inside = [pid for pid, _, _ in processes.still_alive(private.get("sandboxes", []))]
        # The mark also finds sandboxes that were started but not noted yet when the supervisor died.
        inside += [pid for workdir in workdirs for pid in processes.processes_of_workspace(workdir, MARK)]
        waited = time.monotonic() - began
        if not keepers and not inside and not any(file_trees.is_locked(w) for w in workdirs):
            return ""
        if waited > PATIENCE_S:
            return "processes that do not die: %s" % (sorted({*keepers, *inside}) or "not found")
        processes.kill(inside)
        # Asked first: a keeper that is killed lets the locks go while parts of its sandbox may still live.
        if waited < PATIENCE_S / 2:
            processes.ask_to_end(keepers)
        else:
            processes.kill(keepers)
        time.sleep(PAUSE_S)


def _kill_groups(names: List[str]) -> None:
    hierarchy = cgroup.own_hierarchy() if names else None
    for name in names if hierarchy is not None else ():
        assert hierarchy is not None
        try:
            group = hierarchy.group(name)
            group.kill()
            group.wait_empty(PATIENCE_S)
            group.remove()
        except (OSError, ValueError):
            continue


def remove_stale_cgroups() -> None:
    """Remove groups in which a sandbox waited for a job and was killed; those in use cannot be removed."""
    hierarchy = cgroup.own_hierarchy()
    oldest = time.time() - STALE_S
    for parent in hierarchy.parents.values() if hierarchy is not None else ():
        try:
            names = [name for name in os.listdir(parent) if name.startswith(WARM)]
        except OSError:
            continue
        for name in names:
            try:
                if os.stat(os.path.join(parent, name)).st_mtime < oldest:
                    os.rmdir(os.path.join(parent, name))
            except OSError:
                continue
