"""Makes a job's place on its host: a folder for each of its workspaces, an account for each of its roles."""

import fcntl
import os
import select
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ..files import file_trees, job_files
from ..protocol import FileRef, JobSpec
from ..sandbox import descriptors
from ..sandbox.mounts import Mounts
from .host_resources import Account, Host, JobRefused
from .owner_control import ControlLink
from .role_process import RoleProcess

UID_WAIT_S = 3600.0
"""How long a job that could start waits for its uids, where too many are in use by jobs that run."""
UID_PAUSES_S = (0.02, 1.0)
"""Between two looks for them, at first and later: each opens as many files as there are uids."""


class JobWorkdir:
    """Workspaces, and accounts from a job's start on, made and removed by one supervisor.

    Each folder is locked by this process and by the keepers, so that a folder that can be locked is one that nobody
    lives in: the kernel hands the lock on with every fork, which no look at /proc is sure to see.

    Attributes:
        workdirs: Folder by name of the workspace.
        locks: Descriptors that hold the accounts and the folders; for the keepers to hold as well.
    """

    def __init__(self, host: Host, accounts: Mapping[str, str]) -> None:
        """Choose the folders.

        Args:
            host: Where.
            accounts: The account of each workspace: those with the same one share a uid.
        """
        self._host, self._names = host, dict(accounts)
        self._accounts: Dict[str, Account] = {}
        """None as long as the job waits in line: it takes none from those that run."""
        self.locks: List[int] = []
        self.workdirs: Dict[str, str] = {name: host.folders.new_workdir() for name in sorted(accounts)}

    def uid_of(self, workspace: str) -> Optional[int]:
        """Return the uid that owns a workspace, where hostd is root and there is one by now."""
        account = self._accounts.get(self._names[workspace])
        return account.uid if account is not None else None

    def vacate(self) -> None:
        """Note that nothing runs any more as the uids of this place."""
        for account in self._accounts.values():
            account.vacate()

    def make(self) -> None:
        """Make the folders, empty."""
        for workdir in self.workdirs.values():
            os.mkdir(workdir, 0o700)
            self.locks.append(os.open(workdir, file_trees.FLAGS))
            fcntl.flock(self.locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)

    def assign_uids(self, laid: Mapping[str, job_files.Stamps]) -> Optional[Dict[str, job_files.Stamps]]:
        """Take the accounts and give them the folders; return how the files that lie there look then.

        Returns:
            None when too few uids of this host are free.
        """
        if self._accounts:
            return dict(laid)
        names = sorted(set(self._names.values()))
        self._accounts = dict(zip(names, self._host.accounts(len(names))))
        if not self._accounts:
            return None
        self.locks += [account.lock for account in self._accounts.values()]
        given: Dict[str, job_files.Stamps] = {}
        for name, at in self.workdirs.items():
            uid, before = self.uid_of(name), laid.get(name, {})
            given[name] = before if uid is None else _given(at, before, uid)
        return given

    def wait_for_uids(
        self,
        laid: Mapping[str, job_files.Stamps],
        stop: Callable[[], bool],
        wakers: Callable[[], Sequence[int]],
        said: Callable[[str], None],
    ) -> Dict[str, job_files.Stamps]:
        """Do the same, and wait where all are in use, unless `stop()` says so; `wakers` tell when to ask it.

        Raises:
            JobRefused: If none was to be had in time.
        """
        found, pause_s = self.assign_uids(laid), UID_PAUSES_S[0]
        deadline = time.monotonic() + UID_WAIT_S
        wanted = len(set(self._names.values()))
        why = "%d uids wanted, fewer of the %d for jobs of this host are free" % (wanted, len(self._host.job_uids) - 1)
        if found is None:
            said("waiting: " + why)
        while found is None:
            if stop() or time.monotonic() > deadline:
                raise JobRefused("refused", why + "; job_uids in /etc/gpu-mcp-server/pool.json gives more")
            # The wait is on descriptors, so that a cancel ends it at once and not after the pause.
            select.select(wakers(), [], [], pause_s)
            pause_s = min(2 * pause_s, UID_PAUSES_S[1])
            found = self.assign_uids(laid)
        return found

    def rename(self, name: str) -> None:
        """Give the one workspace another name."""
        (workdir,) = self.workdirs.values()
        (account,) = self._names.values()
        self.workdirs, self._names = {name: workdir}, {name: account}

    def materialize(self, wanted: Mapping[str, Sequence[FileRef]]) -> Dict[str, job_files.Stamps]:
        """Lay files, before any process of the job runs; return how they look, by workspace."""
        found: Dict[str, job_files.Stamps] = {}
        host = self._host
        for name, workdir in self.workdirs.items():
            uid, refs = self.uid_of(name), wanted.get(name, ())
            copy = host.copies.take(workdir, refs, uid)
            # Files that an earlier job left unchanged are reused, so only the others are copied.
            fresh = [ref for ref in refs if ref.path not in copy.stamps]
            found[name] = {**copy.stamps, **job_files.materialize_files(workdir, fresh, host.blobs, uid, copy.folders)}
        return found

    def keep(self, wanted: Mapping[str, Sequence[FileRef]], stamps: Mapping[str, job_files.Stamps]) -> None:
        """Set the files aside that are as they were laid, for a job that wants them again; all of this one is dead.

        Where jobs have no namespaces nobody can be sure of the last.
        """
        if self._host.level not in ("full", "namespaces"):
            return
        for name, workdir in self.workdirs.items():
            self._host.copies.keep(workdir, wanted.get(name, ()), stamps.get(name, {}))

    def reach(self, mounts: Mounts) -> Dict[str, str]:
        """Return the paths under which the job's uid reaches the folders.

        Raises:
            JobRefused: If there is no way.
        """
        try:
            return {name: mounts.make_reachable(at, self.uid_of(name)) for name, at in self.workdirs.items()}
        except OSError as error:
            hint = "set state_dir to a folder that others may enter"
            raise JobRefused("refused", "the job's uid cannot reach its folder (%s); %s" % (error, hint)) from error

    def cleanup_record(self, host: Host, groups: Sequence[str]) -> Dict[str, Any]:
        """Return what must be cleared away should this process be killed, to be noted before any of it is made."""
        return {
            "pid": os.getpid(),
            "level": host.level,
            "workdirs": self.paths(),
            "groups": list(groups) if host.hierarchy is not None else [],
        }

    def paths(self) -> List[str]:
        """Return the folders."""
        return list(self.workdirs.values())


