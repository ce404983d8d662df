"""Holds the resources that hostd lends to every job: level, groups, uids, locks, GPUs, folders."""

import fcntl
import os
import select
import shutil
import signal
import sys
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..files.job_files import BlobStore
from ..files.read_only_trees import ReadOnlyTrees
from ..files.workspace_cache import WorkspaceCache
from ..gpus import amd, host_gpus, nvml
from ..gpus.gpu_locks import GpuLocks
from ..gpus.lock_folder import find_folder
from ..gpus.login_policy import JOB_UIDS, job_uids
from ..protocol import BOXED, LEVELS, JobSpec, Limits
from ..sandbox import apptainer, cgroup, descriptors, landlock
from ..sandbox.confinement import SYSTEM_FOLDERS, Sandbox, SandboxSpec
from ..sandbox.mounts import RUN, can_access
from ..sandbox.processes import ask_to_end, descendants, uids_of_processes
from . import orphan_cleanup
from .job_store import JobStore

RANKS = ("batch", "ranks")
"""Purposes of jobs whose processes may be on several hosts; the settings let them use the network."""
FEWER_UIDS = "GPU_MCP_HOSTD_UIDS"
"""Environment variable with a smaller number of uids for jobs; for tests."""

PROBE_S = 5.0
WEAKEN = "GPU_MCP_HOSTD_LEVEL"
"""Environment variable that makes hostd behave as on a host that gives no more than this level; for tests."""

LOCKS = "GPU_MCP_HOSTD_LOCKS"
"""Environment variable with the folder of the GPUs' locks; for tests."""


class JobRefused(Exception):
    """A job cannot be run here as it asks."""

    def __init__(self, status: str, note: str) -> None:
        super().__init__(note)
        self.status = status


class Account(NamedTuple):
    """Account of the processes of one role: a uid of its own when hostd is root, locked by its users' processes."""

    uid: Optional[int]
    lock: int

    def vacate(self) -> None:
        """Note that nothing runs as this uid any more; who finds no such note looks for processes that do."""
        if self.uid is not None:
            os.ftruncate(self.lock, 0)


LIMITED_BY_GROUP = {"memory": "memory", "pids": "processes"}
"""Name of the limit that each feature of a control group sets."""


