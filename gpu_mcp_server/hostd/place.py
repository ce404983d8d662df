"""Where a job runs on its host: an identity of its own, and a folder for each of its workspaces."""

import fcntl
import os
import select
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from . import descriptors, files, trees
from .control import ControlLink
from .host import UIDS, Host, HostRefuses, Slot
from .mounts import Mounts
from .protocol import FileRef, JobSpec
from .role import Role

UID_WAIT_S = 3600.0
"""How long a job that could start waits for an identity, where all are in use by jobs that run."""
UID_PAUSES_S = (0.02, 1.0)
"""Between two looks for one, at first and later: each opens as many files as there are identities."""


class Place:
    """Workspaces, and a uid from a job's start on, made and removed by one supervisor.

    Each folder is locked by this process and by the sandboxes, so that a folder that can be locked is one that nobody
    lives in: the kernel hands the lock on with every fork, which no look at /proc is sure to see.

    Attributes:
        slot: The identity; None as long as it has none: those who wait in line take none from those who run.
        workdirs: Folder by name of the workspace.
        locks: Descriptors that hold the uid and the folders; for the sandboxes to hold as well.
    """

    def __init__(self, host: Host, names: Iterable[str]) -> None:
        self._host = host
        self.slot: Optional[Slot] = None
        self.locks: List[int] = []
        self.workdirs: Dict[str, str] = {name: host.folders.new_workdir() for name in sorted(set(names))}

    @property
    def uid(self) -> Optional[int]:
        """Return the uid of its own, where hostd is root and it has one by now."""
        return self.slot.uid if self.slot is not None else None

    def make(self) -> None:
        """Make the folders, empty."""
        for workdir in self.workdirs.values():
            os.mkdir(workdir, 0o700)
            self.locks.append(os.open(workdir, trees.FLAGS))
            fcntl.flock(self.locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)

    def settle(self, laid: Mapping[str, files.Stamps]) -> Optional[Dict[str, files.Stamps]]:
        """Take an identity and give it the folders; return how the files that lie there look then.

        Returns:
            None when all identities of this host are in use.
        """
        if self.slot is not None:
            return dict(laid)
        self.slot = self._host.slot()
        if self.slot is None:
            return None
        self.locks.append(self.slot.lock)
        if self.slot.uid is None:
            return dict(laid)
        return {name: _given(at, laid.get(name, {}), self.slot.uid) for name, at in self.workdirs.items()}

    def settle_in_turn(
        self,
        laid: Mapping[str, files.Stamps],
        stop: Callable[[], bool],
        wakers: Callable[[], Sequence[int]],
        said: Callable[[str], None],
    ) -> Dict[str, files.Stamps]:
        """Do the same, and wait where all are in use, unless `stop()` says so; `wakers` tell when to ask it.

        Raises:
            HostRefuses: If none was to be had in time.
        """
        found, pause_s = self.settle(laid), UID_PAUSES_S[0]
        deadline = time.monotonic() + UID_WAIT_S
        if found is None:
            said("waiting because all %d uids for jobs of this host are in use" % UIDS)
        while found is None:
            if stop() or time.monotonic() > deadline:
                raise HostRefuses("refused", "all %d uids for jobs of this host are in use" % UIDS)
            select.select(wakers(), [], [], pause_s)
            pause_s = min(2 * pause_s, UID_PAUSES_S[1])
            found = self.settle(laid)
        return found

    def rename(self, name: str) -> None:
        """Give the one workspace another name."""
        (workdir,) = self.workdirs.values()
        self.workdirs = {name: workdir}

    def lay(self, wanted: Mapping[str, Sequence[FileRef]]) -> Dict[str, files.Stamps]:
        """Lay files, before any process of the job runs; return how they look, by workspace."""
        found: Dict[str, files.Stamps] = {}
        host, uid = self._host, self.uid
        for name, workdir in self.workdirs.items():
            refs = wanted.get(name, ())
            copy = host.copies.take(workdir, refs, uid)
            fresh = [ref for ref in refs if ref.path not in copy.stamps]
            found[name] = {**copy.stamps, **files.lay(workdir, fresh, host.blobs, uid, copy.folders)}
        return found

    def keep(self, wanted: Mapping[str, Sequence[FileRef]], stamps: Mapping[str, files.Stamps]) -> None:
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
            HostRefuses: If there is no way.
        """
        try:
            return {name: mounts.reach(workdir) for name, workdir in self.workdirs.items()}
        except OSError as error:
            hint = "set state_dir to a folder that others may enter"
            raise HostRefuses("refused", "the job's uid cannot reach its folder (%s); %s" % (error, hint)) from error

    def about(self, host: Host, held: descriptors.Bundle, groups: Sequence[str]) -> Dict[str, Any]:
        """Return what must be cleared away should this process be killed, to be noted before any of it is made."""
        return {
            "pid": os.getpid(),
            "level": host.level,
            "held": held.link(),
            "workdirs": self.paths(),
            "groups": list(groups) if host.hierarchy is not None else [],
        }

    def paths(self) -> List[str]:
        """Return the folders."""
        return list(self.workdirs.values())


class Premade:
    """What was made ahead of a job; `warm` makes it.

    Attributes:
        place: Identity and workspaces.
        roles: The processes that wait in it.
        group_names: Names of the roles' groups.
        held: What the sandboxes hold open.
    """

    place: Place
    roles: List[Role]
    group_names: List[str]
    held: descriptors.Bundle

    def start(self, spec: JobSpec) -> List[ControlLink]:
        """Let the processes that wait become the job's; return the supervisor's ends of the trusted ones' links."""
        raise NotImplementedError


def _given(folder: str, laid: files.Stamps, uid: int) -> files.Stamps:
    """Give a folder and what was laid in it to a uid, itself last: until then nobody else gets in."""
    stamps: files.Stamps = {}
    for at in sorted({parent for path in laid for parent in _parents(path)}):
        os.chown(os.path.join(folder, at), uid, uid)
    for path in laid:
        whole = os.path.join(folder, path)
        os.chown(whole, uid, uid)
        info = os.stat(whole)
        stamps[path] = (info.st_ino, info.st_ctime_ns)
    os.chown(folder, uid, uid)
    return stamps


def _parents(path: str) -> List[str]:
    parts = files.checked_path(path)
    return ["/".join(parts[:level]) for level in range(1, len(parts))]
