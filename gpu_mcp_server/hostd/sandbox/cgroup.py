"""Control groups: limits on memory, processes and CPU, freezing and killing of all that a job has started.

One interface over version 2 (what hosts have today) and version 1 with a `unified` mount beside it (older hosts,
some virtual machines). All our groups lie below one folder, `gpu-mcp-server`; no process of others is ever moved.

Source: `Documentation/admin-guide/cgroup-v2.rst`, sections "Delegation" and "No Internal Process Constraint";
`Documentation/admin-guide/cgroup-v1/cgroups.rst`; proc(5) for mountinfo.
"""

import errno
import functools
import os
import re
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from .cgroup_ops import Cgroup, CgroupFiles, GroupV1, GroupV2

__all__ = [
    "Cgroup",
    "CgroupFiles",
    "Hierarchy",
    "find_hierarchy",
    "fix_hint",
    "own_hierarchy",
    "short_reason",
    "why_not",
]

PARENT = "gpu-mcp-server"
OWN_LEAF = "_hostd"
"""Where hostd itself sits when it must leave the group that it divides; no job's name starts with `_`."""
BRIEF = 100
CONTROLLERS = ("memory", "pids", "cpu")
BATCH_JOB = ("SLURM_JOB_ID", "PBS_JOBID")
"""Environment variables of a batch job: our groups must stay below its own, or it could not bound nor kill us."""

V1_FILES = {
    "memory": "memory.limit_in_bytes",
    "pids": "pids.max",
    "cpu": "cpu.cfs_quota_us",
    "freezer": "freezer.state",
    "cpuacct": "cpuacct.usage",
}
"""The file that shows that a controller works, by controller."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_RESERVED = re.compile(r"(?:cgroup|memory|pids|cpu|cpuacct|cpuset|io|misc|hugetlb|rdma|freezer|tasks)(?:\.|\Z)")


class Hierarchy:
    """Cgroup hierarchy in which this process may create groups.

    Attributes:
        kind: `v1` or `v2`.
        features: Of `memory`, `pids`, `cpu`, `freeze`, `kill`, those that work here.
        parents: The folder `gpu-mcp-server`, by controller; on v2 the one key is `unified`.
    """

    def __init__(self, kind: str, features: FrozenSet[str], parents: Dict[str, str], files: CgroupFiles) -> None:
        self.kind = kind
        self.features = features
        self.parents = parents
        self._files = files

    @property
    def limits(self) -> bool:
        """Return whether both memory and the number of processes can be limited here."""
        return {"memory", "pids"} <= self.features

    def group(self, name: str) -> Cgroup:
        """Return the group of this name, made if it is not there.

        Raises:
            ValueError: If the name is not a plain one.
            OSError: If the kernel refuses.
        """
        if not _NAME.match(name) or _RESERVED.match(name):
            raise ValueError("not a group's name: %r" % name)
        if self.kind == "v2":
            return GroupV2(name, self._files, self.parents["unified"] + "/" + name, self.features)
        return GroupV1(name, self._files, self.parents, self.features)


class _Mount(NamedTuple):
    """One line of mountinfo."""

    point: str
    root: str
    """The group that the mount shows at its top."""
    kind: str
    options: FrozenSet[str]


def _mounts(text: str) -> List[_Mount]:
    found: List[_Mount] = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 5 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
            continue
        found.append(_Mount(before[4].replace("\\040", " "), before[3], after[0], frozenset(after[2].split(","))))
    return found


def _own_paths(text: str) -> Dict[str, str]:
    """Return our own group by controller; version 2 is under the empty name."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                found[controller] = parts[2]
    return found


def _own_folder(mount: _Mount, path: Optional[str]) -> Optional[str]:
    """Return where our own group is seen below a mount; inside a group of ours, the one that holds them all."""
    # `/..` means a group above the root of our cgroup namespace, to which no path below this mount leads. Source:
    # cgroup_namespaces(7).
    if path is None or "/.." in path:
        return None
    root = mount.root.rstrip("/")
    if root and path != root and not path.startswith(root + "/"):
        return None
    inside = (path[len(root) :] + "/").split("/" + PARENT + "/")[0]
    return (mount.point + inside).rstrip("/")