class Host:
    """The host as jobs see it."""

    def __init__(self, state: str, lock_folder: Optional[str] = None) -> None:
        self.state = state
        os.makedirs(state, mode=0o711, exist_ok=True)
        if os.geteuid() == 0:
            os.chmod(state, 0o711)
        self.folders = JobStore(state)
        self.blobs = BlobStore(os.path.join(state, "blobs"))
        self.copies = WorkspaceCache(os.path.join(state, "copies"))
        self.trees = ReadOnlyTrees(os.path.join(state, "trees"), self.blobs)
        self.locks = GpuLocks(lock_folder or os.environ.get(LOCKS) or find_folder())
        self.gpus = host_gpus.HostGpus()
        self.amd = amd.AmdSmi()
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.job_uids = job_uids()
        self.python = _own_python()
        weakest = os.environ.get(WEAKEN, "full")
        self._most = LEVELS.index(weakest) if weakest in LEVELS else len(LEVELS)
        found = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
        self.bwrap = found if found and self._allows("namespaces") else ""
        self.apptainer: Optional[apptainer.Apptainer] = None
        self.hierarchy = cgroup.own_hierarchy() if self._allows("full") else None
        self.limits_by_cgroup: FrozenSet[str] = frozenset(self.hierarchy.features) if self.hierarchy else frozenset()
        self.level, self.weaker_because, self.hint = self._probe_level()
        self.signals_scoped = are_signals_scoped(self.level)
        """Whether no job can stop, and so deceive, the clock of its judge."""
        if not self.signals_scoped:
            self.weaker_because += "; jobs of this account can stop each other, so nothing is timed here"

    def _allows(self, level: str) -> bool:
        return LEVELS.index(level) <= self._most

    def _find_apptainer(self) -> Optional[apptainer.Apptainer]:
        """Return this host's Apptainer, where it can be used."""
        program = apptainer.find(os.environ.get("PATH")) if self._allows("apptainer") else ""
        if not program or os.geteuid() == 0 or not self.python.startswith("/usr/"):
            return None
        return apptainer.Apptainer(program, self.state, self.python, SYSTEM_FOLDERS)

    def sandbox(self) -> Sandbox:
        """Return what starts processes at this host's level."""
        return Sandbox(self.level, self.bwrap, self.apptainer)

    def _probe_level(self) -> Tuple[str, str, str]:
        """Try the strongest sandbox with the very command line that jobs get, and fall back by what fails."""
        why, hint = self._try_bubblewrap()
        if not why:
            missing = {"memory", "pids"} - self.limits_by_cgroup
            if not missing:
                return "full", "", ""
            why = cgroup.why_not()
            of = " and ".join(LIMITED_BY_GROUP[each] for each in sorted(missing))
            note = "the kernel does not enforce a job's limits on %s: %s" % (of, cgroup.short_reason(why))
            return "namespaces", note, cgroup.fix_hint(why)
        self.apptainer = self._find_apptainer()
        if self.apptainer is not None:
            said = self._try(Sandbox("apptainer", self.bwrap, self.apptainer))
            if not said:
                lacking = "" if landlock.abi() > 0 else ", and the kernel has no Landlock to close their /dev"
                return "apptainer", "Apptainer makes the sandboxes%s: %s" % (lacking, why), hint
            why = "%s; Apptainer does not start: %s" % (why, said[:200])
        if landlock.abi() > 0 and self._allows("landlock"):
            return "landlock", why, hint
        return "unconfined", why + "; the kernel has no Landlock", hint

    def _try_bubblewrap(self) -> Tuple[str, str]:
        if not self.bwrap:
            return "bubblewrap is not installed", "apt-get install bubblewrap (or dnf install bubblewrap)."
        said = self._try(Sandbox("namespaces", self.bwrap))
        return _why_bwrap_failed(said) if said else ("", "")

    def _try(self, box: Sandbox) -> str:
        """Run `true` in a sandbox; return what was said instead, or nothing."""
        workdir = self.folders.new_workdir()
        nest = self.folders.create_prewarmed({"level": box.level, "workdirs": [workdir]})
        os.mkdir(workdir, 0o700)
        read, write = os.pipe2(os.O_CLOEXEC)
        uid = self.job_uids[-1] if os.geteuid() == 0 else None
        try:
            if uid is not None:
                os.chown(workdir, uid, uid)
            conf = SandboxSpec(
                workdir=self._probe_place(workdir, uid),
                uid=uid,
                pids_by_cgroup=uid is None,
                mark=os.path.basename(workdir),
            )
            pid = box.spawn(["true"], {}, conf, (self.null, write, write))
            os.close(write)
            said = _read_for(read, PROBE_S)
            if said is None:
                ask_to_end([pid])
                orphan_cleanup.kill_leftovers(nest.read_notes())
            status = os.waitpid(pid, 0)[1]
        finally:
            os.close(read)
            os.rmdir(workdir)
            self.folders.drop_prewarmed(nest)
        if status == 0:
            return ""
        return "it hangs" if said is None else said.decode("utf-8", "replace").strip() or "no message"

    def _probe_place(self, workdir: str, uid: Optional[int]) -> str:
        """Return a workspace for the probe: what is tried is the sandbox, not the way to the state folder."""
        return workdir if uid is None or can_access(workdir, uid, 0o5) else "/tmp"

    def require(self, spec: JobSpec) -> None:
        """Check that the job may run here.

        Raises:
            JobRefused: If the level is below what the job demands, or the job asks for what it must not have.
        """
        if spec.min_level not in LEVELS:
            raise JobRefused("refused", "unknown sandbox level %r" % spec.min_level)
        if LEVELS.index(self.level) < LEVELS.index(spec.min_level):
            raise JobRefused(
                "refused",
                "sandbox level %s is wanted, this host gives %s: %s. %s Or accept less: set the server's min_level, "
                "GPU_MCP_MIN_LEVEL, to %s." % (spec.min_level, self.level, self.weaker_because, self.hint, self.level),
            )
        if spec.network and spec.purpose not in RANKS and (spec.purpose != "fetch" or spec.gpus.count):
            raise JobRefused(
                "refused", "only a fetch job without a GPU, or ranks on several hosts, may use the network"
            )
        if not spec.processes:
            raise JobRefused("refused", "the job has no process")

    def accounts(self, count: int) -> List[Account]:
        """Take so many accounts that nothing else runs as, all or none; their locks end with who holds them.

        Returns:
            Nothing when too few are free.

        Raises:
            JobRefused: If hostd is root and can keep no locks on uids.
        """
        if os.geteuid() != 0:
            return [Account(None, os.dup(self.null)) for _ in range(count)]
        found: List[Account] = []
        for fd, uid in self._unlocked_uids():
            if os.fstat(fd).st_size and uid in uids_of_processes():
                os.close(fd)  # supervisor and keepers were killed, and something of theirs still dies
                continue
            found.append(Account(uid, fd))
            if len(found) == count:
                for account in found:
                    os.pwrite(account.lock, b"in use", 0)
                return found
        for account in found:
            os.close(account.lock)
        return []

    def _unlocked_uids(self) -> Iterator[Tuple[int, int]]:
        """Lock one uid after the other, and yield the lock and the uid."""
        folder = self._uids_folder()
        uids = self.job_uids[: min(len(self.job_uids) - 1, int(os.environ.get(FEWER_UIDS, len(self.job_uids))))]
        for number in range(len(uids)):
            # Supervisors begin at different uids, so that they seldom try each other's.
            uid = uids[(number + os.getpid()) % len(uids)]
            # The first uid's file is called 0, as it was when the range was fixed: old versions keep off, too.
            name = "%d" % (uid - JOB_UIDS[0])
            fd = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                continue
            yield fd, uid

    def free_uids(self) -> Optional[Tuple[int, int]]:
        """Return how many uids for jobs are free, and how many there are; None where jobs have hostd's own."""
        if os.geteuid() != 0:
            return None
        free, taken = 0, uids_of_processes()  # once for all: 256 looks at every process took a second
        for fd, uid in self._unlocked_uids():
            free += uid not in taken
            os.close(fd)
        return free, len(self.job_uids) - 1

    def _uids_folder(self) -> str:
        """Return where uids are locked: one place for every hostd of this host, whatever its state folder."""
        for base in (RUN, self.state):
            folder = os.path.join(base, "uids")
            try:
                os.makedirs(folder, mode=0o711, exist_ok=True)
                return folder
            except OSError:
                continue
        raise JobRefused("broken", "no folder for locks on uids can be made in %s" % self.state)

    def group(self, name: str) -> Optional[cgroup.Cgroup]:
        """Make a cgroup, where this host can."""
        return self.hierarchy.group(name) if self.hierarchy is not None else None

    def limit(self, group: cgroup.Cgroup, limits: Limits) -> None:
        """Set a job's limits on its cgroup, those that this host has."""
        group.limit(memory_bytes=limits.memory_bytes, processes=limits.processes, cpus=limits.cpus)

    def groups(self, devices: Sequence[str]) -> List[int]:
        """Return the supplementary groups that a job needs to open its devices."""
        return nvml.device_groups(list(devices))

    def gpu_view(self, leased: List[Dict[str, Any]]) -> Tuple[List[str], Dict[str, str]]:
        """Return device nodes and environment for leased GPUs, which are all that a sandbox with namespaces shows."""
        return host_gpus.device_nodes(leased), host_gpus.environment_of_lease(leased, hidden=self.level in BOXED)

    def job_pids(self) -> Set[int]:
        """Return the pids of all jobs on this host."""
        found = [f.read_notes().get("pid") for f in self.folders.unfinished_jobs()]
        return set(descendants(*[pid for pid in found if isinstance(pid, int)]))

    def after_fork(self, keep: Set[int]) -> None:
        """Drop in a forked supervisor what belongs to hostd's channel: stdio and every other descriptor."""
        log = os.open(os.path.join(self.state, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(self.null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        descriptors.close_except(keep | {self.null})


def are_signals_scoped(level: str) -> bool:
    """Say whether jobs cannot signal each other: by namespaces, by uids of their own, or by Landlock's scope."""
    return level in BOXED or os.geteuid() == 0 or (level == "landlock" and landlock.abi() >= landlock.SCOPES)


def _read_for(fd: int, seconds: float) -> Optional[bytes]:
    """Read to the end; None when that takes too long."""
    said = b""
    while select.select([fd], [], [], seconds)[0]:
        chunk = os.read(fd, 4096)
        if not chunk:
            return said
        said += chunk
    return None


def _own_python() -> str:
    """Return an interpreter that exists inside every sandbox, or our own."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(path):
            return path
    return sys.executable


def _why_bwrap_failed(said: str) -> Tuple[str, str]:
    if "setting up uid map: Permission denied" in said:
        return (
            "AppArmor forbids user namespaces to bubblewrap",
            "apt-get install apparmor-profiles apparmor-utils; install -m644 "
            "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/; "
            "apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict.",
        )
    off = ("No permissions to create", "Creating new namespace failed", "Operation not permitted", "user namespace")
    if any(words in said for words in off):
        return (
            "user namespaces are switched off on this host (%s)" % said[:120],
            "Ask the administrator to allow them (kernel.unprivileged_userns_clone=1, user.max_user_namespaces>0), or "
            "for Apptainer with its set-uid helper (apptainer-suid).",
        )
    return "bubblewrap does not start: %s" % said[:200], "Run `bwrap --ro-bind / / true` to see why."