class PrewarmedParts:
    """Parts of a job made ahead of it; `prewarm_pool` makes them.

    Attributes:
        place: Identity and workspaces.
        roles: The processes that wait in it.
        group_names: Names of the roles' groups.
        held: What the keepers hold open.
    """

    place: JobWorkdir
    roles: List[RoleProcess]
    group_names: List[str]
    held: descriptors.DescriptorHolder

    def start(self, spec: JobSpec) -> List[ControlLink]:
        """Let the processes that wait become the job's; return the supervisor's ends of the trusted ones' links."""
        raise NotImplementedError

    def preparing(self) -> List[int]:
        """Return what becomes readable when one that still prepares is ready, or ends; none once all are ready."""
        raise NotImplementedError


def _given(folder: str, laid: job_files.Stamps, uid: int) -> job_files.Stamps:
    """Give a folder and what was laid in it to a uid, itself last: until then nobody else gets in."""
    stamps: job_files.Stamps = {}
    for at in sorted({parent for path in laid for parent in _parents(path)}):
        os.chown(os.path.join(folder, at), uid, uid)
    for path in laid:
        whole = os.path.join(folder, path)
        os.chown(whole, uid, uid)
        info = os.stat(whole)
        # chown changes the ctime, so stamps are taken after it; a later write changes it again.
        stamps[path] = (info.st_ino, info.st_ctime_ns)
    os.chown(folder, uid, uid)
    return stamps


def _parents(path: str) -> List[str]:
    parts = job_files.checked_path(path)
    return ["/".join(parts[:level]) for level in range(1, len(parts))]