def _top(mount: _Mount) -> List[str]:
    """Return the top of the tree, which root may divide; inside a batch job it is the scheduler's."""
    return [] if any(name in os.environ for name in BATCH_JOB) else [mount.point]


def _make(files: CgroupFiles, candidates: List[Optional[str]], reasons: List[str]) -> Optional[str]:
    """Make our folder in the first of some groups that lets us."""
    for candidate in candidates:
        if candidate is None:
            continue
        try:
            files.make(candidate + "/" + PARENT)
            if files.writable(candidate + "/" + PARENT + "/cgroup.procs"):
                return candidate + "/" + PARENT
            reasons.append("%s/%s is not ours" % (candidate, PARENT))
        except OSError as error:
            reasons.append("%s: %s" % (candidate, error.strerror))
    return None


def _search_v1(mounts: List[_Mount], own: Dict[str, str], files: CgroupFiles) -> Tuple[Optional[Hierarchy], str]:
    parents: Dict[str, str] = {}
    reasons: List[str] = []
    for controller, file in V1_FILES.items():
        for mount in mounts:
            if mount.kind == "cgroup" and controller in mount.options:
                made = _make(files, [*_top(mount), _own_folder(mount, own.get(controller))], reasons)
                if made is not None and files.exists(made + "/" + file):
                    parents[controller] = made
                break
    for mount in mounts:
        if mount.kind == "cgroup2":
            made = _make(files, [*_top(mount), _own_folder(mount, own.get(""))], reasons)
            if made is not None:
                parents["unified"] = made
            break
    features = {controller for controller in CONTROLLERS if controller in parents}
    if "freezer" in parents:
        features.add("freeze")
    if "unified" in parents and files.exists(parents["unified"] + "/cgroup.kill"):
        features.add("kill")
    if not parents:
        return None, "cgroup v1: no group can be made (%s)" % "; ".join(reasons)
    return Hierarchy("v1", frozenset(features), parents, files), _missing("v1", features, reasons)


def _missing(kind: str, features: "set[str]", reasons: List[str]) -> str:
    lacking = [name for name in ("memory", "pids") if name not in features]
    if not lacking:
        return ""
    return "cgroup %s: no limits on %s (%s)" % (kind, " and ".join(lacking), "; ".join(reasons) or "not available")


def _enabled(files: CgroupFiles, folder: str) -> "set[str]":
    return set(files.read(folder + "/cgroup.subtree_control").split())


def _enable(files: CgroupFiles, folder: str) -> None:
    """Hand the controllers on to the groups below `folder`, in one command so that none is handed on alone."""
    present = set(files.read(folder + "/cgroup.controllers").split())
    wanted = [name for name in CONTROLLERS if name in present - _enabled(files, folder)]
    if wanted:
        files.write(folder + "/cgroup.subtree_control", " ".join("+" + name for name in wanted))


def _divide(files: CgroupFiles, candidate: str) -> None:
    """Hand controllers on from a group, leaving it first if we are alone in it.

    A group that holds processes cannot hand controllers on. Processes of others stay where they are: then it fails.
    """
    try:
        _enable(files, candidate)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        if set(files.read(candidate + "/cgroup.procs").split()) != {str(os.getpid())}:
            raise OSError(errno.EBUSY, "it holds processes that are not ours") from None
        leaf = "%s/%s/%s" % (candidate, PARENT, OWN_LEAF)
        files.make(leaf)
        files.write(leaf + "/cgroup.procs", str(os.getpid()))
        _enable(files, candidate)


def _try_v2(files: CgroupFiles, candidate: str, reasons: List[str]) -> Optional[Hierarchy]:
    ours = _make(files, [candidate], reasons)
    if ours is None:
        return None
    try:
        _divide(files, candidate)
        _enable(files, ours)
    except OSError as error:
        reasons.append("%s: %s" % (candidate, error.strerror))
    try:
        features = {name for name in CONTROLLERS if name in _enabled(files, ours)}
    except OSError:
        return None
    for name in ("freeze", "kill"):
        if files.exists(ours + "/cgroup." + name):
            features.add(name)
    return Hierarchy("v2", frozenset(features), {"unified": ours}, files)


def _candidates_v2(mount: _Mount, own: Dict[str, str], files: CgroupFiles) -> List[str]:
    """Return the groups to try: the top of the tree, then our own and those above it as far as they are ours."""
    found = _top(mount)
    folder = _own_folder(mount, own.get(""))
    # A group that holds processes cannot hand controllers on, and our own holds us at least. A group above it that is
    # ours, too, may hold none.
    while folder is not None and folder.startswith(mount.point + "/") and files.writable(folder + "/cgroup.procs"):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


def _search_v2(mount: _Mount, own: Dict[str, str], files: CgroupFiles) -> Tuple[Optional[Hierarchy], str]:
    reasons: List[str] = []
    weaker: List[Hierarchy] = []
    for candidate in _candidates_v2(mount, own, files):
        hierarchy = _try_v2(files, candidate, reasons)
        if hierarchy is None:
            continue
        if hierarchy.limits:
            return hierarchy, ""
        # Without controllers it still freezes and kills: these need none.
        weaker.append(hierarchy)
    for hierarchy in weaker[1:]:
        try:
            files.remove(hierarchy.parents["unified"])
        except OSError:
            pass  # another server's groups are in it
    if weaker:
        return weaker[0], _missing("v2", set(weaker[0].features), reasons)
    return None, "cgroup v2: no group can be made (%s)" % "; ".join(reasons)


def find_hierarchy(mountinfo: str, own_cgroup: str, files: CgroupFiles) -> Tuple[Optional[Hierarchy], str]:
    """Look for a place to make groups.

    Args:
        mountinfo: The text of /proc/self/mountinfo.
        own_cgroup: The text of /proc/self/cgroup.
        files: How to touch the hierarchy.

    Returns:
        The hierarchy if any group can be made, and what is missing for limits on memory and processes, or "".
    """
    mounts, own = _mounts(mountinfo), _own_paths(own_cgroup)
    # A controller belongs to one hierarchy at a time. So a mount of version 2 beside version 1 has no memory or pids to
    # offer, and the host counts as version 1.
    if any(m.kind == "cgroup" and m.options & {"memory", "pids"} for m in mounts):
        return _search_v1(mounts, own, files)
    for mount in mounts:
        if mount.kind == "cgroup2":
            return _search_v2(mount, own, files)
    return None, "no cgroup file system is mounted"


@functools.lru_cache(maxsize=1)
def _found() -> Tuple[Optional[Hierarchy], str]:
    files = CgroupFiles()
    try:
        return find_hierarchy(files.read("/proc/self/mountinfo"), files.read("/proc/self/cgroup"), files)
    except OSError as error:
        return None, "cgroups: %s" % error


def own_hierarchy() -> Optional[Hierarchy]:
    """Return where this process may make groups, looked up once; check its `limits` before trusting it with any."""
    return _found()[0]


def why_not() -> str:
    """Return what is missing for limits on memory and processes, "" when nothing is."""
    return _found()[1]


def short_reason(why: str) -> str:
    """Return what `why_not` says in a few words: folders that were tried help nobody who may not use them."""
    version = why.partition(":")[0] if why.startswith("cgroup v") else "cgroups"
    if not why:
        return "cgroups are not delegated"
    if "processes that are not ours" in why:
        return "other processes are in the server's group (%s)" % version
    if any(word in why for word in ("is not ours", "Permission denied", "Read-only")):
        return "this account cannot create groups (%s)" % version
    return why if len(why) <= BRIEF else why[: BRIEF - 4] + " ..."


def fix_hint(why: str) -> str:
    """Return what helps against it. Source: sd_booted(3) for the folder that shows that systemd runs."""
    if why.startswith("cgroup v2") and os.path.isdir("/run/systemd/system"):
        return "Start the server in `systemd-run --user --scope -p Delegate=yes`."
    return "Ask the administrator for cgroup v2 with systemd, or start the server as root."
